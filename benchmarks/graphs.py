"""Training steps and epochs of the MNIST network, eager, captured, and compiled; and what a capture costs.

The step is that of the LibTorch MNIST example: batch 64, SGD with momentum, negative log-likelihood.
"""

from __future__ import annotations

import gc
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import cycle
from statistics import median
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_utils import batches, load_mnist
from tutorial_utils.models import MnistNet
from tutorial_utils.results import Results
from tutorial_utils.timeline import Span, profile
from tutorial_utils.timing import Measurement, in_new_process

from . import record
from .machine import HAS_GPU, captured, clock, on_side_stream, seconds_per_call, timed
from .record import Case, Measurements

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
SEED = 1
BATCH = 64
TEST_BATCH = 1000
WARM_UP = 7
LOSS_EVERY = 10
LOSS_NOTE = f"every {LOSS_EVERY} batches into a buffer on the device, which the host reads once per epoch"
LEARNING_RATE = 0.01
MOMENTUM = 0.5

EAGER = "eager"
GRAPH = "graph"
REDUCE_OVERHEAD = "reduce_overhead"
COMPILED_GRAPH = "compile_and_capture"


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    samples: int = 9  # timed sequences per measurement
    steps: int = 200  # training steps per sequence
    profiled: int = 20  # steps under the profiler
    batch_sizes: tuple[int, ...] = (16, 64, 256, 1024, 4096, 8192, 16384)
    data: str = "full"
    epochs: int = 10
    runs: int = 1  # of all epochs
    captures: int = 5
    processes: int = 3  # new ones, for what is quoted most, and for what only a process's first calls show


FULL = Plan()
FULL_ON_CPU = Plan(samples=10, steps=20, epochs=3)  # under two minutes
QUICK = Plan(3, 5, 3, batch_sizes=(16, 64), data="mini", epochs=1, runs=2, captures=2, processes=1)


@dataclass(frozen=True)
class Graphs:
    plan: Plan

    name: ClassVar[str] = "graphs"
    uses_gpu: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        found = {"plan": asdict(self.plan), "batch": BATCH, "warm_up": WARM_UP, "seed": SEED, "dtype": "float32"}
        found["optimizer"] = f"SGD, learning rate {LEARNING_RATE}, momentum {MOMENTUM}"
        found["threads"] = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
        found["fp32_precision"] = {"matmul": matmul.fp32_precision, "conv": cudnn.conv.fp32_precision}
        found["cudnn"] = {"deterministic": cudnn.deterministic, "benchmark": cudnn.benchmark}
        return found

    def cases(self) -> list[Case]:
        forms, captured_forms, sizes = (EAGER, GRAPH, COMPILED_GRAPH), (GRAPH, COMPILED_GRAPH), self.plan.batch_sizes
        cases = [self.of_form(step, f"step_{EAGER}", EAGER)]
        cases += [self.of_form(step, f"step_{form}_fused", form, fused=True) for form in forms]
        cases += [self.of_form(step, f"step_{form}_copies", form, copies=True) for form in captured_forms]
        cases += [self.of_form(step, f"step_{form}_item", form, item=True) for form in (EAGER, GRAPH)]
        cases += [self.of_form(epochs, f"epochs_{EAGER}", EAGER)]
        cases += [self.on_gpu(in_processes, form, step_and_epochs, form) for form in captured_forms]
        tf32 = partial(in_tf32, step_and_epochs)
        cases += [self.on_gpu(in_processes, f"{COMPILED_GRAPH}_tf32", tf32, COMPILED_GRAPH)]
        cases += [self.on_gpu(capture, "capture")]
        cases += [self.on_gpu(kernels, f"kernels_{form}", form) for form in (*forms, REDUCE_OVERHEAD)]
        cases += [self.on_gpu(kernels, f"kernels_{form}_8192", form, 8192) for form in (EAGER, GRAPH)]
        cases += [self.on_gpu(batch_size, f"batch_{size}", size) for size in sizes]
        cases += [self.on_gpu(prefetching, f"prefetching_{size}", size) for size in (BATCH, 4096) if size in sizes]
        cases += [self.on_gpu(first, function.__name__, function) for function in (first_iterations, first_calls)]
        return [*cases, self.on_gpu(compilation, "compilation")]

    def of_form(self, measure: Callable[..., Any], name: str, form: str, **options: Any) -> Case:
        return Case(name, partial(measure, name, self.plan, form, **options), needs_gpu=form != EAGER)

    def on_gpu(self, measure: Callable[..., Any], name: str, *arguments: Any) -> Case:
        return Case(name, partial(measure, name, self.plan, *arguments), needs_gpu=True)

    def derive(self, results: Results) -> dict[str, Any]:
        return {
            "break_even_graph": break_even(results, GRAPH, ["capture"]),
            "break_even_compile_and_capture": break_even(results, COMPILED_GRAPH, ["capture", "compilation"]),
        }


def part(quick: bool) -> Graphs:
    """Return the benchmark for this machine; ``quick`` takes seconds instead of minutes."""
    return Graphs(QUICK if quick else FULL if HAS_GPU else FULL_ON_CPU)


# What follows from the medians


def break_even(results: Results, form: str, costs: list[str]) -> int | None:
    """Return the steps after which what a step saves has paid for the warm-up and for these costs; None for never."""
    if any(name not in results for name in [f"step_{EAGER}", f"step_{form}", *costs]):
        return None
    eager_us, step_us = results[f"step_{EAGER}"].median, results[f"step_{form}"].median
    if eager_us <= step_us:
        return None
    cost_us = results.settings["warm_up"] * eager_us + sum(results[name].to("µs").median for name in costs)
    return math.ceil(cost_us / (eager_us - step_us))


# The training step


@cache
def load(which: str) -> Any:
    return load_mnist(which, device=DEVICE)


class Trainer:
    """The training step in one form, with static buffers for a batch. It is not warmed up yet; see :func:`prepared`.

    Forms: EAGER; GRAPH (the whole step captured: forward, loss, backward, optimizer); REDUCE_OVERHEAD
    (``torch.compile(model, mode="reduce-overhead")``, the rest eager); COMPILED_GRAPH (``torch.compile`` of forward and
    loss and of the optimizer's step, then the whole step captured). ``fused`` takes SGD's fused implementation, not
    compiled, instead of the default.
    """

    def __init__(self, form: str, batch: int = BATCH, fused: bool = False) -> None:
        self.form, self.fused = form, fused
        self.graph: torch.cuda.CUDAGraph | None = None
        if form in (REDUCE_OVERHEAD, COMPILED_GRAPH):
            torch.compiler.reset()  # otherwise the code and the graphs of an earlier one stay, and are looked at first
        torch.manual_seed(SEED)
        self.model = MnistNet().to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE, MOMENTUM, fused=fused or None)
        data = load("mini")
        rows = torch.arange(batch, device=DEVICE) % len(data.train_labels)  # real images; batch 16,384 has them twice
        self.images, self.labels = data.train_images[rows], data.train_labels[rows]
        self.network: Callable[[Tensor], Tensor] = self.model
        self.loss_of = self.forward_and_loss
        self.optimizer_step = self.optimizer.step
        if form == REDUCE_OVERHEAD:
            self.network = torch.compile(self.model, mode="reduce-overhead")
        if form == COMPILED_GRAPH:
            self.loss_of = torch.compile(self.forward_and_loss)
        if form == COMPILED_GRAPH and not fused:
            self.optimizer_step = torch.compile(self.optimizer.step)

    def forward_and_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(self.network(images), labels)

    def train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss_of(images, labels)
        loss.backward()
        self.optimizer_step()
        return loss.detach()

    def warm_up(self) -> None:
        for _ in range(WARM_UP):
            self.train_step(self.images, self.labels)
        self.optimizer.zero_grad()  # so that a capture allocates the gradients in the graph's pool

    def capture(self) -> None:
        """Warm up on a side stream, and capture a step on the static buffers."""
        self.graph, self.loss = captured(lambda: self.train_step(self.images, self.labels), self.warm_up)

    def restart(self, seed: int) -> None:
        """Start training anew, in place as a graph needs it: a seed's parameters and generators, no momentum."""
        torch.manual_seed(seed)
        self.model.load_state_dict(MnistNet().state_dict())
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()

    def step(self) -> Tensor:
        """Train on what the static buffers hold. The next step may overwrite the loss."""
        if not self.graph:
            return self.train_step(self.images, self.labels)
        self.graph.replay()
        return self.loss

    def step_on(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on a batch, which a graph gets through the static buffers. The next step may overwrite the loss."""
        if not self.graph:
            return self.train_step(images, labels)
        self.images.copy_(images)
        self.labels.copy_(labels)
        return self.step()

    def settings(self, **more: Any) -> dict[str, Any]:
        found = {"form": self.form, "batch": len(self.labels), "sgd": self.sgd()}
        return found | {"matmul_precision": torch.get_float32_matmul_precision(), **more}

    def sgd(self) -> str:
        """Say which implementation of SGD it is."""
        if self.fused:
            return "fused"
        if self.form == COMPILED_GRAPH:
            return "compiled"
        return f"PyTorch's default, {'foreach' if HAS_GPU else 'one tensor at a time'}"


def prepared(form: str, batch: int = BATCH, fused: bool = False) -> Trainer:
    """Return a trainer warmed up, captured where its form has a graph, and put back to its first state."""
    trainer = Trainer(form, batch, fused)
    if form in (GRAPH, COMPILED_GRAPH):
        trainer.capture()
    else:
        trainer.warm_up()
    trainer.restart(SEED)
    return trainer


def evaluator(model: MnistNet) -> Callable[[Tensor, Tensor], float]:
    """Return a function that gives the model's test accuracy, in batches of 1,000; on a GPU by replay of one graph."""
    data = load("mini")
    images, labels = data.test_images[:TEST_BATCH].clone(), data.test_labels[:TEST_BATCH].clone()
    correct = torch.zeros((), dtype=torch.int64, device=DEVICE)

    @torch.no_grad()
    def count_correct() -> None:
        model.eval()
        correct.add_((model(images).argmax(dim=1) == labels).sum())
        model.train()

    count = captured(count_correct, warm_up=count_correct)[0].replay if HAS_GPU else count_correct

    def accuracy(test_images: Tensor, test_labels: Tensor) -> float:
        correct.zero_()
        test = batches(test_images, test_labels, TEST_BATCH)
        for batch_images, batch_labels in test:
            images.copy_(batch_images)
            labels.copy_(batch_labels)
            count()
        return correct.item() / (len(test) * TEST_BATCH)

    return accuracy


# Clocks


def step_us(step: Callable[[], Any], steps: int) -> float:
    """Return µs per step of an uninterrupted sequence: between two CUDA events around it, or by the host's clock."""
    if not HAS_GPU:
        return seconds_per_call(step, steps) * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / steps


def host_us(call: Callable[[], Any]) -> float:
    """Return µs until a call returns. A GPU, idle before, may go on with its work after that."""
    start = clock()
    call()
    return (time.perf_counter() - start) * 1e6


def after_warm_up(sample: Callable[[], Any], count: int) -> list[Any]:
    """Take samples, and drop the first."""
    return [sample() for _ in range(count + 1)][1:]


def cost_of(call: Callable[[], Any]) -> dict[str, float]:
    """Return a call's ms, and what it adds in MiB to this process's allocator and to all that the driver gave out."""
    before, (_, seconds), after = memory_bytes(), timed(call), memory_bytes()
    return {"ms": round(seconds * 1e3, 4), **{key: round((after[key] - before[key]) / 2**20, 4) for key in after}}


def memory_bytes() -> dict[str, int]:
    free, total = torch.cuda.mem_get_info()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    return {"driver_mib": total - free, "reserved_mib": reserved, "allocated_mib": allocated}


# The measurements, each with the name under which it is kept


def in_processes(name: str, plan: Plan, measure: Callable[..., Measurements], *arguments: Any) -> Measurements:
    """Measure in the plan's number of processes: see :func:`benchmarks.record.in_processes`."""
    return record.in_processes(plan.processes, measure, name, plan, *arguments)


def step(
    name: str,
    plan: Plan,
    form: str,
    *,
    batch: int = BATCH,
    fused: bool = False,
    copies: bool = False,
    item: bool = False,
) -> Measurements:
    """µs per training step in a sequence, the batch on the device and, unless ``item``, nothing read back in between.

    With ``copies`` a step includes that of its batch into the static buffers; with ``item`` the host reads each loss.
    ``host_calls``: µs until the host's calls of one step return, the device being idle before.
    """
    trainer = prepared(form, batch, fused)
    train = partial(trainer.step_on, trainer.images.clone(), trainer.labels.clone()) if copies else trainer.step
    if item:
        train = lambda: trainer.step().item()  # noqa: E731
    sequences = after_warm_up(lambda: step_us(train, plan.steps), plan.samples)
    host_calls = [host_us(train) for _ in range(plan.steps)]
    settings = trainer.settings(steps_per_sample=plan.steps, copies=copies, item=item)
    settings["timer"] = "events" if HAS_GPU else "host clock"
    return {
        name: Measurement(sequences, "µs", name, settings),
        f"{name}/host_calls": Measurement(host_calls, "µs", name, {"device": "idle before each step"}),
    }


def step_and_epochs(name: str, plan: Plan, form: str) -> Measurements:
    """In one process, since most of the time goes into starting it, and into compilation."""
    return step(f"step_{name}", plan, form) | epochs(f"epochs_{name}", plan, form)


def epochs(name: str, plan: Plan, form: str) -> Measurements:
    """s of all epochs, each run from new parameters, the data on the device.

    Facts, not included: ``prepare_s`` (warm-up, compilation, capture) and ``evaluator_s`` (its capture), once; and of
    each run ``accuracy`` on the test images, ``final_loss`` and ``evaluation_s``.
    """
    data = load(plan.data)
    trainer, prepare_s = timed(lambda: prepared(form))
    evaluate, evaluator_s = timed(lambda: evaluator(trainer.model))
    train = batches(data.train_images, data.train_labels, BATCH)
    seeds = list(range(SEED, SEED + plan.runs))
    runs = []
    for seed in seeds:
        trainer.restart(seed)
        final_loss, run_s = timed(lambda: train_epochs(trainer, train, plan.epochs))
        runs.append((run_s, *timed(lambda: evaluate(data.test_images, data.test_labels)), final_loss))
    values, accuracy, evaluation_s, final_losses = map(list, zip(*runs, strict=True))
    facts = {"accuracy": accuracy, "final_loss": final_losses, "evaluation_s": evaluation_s}
    facts |= {"prepare_s": prepare_s, "evaluator_s": evaluator_s}
    settings = trainer.settings(copies=trainer.graph is not None, data=f"{plan.data} MNIST on the device")
    settings |= {"epochs": plan.epochs, "batches_per_epoch": len(train), "seeds": seeds, "loss": LOSS_NOTE}
    return {name: Measurement(values, "s", name, settings, facts)}


def train_epochs(trainer: Trainer, train: batches, epochs: int) -> float:
    """Train, and return the last loss that the host has read; it reads them once per epoch."""
    losses = torch.zeros(math.ceil(len(train) / LOSS_EVERY), device=DEVICE)
    for _ in range(epochs):
        for index, (images, labels) in enumerate(train):
            loss = trainer.step_on(images, labels)
            if index % LOSS_EVERY == 0:
                losses[index // LOSS_EVERY] = loss  # stays on the device
        history = losses.tolist()
    return history[-1]


def in_tf32(measure: Callable[..., Measurements], *arguments: Any) -> Measurements:
    """Measure with matrix products in TF32, as convolutions are by default. It is set for the whole process."""
    torch.set_float32_matmul_precision("high")
    return measure(*arguments)


def batch_size(name: str, plan: Plan, batch: int) -> Measurements:
    """Eager over graph: a sequence of each in turn, so that the host's load meets both alike; one ratio per pair.

    ``eager`` and ``graph``: µs per step of those sequences, the graph's with the copies of its batch.
    """
    eager, graph, steps = prepared(EAGER, batch), prepared(GRAPH, batch), steps_of(plan, batch)
    replay = partial(graph.step_on, graph.images.clone(), graph.labels.clone())
    pairs = after_warm_up(lambda: (step_us(eager.step, steps), step_us(replay, steps)), plan.samples)
    eager_us, graph_us = zip(*pairs, strict=True)
    return {
        name: Measurement([slow / fast for slow, fast in pairs], "x", name, {"batch": batch}),
        f"{name}/eager": Measurement(eager_us, "µs", name, eager.settings(steps_per_sample=steps)),
        f"{name}/graph": Measurement(graph_us, "µs", name, graph.settings(steps_per_sample=steps, copies=True)),
    }


def steps_of(plan: Plan, batch: int) -> int:
    """Return the steps of a sequence; a large batch needs fewer."""
    return max(5, min(plan.steps // 3, 2**16 // batch))


def prefetching(name: str, plan: Plan, batch: int) -> Measurements:
    """Copies of pinned batches between the replays, over copies during the replays; one ratio per pair.

    ``between`` and ``during``: µs per step of those sequences. The batches lie in the host's memory, ready and pinned;
    ``during`` copies the next one on a second stream, into a second pair of buffers.
    """
    graph, steps, copies = prepared(GRAPH, batch), steps_of(plan, batch), torch.cuda.Stream()
    pinned = [[tensor.cpu().pin_memory() for tensor in (graph.images, graph.labels)] for _ in range(4)]
    coming = [tensor.clone() for tensor in (graph.images, graph.labels)]
    host_batches = cycle(pinned)

    def between() -> None:
        graph.images.copy_((host := next(host_batches))[0], non_blocking=True)
        graph.labels.copy_(host[1], non_blocking=True)
        graph.step()

    def during() -> None:
        torch.cuda.current_stream().wait_stream(copies)
        graph.images.copy_(coming[0])
        graph.labels.copy_(coming[1])
        taken_out = torch.cuda.current_stream().record_event()
        graph.step()
        copies.wait_event(taken_out)
        with torch.cuda.stream(copies):
            for target, source in zip(coming, next(host_batches), strict=True):
                target.copy_(source, non_blocking=True)

    pairs = after_warm_up(lambda: (step_us(between, steps), step_us(during, steps)), plan.samples)
    between_us, during_us = zip(*pairs, strict=True)
    settings = graph.settings(steps_per_sample=steps, host_batches=f"{len(pinned)}, pinned")
    return {
        name: Measurement([slow / fast for slow, fast in pairs], "x", name, {"batch": batch}),
        f"{name}/between": Measurement(between_us, "µs", name, settings),
        f"{name}/during": Measurement(during_us, "µs", name, settings),
    }


def capture(name: str, plan: Plan) -> Measurements:
    """ms of capturing and instantiating one step; ``pool``: MiB that the graph reserves, its first replay included.

    The fact ``captures`` holds ms and MiB of each capture, instantiation and first replay.
    """
    trainer = Trainer(EAGER)
    on_side_stream(trainer.warm_up)
    captures = [one_capture(trainer) for _ in range(plan.captures)]
    settings = trainer.settings(stream="a new one for each capture, so that each has a cuBLAS workspace of its own")
    times = [costs["capture"]["ms"] + costs["instantiate"]["ms"] for costs in captures]
    pool = [sum(cost["reserved_mib"] for cost in costs.values()) for costs in captures]
    return {
        name: Measurement(times, "ms", name, settings, {"captures": captures}),
        f"{name}/pool": Measurement(pool, "MiB", name, settings),
    }


def one_capture(trainer: Trainer) -> dict[str, dict[str, float]]:
    trainer.optimizer.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph(keep_graph=True)  # so that instantiation can be timed alone

    def capture_step() -> None:
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            trainer.train_step(trainer.images, trainer.labels)

    calls = {"capture": capture_step, "instantiate": graph.instantiate, "first_replay": graph.replay}
    costs = {call: cost_of(function) for call, function in calls.items()}
    graph.reset()
    return costs


def kernels(name: str, plan: Plan, form: str, batch: int = BATCH) -> Measurements:
    """µs of kernels, copies and memory sets in a step, by profiler. RuntimeError where steps have different kernels.

    ``without_profiler``: µs per step in the same process before the profiler. Facts: ``share_of_step``, the first over
    the second; ``kernels_per_step``; ``kernels``, those of the last step; ``launches_per_step``, the host's launching
    calls by name.
    """
    unprofiled_us, spans, launches = in_new_process(profiled_steps, plan, form, batch)
    steps = split_into_steps(spans, plan.profiled)
    last = steps[-1]
    kernels_us = [sum(span.duration_us for span in of_step) for of_step in steps]
    facts = {"share_of_step": round(median(kernels_us) / median(unprofiled_us), 4), "kernels_per_step": len(last)}
    facts["kernels"] = [as_fact(span, last[0].start_us) for span in last]
    facts["launches_per_step"] = {call: count / plan.profiled for call, count in launches.items()}
    return {
        name: Measurement(kernels_us, "µs", name, {"form": form, "batch": batch}, facts),
        f"{name}/without_profiler": Measurement(unprofiled_us, "µs", name, {"steps_per_sample": plan.steps}),
    }


def profiled_steps(plan: Plan, form: str, batch: int) -> tuple[list[float], list[Span], dict[str, int]]:
    """In a process of its own, since the profiler slows down what comes after it."""
    trainer = prepared(form, batch)
    unprofiled_us = after_warm_up(lambda: step_us(trainer.step, plan.steps), plan.samples)
    spans = profile(trainer.step, steps=plan.profiled, warmup=3, nested=True).spans
    launches = Counter(span.name for span in spans if span.category == "CUDA call" and "Launch" in span.name)
    on_device = [span for span in spans if span.category in ("kernel", "copy", "memory set")]
    return unprofiled_us, on_device, dict(launches)


def split_into_steps(spans: list[Span], steps: int) -> list[list[Span]]:
    """Return the spans of each step. RuntimeError where a step has not the same kernels as the others."""
    count, rest = divmod(len(spans), steps)
    each = [spans[index * count : (index + 1) * count] for index in range(steps)]
    names = [Counter(span.name for span in of_step) for of_step in each]  # those on two streams may change places
    other = next((of_step for of_step in names if of_step != names[0]), Counter())
    if rest or not count or other:
        seen = f"the profiler saw {len(spans)} kernels in {steps} steps: not the same in each"
        raise RuntimeError(f"{seen}; {dict(names[0] - other)} or {dict(other - names[0])}")
    return each


def as_fact(span: Span, origin_us: float) -> dict[str, Any]:
    times = {"start_us": round(span.start_us - origin_us, 3), "duration_us": round(span.duration_us, 3)}
    return {"name": span.name, "category": span.category, **times}


def first(name: str, plan: Plan, calls: Callable[[], list[dict[str, Any]]]) -> Measurements:
    """ms of the first of some calls in new processes. The fact ``processes`` holds ms and MiB of each call."""
    processes = [in_new_process(calls) for _ in range(plan.processes)]
    first_ms = [costs[0]["ms"] for costs in processes]
    return {name: Measurement(first_ms, "ms", name, {"batch": BATCH}, {"processes": processes})}


def first_iterations() -> list[dict[str, Any]]:
    trainer, iterations = Trainer(EAGER), []
    for number in range(1, 6):
        cost = cost_of(trainer.step)
        iterations.append({"call": f"iteration {number}", **cost, "momentum_buffers": len(trainer.optimizer.state)})
    return iterations


def first_calls() -> list[dict[str, Any]]:
    square, images = torch.ones(64, 64, device=DEVICE), torch.ones(BATCH, 1, 28, 28, device=DEVICE)
    filters = torch.ones(10, 1, 5, 5, device=DEVICE)
    calls = {"addition": lambda: square + square, "matrix product": lambda: square @ square}
    calls["convolution"] = lambda: F.conv2d(images, filters)
    return [{"call": f"{nth} {name}", **cost_of(call)} for name, call in calls.items() for nth in ("first", "second")]


def compilation(name: str, plan: Plan) -> Measurements:
    """s of a new process's first seven compiled training steps, with an empty cache.

    The fact ``with_filled_cache_s``: the same in the next process, which finds the first one's cache.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        empty_s = in_new_process(first_compilation, folder)
        filled_s = in_new_process(first_compilation, folder)
    settings = {"batch": BATCH, "compiled": "forward and loss, optimizer"}
    return {name: Measurement([empty_s], "s", name, settings, {"with_filled_cache_s": filled_s})}


def first_compilation(cache_folder: str) -> float:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache_folder
    os.environ.pop("TRITON_CACHE_DIR", None)  # which a compilation in the parent process has set
    prepared(EAGER)  # so that the libraries' handles are not counted
    trainer = Trainer(COMPILED_GRAPH)
    return timed(trainer.warm_up)[1]
