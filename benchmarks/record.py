"""Measure the cases of a part one after another, and keep them in one results file.

The file is what :func:`tutorial_utils.results.read` reads. It is written whole after each case, so that an interrupted
run keeps what it measured; the cases that it did not come to stand in ``left_out``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from tutorial_utils.results import FORMAT, Results, read
from tutorial_utils.timing import Measurement, in_new_process

from . import machine

Measurements = dict[str, Measurement]
"""Measurements by their full names."""


@dataclass(frozen=True)
class Case:
    """What is measured in one go.

    Attributes:
        name: what ``--only`` takes.
        run: measures, and returns each measurement by its full name. It raises SomeFailed where only some failed.
        needs_gpu: without a GPU the case is left out.
    """

    name: str
    run: Callable[[], Measurements]
    needs_gpu: bool = False


class Part(Protocol):
    """One benchmark, whose cases share a results file."""

    name: str
    uses_gpu: bool

    def settings(self) -> dict[str, Any]:
        """Return what all measurements have in common."""

    def cases(self) -> list[Case]:
        """Return every case, in the order in which they are measured."""

    def derive(self, results: Results) -> dict[str, Any]:
        """Return what follows from the results; None where what it takes is not there."""


class SomeFailed(Exception):
    """Some measurements of a case failed: ``failed`` says which and why, ``measurements`` holds the others."""

    def __init__(self, measurements: Measurements, failed: dict[str, str]) -> None:
        super().__init__(", ".join(failed))
        self.measurements, self.failed = measurements, failed


class Recording:
    """A results file in the making. OSError where the file cannot be written, before anything is measured."""

    def __init__(self, part: Part, path: Path) -> None:
        self.part, self.path = part, path
        self.data: dict[str, Any] = {
            "format": FORMAT,
            "part": part.name,
            "date": now(),
            "device": machine.device(part.uses_gpu and machine.HAS_GPU),
            "versions": machine.versions(part.uses_gpu and machine.HAS_GPU),
            "settings": part.settings(),
            "measurements": {},
            "failed": {},
            "left_out": [case.name for case in part.cases()],
            "derived": {},
        }
        self.save()

    def measure(self, cases: list[Case]) -> None:
        """Measure these cases, and write the file after each of them."""
        for case in (progress := tqdm(cases, unit="case")):
            progress.set_postfix_str(case.name)
            start = time.perf_counter()
            measurements, failed = outcome(case)
            self.add(measurements, took_s=round(time.perf_counter() - start, 3))
            self.data["failed"] |= failed
            self.data["left_out"].remove(case.name)
            self.save()

    def add(self, measurements: Measurements, took_s: float) -> None:
        """Add what a case measured; its first measurement carries the seconds that the whole case took."""
        date = now()
        for name, measurement in measurements.items():
            entry = {"unit": measurement.unit, "values": [six_digits(value) for value in measurement.values]}
            entry |= {"settings": measurement.settings, "facts": measurement.facts, "date": date}
            self.data["measurements"][name] = entry
        for name in list(measurements)[:1]:
            self.data["measurements"][name]["took_s"] = took_s

    def save(self) -> None:
        """Replace the file at once, so that an interruption leaves the previous one and never a half."""
        part_file = self.path.with_name(f"{self.path.name}.part")
        self.data["derived"] = {}
        write(part_file, self.data)
        self.data["derived"] = self.part.derive(read(part_file))  # from what a reader of the file will get
        write(part_file, self.data)
        part_file.replace(self.path)


def outcome(case: Case) -> tuple[Measurements, dict[str, str]]:
    """Return what a case measured, and why what failed did."""
    try:
        measurements = case.run()
        for name, measurement in measurements.items():
            if not all(math.isfinite(value) and value > 0 for value in measurement.values):
                raise ValueError(f"{name} has a value that is no positive number: {list(measurement.values)}")
    except SomeFailed as some:
        return some.measurements, some.failed
    except Exception as error:
        return {}, {case.name: reason(error)}
    return measurements, {}


def in_processes(
    count: int, measure: Callable[..., Measurements], *arguments: Any, threads: tuple[int, int] | None = None
) -> Measurements:
    """Measure in ``count`` new processes: a value is the median of one. The fact ``samples`` holds all of each process.

    Settings and the other facts are those of the first process. ``threads`` is that of :func:`in_new_process`.
    """
    runs = [in_new_process(measure, *arguments, threads=threads) for _ in range(count)]
    found = {}
    for name, first_run in runs[0].items():
        samples = [[six_digits(value) for value in run[name].values] for run in runs]
        medians = [run[name].median for run in runs]
        found[name] = replace(first_run, values=medians, facts={**first_run.facts, "samples": samples})
    return found


def reason(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
