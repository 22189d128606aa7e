"""Milliseconds of a call of an LSTM ensemble computed in several ways, most without TorchScript, on CPU and GPU.

Notebooks 26 and 27 build the same alternatives cell by cell.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Barrier
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tutorial_utils import timeline
from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, scripted, start_pool
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .forks import TINY
from .machine import captured, clock, gpu_hidden, seconds_per_call
from .record import Case, Measurements, SomeFailed, reason

EAGER = "eager"
LIBRARY = "nn.LSTM(bidirectional=True)"
BF16 = "bf16 weights"
THREADS = "Python threads"
FORK = "scripted fork"
ON_CPU = [EAGER, LIBRARY, "vmap", BF16, THREADS, FORK]
ON_GPU = [EAGER, LIBRARY, "CUDA graph", "CUDA streams", "CUDA streams in a graph", "vmap"]
ON_GPU += [f"{LIBRARY} in a graph", "vmap in a graph"]
COMPILED = ["torch.compile", "torch.compile of vmap"]
COMPILED_ON_GPU = [*COMPILED, "torch.compile of vmap, reduce-overhead"]

TOLERANCE = {"float32": 1e-4, "TF32": 1e-2, "bfloat16": 0.1}
"""The largest difference from the eager ensemble in float32 that counts as equal; its values are of the order of one.
TF32 has a mantissa of ten bits, bfloat16 of seven."""

Ensemble = Callable[[Tensor], Tensor]
Maker = Callable[[], Ensemble]
Failures = dict[str, str]  # by name, why


@dataclass(frozen=True)
class Column:
    """One problem on one device: on the CPU with a number of intra-op threads, on a GPU with cuDNN's TF32 or without.

    ``compiled``: inductor compiles, too; that takes a C++ compiler and up to a minute each.
    """

    name: str
    problem: str
    intra_op: int = 1
    on_gpu: bool = False
    tf32: bool = False
    compiled: bool = False


@dataclass(frozen=True)
class Alternatives:
    problems: dict[str, Problem]
    columns: list[Column]

    name: ClassVar[str] = "alternatives"
    uses_gpu: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms, at least one, after as many unseen"
        order = (
            "autograd off; each alternative in a process of its own, but those on a GPU that do not compile; host clock"
        )
        dtype = "float32, but for bf16; matrix products without TF32, cuDNN with it where tf32 is true"
        return {"plan": asdict(self), "dtype": dtype, "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        """What compiles comes last, and what compiles longest at the end."""
        plain, compiled = [], []
        for column in self.columns:
            if column.on_gpu:
                plain.append(self.case(column.name, column, ON_GPU))
            else:
                plain += [self.case(f"{column.name}/{name}", column, [name]) for name in ON_CPU]
            if column.compiled:
                names = COMPILED_ON_GPU if column.on_gpu else COMPILED
                compiled += [self.case(f"{column.name}/{name}", column, [name]) for name in names]
        return plain + compiled[::-1]

    def case(self, name: str, column: Column, alternatives: list[str]) -> Case:
        return Case(name, partial(self.run, column, alternatives), needs_gpu=column.on_gpu)

    def run(self, column: Column, alternatives: list[str]) -> Measurements:
        """Return ms per call of each alternative, all measured in one new process, one after another."""
        problem = self.problems[column.problem]
        with nullcontext() if column.on_gpu else gpu_hidden():
            measurements, failed = in_new_process(time_alternatives, problem, column, alternatives)
        if failed:
            raise SomeFailed(measurements, failed)
        return measurements

    def derive(self, results: Results) -> dict[str, Any]:
        """For each column the alternative in float32 with the shortest median, and its gain over eager."""
        derived: dict[str, Any] = {}
        for column in dict.fromkeys(measurement.settings["case"] for measurement in results.values()):
            medians = {m.settings["alternative"]: m.median for m in results.select(case=column)}
            medians.pop(BF16, None)
            if EAGER in medians:
                derived[f"{column}_fastest"] = min(medians, key=medians.__getitem__)
                derived[f"{column}_gain"] = medians[EAGER] / min(medians.values())
        return derived


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Alternatives:
    """Return the benchmark; ``quick`` takes seconds instead of minutes and leaves the compiler out."""
    if quick:
        return Alternatives(
            {"small": TINY}, [Column("cpu_small_1", "small"), on_gpu("small"), on_gpu("small", tf32=True)]
        )
    quarter = max(1, cores // 4)  # so that four models share out the cores
    pairs = dict.fromkeys([("small", 1), ("small", quarter), ("source", quarter), ("source", cores)])
    columns = [Column(f"cpu_{name}_{n}", name, n, compiled=(name, n) == ("small", quarter)) for name, n in pairs]
    columns += [on_gpu("small", compiled=True), on_gpu("source")]
    columns += [on_gpu("small", tf32=True), on_gpu("source", tf32=True)]
    return Alternatives({"small": SMALL, "source": replace(SOURCE_SIZE, repeats=3)}, columns)


def on_gpu(problem: str, tf32: bool = False, compiled: bool = False) -> Column:
    return Column(f"gpu_{problem}{'_tf32' * tf32}", problem, on_gpu=True, tf32=tf32, compiled=compiled)


# In the new process


def time_alternatives(problem: Problem, column: Column, names: list[str]) -> tuple[Measurements, Failures]:
    """Return ms per call of each alternative by its full name, and why those that failed did.

    Facts: ``first_s``, the seconds until the first result, in which it is made, compiled or captured; and
    ``largest_difference`` from eager in float32. On a GPU also ``kernels_per_call``, and ``streams_busy``, the mean
    number of streams busy while any is, from a profiler's trace.
    """
    torch.set_num_threads(column.intra_op)
    torch.manual_seed(0)
    device = "cuda" if column.on_gpu else "cpu"
    net = LSTMEnsemble([BidirectionalLSTM(problem.size) for _ in range(problem.models)]).to(device).eval()
    x = torch.randn(problem.steps, problem.batch, problem.size).to(device)
    shared = {**asdict(problem), "case": column.name, "problem": column.problem, "device": device, "tf32": column.tf32}
    shared |= {"intra_op": column.intra_op, "inter_op": torch.get_num_interop_threads()}
    made: dict[str, Ensemble] = {}
    measurements: Measurements = {}
    failed: Failures = {}
    with torch.no_grad():
        for alternative in names:
            name = f"{column.name}/{alternative}"
            precision = "bfloat16" if alternative == BF16 else "TF32" if column.tf32 else "float32"
            try:
                torch.backends.cudnn.allow_tf32 = column.tf32
                ensemble, values, first_s = time_one(makers(net, problem, x)[alternative], x, problem.repeats)
                difference = largest_difference(ensemble, net, x)
                if not difference <= TOLERANCE[precision]:
                    raise RuntimeError(f"it differs from eager by {difference:.2g}")
            except Exception as error:
                failed[name] = reason(error)
            else:
                facts = {"first_s": round(first_s, 3), "largest_difference": difference}
                settings = {**shared, "alternative": alternative, "precision": precision}
                made[name], measurements[name] = ensemble, Measurement(values, "ms", name, settings, facts)
        if x.is_cuda:  # last, since the profiler slows down what comes after it
            torch.backends.cudnn.allow_tf32 = column.tf32
            for name, ensemble in made.items():
                facts = {**measurements[name].facts, **profiled(ensemble, x)}
                measurements[name] = replace(measurements[name], facts=facts)
    return measurements, failed


def time_one(make: Maker, x: Tensor, repeats: int) -> tuple[Ensemble, list[float], float]:
    """Return an alternative, ms per call, and the seconds until its first result."""
    start = clock()
    ensemble = make()
    ensemble(x)
    first_s = clock() - start
    call = partial(ensemble, x)
    for _ in range(3 if x.is_cuda else 1):  # reduce-overhead records in its second call
        seconds = seconds_per_call(call, 1)
    calls = max(1, round(0.05 / seconds))
    values = [seconds_per_call(call, calls) * 1e3 for _ in range(1 + repeats)]
    return ensemble, values[1:], first_s


def largest_difference(ensemble: Ensemble, net: LSTMEnsemble, x: Tensor) -> float:
    """From eager in float32, which is computed last: its threads might disturb those of an alternative."""
    actual = ensemble(x).clone()  # the next replay of a graph would overwrite it
    torch.backends.cudnn.allow_tf32 = False
    return (actual - net(x)).abs().max().item()


def profiled(ensemble: Ensemble, x: Tensor) -> dict[str, Any]:
    """None where the profiler fails: what was timed before counts all the same."""
    try:
        trace = timeline.profile(partial(ensemble, x))
    except Exception:
        return {"kernels_per_call": None, "streams_busy": None}
    streams = [lane for lane in trace.lanes if lane.startswith("stream")]
    kernels = sum(span.category == "kernel" for span in trace.spans)
    return {"kernels_per_call": kernels, "streams_busy": round(trace.busy_lanes(streams), 3)}


# The alternatives


def makers(net: LSTMEnsemble, problem: Problem, x: Tensor) -> dict[str, Maker]:
    """Return what makes each alternative by its name."""
    return {
        EAGER: lambda: net,
        LIBRARY: lambda: library_ensemble(net, problem.size),
        "CUDA graph": lambda: in_graph(net, x),
        f"{LIBRARY} in a graph": lambda: in_graph(library_ensemble(net, problem.size), x),
        "CUDA streams": lambda: on_streams(net),
        "CUDA streams in a graph": lambda: in_graph(on_streams(net), x),
        "vmap": lambda: with_vmap(net),
        "vmap in a graph": lambda: in_graph(with_vmap(net), x),
        "torch.compile": lambda: torch.compile(net),
        "torch.compile of vmap": lambda: torch.compile(with_vmap(net), fullgraph=True),
        "torch.compile of vmap, reduce-overhead": lambda: torch.compile(
            with_vmap(net), fullgraph=True, mode="reduce-overhead"
        ),
        BF16: lambda: in_bfloat16(net),
        THREADS: lambda: in_threads(net),
        FORK: lambda: forked(problem, net),
    }


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


def in_bfloat16(net: LSTMEnsemble) -> Ensemble:
    """Return a copy with weights in bfloat16; a call includes the conversions of input and output."""
    half = deepcopy(net).bfloat16()
    return lambda x: half(x.bfloat16()).float()


def in_threads(net: LSTMEnsemble) -> Ensemble:
    """Return the ensemble with one Python thread per model and direction, all of them started."""
    count = 2 * len(net.models)
    pool, all_there = ThreadPoolExecutor(count), Barrier(count)
    for waiting in [pool.submit(all_there.wait) for _ in range(count)]:
        waiting.result()

    def task(direction: Ensemble, x: Tensor) -> Tensor:
        with torch.no_grad():  # which is a setting of each thread
            return direction(x)

    def run(x: Tensor) -> Tensor:
        directions = [direction for model in net.models for direction in (model.run_forward, model.run_backward)]
        halves = [future.result() for future in [pool.submit(task, direction, x) for direction in directions]]
        return torch.stack([torch.cat(pair, dim=2) for pair in zip(halves[::2], halves[1::2], strict=True)]).sum(dim=0)

    return run


def forked(problem: Problem, net: LSTMEnsemble) -> Ensemble:
    """Return the ensemble with directions and models forked, the pool's threads started."""
    start_pool()
    return scripted("directions and models", problem, net)


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
