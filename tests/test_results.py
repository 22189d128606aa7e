"""The loader of stored results; and that the stored files have what it relies on."""

import copy
import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import PARTS
from tutorial_utils.results import FOLDER, load, read

Json = dict[str, Any]
FILES = sorted(FOLDER.glob("*.json"))
KEYS = {"format": int, "part": str, "date": str, "device": dict, "versions": dict, "settings": dict}
KEYS |= {"measurements": dict, "failed": dict, "left_out": list, "derived": dict}
UNITS = {"µs", "ms", "s", "MiB", "x", "steps", "refusals"}


def faults(data: Json) -> Iterator[str]:
    """Where a results file is not what the benchmarks write."""
    yield from (key for key in KEYS.keys() | data.keys() if not isinstance(data.get(key), KEYS.get(key, ())))
    yield from (f"device.{key}" for key in ("type", "name", "cpu") if not is_text(data["device"].get(key)))
    yield from (f"versions.{key}" for key in ("python", "torch") if not is_text(data["versions"].get(key)))
    yield from ["device.cores"] * (not is_positive(data["device"].get("cores")))
    yield from ["date"] * (not is_date(data.get("date")))
    for name, entry in data["measurements"].items():
        yield from (f"{name}.{fault}" for fault in faults_of_measurement(entry))


def faults_of_measurement(entry: Json) -> Iterator[str]:
    yield from (entry.keys() - {"took_s"}) ^ {"unit", "values", "settings", "facts", "date"}
    yield from ["unit"] * (entry.get("unit") not in UNITS)
    yield from ["date"] * (not is_date(entry.get("date")))
    yield from (key for key in ("settings", "facts") if not isinstance(entry.get(key), dict))
    yield from ["values"] * (not entry.get("values") or not all(map(is_positive, entry["values"])))


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def is_date(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def content(path: Path) -> Json:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_files_are_whole_runs_without_a_fault(path: Path) -> None:
    data = content(path)
    assert list(faults(data)) == []
    assert data["failed"] == {} and data["left_out"] == []
    plan = data["settings"].get("plan", {})
    assert plan.get("data", "full") == "full" and data["settings"].get("steps", 400) == 400, "a quick run is not kept"
    assert set(plan.get("problems", ["source", "small"])) == {"source", "small"}, "a quick run is not kept"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_derived_follows_from_the_values(path: Path) -> None:
    results = read(path)
    assert results.derived == PARTS[results.part](True).derive(results)
    assert results.derived or results.part in ("captures", "trace")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("part", None),
        ("left_out", {}),
        ("another", 1),
        ("date", "30 November 2026"),
        ("date", "2026-11-30T12:00:00"),
        ("device.name", ""),
        ("device.cores", "16"),
        ("versions.torch", None),
        ("measurements.step_graph.another", 1),
        ("measurements.step_graph.unit", "us"),
        ("measurements.step_graph.date", "2026-11-30"),
        ("measurements.step_graph.settings", []),
        ("measurements.step_graph.values", []),
        ("measurements.step_graph.values", [1.0, 0]),
        ("measurements.step_graph.values", [math.nan]),
        ("measurements.step_graph.values", [True]),
        ("measurements.step_graph.values", ["1"]),
    ],
)
def test_a_fault_is_found(place: str, value: Any) -> None:
    data = copy.deepcopy(content(FOLDER / "graphs.json"))
    *parents, last = place.split(".")
    entry = data
    for key in parents:
        entry = entry[key]
    entry[last] = value
    assert place.removeprefix("measurements.") in list(faults(data))


def test_a_stored_measurement_is_one_with_label_settings_and_facts() -> None:
    graphs = load("graphs")
    step = graphs["step_graph"]
    assert (step.label, step.unit, len(step.values), step.settings["form"]) == ("step_graph", "µs", 3, "graph")
    assert len(graphs["epochs_graph"].facts["samples"]) == 3
    assert len(graphs) == len(list(graphs)) > 50
    assert graphs.source_line() == "NVIDIA H200, PyTorch 2.11.0, CUDA 13.0, 2026-12-01"
    assert load("forks").source_line() == "Intel(R) Xeon(R) Processor, PyTorch 2.11.0, 16 CPU cores, 2026-11-30"


def test_measurements_are_selected_by_their_settings() -> None:
    chosen = load("forks").select(problem="small", variant="models", intra_op=4)
    assert [measurement.label for measurement in chosen] == ["small/4/4/models"]
    assert load("forks").select(problem="another") == []


def test_what_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    stored = "alternatives, captures, forks, forks_other, graphs, trace"
    with pytest.raises(FileNotFoundError, match=f"'h100'; there are {stored}"):
        load("h100")
    with pytest.raises(KeyError, match="no stored measurement 'step': there are step_eager, step_eager/host_calls"):
        load("graphs")["step"]
    data = content(FOLDER / "graphs.json") | {"failed": {"step": "RuntimeError: no luck"}, "left_out": ["batch_1"]}
    (path := tmp_path / "a.json").write_text(json.dumps(data), encoding="utf-8")
    left_out = "its case was left out"
    whys = {"step": "RuntimeError: no luck", "batch_1": left_out, "batch_1/more": left_out, "batch_17": "there are"}
    for name, why in whys.items():
        with pytest.raises(KeyError, match=f"'{name}': {why}"):
            read(str(path))[name]


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[1]", "1", "{}", '{"format": 1}', '{"format": 2, "measurements": {}}']
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.json is no results file of format 2 .* again with `python -m benchmarks`"):
        read(path)
