"""The recorded results are what the benchmark wrote, and damaged ones are refused."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tutorial_utils import benchmark, reference

Json = dict[str, Any]


@pytest.fixture
def data() -> Json:
    date = "2026-11-30T12:00:00+00:00"
    inner = {"unit": "µs", "settings": {}, "samples": [5.0], "median": 5.0, "q1": 5.0, "q3": 5.0}
    step = {"unit": "µs", "settings": {"batch": 64}, "date": date, "samples": [1.0, 2.0, 3.0, 6.0], "median": 2.5}
    step |= {"q1": 1.75, "q3": 3.75, "host_calls": inner, "kernels": [{"name": "k"}], "kernels_per_step": 1}
    return {
        "schema_version": reference.SCHEMA_VERSION,
        "date": date,
        "device": {"type": "cuda", "name": "NVIDIA H200", "cores": 16},
        "versions": {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0"},
        "settings": {},
        "left_out": [],
        "derived": {"crossover_batch": None, "break_even_graph": 12, "small_best_at": "4/4: models"},
        "measurements": {"step_graph": step, "step_eager": {"date": date, "error": "RuntimeError: no luck"}},
    }


def damage(path: str, value: Any) -> Callable[[Json], None]:
    def apply(data: Json) -> None:
        *parents, last = path.split(".")
        for key in parents:
            data = data[key]
        data.pop(last) if value is DELETE else data.update({last: value})

    return apply


DELETE = object()
STEP = "measurements.step_graph"
DAMAGES = [
    *[(key, DELETE) for key in ("schema_version", "date", "device", "versions", "settings", "left_out", "derived")],
    ("measurements", DELETE),
    ("schema_version", 0),
    ("date", "30 November 2026"),
    ("date", "2026-11-30T12:00:00"),
    ("date", 20261130),
    ("device.name", ""),
    ("device.cores", 0),
    ("device.cores", "16"),
    ("versions.torch", DELETE),
    ("derived.break_even_graph", -3),
    ("derived.break_even_graph", "12"),
    ("derived.small_best_at", ""),
    ("derived.small_best_at", 4),
    (STEP, [1.0]),
    (f"{STEP}.date", DELETE),
    (f"{STEP}.unit", DELETE),
    (f"{STEP}.settings", DELETE),
    (f"{STEP}.samples", DELETE),
    (f"{STEP}.samples", []),
    (f"{STEP}.samples", [1.0, 2.0, 3.0]),
    (f"{STEP}.samples", [1.0, 2.0, 3.0, -6.0]),
    (f"{STEP}.samples", [1.0, 2.0, 3.0, float("nan")]),
    (f"{STEP}.samples", [True, 2.0, 3.0, 6.0]),
    (f"{STEP}.median", 2.4),
    (f"{STEP}.median", DELETE),
    (f"{STEP}.q1", 1.7),
    (f"{STEP}.q3", "3.75"),
    (f"{STEP}.host_calls.median", 5.1),
    (f"{STEP}.kernels_per_step", 2),
    ("measurements.step_eager.error", DELETE),
]


def test_valid_results_load(data: Json, tmp_path) -> None:
    (path := tmp_path / "good.json").write_text(json.dumps(data), encoding="utf-8")
    loaded = reference.read(path)
    assert loaded["measurements"]["step_graph"]["samples"] == [1.0, 2.0, 3.0, 6.0]
    assert loaded.median("step_graph") == 2.5
    assert loaded.quartiles("step_graph") == (1.75, 3.75)
    assert loaded.source_line() == "NVIDIA H200, PyTorch 2.11.0, CUDA 13.0, 2026-11-30"


@pytest.mark.parametrize(("path", "value"), DAMAGES, ids=lambda part: "deleted" if part is DELETE else repr(part))
def test_damaged_results_are_refused(data: Json, path: str, value: Any) -> None:
    reference.validate(copy.deepcopy(data))
    damage(path, value)(data)
    with pytest.raises(reference.SchemaError) as caught:
        reference.validate(data)
    place = STEP if path.startswith(STEP) else path.rsplit(".error", 1)[0]
    assert place in str(caught.value), "the message names the place"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_file_that_is_no_result_is_refused_by_name(content: bytes, tmp_path) -> None:
    (path := tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(reference.SchemaError, match="bad.json holds no valid benchmark results"):
        reference.read(path)


def test_unknown_names_are_answered_with_those_that_there_are(data: Json) -> None:
    with pytest.raises(FileNotFoundError, match="no recorded results called 'h100'"):
        reference.load("h100")
    with pytest.raises(LookupError, match=r"'step' \(not there\); there are: step_graph$"):
        reference.Reference(data).median("step")
    with pytest.raises(LookupError, match="no luck"):
        reference.Reference(data).quartiles("step_eager")


RECORDED = sorted(path.stem for path in reference.FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_results_are_complete_and_valid(name: str) -> None:
    recorded = reference.load(name)
    entries = recorded["measurements"]
    assert not [key for key, entry in entries.items() if "error" in entry]
    plan = benchmark.plan_of(recorded)
    if isinstance(plan, benchmark.Plan):
        assert plan.data == "full", "a quick run is no reference"
    else:
        assert set(plan.problems) == {"source", "small"}, "a quick run is no reference"
    assert set(entries) | set(recorded["left_out"]) == set(benchmark.measurements(plan))
    assert not [way for entry in entries.values() for way in entry.get("ways", ()) if "error" in entry[way]]
    assert recorded["derived"] == benchmark.derive(recorded)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("key", ["median", "q1", "q3", "samples", "unit", "date"])
def test_recorded_results_with_one_entry_altered_are_refused(name: str, key: str) -> None:
    for entry in reference.load(name)["measurements"]:
        data = dict(reference.load(name))
        value = data["measurements"][entry][key]
        data["measurements"][entry][key] = value * 1.01 if isinstance(value, float) else value[:0]
        with pytest.raises(reference.SchemaError, match=f"measurements.{entry}.{key}|measurements.{entry}.q1"):
            reference.validate(data)
