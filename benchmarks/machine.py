"""The machine that is measured: what it is, its clock, and work on a side stream of its GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
HAS_GPU = torch.cuda.is_available()
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def device(use_gpu: bool) -> dict[str, Any]:
    """Describe the device that is measured, and the CPU that the host code runs on.

    ``cores`` are those that the system shows; a container may have fewer (``cpu_quota``, as the cgroup writes it:
    microseconds per period and the period) and other work (``load_average``, of 1, 5 and 15 minutes, as it begins).
    """
    cpu = cpu_name()
    found = {"type": "cpu", "name": cpu, "cpu": cpu, "cores": os.cpu_count(), "lscpu": output_of("lscpu")}
    found["cpu_quota"] = CPU_QUOTA.read_text().strip() if CPU_QUOTA.is_file() else None
    found["load_average"] = os.getloadavg() if hasattr(os, "getloadavg") else None  # Windows has none
    if use_gpu:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        drivers = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found |= {"type": "cuda", "name": gpu.name, "memory_bytes": gpu.total_memory}
        found |= {"multiprocessors": gpu.multi_processor_count, "compute_capability": f"{gpu.major}.{gpu.minor}"}
        found["driver"] = drivers.splitlines()[0] if drivers else None  # a line for each GPU
    return found


def versions(use_gpu: bool) -> dict[str, Any]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    found["triton"] = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None
    if use_gpu:
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def cpu_name() -> str:
    """Return what Linux calls the CPU; elsewhere only its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def output_of(*command: str) -> str | None:
    """Return what a program prints; None where there is no such program, or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def clock() -> float:
    """Return the host's seconds once a GPU, where there is one, has finished all that it was given."""
    if HAS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """Return what a call returns, and the seconds until all that it started is done."""
    start = clock()
    result = call()
    return result, clock() - start


def seconds_per_call(call: Callable[[], Any], calls: int) -> float:
    """Return the mean over calls in a row, until the work of the last one is done."""
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


@contextmanager
def gpu_hidden() -> Iterator[None]:
    """Processes that start meanwhile see no GPU: what is measured on the CPU need not wait for CUDA to start."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def on_side_stream(work: Callable[[], Any]) -> None:
    """Do ``work()`` on a new CUDA stream, after the current stream's work and before what comes next on it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


def captured(work: Callable[[], Result], warm_up: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Return a CUDA graph of ``work()``, and its result, which every replay overwrites. The warm-up comes first."""
    on_side_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result
