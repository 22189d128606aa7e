"""Measuring a call: the unit, the threads, the clock, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from tutorial_utils import timing
from tutorial_utils.timing import Measurement, measure, peak_memory_mib


def test_median_quartiles_and_text_follow_from_the_samples():
    result = Measurement("eager", [5.0, 1.0, 2.0, 4.0, 3.0], "cpu", calls_per_sample=10, num_threads=2)
    assert result.median_us == 3.0
    assert result.quartiles_us == (2.0, 4.0)
    assert str(result) == "eager: 3.0 µs (2.0 µs to 4.0 µs)"


def test_a_single_sample_is_its_own_median_and_quartiles():
    result = Measurement("one", [7.0], "cpu", 1, 1)
    assert (result.median_us, result.quartiles_us) == (7.0, (7.0, 7.0))


def test_a_call_of_known_duration_is_measured_in_microseconds():
    result = measure(lambda: time.sleep(0.005), label="sleep", min_run_time=0.1, device="cpu")
    assert result.label == "sleep" and result.device == "cpu"
    # A sleep is never shorter than asked for; a busy machine can make it much longer.
    assert 5_000 <= result.median_us < 500_000
    assert result.quartiles_us[0] <= result.median_us <= result.quartiles_us[1]


def test_samples_add_up_to_the_run_time_asked_for():
    calls = []
    result = measure(lambda: calls.append(time.sleep(0.001)), label="sleep", min_run_time=0.1, device="cpu")
    assert sum(result.samples_us) * result.calls_per_sample >= 0.1 * 1e6
    assert len(calls) > len(result.samples_us) * result.calls_per_sample >= 1  # the warm-up is not among the samples


@pytest.mark.parametrize("num_threads", [None, 1])
def test_threads_are_the_processes_own_unless_given(num_threads):
    seen = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = measure(
            lambda: seen.add(torch.get_num_threads()),
            label="x",
            min_run_time=0.01,
            device="cpu",
            num_threads=num_threads,
        )
        assert result.num_threads == (num_threads or 2)
        assert seen == {num_threads or 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "error", "phrase"),
    [
        ({"fn": 3}, TypeError, "not int; pass `step`, not `step()`"),
        ({"fn": print, "min_run_time": 0}, ValueError, "min_run_time is 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, phrase):
    with pytest.raises(error) as raised:
        measure(label="x", **arguments)
    assert phrase in str(raised.value)


def test_peak_memory_grows_with_an_allocation_and_never_falls():
    before = peak_memory_mib()
    block = torch.ones(64 * 2**20, dtype=torch.uint8).repeat(4)  # 256 MiB, written to
    during = peak_memory_mib()
    del block
    assert 20 < before < 2**20
    assert during >= 200  # at least the block itself lay in memory
    assert peak_memory_mib() >= during >= before


def test_importing_logs_nothing():
    command = [sys.executable, "-c", "import tutorial_utils.timing, tutorial_utils.timeline"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == "" and done.stdout == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_work_is_measured_and_not_its_launch():
    cycles = 2_000_000  # about a millisecond at 2 GHz; its launch takes microseconds
    result = measure(lambda: torch.cuda._sleep(cycles), label="kernel", min_run_time=0.1)
    assert result.device == "cuda"
    assert result.median_us > 300
    assert len(result.samples_us) >= 5


def test_the_gpu_path_times_batches_between_events(monkeypatch):
    """The arithmetic of the GPU path, with a clock in place of the events."""
    clock = {"now": 0.0}

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock["now"]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return (end.at - self.at) / 1e3  # milliseconds, as torch.cuda.Event

    class Device:
        def __init__(self, device):
            pass

        __enter__ = __exit__ = lambda *_: None

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    monkeypatch.setattr(timing.torch.cuda, "device", Device)
    result = measure(
        lambda: clock.update(now=clock["now"] + 250.0), label="step", min_run_time=0.2, device=torch.device("cuda")
    )
    assert result.median_us == pytest.approx(250.0)
    assert result.calls_per_sample == 40  # a twentieth of 0.2 s in steps of 250 µs
    assert len(result.samples_us) == 20


def test_a_new_process_ends_with_the_one_that_started_it(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef work(path):\n    open(path, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
    )
    note, source = tmp_path / "pid", str(Path(timing.__file__).parents[1])
    main = f"import slow; from tutorial_utils.timing import in_new_process; in_new_process(slow.work, {str(note)!r})"
    code = f"if __name__ == '__main__':\n    {main}\n"
    (tmp_path / "main.py").write_text(code)
    parent = subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": source})
    deadline = time.monotonic() + 40
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(note.read_text())
    parent.kill()
    parent.wait()
    while (alive := psutil.pid_exists(child)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive, "the process works on, although nobody waits for it any more"
