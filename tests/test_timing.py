"""A measurement's numbers and text, the clock, and functions in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from tutorial_utils import timing
from tutorial_utils.timing import Measurement, in_new_process, measure


@pytest.mark.parametrize(
    ("values", "median", "q1", "q3"),
    [([5.0, 1.0, 2.0, 4.0, 3.0], 3.0, 2.0, 4.0), ([7.0], 7.0, 7.0, 7.0), ((1.0, 2.0), 1.5, 1.25, 1.75)],
)
def test_median_and_quartiles_follow_from_the_values(values: list[float], median: float, q1: float, q3: float) -> None:
    measurement = Measurement(values, "µs")
    assert (measurement.q1, measurement.median, measurement.q3) == (q1, median, q3)


@pytest.mark.parametrize(
    ("values", "unit", "label", "text"),
    [
        ([5.0, 1.0, 2.0, 4.0, 3.0], "µs", "eager", "eager: 3.00 µs (2.00 µs to 4.00 µs)"),
        ([2000.0], "ms", "step", "step: 2000.0 ms (2000.0 ms to 2000.0 ms)"),
        ([1.5], "x", "", "1.50 x (1.50 x to 1.50 x)"),
        ([0.5], "s", "", "0.500 s (0.500 s to 0.500 s)"),
        ([0.0123], "s", "", "0.0123 s (0.0123 s to 0.0123 s)"),
    ],
)
def test_the_text_is_the_median_and_the_quartiles(values: list[float], unit: str, label: str, text: str) -> None:
    assert str(Measurement(values, unit, label)) == text


def test_a_time_is_converted_and_nothing_else() -> None:
    measurement = Measurement([1.5, 2.5], "ms", "a", {"batch": 64}, {"kernels": 3})
    converted = measurement.to("µs")
    assert list(converted.values) == pytest.approx([1500.0, 2500.0]) and converted.unit == "µs"
    assert (converted.label, converted.settings, converted.facts) == ("a", {"batch": 64}, {"kernels": 3})
    assert measurement.to("s").median == pytest.approx(0.002) and measurement.to("ms") is measurement
    for value, unit in (measurement, "MiB"), (Measurement([1.0], "x"), "s"):
        with pytest.raises(ValueError, match=f"cannot convert {value.unit} to {unit}; the units of time are ns, µs"):
            value.to(unit)


def test_a_measurement_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="the measurement 'eager' has no value; measure at least once"):
        Measurement([], "µs", "eager")


def test_a_call_of_known_duration_is_measured_after_a_warm_up() -> None:
    calls: list[None] = []
    result = measure(lambda: calls.append(time.sleep(0.005)), label="sleep", unit="ms", min_run_time=0.1)
    assert (result.label, result.unit) == ("sleep", "ms")
    # A sleep is never shorter than asked for; a busy machine can make it much longer.
    assert 5 <= result.median < 500 and len(calls) > len(result.values)


@pytest.mark.parametrize("num_threads", [None, 1])
def test_threads_are_the_processes_own_unless_given(num_threads: int | None) -> None:
    seen, before = set(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure(lambda: seen.add(torch.get_num_threads()), min_run_time=0.01, num_threads=num_threads)
        assert seen == {num_threads or 2} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not int; pass `step`, not `step\(\)`"):
        measure(3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_work_is_measured_and_not_its_launch() -> None:
    cycles = 2_000_000  # about a millisecond at 2 GHz; its launch takes microseconds
    assert measure(lambda: torch.cuda._sleep(cycles), min_run_time=0.1).median > 300


def test_importing_logs_nothing() -> None:
    command = [sys.executable, "-c", "import tutorial_utils.timing, tutorial_utils.timeline"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == "" and done.stdout == ""


# What runs in a process of its own


def process_and_threads(name: str) -> tuple[str, int, int, int]:
    return name, os.getpid(), torch.get_num_threads(), torch.get_num_interop_threads()


def raise_error() -> None:
    raise ValueError("the moon is full")


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_new_process_returns_the_result_under_the_threads_asked_for() -> None:
    name, process, *threads = in_new_process(process_and_threads, "a", threads=(1, 3))
    assert name == "a" and process != os.getpid() and threads == [1, 3]


@pytest.mark.parametrize(
    ("function", "threads", "message"),
    [
        (raise_error, None, "^ValueError: the moon is full$"),
        (raise_error, (0, 1), "^RuntimeError: .*positive"),
        (kill_itself, None, "^the new process ended with exit code -9, without a result$"),
    ],
)
def test_a_new_process_that_fails_says_why(function, threads: tuple[int, int] | None, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        in_new_process(function, threads=threads)


SLOW = """
import os, time
def work(path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(60)
"""
MAIN = """
import slow, sys
from tutorial_utils.timing import in_new_process
if __name__ == "__main__":
    in_new_process(slow.work, sys.argv[1])
"""


def test_a_new_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "main.py").write_text(MAIN)
    environment = os.environ | {"PYTHONPATH": str(Path(timing.__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, "main.py", "pid"], cwd=tmp_path, env=environment)
    deadline, note = time.monotonic() + 40, tmp_path / "pid"
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(note.read_text())
    parent.kill()
    parent.wait()
    while (alive := psutil.pid_exists(child)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive, "the process works on, although nobody waits for it any more"
