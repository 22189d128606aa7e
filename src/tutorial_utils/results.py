"""Stored results: what ``python -m benchmarks`` recorded, one file a part, each value of it kept.

``load("graphs")["step_graph"]`` is a :class:`~tutorial_utils.timing.Measurement`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .timing import Measurement

FORMAT = 2
FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Results(Mapping[str, Measurement]):
    """The measurements of one file by their names, and how they were made.

    Attributes:
        part: which benchmark it is, for example ``graphs``.
        date: when it began (ISO 8601, UTC).
        device: ``type`` (cuda or cpu), ``name``, ``cpu``, ``cores`` and more.
        versions: of ``python``, ``torch``, ``cuda`` and more.
        settings: what all measurements have in common.
        measurements: each with settings of its own.
        failed: for each case or measurement that failed, why.
        left_out: the names of the cases that were not tried.
        derived: what the benchmark computed from the medians.
    """

    part: str
    date: str
    device: Mapping[str, Any]
    versions: Mapping[str, Any]
    settings: Mapping[str, Any]
    measurements: Mapping[str, Measurement]
    failed: Mapping[str, str]
    left_out: list[str]
    derived: Mapping[str, Any]

    def __getitem__(self, name: str) -> Measurement:
        """Return a measurement. KeyError says why it is not there, or names those that are."""
        if name not in self.measurements:
            not_there = dict.fromkeys(self.left_out, "its case was left out of this run") | self.failed
            why = [text for case, text in not_there.items() if f"{name}/".startswith(f"{case}/")]
            why.append(f"there are {', '.join(self)}")
            raise KeyError(f"no stored measurement {name!r}: {why[0]}")
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def select(self, **settings: Any) -> list[Measurement]:
        """Return the measurements that have all these settings, in the order in which they were made."""
        return [m for m in self.values() if settings.items() <= m.settings.items()]

    def source_line(self) -> str:
        """Where and when it was measured, for example ``NVIDIA H200, PyTorch 2.11.0, CUDA 13.0, 2026-11-30``."""
        platform = f"CUDA {self.versions['cuda']}"
        if self.device["type"] == "cpu":
            platform = f"{self.device['cores']} CPU cores"
        return f"{self.device['name']}, PyTorch {self.versions['torch'].split('+')[0]}, {platform}, {self.date[:10]}"


def load(name: str) -> Results:
    """Return the stored results of a part. FileNotFoundError names those that there are."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json")))
        raise FileNotFoundError(f"no stored results called {name!r}; there are {there}")
    return read(path)


def read(path: str | Path) -> Results:
    """Return what the benchmarks wrote into a file. ValueError where it is another file, or of another format."""
    path = Path(path)
    fields = ("values", "unit", "settings", "facts")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (found := data.pop("format")) != FORMAT:
            raise ValueError(f"format {found}")
        data["measurements"] = {
            name: Measurement(label=name, **{field: entry[field] for field in fields})
            for name, entry in data["measurements"].items()
        }
        return Results(**data)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{path.name} is no results file of format {FORMAT} ({error!r})"
        raise ValueError(f"{why}; measure it again with `python -m benchmarks`") from error
