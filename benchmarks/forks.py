"""Milliseconds of a call of an LSTM ensemble on the CPU, forked and not, under several thread settings; and a trace."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tutorial_utils import timeline
from tutorial_utils.fork_timing import (
    SMALL,
    SOURCE_SIZE,
    Problem,
    best,
    settings_for,
    sweep_of,
    time_variants,
    wake_pool,
)
from tutorial_utils.models import ForkedBidirectionalLSTM, ForkedLSTMEnsemble
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .record import Case, Measurements, merged

TINY = Problem(steps=3, batch=2, size=4, models=2, repeats=2)
MORE = [(4, 8), (4, 16), (8, 4)]  # more threads than cores, on sixteen


@dataclass(frozen=True)
class Forks:
    """Every problem under every pair of ``(intra-op, inter-op)`` threads, each in several processes of its own.

    And a trace of one call of each problem, with a task for each LSTM.
    """

    problems: dict[str, Problem]
    threads: list[tuple[int, int]]
    processes: int

    name: ClassVar[str] = "forks"
    uses_gpu: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms without fork, at least one"
        order = "autograd off; no fork first, then in turns; a value is the median of a process"
        return {"plan": asdict(self), "dtype": "float32", "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        timed = [
            Case(f"{problem}/{intra_op}/{inter_op}", partial(self.run, problem, (intra_op, inter_op)))
            for problem in self.problems
            for intra_op, inter_op in self.threads
        ]
        return timed + [Case(f"trace/{problem}", partial(self.trace, problem)) for problem in self.problems]

    def run(self, problem: str, threads: tuple[int, int]) -> Measurements:
        """Return ms per call of each variant; what a value includes stands at :func:`time_variants`."""
        timed = partial(in_new_process, time_variants, self.problems[problem], threads=threads)
        prefix = "/".join([problem, *map(str, threads)])
        return {
            f"{prefix}/{variant}": replace(measurement, settings={**measurement.settings, "problem": problem})
            for variant, measurement in merged([timed() for _ in range(self.processes)]).items()
        }

    def trace(self, problem: str) -> Measurements:
        """Return ms of one call under the profiler, the fork of directions and models with one intra-op thread.

        The fact ``spans``: what ran outermost in each thread. An LSTM has the label of its model and direction.
        """
        inter_op = max(pool for intra, pool in self.threads if intra == 1)
        spans = in_new_process(traced, self.problems[problem], threads=(1, inter_op))
        end_us = max(span["start_us"] + span["duration_us"] for span in spans)
        duration_ms = (end_us - min(span["start_us"] for span in spans)) / 1e3
        settings = {"traced": problem, "intra_op": 1, "inter_op": inter_op, **asdict(self.problems[problem])}
        return {f"trace/{problem}": Measurement([duration_ms], "ms", problem, settings, {"spans": spans})}

    def derive(self, results: Results) -> dict[str, Any]:
        derived: dict[str, Any] = {}
        problems = [measurement.settings.get("problem") for measurement in results.values()]
        for problem in dict.fromkeys(filter(None, problems)):
            found = compare(results.select(problem=problem))
            derived |= {f"{problem}_{key}": value for key, value in found.items()}
        return derived


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Forks:
    """Return the benchmark for a machine with ``cores`` cores; ``quick`` takes seconds instead of minutes."""
    threads = settings_for(cores)
    if quick:
        return Forks({"small": TINY}, threads[:2], processes=1)
    if cores == 16:
        threads += MORE
    problems = {"source": replace(SOURCE_SIZE, repeats=2), "small": replace(SMALL, repeats=5)}
    return Forks(problems, threads, processes=3)


class Labelled(nn.Module):
    """An LSTM inside a ``record_function`` with its label."""

    def __init__(self, lstm: nn.LSTM, label: str) -> None:
        super().__init__()
        self.lstm, self.label = lstm, label

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with torch.profiler.record_function(self.label):
            result = self.lstm(x)
        return result


def traced(problem: Problem) -> list[dict[str, Any]]:
    """Return the spans of one call, after a warm-up, in the process that it is called in."""
    models = [ForkedBidirectionalLSTM(problem.size) for _ in range(problem.models)]
    for number, model in enumerate(models, start=1):
        model.forward_lstm = Labelled(model.forward_lstm, f"{number}f")
        model.backward_lstm = Labelled(model.backward_lstm, f"{number}b")
    x = torch.randn(problem.steps, problem.batch, problem.size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script` is deprecated")
        net = torch.jit.script(ForkedLSTMEnsemble(models))
    with torch.no_grad():
        wake_pool()
        trace = timeline.profile(lambda: net(x), warmup=2)
    spans = [span for span in trace.spans if span.category == "operator"]
    return [{key: rounded(value) for key, value in asdict(span).items() if key != "category"} for span in spans]


def rounded(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value


def compare(measurements: Iterable[Measurement]) -> dict[str, Any]:
    """Return what the measurements of one problem say.

    ``gain``: best without fork over best with fork, each at its best setting. ``gain_1_thread``: no fork over both
    forks at the first setting with one intra-op thread. ``best_unforked``, ``best_forked``: where these are, such as
    ``4/4: models``.
    """
    sweep = sweep_of(measurements)
    unforked, forked = best(sweep, forked=False), best(sweep, forked=True)
    with_one_thread = [variants for variants in sweep.values() if variants["no fork"].settings["intra_op"] == 1]
    gains = [variants["no fork"].median / variants["directions and models"].median for variants in with_one_thread]
    return {
        "gain": unforked.median / forked.median,
        "gain_1_thread": next(iter(gains), None),
        "best_unforked": place(unforked),
        "best_forked": place(forked),
    }


def place(measurement: Measurement) -> str:
    settings = measurement.settings
    return f"{settings['intra_op']}/{settings['inter_op']}: {settings['variant']}"
