"""Recorded results, each the unedited output of ``python -m tutorial_utils.benchmark``, and their loader."""

import contextlib
import json
import math
import os
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
FOLDER = Path(__file__).parent


class SchemaError(ValueError):
    """The data is not what ``python -m tutorial_utils.benchmark`` writes; the message names the place."""


class Reference(dict):
    """The JSON's content (keys: see :func:`validate`), with helpers."""

    def _statistic(self, name: str, key: str) -> float:
        entry = self["measurements"].get(name, {})
        if key not in entry:
            names = ", ".join(name for name, entry in self["measurements"].items() if "median" in entry)
            reason = entry.get("error", "not there")
            raise LookupError(f"no recorded measurement {name!r} ({reason}); there are: {names}")
        return entry[key]

    def median(self, name: str) -> float:
        """Median of the measurement's samples, in its unit. LookupError names the measurements that there are."""
        return self._statistic(name, "median")

    def quartiles(self, name: str) -> tuple[float, float]:
        """First and third quartile, as :meth:`median`."""
        return self._statistic(name, "q1"), self._statistic(name, "q3")

    def source_line(self) -> str:
        """Where and when it was measured, for example ``NVIDIA H200, PyTorch 2.11.0, CUDA 13.0, 2026-11-30``."""
        device, versions = self["device"], self["versions"]
        platform = f"CUDA {versions['cuda']}" if device["type"] == "cuda" else f"{device['cores']} CPU cores"
        return f"{device['name']}, PyTorch {versions['torch'].split('+')[0]}, {platform}, {self['date'][:10]}"


def load(name: str = "h200") -> Reference:
    """Load ``reference/NAME.json``. FileNotFoundError where there is none, SchemaError where it is damaged."""
    if not (path := FOLDER / f"{name}.json").is_file():
        there = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json"))) or "none"
        raise FileNotFoundError(f"no recorded results called {name!r}; there are: {there}")
    return read(path)


def read(path: Path) -> Reference:
    """Read and validate any file that the benchmark wrote. SchemaError names the file and what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        validate(data)
    except ValueError as error:  # also what json and the decoding raise
        raise SchemaError(f"{path.name} holds no valid benchmark results: {error}") from error
    return Reference(data)


def write(path: Path, data: Any) -> None:
    """Replace the whole JSON file at once: an interrupted run leaves the previous one, never a half.

    OSError names ``path``, the reason and what to do.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    part = target.with_name(target.name + ".part")
    try:
        part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(part, target)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror}); mend that or choose another file") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def quartiles(samples: list[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, by linear interpolation between the samples."""
    return tuple(statistics.quantiles(samples, method="inclusive")) if len(samples) > 1 else (samples[0],) * 3


def measured(unit: str, samples: Sequence[float], settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a measurement of these samples, rounded to six digits, with their statistics and what belongs to it."""
    samples = [float(f"{sample:.6g}") for sample in samples]
    q1, median, q3 = quartiles(samples)
    return {"unit": unit, "median": median, "q1": q1, "q3": q3, "samples": samples, **more, "settings": settings}


def validate(data: Any) -> None:
    """Raise SchemaError unless ``data`` has the benchmark's structure, and all statistics are those of the samples.

    Keys: schema_version, date (ISO 8601, UTC), device, versions, settings, left_out (names), derived, measurements.
    Derived values are positive numbers, or text where the name ends with ``_at``; any may be null.
    Each measurement has date, unit, settings, samples, median, q1 and q3; one that failed has date and error.
    """
    _check(isinstance(data, dict), "it is no JSON object")
    found = data.get("schema_version")
    _check(found == SCHEMA_VERSION, f"schema_version is {found!r}, and this package reads {SCHEMA_VERSION}")
    kinds = dict.fromkeys(("device", "versions", "settings", "derived", "measurements"), dict) | {"left_out": list}
    for key, kind in kinds.items():
        _check(isinstance(data.get(key), kind), f"{key} is missing or of another type")
    _check_date(data, "date")
    for key, name in ("device", "type"), ("device", "name"), ("versions", "python"), ("versions", "torch"):
        _check(_is_text(data[key].get(name)), f"{key}.{name} is missing or no text")
    _check(is_positive(data["device"].get("cores")), "device.cores is no positive number")
    for name, value in data["derived"].items():
        is_right, kind = (_is_text, "text") if name.endswith("_at") else (is_positive, "positive number")
        _check(value is None or is_right(value), f"derived.{name} is no {kind}")
    for name, entry in data["measurements"].items():
        _check(isinstance(entry, dict), f"measurements.{name} is no object")
        _check_date(entry, f"measurements.{name}.date")
        if not _is_text(entry.get("error")):
            _check_samples(entry, f"measurements.{name}")


def _check_samples(entry: dict[str, Any], place: str) -> None:
    _check(_is_text(entry.get("unit")), f"{place}.unit is missing or no text")
    _check(isinstance(entry.get("settings"), dict), f"{place}.settings is missing")
    samples = entry.get("samples")
    _check(isinstance(samples, list) and samples, f"{place}.samples is missing or empty")
    _check(all(map(is_positive, samples)), f"{place}.samples holds something that is no positive number")
    for key, expected in zip(("q1", "median", "q3"), quartiles(samples), strict=True):
        agrees = is_positive(entry.get(key)) and math.isclose(entry[key], expected, rel_tol=1e-9)
        _check(agrees, f"{place}.{key} is {entry.get(key)!r}, but its samples give {expected!r}")
    if "kernels" in entry:
        _check(len(entry["kernels"]) == entry.get("kernels_per_step"), f"{place}.kernels_per_step is another number")
    for key, value in entry.items():
        if isinstance(value, dict) and "samples" in value:
            _check_samples(value, f"{place}.{key}")


def _check_date(entry: dict[str, Any], place: str) -> None:
    try:
        aware = datetime.fromisoformat(entry["date"]).tzinfo is not None
    except (KeyError, TypeError, ValueError):
        aware = False
    _check(aware, f"{place} is {entry.get('date')!r}, no ISO 8601 date with a time zone")


def _check(condition: object, message: str) -> None:
    if not condition:
        raise SchemaError(message)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
