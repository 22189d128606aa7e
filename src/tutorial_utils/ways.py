"""Time an LSTM ensemble computed in several ways, most of them without TorchScript, on the CPU and on a GPU.

What ``python -m tutorial_utils.benchmark --part ways`` runs. Notebook 26 builds the same ways cell by cell.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_utils import timeline
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble
from tutorial_utils.reference import measured
from tutorial_utils.sweep import SMALL, SOURCE_SIZE, Problem, scripted
from tutorial_utils.timing import in_new_process, on_side_stream

TOLERANCE = 1e-4
"""The largest difference from the eager ensemble that counts as equal; its values are of the order of one."""
EAGER = "eager"
Way = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WaysPlan:
    """What is measured: problems on the CPU with a number of intra-op threads, and problems on a GPU."""

    problems: dict[str, Problem]
    on_cpu: list[tuple[str, int]]
    compiled: list[str]
    """The measurements in which inductor compiles, too; that takes a C++ compiler and up to a minute each."""

    def settings(self) -> dict[str, Any]:
        """What a rerun must agree with, beside the machine."""
        note = "in a row, as many as take about 50 ms, at least one; autograd off; one way after another; host clock"
        plan = asdict(self)
        return {"part": "ways", "plan": plan, "dtype": "float32, TF32 off", "sample": f"the mean of calls {note}"}

    def measurements(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """Every measurement by its name; those that need a GPU begin with ``gpu_``."""
        on = {f"cpu_{name}_{n}": (name, n) for name, n in self.on_cpu}
        on |= {f"gpu_{name}": (name, None) for name in self.problems}
        return {key: partial(entry, problem=p, threads=n, compiled=key in self.compiled) for key, (p, n) in on.items()}

    def derive(self, entries: dict[str, Any]) -> dict[str, Any]:
        """The fastest way of each measurement and its gain over eager; None where that failed."""
        found: dict[str, Any] = {}
        for name in self.measurements():
            medians = {way: ms for way, ms in medians_ms(entries.get(name, {})).items() if ms}
            fastest = min(medians, key=medians.__getitem__, default=None)
            found |= {f"{name}_fastest_at": fastest, f"{name}_gain": None}
            if fastest:
                found[f"{name}_gain"] = medians[EAGER] / medians[fastest]
        return found


def ways_plan(quick: bool, cores: int) -> WaysPlan:
    """Return the benchmark's plan; ``quick`` takes seconds instead of minutes and leaves the compiler out."""
    if quick:
        return WaysPlan({"small": Problem(steps=3, batch=2, size=4, models=2, repeats=2)}, [("small", 1)], [])
    quarter = max(1, cores // 4)  # so that four models share out the cores
    on_cpu = dict.fromkeys([("small", 1), ("small", quarter), ("source", quarter), ("source", cores)])
    return WaysPlan({"small": SMALL, "source": SOURCE_SIZE}, list(on_cpu), [f"cpu_small_{quarter}", "gpu_small"])


def medians_ms(entry: dict[str, Any]) -> dict[str, float | None]:
    """Return the ms per call by way, eager first, from a recorded entry; None for a way that failed there."""
    if "ways" not in entry:
        return {}
    return {EAGER: entry["median"]} | {way: entry[way].get("median") for way in entry["ways"]}


def lstm(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """``nn.LSTM`` by hand, so that vmap has rules for it: ``[T, B, H]`` to ``[T, B, H]``, beginning with zeros."""
    h = c = torch.zeros_like(x[0])
    outputs = []
    for from_input in x @ w_ih.T + (b_ih + b_hh):
        i, f, g, o = (from_input + h @ w_hh.T).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def library_ensemble(net: LSTMEnsemble, size: int) -> LSTMEnsemble:
    """Return PyTorch's own bidirectional LSTMs with the weights of ``net``."""

    class Library(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[0]

    models = [Library(size, size, bidirectional=True) for _ in net.models]
    for model, library in zip(net.models, models, strict=True):
        weights = dict(model.forward_lstm.named_parameters())
        library.load_state_dict(weights | {f"{n}_reverse": w for n, w in model.backward_lstm.named_parameters()})
    return LSTMEnsemble(models).to(next(net.parameters()).device).eval()


def with_vmap(net: LSTMEnsemble) -> Way:
    """Return the ensemble as one hand-written LSTM under vmap, the weights of all directions stacked."""
    directions = [direction for model in net.models for direction in (model.forward_lstm, model.backward_lstm)]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    stacked = [torch.stack([getattr(direction, name).detach() for direction in directions]) for name in names]
    models = len(net.models)

    def run(x: Tensor) -> Tensor:
        inputs = torch.stack([x, x.flip(0)] * models)
        outputs = torch.func.vmap(lstm)(inputs, *stacked).unflatten(0, (models, 2))
        return torch.cat([outputs[:, 0], outputs[:, 1].flip(1)], dim=-1).sum(dim=0)

    return run


def in_threads(net: LSTMEnsemble) -> Way:
    """Return the ensemble with one Python thread per model."""
    pool = ThreadPoolExecutor(len(net.models))

    def task(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)

    def run(x: Tensor) -> Tensor:
        futures = [pool.submit(task, model, x) for model in net.models]
        return torch.stack([future.result() for future in futures]).sum(dim=0)

    return run


def on_streams(net: LSTMEnsemble) -> Way:
    """Return the ensemble with one CUDA stream per model."""
    streams = [torch.cuda.Stream() for _ in net.models]

    def run(x: Tensor) -> Tensor:
        outputs, main = [], torch.cuda.current_stream()
        for model, stream in zip(net.models, streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                outputs.append(model(x))
        for stream in streams:
            main.wait_stream(stream)
        return torch.stack(outputs).sum(dim=0)

    return run


def in_graph(run: Way, x: Tensor) -> Way:
    """Return ``run`` captured into one CUDA graph; every call gives the same output tensor, overwritten."""
    static = x.clone()
    on_side_stream(lambda: [run(static) for _ in range(3)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(static)

    def replay(x: Tensor) -> Tensor:
        static.copy_(x)
        graph.replay()
        return output

    return replay


def ways(net: LSTMEnsemble, problem: Problem, x: Tensor, compiled: bool) -> dict[str, Callable[[], Way]]:
    """Return what makes each way beside eager, by its name."""
    found: dict[str, Callable[[], Way]] = {"nn.LSTM(bidirectional=True)": lambda: library_ensemble(net, problem.size)}
    if x.is_cuda:
        found["CUDA graph"] = lambda: in_graph(net, x)
        found["CUDA streams"] = lambda: on_streams(net)
        found["CUDA streams in a graph"] = lambda: in_graph(on_streams(net), x)
    found["vmap"] = lambda: with_vmap(net)
    if compiled:
        found["torch.compile"] = lambda: torch.compile(net)
        found["torch.compile of vmap"] = lambda: torch.compile(with_vmap(net), fullgraph=True)
    if not x.is_cuda:  # last, since their threads change how OpenMP's threads wait; see tutorial_utils.sweep.measure
        found["Python threads"] = lambda: in_threads(net)
        found["scripted fork"] = lambda: scripted("directions and models", problem, net)
    return found


def time_ways(problem: Problem, device: str, threads: int, compiled: bool) -> dict[str, Any]:
    """Return by way ``{"samples": ms per call, "first_s": s, "largest_difference": from eager}``, or an error.

    On a GPU also the kernels of a call, and the mean number of streams busy while any is, from a profiler's trace.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # as matrix products have it, so that all ways compute alike
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(0)
    net = LSTMEnsemble([BidirectionalLSTM(problem.size) for _ in range(problem.models)]).to(device).eval()
    x = torch.randn(problem.steps, problem.batch, problem.size).to(device)

    def seconds(run: Way, calls: int = 1) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run(x)
        synchronize()
        return time.perf_counter() - start

    results: dict[str, Any] = {}
    made: dict[str, Way] = {}
    with torch.no_grad():
        expected = net(x).clone()
        for name, make in {EAGER: lambda: net, **ways(net, problem, x, compiled)}.items():
            try:
                start = time.perf_counter()
                run = make()
                seconds(run)
                first_s = time.perf_counter() - start
                difference = max((run(x) - expected).abs().max().item() for _ in range(3))
                if not difference <= TOLERANCE:
                    raise RuntimeError(f"it differs from eager by {difference:.2g}")
                calls = max(1, round(0.05 / seconds(run)))
                samples = [1e3 * seconds(run, calls) / calls for _ in range(problem.repeats)]
            except Exception as error:
                lines = str(error).strip().splitlines()
                results[name] = {"error": ": ".join([type(error).__name__, *lines[:1]])}
            else:
                made[name] = run
                results[name] = {"samples": samples, "first_s": round(first_s, 3), "largest_difference": difference}
        for name, run in made.items() if device == "cuda" else ():
            trace = timeline.profile(partial(run, x))  # last, since the profiler slows down what comes after it
            results[name]["kernels_per_call"] = sum(span.category == "kernel" for span in trace.spans)
            busy = trace.busy_lanes(lane for lane in trace.lanes if lane.startswith("stream"))
            results[name]["streams_busy"] = round(busy, 3)
    return results


def entry(plan: WaysPlan, problem: str, threads: int | None, compiled: bool) -> dict[str, Any]:
    """ms of a call of the eager ensemble; and of one of each way. On a GPU if ``threads`` is None."""
    asked, device = plan.problems[problem], "cuda" if threads is None else "cpu"
    results = in_new_process(time_ways, asked, device, threads or 1, compiled)
    if "error" in results[EAGER]:
        raise RuntimeError(results[EAGER]["error"])

    def part(result: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        more = {key: value for key, value in result.items() if key != "samples"}
        return more if "error" in result else measured("ms", result["samples"], settings, **more)

    settings = {"way": EAGER, **asdict(asked), "device": device, "intra_op": threads or 1}
    beside = {way: part(result, {"way": way}) for way, result in results.items() if way != EAGER}
    return part(results[EAGER], settings) | beside | {"ways": list(beside)}
