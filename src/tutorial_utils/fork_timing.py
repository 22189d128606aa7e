"""Time an ensemble of bidirectional LSTMs, forked and not.

Measure each pair of thread counts in a process of its own: ``in_new_process(time_variants, SMALL, threads=(4, 4))``.
The inter-op pool is made once per process (``torch.set_num_interop_threads`` raises after parallel work has started).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .models import BidirectionalLSTM, ForkedBidirectionalLSTM, ForkedLSTMEnsemble, LSTMEnsemble
from .timing import Measurement

VARIANTS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "no fork": (LSTMEnsemble, BidirectionalLSTM),
    "directions": (LSTMEnsemble, ForkedBidirectionalLSTM),
    "models": (ForkedLSTMEnsemble, BidirectionalLSTM),
    "directions and models": (ForkedLSTMEnsemble, ForkedBidirectionalLSTM),
}
AFTER_FORKS = "no fork, after forks"
"""The unforked network in a process that has forked; "no fork" is the same before anything was forked."""


@dataclass(frozen=True)
class Problem:
    """What is computed: ``models`` bidirectional LSTMs on float32 ``[steps, batch, size]``, under no_grad."""

    steps: int = 50
    batch: int = 50
    size: int = 1024
    models: int = 4
    repeats: int = 5


SOURCE_SIZE = Problem()
SMALL = Problem(batch=8, size=128)


def settings_for(cores: int) -> list[tuple[int, int]]:
    """Return ``(intra-op, inter-op)`` pairs for ``cores`` cores: those that share them out, and PyTorch's default."""
    shared = [(2**k, max(1, cores // 2**k)) for k in range(cores.bit_length()) if 2**k <= cores]
    return list(dict.fromkeys([*shared, (cores, cores)]))


def scripted(variant: str, problem: Problem, share: nn.Module | None = None) -> nn.Module:
    """Return the scripted ensemble of a variant in :data:`VARIANTS`; all variants have the same weights.

    With ``share``, another variant of the same problem, it holds that one's own parameters instead of equal ones.
    """
    ensemble, model = VARIANTS[variant]
    torch.manual_seed(0)
    with torch.device("cpu" if share is None else "meta"):
        net = ensemble([model(problem.size) for _ in range(problem.models)])
    if isinstance(share, torch.jit.ScriptModule):  # whose LSTMs are compiled already
        for mine, theirs in zip(net.models, share.models.children(), strict=True):
            mine.forward_lstm, mine.backward_lstm = theirs.forward_lstm, theirs.backward_lstm
    elif share is not None:
        net.load_state_dict(share.state_dict(), assign=True)
    return _scripted(net)


def _scripted(code: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script` is deprecated")
        return torch.jit.script(code)


def _task(x: Tensor) -> Tensor:
    for _ in range(8):
        x = torch.mm(x, x)
    return x


def _tasks(x: Tensor, count: int) -> Tensor:
    futures = [torch.jit.fork(_task, x) for _ in range(count)]
    return torch.stack([torch.jit.wait(future) for future in futures]).sum()


def start_pool() -> None:
    """Let every thread of the inter-op pool run a task, and start the intra-op threads that serve it.

    Tasks of about a millisecond, eight times as many as the pool has threads.
    """
    with torch.no_grad():
        _scripted(_tasks)(torch.zeros(256, 256), 8 * torch.get_num_interop_threads())


def time_variants(problem: Problem) -> dict[str, Measurement]:
    """Return each variant's milliseconds per call in this process, ``repeats`` values each, by its name.

    A value is the mean over calls in a row, as many as take about 50 ms without fork, and at least one. "no fork" is
    measured first: with several intra-op threads the same network can take several times as long in a process that has
    forked, since OpenMP's threads no longer spin while they wait once there are more of them than cores. Then the
    forked variants take turns with it, so that a change of the host's load meets all; its values there are those of
    :data:`AFTER_FORKS`. Before its first value each is called twice on two time steps, which lets TorchScript
    optimise, and twice on all, or once where that takes over a second. Before the forks, :func:`start_pool`.

    Raises:
        RuntimeError: a variant's result is not bitwise that of the unforked one.
    """
    return time_each({"": problem})[""]


def time_each(problems: Mapping[str, Problem]) -> dict[str, dict[str, Measurement]]:
    """Return :func:`time_variants` of several problems in one process: all are measured unforked before any fork."""
    timers = {name: _timer(problem) for name, problem in problems.items()}
    for timer in timers.values():
        next(timer)
    start_pool()
    return {name: next(timer) for name, timer in timers.items()}


def _timer(problem: Problem) -> Iterator[dict[str, Measurement]]:
    """Measure without fork and yield; measure the rest and yield all."""
    unforked = scripted("no fork", problem)
    x = torch.randn(problem.steps, problem.batch, problem.size, generator=torch.Generator().manual_seed(1))
    ms: dict[str, list[float]] = {name: [] for name in [*VARIANTS, AFTER_FORKS]}

    def timed(net: nn.Module) -> tuple[Tensor, float]:
        start = time.perf_counter()
        return net(x), time.perf_counter() - start

    def warm_up(net: nn.Module) -> tuple[Tensor, float]:
        for part in (x[:2], x[:2]):
            net(part)
        result, seconds = timed(net)
        return (result, seconds) if seconds > 1 else timed(net)

    def sample(name: str, net: nn.Module) -> None:
        start = time.perf_counter()
        for _ in range(calls):
            result = net(x)
        ms[name].append((time.perf_counter() - start) * 1e3 / calls)
        if not torch.equal(result, expected):
            raise RuntimeError(f"{name}: the result differs from the unforked one")

    with torch.no_grad():
        expected, seconds = warm_up(unforked)
        calls = max(1, round(0.05 / seconds))
        for _ in range(problem.repeats):
            sample("no fork", unforked)
    yield {name: _measurement(name, values, problem) for name, values in ms.items() if values}
    with torch.no_grad():
        nets = {name: scripted(name, problem, unforked) for name in VARIANTS if name != "no fork"}
        for net in nets.values():
            warm_up(net)
        for _ in range(problem.repeats):
            for name, net in (nets | {AFTER_FORKS: unforked}).items():
                sample(name, net)
    yield {name: _measurement(name, values, problem) for name, values in ms.items()}


def _measurement(variant: str, ms: list[float], problem: Problem) -> Measurement:
    threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
    return Measurement(ms, "ms", variant, {"variant": variant, **threads, **asdict(problem)})


Sweep = dict[str, dict[str, Measurement]]
"""For each setting, written ``intra-op/inter-op``, what :func:`time_variants` gave there."""


def sweep_of(measurements: Iterable[Measurement]) -> Sweep:
    """Return measurements of :func:`time_variants` by setting and variant, for example those of a stored sweep."""
    sweep: Sweep = {}
    for measurement in measurements:
        settings = measurement.settings
        sweep.setdefault(f"{settings['intra_op']}/{settings['inter_op']}", {})[settings["variant"]] = measurement
    return sweep


def best(sweep: Sweep, forked: bool) -> Measurement:
    """Return the measurement with the shortest median, of the forked variants or of the unforked one."""
    variants = [name for name in VARIANTS if (name != "no fork") == forked]
    return min((by_variant[name] for by_variant in sweep.values() for name in variants), key=lambda m: m.median)
