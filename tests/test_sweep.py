"""The thread sweep: its arithmetic, and that it survives failures and interruptions."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tutorial_utils import sweep as s

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs executable scripts and signals")
TINY = s.Problem(steps=3, batch=2, size=4, models=2, repeats=3)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, [(1, 1)]), (2, [(1, 2), (2, 1), (2, 2)]), (6, [(1, 6), (2, 3), (4, 1), (6, 6)])],
)
def test_settings_share_the_cores_out(cores, expected) -> None:
    assert s.settings_for(cores) == expected


def test_a_sweep_measures_every_variant_in_its_own_process() -> None:
    results = s.sweep(TINY, [(1, 1), (1, 2)])
    assert list(results) == ["1/1", "1/2"] and s.failures(results) == {}
    for entry in results.values():
        assert list(entry) == [*s.VARIANTS, s.AFTER_FORKS]
        assert all(len(samples) == 3 and min(samples) > 0 for samples in entry.values())


def test_a_failing_setting_is_named_and_the_others_go_on() -> None:
    results = s.sweep(TINY, [(0, 1), (1, 1)])
    assert "error" not in results["1/1"]
    assert list(s.failures(results)) == ["0/1"] and "positive" in s.failures(results)["0/1"]
    assert list(s.medians(results)["no fork"]) == ["1/1"]


def test_a_setting_that_takes_too_long_is_given_up() -> None:
    assert s.measure_setting(TINY, 1, 1, timeout_s=0.01) == {"error": "no result within 0.01 s"}


def test_an_interrupted_sweep_resumes(tmp_path, monkeypatch) -> None:
    asked = []

    def fake(problem, intra, inter, timeout_s):
        asked.append((intra, inter))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"error": "lost"} if intra == 4 else {name: [0.1 * intra] for name in s.VARIANTS}

    monkeypatch.setattr(s, "measure_setting", fake)
    file, settings = tmp_path / "sweep.json", [(1, 4), (2, 2), (4, 1)]
    with pytest.raises(KeyboardInterrupt):
        s.sweep(TINY, settings, file)
    assert list(json.loads(file.read_text())["results"]) == ["1/4"]
    results = s.sweep(TINY, settings, file)
    assert asked == [(1, 4), (2, 2), (2, 2), (4, 1)] and list(results) == ["1/4", "2/2", "4/1"]
    s.sweep(TINY, settings, file)
    assert asked[4:] == [(4, 1)], "what failed is tried again, what succeeded is not"


GOOD = {name: [0.5, 0.25] for name in s.VARIANTS}
MADE_WITH = {"problem": asdict(TINY), "torch": torch.__version__, "cores": os.cpu_count()}


def saved(file: Path, **changed: object) -> Path:
    file.write_text(json.dumps(MADE_WITH | {"results": {"1/1": GOOD}} | changed), encoding="utf-8")
    return file


def test_a_saved_sweep_is_continued_on_the_same_machine_alone(tmp_path) -> None:
    file = saved(tmp_path / "sweep.json")
    assert s.sweep(TINY, [(1, 1)], file) == {"1/1": GOOD}
    for key, other in ("problem", asdict(s.SMALL)), ("torch", "1.0"), ("cores", 1000):
        before = saved(file, **{key: other}).read_bytes()
        with pytest.raises(ValueError, match=f"sweep.json was measured with {key} = .*, not .*; choose another file"):
            s.sweep(TINY, [(1, 1)], file)
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    "results",
    [3, {"1/1": 3}, {"1/1": {}}, {"1/1": []}, {"1/1": {"no fork": [1.0]}}, {"1/1": GOOD | {"models": [-1.0]}}],
)
def test_a_damaged_file_is_refused(tmp_path, results) -> None:
    file = saved(tmp_path / "sweep.json", results=results)
    with pytest.raises(ValueError, match=r"sweep.json holds no sweep \(.*; delete it or choose another file"):
        s.sweep(TINY, [(1, 1)], file)


def test_what_is_no_sweep_is_refused(tmp_path) -> None:
    for content in (b"{", b"[]", b"{}", b"\xff"):
        (tmp_path / "sweep.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"sweep.json holds no sweep \(.*; delete it or choose another file"):
            s.sweep(TINY, [(1, 1)], tmp_path / "sweep.json")
    with pytest.raises(OSError, match=r"cannot be read \(Is a directory\); choose another file"):
        s.sweep(TINY, [(1, 1)], tmp_path)


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Let a Python script stand for the process that measures; return what :func:`measure_setting` makes of it."""

    python = sys.executable

    def run(code: str) -> dict:
        (tmp_path / "child").write_text(f"#!{python}\nimport os, signal, sys\n{code}\n")
        (tmp_path / "child").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "child"))
        return s.measure_setting(TINY, 1, 1)

    return run


@needs_posix
def test_a_result_is_what_every_variant_has_samples_in(child) -> None:
    assert child(f"print('a library says hello'); print({json.dumps(GOOD)!r})") == GOOD
    rubbish = ["nothing", "hello", "{}", "[]", "3", json.dumps({"no fork": [1.0]}), json.dumps(GOOD | {"models": []})]
    rubbish += [json.dumps(GOOD | {"models": [bad]}) for bad in (0.0, "1", None, True, float("nan"))]
    for text in rubbish:
        code = "" if text == "nothing" else f"print({text!r})"
        assert child(code) == {"error": f"the process gave no result, but {text[-100:]}"}
    assert child(r"sys.stdout.buffer.write(b'\xff\xfe')")["error"] == "the process gave no result, but \ufffd\ufffd"


@needs_posix
def test_a_process_that_cannot_start_is_an_error_of_its_setting(tmp_path, monkeypatch) -> None:
    (tmp_path / "no program").write_text("", encoding="utf-8")
    for name, why in ("absent", "No such file or directory"), ("no program", "Permission denied"):
        monkeypatch.setattr(sys, "executable", str(tmp_path / name))
        found = s.sweep(TINY, [(1, 1), (1, 2)])
        assert len(s.failures(found)) == 2
        assert "the process could not be started: " in found["1/1"]["error"] and why in found["1/1"]["error"]


@needs_posix
def test_the_error_of_a_process_is_its_last_line_that_looks_like_one(child) -> None:
    says = "print('torch.jit.Error: why\\n[W1] an unrelated warning', file=sys.stderr, flush=True)"
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    warn = "print('[W1] an unrelated warning', file=sys.stderr, flush=True)"
    assert child(f"{says}; sys.exit(1)") == {"error": "torch.jit.Error: why"}
    assert child(f"{warn}; sys.exit(1)") == {"error": "[W1] an unrelated warning"}
    assert child("sys.exit(3)") == {"error": "the process ended with code 3"}
    assert child(f"{says}; {kill}") == {"error": "killed by SIGKILL: torch.jit.Error: why"}
    assert child(f"{warn}; {kill}") == {"error": "killed by SIGKILL"}


PARENT = """
import os, sys, time
from pathlib import Path
from tutorial_utils import sweep

folder = Path(sys.argv[1])
(folder / "child").write_text(f'''#!{sys.executable}
import os, sys
from pathlib import Path
Path({str(folder / "pid")!r}).write_text(str(os.getpid()))
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
''')
(folder / "child").chmod(0o755)
sys.executable = str(folder / "child")
sweep.measure_setting(sweep.Problem(steps=200, size=512, repeats=1000), 1, 1)
"""


@needs_posix
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_the_process_that_measures_ends_with_its_parent(tmp_path, how) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    try:
        assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
    finally:
        parent.send_signal(getattr(signal, how))
        parent.wait(60)
    pid = int((tmp_path / "pid").read_text())
    ended = wait_until(lambda: not is_alive(pid), 60)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended, "the process measures on, although nobody waits for it"


def wait_until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (reached := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return bool(reached)


def is_alive(pid: int) -> bool:
    """Whether it runs; a process that ended may stay as a zombie until its new parent looks after it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(s, "measure_setting", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(OSError, match=r"absent/a.json cannot be written \(No such file or directory\); mend that or"):
        s.sweep(TINY, [(1, 1)], tmp_path / "absent" / "a.json")


def test_a_later_failed_write_is_a_warning_and_the_results_are_returned(tmp_path, monkeypatch) -> None:
    measured = []

    def full(part: Path, target: Path) -> None:
        if measured:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(part, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(s, "measure_setting", lambda *_: measured.append(1) or GOOD)
    with pytest.warns(UserWarning, match=r"sweep.json cannot be written \(No space left on device\)"):
        results = s.sweep(TINY, [(1, 1), (1, 2)], tmp_path / "sweep.json")
    assert results == {"1/1": GOOD, "1/2": GOOD}
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    assert json.loads((tmp_path / "sweep.json").read_text())["results"] == {}


def test_medians() -> None:
    results = {"1/2": {name: [3.0, 1.0, 2.0] for name in s.VARIANTS}, "2/1": {"error": "why"}}
    assert s.medians(results)["models"] == {"1/2": 2.0}


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_a_problem_needs_positive_numbers(value) -> None:
    with pytest.raises(ValueError, match="Problem.size must be a positive int"):
        s.Problem(size=value)


def test_a_wrong_result_is_refused(monkeypatch) -> None:
    class Wrong(s.LSTMEnsemble):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([model(x) for model in self.models]).sum(dim=0) + 1

    monkeypatch.setitem(s.VARIANTS, "models", (Wrong, s.BidirectionalLSTM))
    with pytest.raises(RuntimeError, match="models: the result differs from the unforked one"):
        s.measure(TINY)


def test_variants_can_share_the_parameters_of_one() -> None:
    unforked = s.scripted("no fork", TINY)
    for variant in s.VARIANTS:
        sharing, own = s.scripted(variant, TINY, unforked), s.scripted(variant, TINY)
        addresses = [{p.data_ptr() for p in net.parameters()} for net in (unforked, sharing, own)]
        assert addresses[0] == addresses[1] and not addresses[0] & addresses[2]
        x = torch.randn(3, 2, 4)
        with torch.no_grad():
            assert torch.equal(unforked(x), sharing(x)) and torch.equal(unforked(x), own(x))


RESULTS = {
    "1/4": {"no fork": [8.0, 9.0, 7.0], "directions": [4.0], "models": [3.0], "directions and models": [2.0]},
    "2/2": {"error": "why"},
    "4/4": {"no fork": [3.0], "directions": [5.0], "models": [2.75, 2.25], "directions and models": [4.0]},
}


def test_best_compares_the_best_settings_and_those_with_one_thread() -> None:
    assert s.best(RESULTS) == {
        "best_unforked_s": 3.0,
        "best_unforked_at": "4/4: no fork",
        "best_forked_s": 2.0,
        "best_forked_at": "1/4: directions and models",
        "gain": 1.5,
        "gain_1_thread": 4.0,
    }
    without_one = s.best({"4/4": RESULTS["4/4"], "2/2": RESULTS["2/2"]})
    assert without_one["gain_1_thread"] is None and without_one["gain"] == 1.2
    assert set(s.best({"2/2": {"error": "why"}}).values()) == {None}


def test_a_recorded_sweep_reads_like_one_of_this_machine() -> None:
    measurements = {"step_eager": {"samples": [1.0]}, "fork_other_1_4": {"error": "another problem"}}
    for at, entry in RESULTS.items():
        name = "fork_small_" + at.replace("/", "_")
        measurements[name] = (
            entry
            if "error" in entry
            else {"samples": entry["no fork"]}
            | {variant: {"samples": samples} for variant, samples in entry.items() if variant != "no fork"}
        )
    assert s.recorded(measurements, "small") == RESULTS
    incomplete = {key: part for key, part in measurements["fork_small_4_4"].items() if key != "models"}
    for bad in (incomplete, incomplete | {"models": 3}, incomplete | {"models": {"samples": []}}):
        assert s.recorded(measurements | {"fork_small_8_8": bad}, "small") == RESULTS
    assert s.recorded(measurements, "source") == {}


def test_no_fork_is_measured_before_anything_is_forked_and_again_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def fake(variant: str, problem: s.Problem, share: object = None) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: called.append(variant) or x + 0

    monkeypatch.setattr(s, "scripted", fake)
    monkeypatch.setattr(s.time, "perf_counter", itertools.count().__next__)  # each call takes 1 s
    samples = s.measure(TINY)
    forked = list(s.VARIANTS)[1:]
    assert called[: 4 + TINY.repeats] == ["no fork"] * (4 + TINY.repeats), "three calls to warm up, one for the result"
    assert called[4 + TINY.repeats :] == [v for v in forked for _ in range(3)] + [*forked, "no fork"] * TINY.repeats
    assert {len(times) for times in samples.values()} == {TINY.repeats}
