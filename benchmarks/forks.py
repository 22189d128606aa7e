"""Milliseconds of a call of an LSTM ensemble on the CPU, forked and not, under several thread settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, best, settings_for, sweep_of, time_each
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement

from .machine import gpu_hidden
from .record import Case, Measurements, in_processes

TINY = Problem(steps=3, batch=2, size=4, models=2, repeats=2)


@dataclass(frozen=True)
class Forks:
    """All problems under every pair of ``(intra-op, inter-op)`` threads, each pair in new processes of its own.

    With fewer than ``many`` intra-op threads a call takes seconds; then those with a ``size`` over 512 have one sample.
    """

    problems: dict[str, Problem]
    threads: list[tuple[int, int]]
    processes: int
    many: int = 4

    name: ClassVar[str] = "forks"
    uses_gpu: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms without fork, at least one"
        order = "autograd off; no fork first, then in turns"
        value = "the median of the samples of one process"
        return {"plan": asdict(self), "dtype": "float32", "value": value, "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        return [Case("/".join(map(str, threads)), partial(self.run, threads)) for threads in self.threads]

    def run(self, threads: tuple[int, int]) -> Measurements:
        """Return ms per call of each variant; what a sample includes stands at :func:`time_variants`."""
        few = threads[0] < self.many
        problems = {name: replace(p, repeats=1) if few and p.size > 512 else p for name, p in self.problems.items()}
        with gpu_hidden():
            return in_processes(self.processes, measure, problems, "/".join(map(str, threads)), threads=threads)

    def derive(self, results: Results) -> dict[str, Any]:
        derived: dict[str, Any] = {}
        for problem in dict.fromkeys(measurement.settings["problem"] for measurement in results.values()):
            found = compare(results.select(problem=problem))
            derived |= {f"{problem}_{key}": value for key, value in found.items()}
        return derived


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Forks:
    """Return the benchmark for a machine with ``cores`` cores; ``quick`` takes seconds instead of minutes."""
    if quick:
        return Forks({"small": TINY}, settings_for(cores)[:2], processes=2)
    problems = {"source": replace(SOURCE_SIZE, repeats=2), "small": replace(SMALL, repeats=5)}
    return Forks(problems, threads_for(cores), processes=3)


def threads_for(cores: int) -> list[tuple[int, int]]:
    """Return the pairs to measure: those of :func:`settings_for`; from eight cores on also two to four threads a core.

    There the pairs with fewer than four inter-op threads are left out, which the time would not allow.
    """
    shared = settings_for(cores)
    if cores < 8:
        return shared
    quarter, half = cores // 4, cores // 2
    more = {(quarter, half), (quarter, cores), (half, quarter)}
    return sorted({pair for pair in shared if pair[1] >= 4} | more)


def measure(problems: dict[str, Problem], threads: str) -> Measurements:
    return {
        f"{problem}/{threads}/{variant}": replace(measured, settings={**measured.settings, "problem": problem})
        for problem, variants in time_each(problems).items()
        for variant, measured in variants.items()
    }


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
