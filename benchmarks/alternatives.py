"""Milliseconds of a call of an LSTM ensemble computed in several ways, most without TorchScript, on CPU and GPU.

Notebook 26 builds the same alternatives cell by cell.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tutorial_utils import timeline
from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, scripted
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .forks import TINY
from .machine import captured, clock, seconds_per_call
from .record import Case, Measurements, SomeFailed, reason

EAGER = "eager"
TOLERANCE = 1e-4
"""The largest difference from the eager ensemble that counts as equal; its values are of the order of one."""

Ensemble = Callable[[Tensor], Tensor]
Maker = Callable[[], Ensemble]
Failures = dict[str, str]  # by name, why


@dataclass(frozen=True)
class Alternatives:
    """Problems on the CPU, each with a number of intra-op threads, and every problem on a GPU.

    ``compiled`` names the cases in which inductor compiles, too; that takes a C++ compiler and up to a minute each.
    """

    problems: dict[str, Problem]
    on_cpu: list[tuple[str, int]]
    compiled: list[str]

    name: ClassVar[str] = "alternatives"
    uses_gpu: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms, at least one"
        order = "autograd off; one alternative after another; host clock"
        return {"plan": asdict(self), "dtype": "float32, TF32 off", "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        on_cpu = [self.case(f"cpu_{problem}_{threads}", problem, "cpu", threads) for problem, threads in self.on_cpu]
        return on_cpu + [self.case(f"gpu_{problem}", problem, "cuda", threads=1) for problem in self.problems]

    def case(self, name: str, problem: str, device: str, threads: int) -> Case:
        return Case(name, partial(self.run, name, problem, device, threads), needs_gpu=device == "cuda")

    def run(self, case: str, problem: str, device: str, threads: int) -> Measurements:
        """Return ms per call of each alternative, of eager first. Without eager nothing can be compared."""
        what = (self.problems[problem], device, threads, case in self.compiled)
        measurements, failed = in_new_process(time_alternatives, *what)
        if EAGER in failed:
            raise RuntimeError(failed[EAGER])
        named = {
            f"{case}/{name}": replace(measurement, settings={**measurement.settings, "case": case, "problem": problem})
            for name, measurement in measurements.items()
        }
        if failed:
            raise SomeFailed(named, {f"{case}/{name}": why for name, why in failed.items()})
        return named

    def derive(self, results: Results) -> dict[str, Any]:
        """For each case the alternative with the shortest median, and its gain over eager."""
        derived: dict[str, Any] = {}
        for case in dict.fromkeys(measurement.settings["case"] for measurement in results.values()):
            (eager,) = results.select(case=case, alternative=EAGER)
            fastest = min(results.select(case=case), key=lambda measurement: measurement.median)
            derived[f"{case}_fastest"] = fastest.settings["alternative"]
            derived[f"{case}_gain"] = eager.median / fastest.median
        return derived


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Alternatives:
    """Return the benchmark; ``quick`` takes seconds instead of minutes and leaves the compiler out."""
    if quick:
        return Alternatives({"small": TINY}, on_cpu=[("small", 1)], compiled=[])
    quarter = max(1, cores // 4)  # so that four models share out the cores
    on_cpu = dict.fromkeys([("small", 1), ("small", quarter), ("source", quarter), ("source", cores)])
    problems = {"small": SMALL, "source": SOURCE_SIZE}
    return Alternatives(problems, list(on_cpu), compiled=[f"cpu_small_{quarter}", "gpu_small"])


# In the new process


def time_alternatives(problem: Problem, device: str, threads: int, compiled: bool) -> tuple[Measurements, Failures]:
    """Return ms per call of each alternative by its name, and why those that failed did.

    Facts: ``first_s``, the seconds until the first result, in which it is made, compiled or captured; and
    ``largest_difference`` from eager. On a GPU also ``kernels_per_call``, and ``streams_busy``, the mean number of
    streams busy while any is, from a profiler's trace.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # as matrix products have it, so that all compute alike
    torch.manual_seed(0)
    net = LSTMEnsemble([BidirectionalLSTM(problem.size) for _ in range(problem.models)]).to(device).eval()
    x = torch.randn(problem.steps, problem.batch, problem.size).to(device)
    shared = {**asdict(problem), "device": device, "intra_op": threads}
    made: dict[str, Ensemble] = {}
    measurements: Measurements = {}
    failed: Failures = {}
    with torch.no_grad():
        expected = net(x).clone()
        for name, make in makers(net, problem, x, compiled).items():
            try:
                made[name], values, facts = time_one(make, x, expected, problem.repeats)
            except Exception as error:
                failed[name] = reason(error)
            else:
                measurements[name] = Measurement(values, "ms", name, {**shared, "alternative": name}, facts)
        if x.is_cuda:  # last, since the profiler slows down what comes after it
            for name, ensemble in made.items():
                facts = {**measurements[name].facts, **profiled(ensemble, x)}
                measurements[name] = replace(measurements[name], facts=facts)
    return measurements, failed


def time_one(make: Maker, x: Tensor, expected: Tensor, repeats: int) -> tuple[Ensemble, list[float], dict[str, Any]]:
    """Return an alternative, ms per call and its facts. RuntimeError where its result is not the expected one."""
    start = clock()
    ensemble = make()
    ensemble(x)
    first_s = clock() - start
    difference = max((ensemble(x) - expected).abs().max().item() for _ in range(3))
    if not difference <= TOLERANCE:
        raise RuntimeError(f"it differs from eager by {difference:.2g}")
    call = partial(ensemble, x)
    calls = max(1, round(0.05 / seconds_per_call(call, 1)))
    values = [seconds_per_call(call, calls) * 1e3 for _ in range(repeats)]
    return ensemble, values, {"first_s": round(first_s, 3), "largest_difference": difference}


def profiled(ensemble: Ensemble, x: Tensor) -> dict[str, Any]:
    trace = timeline.profile(partial(ensemble, x))
    streams = [lane for lane in trace.lanes if lane.startswith("stream")]
    kernels = sum(span.category == "kernel" for span in trace.spans)
    return {"kernels_per_call": kernels, "streams_busy": round(trace.busy_lanes(streams), 3)}


# The alternatives


def makers(net: LSTMEnsemble, problem: Problem, x: Tensor, compiled: bool) -> dict[str, Maker]:
    """Return what makes each alternative by its name, eager first."""
    found: dict[str, Maker] = {EAGER: lambda: net}
    found["nn.LSTM(bidirectional=True)"] = lambda: library_ensemble(net, problem.size)
    if x.is_cuda:
        found["CUDA graph"] = lambda: in_graph(net, x)
        found["CUDA streams"] = lambda: on_streams(net)
        found["CUDA streams in a graph"] = lambda: in_graph(on_streams(net), x)
    found["vmap"] = lambda: with_vmap(net)
    if compiled:
        found["torch.compile"] = lambda: torch.compile(net)
        found["torch.compile of vmap"] = lambda: torch.compile(with_vmap(net), fullgraph=True)
    if not x.is_cuda:  # last, since their threads change how OpenMP's threads wait; see fork_timing.time_variants
        found["Python threads"] = lambda: in_threads(net)
        found["scripted fork"] = lambda: scripted("directions and models", problem, net)
    return found


class LibraryLSTM(nn.LSTM):
    """PyTorch's own LSTM without its final states, ``[T, B, size]`` to ``[T, B, 2 size]``."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


def library_ensemble(net: LSTMEnsemble, size: int) -> LSTMEnsemble:
    """Return PyTorch's own bidirectional LSTMs with the weights of ``net``."""
    models = [LibraryLSTM(size, size, bidirectional=True) for _ in net.models]
    for model, library in zip(net.models, models, strict=True):
        forward_weights = dict(model.forward_lstm.named_parameters())
        backward_weights = {f"{name}_reverse": w for name, w in model.backward_lstm.named_parameters()}
        library.load_state_dict(forward_weights | backward_weights)
    return LSTMEnsemble(models).to(next(net.parameters()).device).eval()


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


def with_vmap(net: LSTMEnsemble) -> Ensemble:
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


def in_threads(net: LSTMEnsemble) -> Ensemble:
    """Return the ensemble with one Python thread per model."""
    pool = ThreadPoolExecutor(len(net.models))

    def task(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():  # which is a setting of each thread
            return model(x)

    def run(x: Tensor) -> Tensor:
        futures = [pool.submit(task, model, x) for model in net.models]
        return torch.stack([future.result() for future in futures]).sum(dim=0)

    return run


def on_streams(net: LSTMEnsemble) -> Ensemble:
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


def in_graph(ensemble: Ensemble, x: Tensor) -> Ensemble:
    """Return ``ensemble`` captured into one CUDA graph; every call gives the same output tensor, overwritten."""
    static_x = x.clone()
    graph, output = captured(lambda: ensemble(static_x), warm_up=lambda: [ensemble(static_x) for _ in range(3)])

    def replay(x: Tensor) -> Tensor:
        static_x.copy_(x)
        graph.replay()
        return output

    return replay
