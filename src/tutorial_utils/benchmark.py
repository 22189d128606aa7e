"""Measure what the notebooks quote, and write it with every sample into one JSON file.

    python -m tutorial_utils.benchmark --out h200.json [--only NAME ...] [--root MNIST_ROOT] [--quick]
    python -m tutorial_utils.benchmark --part fork --out cpu16.json [--only NAME ...] [--quick]
    python -m tutorial_utils.benchmark --part ways --out ways_h200.json [--only NAME ...] [--quick]

The file is rewritten after each measurement. The same command again continues where it stopped and retries what failed.
Without a GPU the first measures what means something there, the eager step and epochs, and lists what it left out.
``reference/h200.json`` is the unedited output from an H200, where the whole run takes about five minutes.
``--part fork`` times the LSTM ensembles on the CPU, forked and not, in one process per thread setting (cpu16.json);
``--part ways`` the same ensemble without TorchScript, on the CPU and on a GPU (ways_h200.json).
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from tutorial_utils import batches, environment, load_mnist
from tutorial_utils.models import MnistNet
from tutorial_utils.reference import SCHEMA_VERSION, SchemaError, measured, read, validate, write
from tutorial_utils.sweep import SweepPlan, sweep_plan
from tutorial_utils.timeline import Span, profile
from tutorial_utils.timing import in_new_process, on_side_stream
from tutorial_utils.ways import WaysPlan, ways_plan

# As in the LibTorch MNIST example, but for the seed.
SEED, BATCH, TEST_BATCH, WARM_UP, LOSS_EVERY, LEARNING_RATE, MOMENTUM = 1, 64, 1000, 7, 10, 0.01, 0.5
COMPILE: dict[str, Any] = {}  # further arguments of the torch.compile in "compile_and_capture"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
ON_CPU_TOO = ("step_eager", "step_eager_fused", "epochs_eager")
Entry = dict[str, Any]
load = cache(partial(load_mnist, device=DEVICE))


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    samples: int = 15  # timed sequences per measurement
    steps: int = 200  # training steps per sequence
    profiled: int = 20  # steps under the profiler
    batch_sizes: tuple[int, ...] = (16, 64, 256, 1024, 4096, 8192, 16384)
    data: str = "full"
    epochs: int = 10
    runs: int = 3  # of all epochs
    eager_runs: int = 2
    captures: int = 5
    processes: int = 2  # new ones, for what only the first calls in a process show


QUICK = Plan(3, 5, 3, batch_sizes=(16, 64), data="mini", epochs=1, runs=2, captures=2, processes=1)
FULL = Plan() if ON_GPU else Plan(samples=10, steps=20, epochs=3, eager_runs=1)  # under two minutes


AnyPlan = Plan | SweepPlan | WaysPlan


class Trainer:
    """The training step of the LibTorch MNIST example in one form, with static buffers for a batch.

    Forms: "eager"; "graph" (the whole step captured: forward, loss, backward, optimizer); "reduce_overhead"
    (``torch.compile(model, mode="reduce-overhead")``, the rest eager); "compile_and_capture" (``torch.compile`` of
    forward and loss and of the optimizer's step, then the whole step captured). ``fused`` takes SGD's fused
    implementation, not compiled, instead of the default.
    """

    def __init__(self, form: str, batch: int = BATCH, *, fused: bool = False, prepared: bool = True) -> None:
        self.form, self.fused, self.graph = form, fused, None
        if form in ("reduce_overhead", "compile_and_capture"):
            torch.compiler.reset()  # otherwise the code and the graphs of an earlier one stay, and are looked at first
        torch.manual_seed(SEED)
        self.model = MnistNet().to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE, MOMENTUM, fused=fused or None)
        data = load("mini")
        rows = torch.arange(batch, device=DEVICE) % len(data.train_labels)  # real images; batch 16,384 has them twice
        self.images, self.labels = data.train_images[rows], data.train_labels[rows]
        network = torch.compile(self.model, mode="reduce-overhead") if form == "reduce_overhead" else self.model

        def forward_and_loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.nll_loss(network(images), labels)

        compiled = form == "compile_and_capture"
        self.forward_and_loss = torch.compile(forward_and_loss, **COMPILE) if compiled else forward_and_loss
        self.optimizer_step = torch.compile(self.optimizer.step) if compiled and not fused else self.optimizer.step
        if prepared:
            self.prepare()

    def train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.forward_and_loss(images, labels)
        loss.backward()
        self.optimizer_step()
        return loss.detach()

    def warm_up(self) -> None:
        for _ in range(WARM_UP):
            self.train_step(self.images, self.labels)
        self.optimizer.zero_grad()  # so that a capture allocates the gradients in the graph's pool

    def prepare(self) -> None:
        """Warm up, capture where the form has a graph, and undo the training that the warm-up did."""
        if self.form in ("graph", "compile_and_capture"):
            on_side_stream(self.warm_up)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.train_step(self.images, self.labels)
        else:
            self.warm_up()
        self.restart(SEED)

    def restart(self, seed: int) -> None:
        """Start training anew, in place as a graph needs it: a seed's parameters and generators, no momentum."""
        torch.manual_seed(seed)
        self.model.load_state_dict(MnistNet().state_dict())
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()

    def step(self) -> None:
        """Train on what the static buffers hold."""
        self.graph.replay() if self.graph else self.train_step(self.images, self.labels)

    def step_on(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on a batch, which a graph gets through the static buffers. The next step may overwrite the loss."""
        if not self.graph:
            return self.train_step(images, labels)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss

    def settings(self, **more: Any) -> Entry:
        default = f"PyTorch's default, {'foreach' if ON_GPU else 'one tensor at a time'}"
        sgd = "fused" if self.fused else "compiled" if self.form == "compile_and_capture" else default
        matmul = torch.get_float32_matmul_precision()
        return {"form": self.form, "batch": len(self.labels), "sgd": sgd, "matmul_precision": matmul, **more}


def evaluator(model: MnistNet) -> Callable[[Tensor, Tensor], float]:
    """A function that gives the model's test accuracy, in batches of 1,000; on a GPU by replay of one graph."""
    data = load("mini")
    static_images, static_labels = data.test_images[:TEST_BATCH].clone(), data.test_labels[:TEST_BATCH].clone()
    correct = torch.zeros((), dtype=torch.int64, device=DEVICE)

    @torch.no_grad()
    def evaluate() -> None:
        model.eval()
        correct.add_((model(static_images).argmax(dim=1) == static_labels).sum())
        model.train()

    if ON_GPU:
        on_side_stream(evaluate)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            evaluate()

    def accuracy(images: Tensor, labels: Tensor) -> float:
        correct.zero_()
        test = batches(images, labels, TEST_BATCH)
        for batch_images, batch_labels in test:
            static_images.copy_(batch_images)
            static_labels.copy_(batch_labels)
            graph.replay() if ON_GPU else evaluate()
        return correct.item() / (len(test) * TEST_BATCH)

    return accuracy


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Host seconds until ``work()`` returns, and until everything that it started is done."""
    synchronize()
    start = time.perf_counter()
    work()
    returned = time.perf_counter() - start
    synchronize()
    return returned, time.perf_counter() - start


def time_sequence(step: Callable[[], Any], steps: int) -> float:
    """µs per step of an uninterrupted sequence: between two CUDA events around it, or by the host's clock."""
    if not ON_GPU:
        return seconds(lambda: [step() for _ in range(steps)])[1] * 1e6 / steps
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / steps


def cost_of(work: Callable[[], Any]) -> Entry:
    """Its ms, and what it adds in MiB to this process's allocator and to all that the driver has given out."""

    def memory() -> Entry:
        free, total = torch.cuda.mem_get_info()
        allocator = {"reserved_mib": torch.cuda.memory_reserved(), "allocated_mib": torch.cuda.memory_allocated()}
        return {"driver_mib": total - free, **allocator}

    before, (_, took), after = memory(), seconds(work), memory()
    return {"ms": round(took * 1e3, 4), **{key: round((after[key] - before[key]) / 2**20, 4) for key in after}}


def step(plan: Plan, form: str, fused: bool = False, copies: bool = False) -> Entry:
    """µs of one training step, its batch on the device, nothing read back in between; and of the host's calls alone."""
    trainer = Trainer(form, fused=fused)
    work = partial(trainer.step_on, trainer.images.clone(), trainer.labels.clone()) if copies else trainer.step
    samples = [time_sequence(work, plan.steps) for _ in range(plan.samples + 1)][1:]  # the first one warms up
    launches = [seconds(work)[0] * 1e6 for _ in range(plan.steps)]
    settings = trainer.settings(steps_per_sample=plan.steps, copies=copies, timer="events" if ON_GPU else "host clock")
    return measured("µs", samples, settings, host_calls=measured("µs", launches, {"device": "idle before each step"}))


def with_tf32(plan: Plan, work: Callable[[Plan], Entry]) -> Entry:
    """Do `work` with matrix products in TF32, as convolutions are by default; in a new process, since it is global."""
    return in_new_process(_with_tf32, plan, work)


def _with_tf32(plan: Plan, work: Callable[[Plan], Entry]) -> Entry:
    torch.set_float32_matmul_precision("high")
    return work(plan)


def batch_size(plan: Plan, batch: int) -> Entry:
    """Eager over graph: a sequence of each in turn, so that the host's load meets both alike; one ratio per pair."""
    trainers, steps = (Trainer("eager", batch), Trainer("graph", batch)), max(5, plan.steps // 3)
    pairs = [[time_sequence(trainer.step, steps) for trainer in trainers] for _ in range(plan.samples + 1)][1:]
    each = zip(trainers, zip(*pairs, strict=True), strict=True)
    micros = {t.form: measured("µs", times, t.settings(steps_per_sample=steps)) for t, times in each}
    return measured("x", [eager / graph for eager, graph in pairs], {"batch": batch}, **micros)


def epochs(plan: Plan, form: str, fused: bool = False) -> Entry:
    """s of all epochs, each run from new parameters. Capture, compilation and evaluation are timed beside it."""
    data, made = load(plan.data), {}
    _, prepare_s = seconds(lambda: made.update(trainer=Trainer(form, fused=fused)))
    _, evaluator_s = seconds(lambda: made.update(accuracy=evaluator(made["trainer"].model)))
    trainer, train = made["trainer"], batches(data.train_images, data.train_labels, BATCH)
    losses = torch.zeros(plan.epochs, math.ceil(len(train) / LOSS_EVERY), device=DEVICE)
    history, beside = [], {"accuracy": [], "final_loss": [], "evaluation_s": []}

    def run() -> None:
        for epoch in range(plan.epochs):
            for index, (images, labels) in enumerate(train):
                loss = trainer.step_on(images, labels)
                if index % LOSS_EVERY == 0:
                    losses[epoch, index // LOSS_EVERY] = loss  # stays on the device
            history.extend(losses[epoch].tolist())  # the host's one read in this epoch

    samples, seeds = [], list(range(SEED, SEED + (plan.eager_runs if form == "eager" else plan.runs)))
    for seed in seeds:
        trainer.restart(seed)
        samples.append(seconds(run)[1])
        start = time.perf_counter()
        beside["accuracy"].append(made["accuracy"](data.test_images, data.test_labels))
        beside["evaluation_s"].append(time.perf_counter() - start)
        beside["final_loss"].append(history[-1])
    note = f"every {LOSS_EVERY} batches into a buffer on the device, which the host reads once per epoch"
    counts = {"epochs": plan.epochs, "batches_per_epoch": len(train), "seeds": seeds, "loss": note}
    settings = trainer.settings(copies=trainer.graph is not None, data=f"{plan.data} MNIST on the device", **counts)
    return measured("s", samples, settings, **beside, prepare_s=prepare_s, evaluator_s=evaluator_s)


def capture(plan: Plan) -> Entry:
    """ms of capturing and instantiating one step; and MiB that the graph's pool reserves."""
    trainer, parts = Trainer("eager", prepared=False), []
    on_side_stream(trainer.warm_up)
    for _ in range(plan.captures):
        trainer.optimizer.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # so that instantiation can be timed alone

        def record_step(graph: torch.cuda.CUDAGraph = graph) -> None:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                trainer.train_step(trainer.images, trainer.labels)

        calls = {"capture": record_step, "instantiate": graph.instantiate, "first_replay": graph.replay}
        parts.append({name: cost_of(call) for name, call in calls.items()})
        graph.reset()
    settings = trainer.settings(stream="a new one for each capture, so that each has a cuBLAS workspace of its own")
    pool = measured("MiB", [sum(call["reserved_mib"] for call in part.values()) for part in parts], settings)
    times = [part["capture"]["ms"] + part["instantiate"]["ms"] for part in parts]
    return measured("ms", times, settings, pool=pool, captures=parts)


def first_compilation(cache_folder: str) -> float:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache_folder
    os.environ.pop("TRITON_CACHE_DIR", None)  # which a compilation in the parent process has set
    Trainer("eager")  # so that the libraries' handles are not counted
    trainer = Trainer("compile_and_capture", prepared=False)
    return seconds(trainer.warm_up)[1]


def compilation(plan: Plan) -> Entry:
    """s of a new process's seven first compiled training steps: with an empty cache and, beside it, a filled one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        empty, filled = [in_new_process(first_compilation, folder) for _ in range(2)]
    settings = {"batch": BATCH, "compiled": "forward and loss, optimizer"}
    return measured("s", [empty], settings, with_filled_cache_s=filled)


def first_iterations() -> list[Entry]:
    trainer = Trainer("eager", prepared=False)
    state = trainer.optimizer.state
    return [{"call": f"iteration {n}", **cost_of(trainer.step), "momentum_buffers": len(state)} for n in range(1, 6)]


def first_calls() -> list[Entry]:
    square, images = torch.ones(64, 64, device=DEVICE), torch.ones(BATCH, 1, 28, 28, device=DEVICE)
    calls = {"addition": lambda: square + square, "matrix product": lambda: square @ square}
    calls["convolution"] = partial(F.conv2d, images, torch.ones(10, 1, 5, 5, device=DEVICE))
    return [{"call": f"{n} {name}", **cost_of(call)} for name, call in calls.items() for n in ("first", "second")]


def first(plan: Plan, calls: Callable[[], list[Entry]]) -> Entry:
    """ms of the first call in some new processes; what that and the next calls add in memory, created lazily."""
    processes = [in_new_process(calls) for _ in range(plan.processes)]
    return measured("ms", [rows[0]["ms"] for rows in processes], {"batch": BATCH}, processes=processes)


def kernel_spans(plan: Plan, form: str) -> tuple[list[float], list[Span]]:
    trainer = Trainer(form)
    step_us = [time_sequence(trainer.step, plan.steps) for _ in range(plan.samples + 1)][1:]
    spans = profile(trainer.step, steps=plan.profiled, warmup=3).spans
    return step_us, [span for span in spans if span.category in ("kernel", "copy", "memory set")]


def kernels(plan: Plan, form: str) -> Entry:
    """µs of kernels, copies and memory sets in a step, by profiler; their share of a step timed without profiler."""
    step_us, spans = in_new_process(kernel_spans, plan, form)
    count, rest = divmod(len(spans), plan.profiled)
    parts = [spans[start : start + count] for start in range(0, len(spans), count or 1)]
    if rest or not count or any([span.name for span in part] != [span.name for span in parts[0]] for part in parts):
        raise RuntimeError(f"the profiler saw {len(spans)} kernels in {plan.profiled} steps: not the same in each")
    unprofiled = measured("µs", step_us, {"steps_per_sample": plan.steps})
    entry = measured("µs", [sum(span.duration_us for span in part) for part in parts], {"form": form, "batch": BATCH})
    entry |= {"without_profiler": unprofiled, "share_of_step": round(entry["median"] / unprofiled["median"], 4)}
    last = [{"name": span.name, "category": span.category, "start_us": round(span.start_us - parts[-1][0].start_us, 3),
             "duration_us": round(span.duration_us, 3)} for span in parts[-1]]  # fmt: skip
    return entry | {"kernels_per_step": count, "kernels": last}


def measurements(plan: AnyPlan) -> dict[str, Callable[[Any], Entry]]:
    """Every measurement by its name, in the order in which they run."""
    if not isinstance(plan, Plan):
        return plan.measurements()
    forms, compiled = ("eager", "graph", "compile_and_capture"), "compile_and_capture"
    steps = {f"step_{form}": partial(step, form=form) for form in ("eager", "graph", "reduce_overhead", compiled)}
    steps |= {f"step_{form}_fused": partial(step, form=form, fused=True) for form in forms}
    steps |= {f"step_{form}_copies": partial(step, form=form, copies=True) for form in forms[1:]}
    return {
        **steps,
        **{f"epochs_{form}": partial(epochs, form=form) for form in forms},
        f"step_{compiled}_tf32": partial(with_tf32, work=partial(step, form=compiled)),
        f"epochs_{compiled}_tf32": partial(with_tf32, work=partial(epochs, form=compiled)),
        "capture": capture,
        **{f"kernels_{form}": partial(kernels, form=form) for form in forms},
        **{f"batch_{size}": partial(batch_size, batch=size) for size in plan.batch_sizes},
        "first_iterations": partial(first, calls=first_iterations),
        "first_calls": partial(first, calls=first_calls),
        "compilation": compilation,
    }


def plan_of(data: Entry) -> AnyPlan:
    """The plan with which a file was measured."""
    settings = data["settings"]
    kinds = {"fork": SweepPlan, "ways": WaysPlan}
    return kinds.get(settings.get("part"), Plan)(**settings["plan"])


def derive(data: Entry) -> dict[str, Any]:
    """What follows from the medians; None where they are not all there, or give no answer.

    crossover_batch: the smallest tested batch size from which on a graph gains less than 10%. break_even_FORM: training
    steps after which what a step saves has paid for warm-up, capture and, where there is one, a first compilation.
    The other parts' plans have a ``derive`` of their own.
    """
    plan = plan_of(data)
    if not isinstance(plan, Plan):
        return plan.derive(data["measurements"])
    median = {name: entry["median"] for name, entry in data["measurements"].items() if "median" in entry}
    sizes = data["settings"]["plan"]["batch_sizes"]
    ratios = {size: median.get(f"batch_{size}", math.inf) for size in sizes}
    small_gain = [size for size in sizes if all(ratios[other] < 1.1 for other in sizes if other >= size)]
    crossover = None if math.inf in ratios.values() else min(small_gain, default=None)
    result: dict[str, int | None] = {"crossover_batch": crossover}
    for form in ("graph", "compile_and_capture"):
        needed = ["step_eager", f"step_{form}", "capture"] + ["compilation"] * (form != "graph")
        result[f"break_even_{form}"] = None
        if all(name in median for name in needed) and median["step_eager"] > median[f"step_{form}"]:
            cost_us = WARM_UP * median["step_eager"] + median["capture"] * 1e3
            cost_us += median["compilation"] * 1e6 if "compilation" in needed else 0
            result[f"break_even_{form}"] = math.ceil(cost_us / (median["step_eager"] - median[f"step_{form}"]))
    return result


def describe(plan: AnyPlan) -> Entry:
    """What a rerun must agree with."""
    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(": ")[1] for line in info if line.startswith("model name")), platform.machine())
    on_gpu = ON_GPU and not isinstance(plan, SweepPlan)
    device = {"type": "cuda" if on_gpu else "cpu", "name": cpu, "cpu": cpu, "cores": os.cpu_count()}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    versions["triton"] = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None
    if on_gpu:
        gpu = torch.cuda.get_device_properties(DEVICE)
        device |= {"name": gpu.name, "memory_bytes": gpu.total_memory, "multiprocessors": gpu.multi_processor_count}
        device |= {"compute_capability": f"{gpu.major}.{gpu.minor}", "driver": environment.report()["driver"]}
        versions["cudnn"] = torch.backends.cudnn.version()
    cudnn = torch.backends.cudnn
    settings = {
        "plan": asdict(plan), "batch": BATCH, "warm_up": WARM_UP, "seed": SEED, "dtype": "float32", "compile": COMPILE,
        "optimizer": f"SGD, learning rate {LEARNING_RATE}, momentum {MOMENTUM}",
        "threads": {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()},
        "fp32_precision": {"matmul": torch.backends.cuda.matmul.fp32_precision, "conv": cudnn.conv.fp32_precision},
        "cudnn": {"deterministic": cudnn.deterministic, "benchmark": cudnn.benchmark},
    }  # fmt: skip
    if not isinstance(plan, Plan):
        settings = plan.settings()
    description = {"schema_version": SCHEMA_VERSION, "device": device, "versions": versions, "settings": settings}
    return json.loads(json.dumps(description))  # tuples become lists, as in the file


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tutorial_utils.benchmark", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file, continued if it exists")
    parser.add_argument("--part", choices=["graphs", "fork", "ways"], default="graphs", help="which to measure")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure only these")
    parser.add_argument("--root", help="the folder that holds MNIST/raw; otherwise $MNIST_ROOT or a download")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.root:
        os.environ["MNIST_ROOT"] = options.root
    makers = {"fork": sweep_plan, "ways": ways_plan, "graphs": lambda quick, cores: QUICK if quick else FULL}
    plan = makers[options.part](options.quick, os.cpu_count() or 1)
    every = measurements(plan)
    possible = [name for name in every if ON_GPU or name in ON_CPU_TOO or name.startswith(("fork_", "cpu_"))]
    for name in set(options.only or []) - set(possible):
        parser.error(f"{name} needs a GPU" if name in every else f"no measurement {name!r}; all: {', '.join(every)}")
    data = describe(plan)
    if options.out.exists():
        try:
            previous = read(options.out)
        except (SchemaError, OSError) as error:
            parser.error(f"{error}; choose another file for --out")
        differing = [key for key in data if previous[key] != data[key]]
        if differing:
            parser.error(f"{options.out} was measured with other {', '.join(differing)}; choose another file for --out")
        data = previous
    else:
        left_out = [name for name in every if name not in possible]
        data |= {"date": now(), "left_out": left_out, "measurements": {}, "derived": {}}
    done = data["measurements"]
    chosen = [name for name in possible if not options.only or name in options.only]
    todo = [name for name in chosen if "error" in done.get(name, {"error": "not measured yet"})]

    def save() -> None:
        try:
            write(options.out, data)
        except OSError as error:
            parser.error(str(error))

    if todo:
        save()  # now, not after the first measurement
    for name in (bar := tqdm(todo, unit="measurement")):
        bar.set_postfix_str(name)
        start = time.perf_counter()
        try:
            entry = every[name](plan) | {"date": now()}
            validate(data | {"measurements": {name: entry}})
        except Exception as error:
            entry = {"error": f"{type(error).__name__}: {error}", "date": now()}
        done[name] = entry | {"took_s": round(time.perf_counter() - start, 3)}
        data["derived"] = derive(data)
        save()
    failed = [name for name, entry in done.items() if "error" in entry]
    for name in failed:
        print(f"failed: {name}: {done[name]['error']}", file=sys.stderr)
    left_out = f"; {len(data['left_out'])} need a GPU and were left out" if data["left_out"] else ""
    print(f"{options.out}: {len(done) - len(failed)} measurements{left_out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
