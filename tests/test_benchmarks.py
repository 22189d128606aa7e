"""The benchmarks' command line and file, and that what they measure is what they say."""

import errno
import json
import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import alternatives, captures, forks, graphs, record, throughput, trace
from benchmarks.record import Case, SomeFailed
from tutorial_utils import cuda_stand_in, load_mnist
from tutorial_utils.fork_timing import AFTER_FORKS, VARIANTS
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble, MnistNet
from tutorial_utils.results import Results, read
from tutorial_utils.timing import Measurement, in_new_process

has_gpu = torch.cuda.is_available()
gpu = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu, reason="needs a GPU")]
FORMS = ["eager", *(pytest.param(form, marks=gpu) for form in ("graph", "reduce_overhead", "compile_and_capture"))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The network is too small for more, and on a busy machine threads that wait for each other take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stored(measurements: dict[str, Measurement], **settings: Any) -> Results:
    return Results("a part", "2026-11-30T12:00:00+00:00", {}, {}, settings, measurements, {}, [], {})


# The command line and the file, with a part that measures nothing


def fails() -> dict[str, Measurement]:
    raise RuntimeError("the moon is full\nsecond line")


def is_interrupted() -> dict[str, Measurement]:
    raise KeyboardInterrupt


def fails_in_part() -> dict[str, Measurement]:
    raise SomeFailed({"b/good": Measurement([1.0], "s")}, {"b/bad": "why"})


def measures(name: str, *values: float) -> dict[str, Measurement]:
    return {name: Measurement(values, "µs", settings={"batch": 64}), f"{name}/more": Measurement([1.0], "s")}


@dataclass
class Fake:
    """Three cases of which the second is given, and one that needs a GPU."""

    b: Any = partial(measures, "b", 2.0)
    calls: list[str] = field(default_factory=list)
    name = "fake"
    uses_gpu = False

    def settings(self) -> dict[str, Any]:
        return {"sizes": (1, 2)}

    def cases(self) -> list[Case]:
        runs = {"a": partial(measures, "a", 3.00000049, 1.0), "b": self.b, "c": partial(measures, "c", 4.0)}
        cases = [Case(name, partial(self.call, name, run)) for name, run in runs.items()]
        return [*cases, Case("on_gpu", partial(self.call, "on_gpu", partial(measures, "on_gpu", 1.0)), needs_gpu=True)]

    def call(self, name: str, run: Any) -> dict[str, Measurement]:
        self.calls.append(name)
        return run()

    def derive(self, results: Results) -> dict[str, Any]:
        return {"sizes": results.settings["sizes"], "count": len(results)}


def run(monkeypatch: pytest.MonkeyPatch, part: Fake, *arguments: str | Path, gpu: bool = False) -> int:
    monkeypatch.setattr(command.machine, "HAS_GPU", gpu)
    monkeypatch.setitem(command.PARTS, "graphs", lambda quick: part)
    return command.main(["graphs", *map(str, arguments)])


AC = ["a", "a/more", "c", "c/more"]
ALL = ["a", "a/more", "b", "b/more", "c", "c/more"]
OUTCOMES = {
    "everything": (Fake().b, 0, ALL, {}, ["on_gpu"], ""),
    "fails": (fails, 1, AC, {"b": "RuntimeError: the moon is full"}, ["on_gpu"], "failed: b: RuntimeError: the moon"),
    "in part": (fails_in_part, 1, ["a", "a/more", "b/good", "c", "c/more"], {"b/bad": "why"}, ["on_gpu"], "b/bad: why"),
    "interrupted": (is_interrupted, 130, AC[:2], {}, ["b", "c", "on_gpu"], "has what was measured"),
}
for bad in (0.0, -1.0, math.nan, math.inf):
    why = f"ValueError: b has a value that is no positive number: [{bad}]"
    OUTCOMES[f"impossible {bad}"] = (partial(measures, "b", bad), 1, AC, {"b": why}, ["on_gpu"], "no positive number")


@pytest.mark.parametrize(("b", "status", "measured", "failed", "left_out", "says"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_run_keeps_what_it_measured_and_names_the_rest(
    b: Any,
    status: int,
    measured: list[str],
    failed: dict[str, str],
    left_out: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    assert run(monkeypatch, Fake(b), "--out", tmp_path / "out.json") == status
    results = read(tmp_path / "out.json")
    assert (list(results), results.failed, results.left_out) == (measured, failed, left_out)
    assert results.derived == {"sizes": [1, 2], "count": len(measured)}
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_the_file_has_six_digits_and_the_seconds_of_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, Fake(), "--out", tmp_path / "out.json", "--only", "a")
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    first, second = data["measurements"].values()
    assert first["values"] == [3.0, 1.0] and first["settings"] == {"batch": 64} and first["facts"] == {}
    assert first["took_s"] >= 0 and "took_s" not in second
    assert {"lscpu", "cpu_quota", "load_average", "cores"} <= data["device"].keys()


@pytest.mark.parametrize(
    ("gpu", "arguments", "calls", "says"),
    [
        (False, [], ["a", "b", "c"], "6 measurements of 3 cases; left out, since they need a GPU: on_gpu"),
        (True, [], ["a", "b", "c", "on_gpu"], "8 measurements of 4 cases\n"),
        (True, ["--only", "c", "a"], ["a", "c"], "4 measurements of 2 cases\n"),
    ],
)
def test_cases_are_chosen_by_name_and_machine(
    gpu: bool,
    arguments: list[str],
    calls: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    assert run(monkeypatch, part := Fake(), "--out", tmp_path / "out.json", *arguments, gpu=gpu) == 0
    assert part.calls == calls
    assert read(tmp_path / "out.json").left_out == [name for name in ("a", "b", "c", "on_gpu") if name not in calls]
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["--out", "there.json"], "there.json exists, and no run is continued; choose another file"),
        (["--out", "."], ". is a folder; choose another file"),
        (["--out", "absent/a.json"], "a.json cannot be written: No such file or directory"),
        (["--out", "blocked.json"], "blocked.json cannot be written: Is a directory"),
        (
            ["--out", "a.json", "--only", "a", "d"],
            "no case 'd' in fake; there are a, b, c, on_gpu (with --quick fewer)",
        ),
        (["--out", "a.json", "--only", "on_gpu"], "on_gpu needs a GPU, and there is none here"),
    ],
)
def test_misuse_is_refused_before_anything_is_measured(
    arguments: list[str], phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.json").write_text("{", encoding="utf-8")
    (tmp_path / "blocked.json.part").mkdir()
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, part := Fake(), *arguments)
    assert phrase in capsys.readouterr().err
    assert part.calls == [] and not Path("a.json").exists()
    assert (tmp_path / "there.json").read_text(encoding="utf-8") == "{"


def test_a_disk_that_fills_up_later_leaves_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    part, replace_file = Fake(), Path.replace

    def full(path: Path, target: Path) -> None:
        if "b" in part.calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, part, "--out", tmp_path / "out.json")
    assert "out.json cannot be written: No space left on device" in capsys.readouterr().err
    assert list(read(tmp_path / "out.json")) == ["a", "a/more"]


# Quick runs from end to end


def quick(part: str, out: Path, capsys: pytest.CaptureFixture) -> Results:
    assert command.main([part, "--quick", "--out", str(out)]) == 0, capsys.readouterr().err
    results = read(out)
    assert results.part == part and results.derived == command.PARTS[part](True).derive(results)
    return results


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=gpu)])
def test_quick_graphs(where: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    if where == "cpu" and has_gpu:
        pytest.skip("a GPU is there: the quick run measures on it")
    results = quick("graphs", tmp_path / "out.json", capsys)
    assert results.device["type"] == where
    steps = [f"step_eager{which}{kind}" for which in ("", "_fused", "_item") for kind in ("", "/host_calls")]
    on_cpu = [*steps, "epochs_eager"]
    assert where == "cuda" or list(results) == on_cpu
    for measurement in results.values():
        facts = measurement.facts
        if "accuracy" in facts:
            assert len(facts["accuracy"]) == len(measurement.values) == 2
            assert min(facts["accuracy"]) > 0.3, "one epoch of the embedded data teaches something"
        if "kernels" in facts:
            assert 0 < facts["share_of_step"] < 1.1
            assert sum(kernel["duration_us"] for kernel in facts["kernels"]) == pytest.approx(
                measurement.median, rel=0.3
            )


def test_quick_forks(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = quick("forks", tmp_path / "out.json", capsys)
    threads = forks.part(True).threads
    names = [f"small/{intra}/{inter}/{variant}" for intra, inter in threads for variant in [*VARIANTS, AFTER_FORKS]]
    assert list(results) == names and results.device["type"] == "cpu" and results.left_out == []
    for intra, inter in threads:
        assert len(results.select(intra_op=intra, inter_op=inter, problem="small", size=4)) == 5
    assert {(measurement.unit, len(measurement.values)) for measurement in results.values()} == {("ms", 2)}
    for measurement in results.values():
        samples = measurement.facts["samples"]
        assert [len(process) for process in samples] == [2, 2]
        assert measurement.values == pytest.approx([sum(process) / 2 for process in samples], rel=1e-4)


def test_few_intra_op_threads_have_one_sample_of_a_large_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def fake(count: int, measure: Any, problems: dict[str, forks.Problem], *_: Any, threads: tuple[int, int]) -> Any:
        seen[threads] = (count, {name: problem.repeats for name, problem in problems.items()})
        return {}

    monkeypatch.setattr(forks, "in_processes", fake)
    for case in forks.part(False, 16).cases():
        case.run()
    assert seen[1, 16] == seen[2, 8] == (3, {"source": 1, "small": 5})
    assert seen[4, 4] == seen[16, 16] == (3, {"source": 2, "small": 5})


def test_quick_trace(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    measurement = quick("trace", tmp_path / "out.json", capsys)["small"]
    spans = measurement.facts["spans"]
    assert measurement.unit == "ms" and len(measurement.values) == 2
    assert sum(span["name"] == "aten::lstm" for span in spans) == 4, "two models, two directions"
    starts = [span["start_us"] for span in spans]
    assert starts == sorted(starts) and {"name", "lane", "start_us", "duration_us"} < spans[0].keys()
    end = max(span["start_us"] + span["duration_us"] for span in spans)
    assert min(measurement.values) == pytest.approx((end - starts[0]) / 1e3, abs=0.01)


def test_quick_alternatives(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = quick("alternatives", tmp_path / "out.json", capsys)
    names = [f"cpu_small_1/{name}" for name in alternatives.ON_CPU]
    names += [
        f"{column}/{name}" for column in ("gpu_small", "gpu_small_tf32") for name in alternatives.ON_GPU
    ] * has_gpu
    assert list(results) == names
    for measurement in results.values():
        assert (measurement.unit, len(measurement.values)) == ("ms", 2)
        assert measurement.facts["largest_difference"] <= alternatives.TOLERANCE[measurement.settings["precision"]]
        assert measurement.facts.get("kernels_per_call", 0) > 0 or measurement.settings["device"] == "cpu"


def test_quick_throughput(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = quick("throughput", tmp_path / "out.json", capsys)
    names = ["small/no fork, 2 x 1", "small/directions and models, 1 x 1/2"]
    assert list(results) == [f"{name}{kind}" for name in names for kind in ("", "/latency")]
    for processes, name in ((2, names[0]), (1, names[1])):
        rates, latency = results[name], results[f"{name}/latency"]
        assert (rates.unit, len(rates.values)) == ("requests/s", 2)
        assert (latency.unit, len(latency.values)) == ("ms", processes)
        assert len(rates.facts["cores"]) == processes


# What is measured


@pytest.mark.parametrize("form", FORMS)
def test_a_trainer_starts_from_its_seed_although_it_warmed_up(form: str) -> None:
    trainer = graphs.prepared(form)
    torch.manual_seed(graphs.SEED)
    for actual, expected in zip(trainer.model.parameters(), MnistNet().parameters(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)
    buffers = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    assert len(buffers) == 8 and not any(buffer.any() for buffer in buffers)


@pytest.mark.parametrize("form", FORMS)
def test_a_trainer_trains_in_place_and_restarts_to_the_same_result(form: str) -> None:
    data, trainer = load_mnist(device=graphs.DEVICE), graphs.prepared(form)
    addresses = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    losses = []
    for _ in range(2):
        trainer.restart(7)
        for start in range(0, 6400, 64):
            loss = trainer.step_on(data.train_images[start : start + 64], data.train_labels[start : start + 64])
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "dropout is seeded anew, too"
    assert 0.5 < losses[0] < 2.25, "an untrained network's loss is ln 10 = 2.30"
    assert addresses == [parameter.data_ptr() for parameter in trainer.model.parameters()]


def test_the_evaluator_agrees_with_plain_evaluation() -> None:
    data, trainer = load_mnist(device=graphs.DEVICE), graphs.prepared("eager")
    accuracy = graphs.evaluator(trainer.model)
    for _ in range(2):  # what it counted before does not stay
        trainer.model.eval()
        with torch.no_grad():
            guesses = trainer.model(data.test_images[:2000]).argmax(dim=1)
        trainer.model.train()
        expected = (guesses == data.test_labels[:2000]).float().mean().item()
        assert accuracy(data.test_images, data.test_labels) == pytest.approx(expected)
        trainer.step()


def test_a_step_is_measured_with_another_batch() -> None:
    assert graphs.step("step", graphs.QUICK, "eager", batch=16)["step"].settings["batch"] == 16


def spans(names: str) -> list[Any]:
    return [
        SimpleNamespace(name=name, category="kernel", start_us=10.0 * index, duration_us=4.0)
        for index, name in enumerate(names)
    ]


def test_kernels_are_those_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = graphs.Plan(profiled=2)
    monkeypatch.setattr(graphs, "in_new_process", lambda *_: ([10.0, 10.0], spans("abab"), {"cudaGraphLaunch": 2}))
    measured = graphs.kernels("kernels_graph", plan, "graph")["kernels_graph"]
    assert measured.values == [8.0, 8.0]
    assert measured.facts["launches_per_step"] == {"cudaGraphLaunch": 1}
    assert measured.facts["share_of_step"] == 0.8 and measured.facts["kernels_per_step"] == 2
    assert [(kernel["name"], kernel["start_us"]) for kernel in measured.facts["kernels"]] == [("a", 0.0), ("b", 10.0)]
    for wrong in ("aba", "abbb", ""):
        with pytest.raises(RuntimeError, match=f"{len(wrong)} kernels in 2 steps: not the same in each"):
            graphs.split_into_steps(spans(wrong), 2)


def test_an_alternative_that_fails_or_differs_is_noted_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_threads(net: torch.nn.Module) -> alternatives.Ensemble:
        raise RuntimeError("no threads left\nsecond line")

    monkeypatch.setattr(alternatives, "in_threads", no_threads)
    monkeypatch.setattr(alternatives, "with_vmap", lambda net: lambda x: net(x) + 0.001)
    monkeypatch.setattr(alternatives, "in_new_process", lambda function, *arguments: function(*arguments))
    part = alternatives.part(True)
    with pytest.raises(SomeFailed) as caught:
        part.run(part.columns[0], ["vmap", "Python threads", "eager", "scripted fork"])
    assert list(caught.value.measurements) == ["cpu_small_1/eager", "cpu_small_1/scripted fork"]
    assert caught.value.failed["cpu_small_1/Python threads"] == "RuntimeError: no threads left"
    assert caught.value.failed["cpu_small_1/vmap"].startswith("RuntimeError: it differs from eager by 0.001")


@pytest.mark.parametrize("name", [*alternatives.ON_GPU, *alternatives.ON_CPU])
def test_every_alternative_computes_the_ensemble(name: str, stand_in: None) -> None:
    problem, device = forks.TINY, torch.device("cuda" if has_gpu and name not in alternatives.ON_CPU else "cpu")
    net = LSTMEnsemble([BidirectionalLSTM(problem.size) for _ in range(problem.models)]).to(device).eval()
    x, other = (torch.randn(problem.steps, problem.batch, problem.size, device=device) for _ in range(2))
    with torch.no_grad():
        ensemble, ms, _ = alternatives.time_one(alternatives.makers(net, problem, x)[name], x, 2)
        precision = "bfloat16" if name == alternatives.BF16 else "float32"
        assert alternatives.largest_difference(ensemble, net, other) <= alternatives.TOLERANCE[precision]
        assert alternatives.largest_difference(ensemble, lambda x: net(x) + 1, other) > 0.9
    assert len(ms) == 2 and min(ms) > 0


def test_processes_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput.os, "sched_getaffinity", lambda _: {7, 2, 3, 4}, raising=False)
    assert throughput.shares(1) == [[2, 3, 4, 7]]
    assert throughput.shares(2) == [[2, 3], [4, 7]]
    assert throughput.shares(4) == [[2], [3], [4], [7]]
    monkeypatch.delattr(throughput.os, "sched_getaffinity")
    assert throughput.shares(2) == [None, None]


def test_requests_are_answered_in_each_window_on_the_cores_given() -> None:
    barrier, cores = multiprocessing.get_context("spawn").Barrier(1), throughput.shares(1)[0]
    windows = in_new_process(throughput.answer, cores, forks.TINY, "no fork", 0.2, 3, barrier)
    assert len(windows) == 3 and all(100 < sum(window) < 1000 for window in windows), "ms"
    once = in_new_process(throughput.answer, None, forks.TINY, "no fork", 0.0, 2, barrier)
    assert [len(window) for window in once] == [1, 1]


def test_what_is_measured_depends_on_the_cores() -> None:
    assert forks.part(False, 16).threads == [(1, 16), (2, 8), (4, 4), (4, 8), (4, 16), (8, 4), (16, 16)]
    assert forks.part(False, 2).threads == [(1, 2), (2, 1), (2, 2)]
    assert trace.part(False, 16).inter_op == 16
    names = [case.name for case in throughput.part(False, 16).cases()]
    forms = ["no fork, 16 x 1", "no fork, 4 x 4", "no fork, 1 x 16"]
    forms += ["directions and models, 1 x 1/16", "directions and models, 1 x 4/4"]
    assert names == [f"{problem}/{form}" for problem in ("small", "source") for form in forms]
    cases = [case.name for case in alternatives.part(False, 16).cases()]
    columns = ["cpu_small_1", "cpu_small_4", "cpu_source_4", "cpu_source_16"]
    on_cpu = [f"{column}/{name}" for column in columns for name in alternatives.ON_CPU]
    on_gpu = ["gpu_small", "gpu_source", "gpu_small_tf32", "gpu_source_tf32"]
    compiled = [f"gpu_small/{name}" for name in alternatives.COMPILED_ON_GPU[::-1]]
    compiled += [f"cpu_small_4/{name}" for name in alternatives.COMPILED[::-1]]
    assert cases == [*on_cpu, *on_gpu, *compiled]
    on_two_cores = [column.name for column in alternatives.part(False, 2).columns[:-4]]
    assert on_two_cores == ["cpu_small_1", "cpu_source_1", "cpu_source_2"]


# What follows from the medians

MEDIANS = {
    "step_eager": (2000.0, "µs"),
    "step_graph": (200.0, "µs"),
    "step_compile_and_capture": (100.0, "µs"),
    "capture": (50.0, "ms"),
    "compilation": (20.0, "s"),
}


@pytest.mark.parametrize(
    ("changed", "graph", "compiled"),
    [
        ({}, 36, 10560),
        ({"compilation": None}, 36, None),
        ({"capture": None}, None, None),
        ({"step_graph": (2000.0, "µs")}, None, 10560),
    ],
)
def test_derived_of_graphs(changed: dict[str, Any], graph: Any, compiled: Any) -> None:
    there = {name: Measurement([m[0]], m[1]) for name, m in (MEDIANS | changed).items() if m}
    derived = graphs.part(True).derive(stored(there, warm_up=7))
    assert derived == {"break_even_graph": graph, "break_even_compile_and_capture": compiled}


def forked(problem: str, intra_op: int, inter_op: int, *values: float) -> dict[str, Measurement]:
    shared = {"problem": problem, "intra_op": intra_op, "inter_op": inter_op}
    return {
        f"{shared} {variant}": Measurement([value], "ms", settings={**shared, "variant": variant})
        for variant, value in zip(VARIANTS, values, strict=True)
    }


def test_derived_of_forks_compares_the_best_settings_and_those_with_one_thread() -> None:
    part, small = forks.part(True), forked("small", 4, 4, 3.0, 5.0, 2.5, 4.0)
    assert part.derive(stored({})) == {}
    without_one = {"small_gain": 1.2, "small_gain_1_thread": None}
    without_one |= {"small_best_unforked": "4/4: no fork", "small_best_forked": "4/4: models"}
    assert part.derive(stored(small)) == without_one
    more = forked("small", 1, 4, 8.0, 4.0, 3.0, 2.0) | small | forked("source", 2, 2, 6.0, 3.0, 4.0, 5.0)
    derived = part.derive(stored(more))
    assert derived["small_gain"] == 1.5 and derived["small_gain_1_thread"] == 4.0
    assert derived["small_best_forked"] == "1/4: directions and models"
    assert derived["source_best_forked"] == "2/2: directions"


def test_derived_of_alternatives_is_the_fastest_of_each_case() -> None:
    ms = {"on_cpu": {"eager": 4.0, "vmap": 2.0, "bf16 weights": 1.0}, "on_gpu": {"eager": 1.0, "vmap": 1.5}}
    ms["without_eager"] = {"vmap": 1.0}
    there = {
        f"{case}/{name}": Measurement([value], "ms", settings={"case": case, "alternative": name})
        for case, values in ms.items()
        for name, value in values.items()
    }
    derived = alternatives.part(True).derive(stored(there))
    assert derived == {"on_cpu_fastest": "vmap", "on_cpu_gain": 2.0, "on_gpu_fastest": "eager", "on_gpu_gain": 1.0}


def test_tf32_is_set_in_the_new_process_alone() -> None:
    before = torch.get_float32_matmul_precision()
    seen = graphs.in_processes("step", graphs.QUICK, partial(graphs.in_tf32, precision_seen))
    assert seen["step"].settings == {"precision": "high"} and torch.get_float32_matmul_precision() == before


def test_the_value_of_several_processes_is_the_median_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]])
    fake = lambda measure, *arguments, threads: {"step": Measurement(next(runs), "µs", facts={"loss": 0.5})}  # noqa: E731
    monkeypatch.setattr(record, "in_new_process", fake)
    measured = graphs.in_processes("step", replace(graphs.QUICK, processes=2), graphs.step)["step"]
    assert measured.values == [2.0, 4.0]
    assert measured.facts == {"loss": 0.5, "samples": [[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]]}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda's names for a capture, where there is no GPU."""
    if not has_gpu:
        for name in ("CUDAGraph", "Stream", "current_stream", "default_stream", "graph", "set_stream", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(cuda_stand_in, name))


def test_prefetching_is_measured_against_copies_between_the_replays(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_gpu:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    measured = graphs.prefetching("prefetching", graphs.QUICK, 16)
    assert {name: measurement.unit for name, measurement in measured.items()} == {
        "prefetching": "x",
        "prefetching/between": "µs",
        "prefetching/during": "µs",
    }
    assert all(value > 0 for measurement in measured.values() for value in measurement.values)


@pytest.mark.parametrize("fused", [False, True])
def test_the_proof_finds_equal_steps_and_a_fault(fused: bool, stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.cudnn.deterministic
    assert captures.compared(4, fused, True) == {"equal_steps": 4, "first_difference": None}
    step_on, calls = graphs.Trainer.step_on, []

    def one_update_too_many(trainer: graphs.Trainer, *batch: torch.Tensor) -> torch.Tensor:
        calls.append(trainer.form)
        if calls.count("graph") == 3:
            step_on(trainer, *batch)
        return step_on(trainer, *batch)

    monkeypatch.setattr(graphs.Trainer, "step_on", one_update_too_many)
    found = captures.compared(4, fused, True)
    assert found["equal_steps"] == 2 and found["first_difference"] > 1e-5
    torch.backends.cudnn.deterministic = before


def test_a_failed_capture_tells_both_errors_and_what_it_leaves(stand_in: None) -> None:
    found = captures.failed_capture(captures.synchronising_read)
    assert found["surfaced"].endswith("operation failed due to a previous error during capture")
    assert found["behind"].endswith("operation not permitted when stream is capturing")
    assert found["stream_afterwards"] == "other" and found["dropout_afterwards"] is None


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="needs a GPU")
def test_quick_captures(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = quick("captures", tmp_path / "out.json", capsys)
    assert all(results[f"fails_{work.__name__}"].median == 1 for work in captures.FAILURES)
    assert results["proof"].facts["equal_steps"] == results["proof_fused"].facts["equal_steps"] == 8


def precision_seen(name: str, *_: Any) -> dict[str, Measurement]:
    return {name: Measurement([1.0], "x", settings={"precision": torch.get_float32_matmul_precision()})}
