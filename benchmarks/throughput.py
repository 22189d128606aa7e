"""Requests per second of an LSTM ensemble on the CPU: pinned processes against threads inside a call.

A request is one call of the ensemble on one input; each process answers one at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any, ClassVar

import torch

from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, scripted, start_pool
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .forks import TINY
from .machine import gpu_hidden
from .record import Case, Measurements

NO_FORK, FORK = "no fork", "directions and models"


@dataclass(frozen=True)
class Form:
    """How the requests are answered. ``intra_op`` and ``inter_op`` are the threads of each process."""

    problem: str
    processes: int
    intra_op: int
    inter_op: int = 1
    variant: str = NO_FORK

    @property
    def name(self) -> str:
        threads = f"{self.intra_op}/{self.inter_op}" if self.variant == FORK else f"{self.intra_op}"
        return f"{self.problem}/{self.variant}, {self.processes} x {threads}"


@dataclass(frozen=True)
class Throughput:
    """Every form, in ``windows`` that last at least as many seconds as ``problems`` says beside each problem."""

    problems: dict[str, tuple[Problem, float]]
    forms: list[Form]
    windows: int

    name: ClassVar[str] = "throughput"
    uses_gpu: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        sample = "one window: the sum over the processes of requests over the seconds until its last one was answered"
        return {"plan": asdict(self), "dtype": "float32", "sample": f"{sample}; autograd off"}

    def cases(self) -> list[Case]:
        return [Case(form.name, partial(self.run, form)) for form in self.forms]

    def run(self, form: Form) -> Measurements:
        """Return requests/s in each window; and ms of a request, the median of each process, while all are busy.

        The fact ``cores`` holds the cores to which each process is pinned, or None where the system cannot pin.
        """
        problem, seconds = self.problems[form.problem]
        barrier = multiprocessing.get_context("spawn").Barrier(form.processes)
        what = (problem, form.variant, seconds, self.windows, barrier)
        cores = shares(form.processes)
        with gpu_hidden(), ThreadPoolExecutor(form.processes) as pool:
            threads = (form.intra_op, form.inter_op)
            runs = [pool.submit(in_new_process, answer, share, *what, threads=threads) for share in cores]
            latencies = [run.result() for run in runs]
        rates = [sum(len(ms) / sum(ms) * 1e3 for ms in window) for window in zip(*latencies, strict=True)]
        medians = [median(ms for window in of_process for ms in window) for of_process in latencies]
        settings = {**asdict(problem), **asdict(form), "repeats": self.windows}
        return {
            form.name: Measurement(rates, "requests/s", form.name, settings, {"cores": cores}),
            f"{form.name}/latency": Measurement(medians, "ms", form.name, settings),
        }

    def derive(self, results: Results) -> dict[str, Any]:
        return {}


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Throughput:
    """Return the benchmark: processes with one core, with a quarter of the cores, with all; and two settings forked."""
    if quick:
        forms = [Form("small", 2, 1), Form("small", 1, 1, 2, FORK)]
        return Throughput({"small": (TINY, 0.1)}, forms, windows=2)
    quarter = max(1, cores // 4)
    shared = dict.fromkeys([(cores, 1), (cores // quarter, quarter), (1, cores)])
    forms = []
    for problem in ("small", "source"):
        forms += [Form(problem, processes, intra_op) for processes, intra_op in shared]
        forms += [Form(problem, 1, intra_op, cores // intra_op, FORK) for intra_op in dict.fromkeys((1, quarter))]
    return Throughput({"small": (SMALL, 1.0), "source": (SOURCE_SIZE, 3.0)}, forms, windows=3)


def shares(processes: int) -> list[list[int] | None]:
    """Return the cores of each process: equal parts of those that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * processes
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // processes)
    return [cores[start % len(cores) :][:each] for start in range(0, each * processes, each)]


def answer(
    cores: list[int] | None, problem: Problem, variant: str, seconds: float, windows: int, barrier: Barrier
) -> list[list[float]]:
    """Answer requests in each window, which all processes begin together; return ms of each. At least one a window."""
    if cores:
        os.sched_setaffinity(0, cores)
    net, x = scripted(variant, problem), torch.randn(problem.steps, problem.batch, problem.size)
    if variant == FORK:
        start_pool()
    found: list[list[float]] = []
    with torch.no_grad():
        for part in (x[:2], x[:2], x, x):
            net(part)
        for _ in range(windows):
            found.append([])
            barrier.wait(timeout=120)  # an error where another process failed
            end = time.perf_counter() + seconds
            while not found[-1] or time.perf_counter() < end:
                start = time.perf_counter()
                net(x)
                found[-1].append((time.perf_counter() - start) * 1e3)
    return found
