"""The benchmark's forms train as they claim, and its file survives interruption, failure and misuse."""

import errno
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tutorial_utils import benchmark, load_mnist, reference, sweep, ways
from tutorial_utils.models import MnistNet

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ON_GPU_ONLY = ("graph", "reduce_overhead", "compile_and_capture")
FORMS = ["eager", *(pytest.param(form, marks=needs_gpu) for form in ON_GPU_ONLY)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The network is too small for more, and on a busy machine threads that wait for each other take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instant measurements, which note their calls; the second one fails while "broken" stands in the list."""
    calls: list[str] = ["broken"]

    def one(name: str) -> dict:
        calls.append(name)
        if name == "step_eager_fused" and "broken" in calls:
            raise RuntimeError("the moon is full")
        return benchmark.measured("µs", [3.0, 1.0, 2.0], {"batch": 64})

    monkeypatch.setattr(
        benchmark, "measurements", lambda plan: {n: lambda plan, n=n: one(n) for n in benchmark.ON_CPU_TOO}
    )
    return calls


def run(*arguments: str | Path) -> int:
    return benchmark.main(["--quick", *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture, *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_a_trainer_starts_from_its_seed_although_it_warmed_up(form: str) -> None:
    trainer = benchmark.Trainer(form)
    torch.manual_seed(benchmark.SEED)
    for actual, expected in zip(trainer.model.parameters(), MnistNet().parameters(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)
    buffers = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    assert len(buffers) == 8 and not any(buffer.any() for buffer in buffers)


@pytest.mark.parametrize("form", FORMS)
def test_a_trainer_trains_in_place_and_restarts_to_the_same_result(form: str) -> None:
    data = load_mnist(device=benchmark.DEVICE)
    trainer = benchmark.Trainer(form)
    addresses = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    results = []
    for _ in range(2):
        trainer.restart(7)
        for start in range(0, 6400, 64):
            loss = trainer.step_on(data.train_images[start : start + 64], data.train_labels[start : start + 64])
        results.append(loss.item())
    assert results[0] == pytest.approx(results[1], rel=1e-3), "dropout is seeded anew, too"
    assert 0.5 < results[0] < 2.25, "an untrained network's loss is ln 10 = 2.30"
    assert addresses == [parameter.data_ptr() for parameter in trainer.model.parameters()]


def test_the_evaluator_agrees_with_plain_evaluation() -> None:
    data, trainer = load_mnist(device=benchmark.DEVICE), benchmark.Trainer("eager")
    accuracy = benchmark.evaluator(trainer.model)
    for _ in range(2):  # what it counted before does not stay
        expected = []
        trainer.model.eval()
        with torch.no_grad():
            for start in (0, 1000):
                guesses = trainer.model(data.test_images[start : start + 1000]).argmax(dim=1)
                expected.append((guesses == data.test_labels[start : start + 1000]).float().mean().item())
        trainer.model.train()
        assert accuracy(data.test_images, data.test_labels) == pytest.approx(sum(expected) / 2)
        trainer.step()


def test_quick_run_measures_everything_this_machine_can(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run("--out", tmp_path / "out.json") == 0, capsys.readouterr().err
    result = reference.read(tmp_path / "out.json")
    entries = result["measurements"]
    assert set(entries) | set(result["left_out"]) == set(benchmark.measurements(benchmark.QUICK))
    assert bool(result["left_out"]) != torch.cuda.is_available()
    for name, entry in entries.items():
        if name.startswith("epochs"):
            assert len(entry["accuracy"]) == len(entry["samples"]) == 2
            assert min(entry["accuracy"]) > 0.3, f"{name}: one epoch of the embedded data teaches something"
            assert entry["settings"]["batches_per_epoch"] == 128
        if name.startswith("kernels"):
            assert 0 < entry["share_of_step"] < 1.1
            assert sum(kernel["duration_us"] for kernel in entry["kernels"]) == pytest.approx(entry["median"], rel=0.3)


def test_a_rerun_skips_what_is_there(fake: list[str], tmp_path: Path) -> None:
    fake.remove("broken")
    out = tmp_path / "out.json"
    assert run("--out", out, "--only", "step_eager") == 0
    first = reference.read(out)["measurements"]["step_eager"]
    assert run("--out", out) == 0
    assert fake == ["step_eager", "step_eager_fused", "epochs_eager"]
    assert reference.read(out)["measurements"]["step_eager"] == first
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_failure_is_recorded_and_the_rest_goes_on(
    fake: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.json"
    assert run("--out", out) == 1
    assert "failed: step_eager_fused: RuntimeError: the moon is full" in capsys.readouterr().err
    entries = reference.read(out)["measurements"]
    assert entries["step_eager_fused"]["error"] == "RuntimeError: the moon is full"
    assert entries["epochs_eager"]["median"] == 2.0
    fake.clear()
    assert run("--out", out) == 0
    assert fake == ["step_eager_fused"], "only what failed is tried again"
    assert "error" not in reference.read(out)["measurements"]["step_eager_fused"]


def test_an_impossible_result_counts_as_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "step", lambda plan, **_: benchmark.measured("µs", [0.0], {}))
    assert run("--out", tmp_path / "out.json", "--only", "step_eager") == 1
    assert "no positive number" in reference.read(tmp_path / "out.json")["measurements"]["step_eager"]["error"]


def test_an_interrupted_run_keeps_what_it_had(fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: benchmark.Plan) -> dict:
        raise KeyboardInterrupt

    real = benchmark.measurements
    monkeypatch.setattr(benchmark, "measurements", lambda plan: real(plan) | {"epochs_eager": interrupted})
    with pytest.raises(KeyboardInterrupt):
        run("--out", tmp_path / "out.json")
    assert list(reference.read(tmp_path / "out.json")["measurements"]) == ["step_eager", "step_eager_fused"]


def test_a_folder_is_refused_as_the_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "choose another file for --out" in refused(capsys, "--out", tmp_path)


@pytest.mark.parametrize("key", ["device", "versions", "settings"])
def test_a_file_from_elsewhere_is_not_continued(
    key: str, fake: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.json"
    run("--out", out, "--only", "step_eager")
    data = json.loads(out.read_text(encoding="utf-8"))
    data[key]["another"] = 1
    out.write_text(json.dumps(data), encoding="utf-8")
    before = out.read_bytes()
    assert f"measured with other {key}; choose another file for --out" in refused(capsys, "--out", out)
    assert out.read_bytes() == before


def test_misuse_is_answered_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "no measurement 'step_eagre'; all: step_eager," in refused(
        capsys, "--out", tmp_path / "a.json", "--only", "step_eagre"
    )
    (bad := tmp_path / "bad.json").write_text("{", encoding="utf-8")
    assert "bad.json holds no valid benchmark results" in refused(capsys, "--out", bad)
    assert bad.read_text(encoding="utf-8") == "{"
    assert "cannot be written (No such file" in refused(capsys, "--out", tmp_path / "nowhere" / "a.json")
    if not torch.cuda.is_available():
        assert "step_graph needs a GPU" in refused(capsys, "--out", tmp_path / "a.json", "--only", "step_graph")
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("existing", [False, True])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    existing: bool, fake: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.json"
    if existing:
        run("--out", out, "--only", "step_eager")
    fake.clear()
    (tmp_path / "out.json.part").mkdir()
    assert f"{out} cannot be written (Is a directory); mend that" in refused(capsys, "--out", out)
    assert fake == []
    if existing:
        assert run("--out", out, "--only", "step_eager") == 0, "what is complete needs no writing"


def test_a_later_failed_write_ends_with_a_message_and_keeps_what_was_written(
    fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def full(part: Path, target: Path) -> None:
        if "step_eager_fused" in fake:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(part, target)

    real, out = os.replace, tmp_path / "out.json"
    monkeypatch.setattr(os, "replace", full)
    assert f"{out} cannot be written (No space left on device)" in refused(capsys, "--out", out)
    assert list(reference.read(out)["measurements"]) == ["step_eager"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_link_stays_a_link(fake: list[str], tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "out.json")
    run("--out", tmp_path / "link.json", "--only", "step_eager")
    assert (tmp_path / "link.json").is_symlink()
    assert list(reference.read(tmp_path / "out.json")["measurements"]) == ["step_eager"]


def test_a_measurement_without_a_variant_does_not_lose_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "sweep_plan", lambda *_: sweep.SweepPlan({"source": sweep.SMALL}, [(1, 2), (2, 1)]))
    monkeypatch.setattr(sweep, "measure_setting", lambda *_: {name: [0.5] for name in sweep.VARIANTS})
    arguments = ("--part", "fork", "--out", tmp_path / "out.json")
    assert run(*arguments, "--only", "fork_source_1_2") == 0
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    del data["measurements"]["fork_source_1_2"]["models"]
    (tmp_path / "out.json").write_text(json.dumps(data), encoding="utf-8")
    assert run(*arguments) == 0
    result = reference.read(tmp_path / "out.json")
    assert "fork_source_2_1" in result["measurements"]
    assert result["derived"]["source_best_unforked_at"] == "2/1: no fork"


def test_missing_full_data_is_a_recorded_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(benchmark, "QUICK", benchmark.Plan(2, 1, 1, epochs=1))
    monkeypatch.setenv("MNIST_ROOT", "")
    assert run("--out", tmp_path / "out.json", "--only", "epochs_eager", "--root", tmp_path / "empty") == 1
    assert "MNIST_ROOT must name a folder" in capsys.readouterr().err


def test_derived_values_follow_from_the_medians() -> None:
    medians = {"step_eager": 2000.0, "step_graph": 200.0, "capture": 50.0, "batch_16": 14.0, "batch_64": 1.05}
    data = {"settings": {"plan": {"batch_sizes": [16, 64, 256]}}}
    data["measurements"] = {name: {"median": median} for name, median in medians.items()}
    expected = {"crossover_batch": None, "break_even_graph": math.ceil(64_000 / 1800)}
    assert benchmark.derive(data) == expected | {"break_even_compile_and_capture": None}, "not all is there yet"
    for ratio_256, crossover in ((1.0, 64), (1.2, None)):
        data["measurements"]["batch_256"] = {"median": ratio_256}
        assert benchmark.derive(data)["crossover_batch"] == crossover
    data["measurements"].update(batch_256={"median": 1.0}, batch_16={})
    assert benchmark.derive(data)["crossover_batch"] is None, "it might be 16"
    data["measurements"] |= {"step_compile_and_capture": {"median": 100.0}, "compilation": {"median": 20.0}}
    assert benchmark.derive(data)["break_even_compile_and_capture"] == math.ceil(20_064_000 / 1900)
    data["measurements"]["step_graph"]["median"] = 2000.0
    assert benchmark.derive(data)["break_even_graph"] is None


def test_kernels_that_differ_between_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, spans = benchmark.Plan(profiled=2), [
        SimpleNamespace(name=name, category="kernel", start_us=10.0 * index, duration_us=4.0)
        for index, name in enumerate(["conv", "relu", "conv", "relu"])
    ]  # fmt: skip
    monkeypatch.setattr(benchmark, "in_new_process", lambda *_: ([10.0, 10.0], spans))
    entry = benchmark.kernels(plan, "graph")
    assert entry["kernels_per_step"] == 2 and entry["samples"] == [8.0, 8.0] and entry["share_of_step"] == 0.8
    assert [(kernel["name"], kernel["start_us"]) for kernel in entry["kernels"]] == [("conv", 0.0), ("relu", 10.0)]
    for wrong in (spans[:3], [spans[0], spans[1], spans[1], spans[0]], []):
        monkeypatch.setattr(benchmark, "in_new_process", lambda *_, wrong=wrong: ([10.0, 10.0], wrong))
        with pytest.raises(RuntimeError, match="not the same in each"):
            benchmark.kernels(plan, "graph")


def test_part_fork_measures_every_variant_under_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.json"
    assert run("--part", "fork", "--out", out) == 0, capsys.readouterr().err
    result = reference.read(out)
    plan = sweep.sweep_plan(True, result["device"]["cores"])
    assert result["device"]["type"] == "cpu" and result["settings"]["part"] == "fork" and result["left_out"] == []
    assert list(result["measurements"]) == [f"fork_small_{intra}_{inter}" for intra, inter in plan.threads]
    for (intra, inter), entry in zip(plan.threads, result["measurements"].values(), strict=True):
        assert entry["settings"]["intra_op"] == intra and entry["settings"]["inter_op"] == inter
        assert [key for key in entry if key in sweep.VARIANTS] == list(sweep.VARIANTS)[1:]
        for nested in (entry, *(entry[variant] for variant in list(sweep.VARIANTS)[1:])):
            assert nested["unit"] == "s" and len(nested["samples"]) == 2
    assert result["derived"] == benchmark.derive(result)
    assert result["derived"]["small_best_unforked_at"].endswith(": no fork")
    assert run("--part", "fork", "--out", out) == 0 and reference.read(out) == result, "nothing is measured again"
    assert "other settings; choose another file" in refused(capsys, "--out", out)
    assert "no measurement 'step_eager'" in refused(capsys, "--part", "fork", "--out", out, "--only", "step_eager")


def test_a_failing_setting_is_recorded_and_left_out_of_the_derived_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fake(problem: sweep.Problem, intra: int, inter: int) -> dict:
        if intra == 2:
            return {"error": "RuntimeError: out of threads"}
        return {
            "no fork": [4.0, 4.0],
            "directions": [3.0, 3.0],
            "models": [2.0, 2.0],
            "directions and models": [1.0, 1.0],
        }

    monkeypatch.setattr(benchmark, "sweep_plan", lambda *_: sweep.SweepPlan({"source": sweep.SMALL}, [(1, 2), (2, 1)]))
    monkeypatch.setattr(sweep, "measure_setting", fake)
    out = tmp_path / "out.json"
    assert run("--part", "fork", "--out", out) == 1
    assert "failed: fork_source_2_1: RuntimeError: RuntimeError: out of threads" in capsys.readouterr().err
    assert reference.read(out)["derived"] == {
        "source_best_unforked_s": 4.0,
        "source_best_unforked_at": "1/2: no fork",
        "source_best_forked_s": 1.0,
        "source_best_forked_at": "1/2: directions and models",
        "source_gain": 4.0,
        "source_gain_1_thread": 4.0,
    }
    monkeypatch.setattr(sweep, "measure_setting", lambda *_: {name: [0.5] for name in sweep.VARIANTS})
    assert run("--part", "fork", "--out", out) == 0
    derived = reference.read(out)["derived"]
    assert derived["source_gain"] == 1.0 and derived["source_gain_1_thread"] == 4.0, (
        "what failed was tried again, and nothing else"
    )


def test_the_full_fork_plan_has_the_sources_size_and_every_setting_that_shares_the_cores_out() -> None:
    plan = sweep.sweep_plan(False, 16)
    assert plan.threads == [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (16, 16)]
    source = plan.problems["source"]
    assert (source.steps, source.batch, source.size, source.models, source.repeats) == (50, 50, 1024, 4, 9)
    assert plan.problems["small"] == replace(sweep.SMALL, repeats=9)
    assert sweep.sweep_plan(False, 2).threads == [(1, 2), (2, 1), (2, 2)]


def test_part_ways_measures_every_way_and_notes_how_far_it_is_from_eager(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.json"
    assert run("--part", "ways", "--out", out) == 0, capsys.readouterr().err
    result = reference.read(out)
    assert result["settings"]["part"] == "ways"
    assert set(result["measurements"]) | set(result["left_out"]) == {"cpu_small_1", "gpu_small"}
    for name, entry in result["measurements"].items():
        others = {"CUDA graph", "CUDA streams", "CUDA streams in a graph"}
        others = others if name == "gpu_small" else {"scripted fork", "Python threads"}
        assert set(entry["ways"]) == {"nn.LSTM(bidirectional=True)", "vmap"} | others
        for way in entry["ways"]:
            assert entry[way]["unit"] == "ms" and len(entry[way]["samples"]) == 2
            assert entry[way]["largest_difference"] <= ways.TOLERANCE
        assert result["derived"][f"{name}_gain"] >= 1 or result["derived"][f"{name}_fastest_at"] == ways.EAGER
    assert "no measurement 'fork_small_1_2'" in refused(
        capsys, "--part", "ways", "--out", out, "--only", "fork_small_1_2"
    )


def test_a_way_that_fails_or_computes_something_else_is_noted_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(net: torch.nn.Module) -> ways.Way:
        raise RuntimeError("no threads left\nsecond line")

    def wordless(*_: object) -> ways.Way:
        raise RuntimeError

    monkeypatch.setattr(ways, "in_threads", broken)
    monkeypatch.setattr(ways, "library_ensemble", wordless)
    monkeypatch.setattr(ways, "with_vmap", lambda net: lambda x: net(x) + 0.001)
    threads = torch.get_num_threads()
    found = ways.time_ways(sweep.Problem(steps=3, batch=2, size=4, models=2, repeats=2), "cpu", threads, compiled=False)
    assert found["Python threads"] == {"error": "RuntimeError: no threads left"}
    assert found["nn.LSTM(bidirectional=True)"] == {"error": "RuntimeError"}
    assert found["vmap"]["error"].startswith("RuntimeError: it differs from eager by 0.001")
    assert len(found[ways.EAGER]["samples"]) == len(found["scripted fork"]["samples"]) == 2


def test_the_full_ways_plan_shares_the_cores_out_among_the_models() -> None:
    plan = ways.ways_plan(False, 16)
    assert plan.on_cpu == [("small", 1), ("small", 4), ("source", 4), ("source", 16)]
    assert set(plan.compiled) <= set(plan.measurements())
    assert ways.ways_plan(False, 2).on_cpu == [("small", 1), ("source", 1), ("source", 2)]
