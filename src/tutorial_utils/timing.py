"""How long a call takes, and how much memory the process has used."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Importing torch's benchmark on a machine with a CUDA compiler but no GPU logs a warning that a notebook would show.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils import benchmark  # noqa: E402


@dataclass(frozen=True)
class Measurement:
    """The time of one call, sampled several times. All times are in microseconds."""

    label: str
    samples_us: list[float]
    """Each sample is the mean over ``calls_per_sample`` calls in a row."""
    device: str
    calls_per_sample: int
    num_threads: int
    """Intra-op threads of the CPU."""

    @property
    def median_us(self) -> float:
        return float(np.median(self.samples_us))

    @property
    def quartiles_us(self) -> tuple[float, float]:
        """The first and the third quartile of the samples."""
        q1, q3 = np.percentile(self.samples_us, [25, 75])
        return float(q1), float(q3)

    def __str__(self) -> str:
        q1, q3 = self.quartiles_us
        return f"{self.label}: {self.median_us:.1f} µs ({q1:.1f} µs to {q3:.1f} µs)"


def measure(
    fn: Callable[[], Any],
    *,
    label: str,
    min_run_time: float = 1.0,
    device: torch.device | str | None = None,
    num_threads: int | None = None,
) -> Measurement:
    """Time ``fn()`` for at least ``min_run_time`` seconds, after a warm-up; give at least ten times what a call takes.

    On the CPU this is ``torch.utils.benchmark.Timer(...).blocked_autorange``, with one difference: benchmark's own
    default is a single thread, whereas ``num_threads`` here defaults to ``torch.get_num_threads()``, what ordinary code
    runs with. On a GPU a host timer would see only the launches, so batches of calls are timed between two CUDA events
    on the current stream. ``device`` is the GPU where there is one; pass ``"cpu"`` for work that does not touch it.
    """
    if not callable(fn):
        raise TypeError(f"measure needs a function to call, not {type(fn).__name__}; pass `step`, not `step()`")
    if min_run_time <= 0:
        raise ValueError(f"min_run_time is {min_run_time}; it must be a positive number of seconds")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    num_threads = num_threads or torch.get_num_threads()
    if device.type == "cuda":
        calls, samples_us = _time_on_gpu(fn, min_run_time, device)
    else:
        timer = benchmark.Timer("fn()", globals={"fn": fn}, num_threads=num_threads)
        result = timer.blocked_autorange(min_run_time=min_run_time)
        calls, samples_us = result.number_per_run, [seconds * 1e6 for seconds in result.times]
    return Measurement(label, samples_us, device.type, calls, num_threads)


def _time_on_gpu(fn: Callable[[], Any], min_run_time: float, device: torch.device) -> tuple[int, list[float]]:
    def microseconds(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            fn()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    with torch.cuda.device(device):
        microseconds(3)  # Warm-up: libraries are loaded and algorithms chosen at the first calls.
        # About twenty samples, each long enough (5 ms or more) for the events' own cost to vanish.
        sample_us = max(min_run_time / 20 * 1e6, 5e3)
        calls = max(1, round(sample_us / max(microseconds(10) / 10, 1.0)))
        samples: list[float] = []
        while len(samples) < 5 or sum(samples) * calls < min_run_time * 1e6:
            samples.append(microseconds(calls) / calls)
    return calls, samples


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """For what only a new process shows (first calls), and what would disturb later measurements (the profiler)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as pool:
        return pool.submit(function, *arguments).result()


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, for example killed; nobody waits for the result."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def on_side_stream(work: Callable[[], Any]) -> None:
    """Do ``work()`` on a new CUDA stream, after the current stream's work and before what comes next on it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


def peak_memory_mib() -> float:
    """The largest resident memory this process has had so far, in MiB (2**20 bytes)."""
    if sys.platform == "win32":
        import psutil  # There is no `resource` on Windows; psutil comes with Jupyter's kernel.

        return psutil.Process().memory_info().peak_wset / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # macOS counts bytes, Linux KiB
