"""Milliseconds of a call of an LSTM ensemble on the CPU, forked and not, under several thread settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, best, settings_for, sweep_of, time_variants
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .record import Case, Measurements

TINY = Problem(steps=3, batch=2, size=4, models=2, repeats=2)


@dataclass(frozen=True)
class Forks:
    """Every problem under every pair of ``(intra-op, inter-op)`` threads, each in a process of its own."""

    problems: dict[str, Problem]
    threads: list[tuple[int, int]]

    name: ClassVar[str] = "forks"
    uses_gpu: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        calls = "the mean of calls in a row, as many as take about 50 ms without fork, at least one"
        order = "autograd off; no fork first, then in turns"
        return {"plan": asdict(self), "dtype": "float32", "sample": f"{calls}; {order}"}

    def cases(self) -> list[Case]:
        return [
            Case(f"{problem}/{intra_op}/{inter_op}", partial(self.run, problem, (intra_op, inter_op)))
            for problem in self.problems
            for intra_op, inter_op in self.threads
        ]

    def run(self, problem: str, threads: tuple[int, int]) -> Measurements:
        """Return ms per call of each variant; what a value includes stands at :func:`time_variants`."""
        variants = in_new_process(time_variants, self.problems[problem], threads=threads)
        prefix = "/".join([problem, *map(str, threads)])
        return {
            f"{prefix}/{variant}": replace(measurement, settings={**measurement.settings, "problem": problem})
            for variant, measurement in variants.items()
        }

    def derive(self, results: Results) -> dict[str, Any]:
        derived: dict[str, Any] = {}
        for problem in dict.fromkeys(measurement.settings["problem"] for measurement in results.values()):
            found = compare(results.select(problem=problem))
            derived |= {f"{problem}_{key}": value for key, value in found.items()}
        return derived


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Forks:
    """Return the benchmark for a machine with ``cores`` cores; ``quick`` takes seconds instead of minutes."""
    threads = settings_for(cores)
    if quick:
        return Forks({"small": TINY}, threads[:2])
    return Forks({"source": replace(SOURCE_SIZE, repeats=9), "small": replace(SMALL, repeats=9)}, threads)


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
