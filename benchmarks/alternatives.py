"""Milliseconds of a call of an LSTM ensemble computed in several ways, most without TorchScript, on CPU and GPU.

Notebook 26 builds the same alternatives cell by cell.
"""

from __future__ import annotations

import copy
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
LOOSE_TOLERANCE = 0.1
"""The same for TF32 and bfloat16, of which eight outputs are added up."""

Ensemble = Callable[[Tensor], Tensor]
Maker = Callable[[], Ensemble]
Failures = dict[str, str]  # by name, why


@dataclass(frozen=True)
class Alternatives:
    """Problems on the CPU, each with a number of intra-op threads, and every problem on a GPU.

    On the CPU each alternative has a process of its own, since threads and compiled code change what comes after them.
    On a GPU those of a case share one. ``compiled`` names the cases in which inductor compiles ``vmap``, too; that
    takes a compiler and up to a minute each.
    """

    problems: dict[str, Problem]
    on_cpu: list[tuple[str, int]]
    compiled: list[str]

    name: ClassVar[str] = "alternatives"
    uses_gpu: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms, at least one"
        order = "autograd off; one alternative after another; host clock"
        return {"plan": asdict(self), "dtype": "float32, but for those named bf16", "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        """On a GPU ``..._tf32`` leaves cuDNN's TF32 on, PyTorch's default; matrix products never use it."""
        cases = [self.case(f"cpu_{problem}_{threads}", problem, "cpu", threads) for problem, threads in self.on_cpu]
        for problem in self.problems:
            cases += [self.case(f"gpu_{problem}{'_tf32' * tf32}", problem, "cuda", 1, tf32) for tf32 in (False, True)]
        return cases

    def case(self, name: str, problem: str, device: str, threads: int, tf32: bool = False) -> Case:
        needs_gpu = device == "cuda"
        return Case(name, partial(self.run, name, problem, device, threads, tf32), needs_gpu=needs_gpu)

    def run(self, case: str, problem: str, device: str, threads: int, tf32: bool) -> Measurements:
        """Return ms per call of each alternative, of eager first. Without eager nothing can be compared."""
        what = (self.problems[problem], device, threads, tf32)
        names = ON_GPU if device == "cuda" else ON_CPU
        names = [name for name in names if not name.startswith("torch.compile") or case in self.compiled]
        groups = [names] if device == "cuda" else [[name] for name in names]
        measurements: Measurements = {}
        failed: Failures = {}
        for group in groups:
            try:
                found = in_new_process(time_alternatives, *what, group)
            except RuntimeError as error:
                found = {}, dict.fromkeys(group, reason(error))
            measurements |= found[0]
            failed |= found[1]
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


def time_alternatives(
    problem: Problem, device: str, threads: int, tf32: bool, names: list[str]
) -> tuple[Measurements, Failures]:
    """Return ms per call of the alternatives with these names, and why those that failed did.

    Facts: ``first_s``, the seconds until the first result, in which it is made, compiled or captured; and
    ``largest_difference`` from eager. On a GPU also ``kernels_per_call``, and ``streams_busy``, the mean number of
    streams busy while any is, from a profiler's trace.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    net = LSTMEnsemble([BidirectionalLSTM(problem.size) for _ in range(problem.models)]).to(device).eval()
    x = torch.randn(problem.steps, problem.batch, problem.size).to(device)
    shared = {**asdict(problem), "device": device, "intra_op": threads, "tf32": tf32}
    found, made = makers(net, problem, x), dict[str, Ensemble]()
    measurements: Measurements = {}
    failed: Failures = {}
    with torch.no_grad():
        expected = net(x).clone()
        for name in names:
            tolerance = LOOSE_TOLERANCE if tf32 or "bf16" in name else TOLERANCE
            try:
                made[name], values, facts = time_one(found[name], x, expected, problem.repeats, tolerance)
            except Exception as error:
                failed[name] = reason(error)
            else:
                measurements[name] = Measurement(values, "ms", name, {**shared, "alternative": name}, facts)
        if x.is_cuda:  # last, since the profiler slows down what comes after it
            for name, ensemble in made.items():
                facts = {**measurements[name].facts, **profiled(ensemble, x)}
                measurements[name] = replace(measurements[name], facts=facts)
    return measurements, failed


def time_one(
    make: Maker, x: Tensor, expected: Tensor, repeats: int, tolerance: float
) -> tuple[Ensemble, list[float], dict[str, Any]]:
    """Return an alternative, ms per call and its facts. RuntimeError where its result is not the expected one."""
    start = clock()
    ensemble = make()
    ensemble(x)
    first_s = clock() - start
    difference = max((ensemble(x) - expected).abs().max().item() for _ in range(3))
    if not difference <= tolerance:
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


LIBRARY = "nn.LSTM(bidirectional=True)"
ON_CPU = [EAGER, LIBRARY, "bf16", "vmap", "torch.compile of vmap", "Python threads", "scripted fork"]
ON_GPU = [EAGER, LIBRARY, "CUDA graph", f"{LIBRARY} in a graph", "CUDA streams", "CUDA streams in a graph", "vmap"]
ON_GPU += ["vmap in a graph", "torch.compile of vmap", "torch.compile of vmap, reduce-overhead"]


def makers(net: LSTMEnsemble, problem: Problem, x: Tensor) -> dict[str, Maker]:
    """Return what makes each alternative by its name."""
    library, vmap = partial(library_ensemble, net, problem.size), partial(with_vmap, net)
    return {
        EAGER: lambda: net,
        LIBRARY: library,
        "bf16": lambda: in_bf16(net),
        "CUDA graph": lambda: in_graph(net, x),
        f"{LIBRARY} in a graph": lambda: in_graph(library(), x),
        "CUDA streams": lambda: on_streams(net),
        "CUDA streams in a graph": lambda: in_graph(on_streams(net), x),
        "vmap": vmap,
        "vmap in a graph": lambda: in_graph(vmap(), x),
        "torch.compile of vmap": lambda: torch.compile(vmap(), fullgraph=True),
        "torch.compile of vmap, reduce-overhead": lambda: torch.compile(vmap(), mode="reduce-overhead"),
        "Python threads": lambda: in_threads(net),
        "scripted fork": lambda: scripted("directions and models", problem, net),
    }


def in_bf16(net: LSTMEnsemble) -> Ensemble:
    """Return the ensemble with weights and inputs in bfloat16; the result is float32 again."""
    cast = copy.deepcopy(net).bfloat16()
    return lambda x: cast(x.bfloat16()).float()


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
    """Return the ensemble with one Python thread for each direction of each model."""
    directions = [run for model in net.models for run in (model.run_forward, model.run_backward)]
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(len(directions), initializer=torch.set_num_threads, initargs=(threads,))

    def task(direction: Ensemble, x: Tensor) -> Tensor:
        with torch.no_grad():  # which is a setting of each thread
            return direction(x)

    def run(x: Tensor) -> Tensor:
        outputs = [future.result() for future in [pool.submit(task, direction, x) for direction in directions]]
        pairs = zip(outputs[0::2], outputs[1::2], strict=True)
        return torch.stack([torch.cat(pair, dim=2) for pair in pairs]).sum(dim=0)

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
