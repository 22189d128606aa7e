"""How long a call takes: the one type of a measurement, and the two ways to make one."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

# Importing torch's benchmark on a machine with a CUDA compiler but no GPU logs a warning that a notebook would show.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils import benchmark  # noqa: E402

SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
"""The units of time that :meth:`Measurement.to` knows, in seconds."""


@dataclass(frozen=True)
class Measurement:
    """Repeated values of one quantity, in one unit.

    Attributes:
        values: one number a repetition, in the order in which they were measured.
        unit: for example ``µs``, ``s``, ``MiB`` or ``x`` (a ratio).
        label: what was measured, in a few words.
        settings: what it was measured with, for example ``{"batch": 64}``.
        facts: what was noted beside it, for example ``{"accuracy": [0.98]}``.

    Raises:
        ValueError: there is no value.
    """

    values: Sequence[float]
    unit: str
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.values):
            raise ValueError(f"the measurement {self.label!r} has no value; measure at least once")

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def q1(self) -> float:
        """The first quartile: a quarter of the values lies below it."""
        return float(np.percentile(self.values, 25))

    @property
    def q3(self) -> float:
        """The third quartile: a quarter of the values lies above it."""
        return float(np.percentile(self.values, 75))

    def to(self, unit: str) -> Measurement:
        """Return it in another unit of time. ValueError where one of the two is none: ns, µs, ms or s."""
        if unit == self.unit:
            return self
        if not {unit, self.unit} <= SECONDS.keys():
            raise ValueError(f"cannot convert {self.unit} to {unit}; the units of time are {', '.join(SECONDS)}")
        factor = SECONDS[self.unit] / SECONDS[unit]
        return replace(self, values=[value * factor for value in self.values], unit=unit)

    def __str__(self) -> str:
        """Such as ``eager step: 812.3 µs (790.1 µs to 840.0 µs)``: the median and, in brackets, the quartiles."""
        texts = [f"{number:.{_decimals(self.q3)}f} {self.unit}" for number in (self.median, self.q1, self.q3)]
        return f"{self.label}{': ' if self.label else ''}{texts[0]} ({texts[1]} to {texts[2]})"


def _decimals(number: float) -> int:
    """How many decimals show three digits of a number, at least one."""
    return next((digits for digits in (1, 2, 3) if abs(number) * 10**digits >= 100), 4)


def measure(
    fn: Callable[[], Any],
    *,
    label: str = "",
    unit: str = "µs",
    min_run_time: float = 1.0,
    num_threads: int | None = None,
) -> Measurement:
    """Time ``fn()`` for at least ``min_run_time`` seconds, after a warm-up.

    This is ``torch.utils.benchmark.Timer(...).blocked_autorange``, which on a GPU waits for the device before it reads
    the clock. Each value is the mean of a block of calls in a row. One thing differs: benchmark's own default is a
    single intra-op thread, whereas ``num_threads`` here defaults to what ordinary code runs with.

    Raises:
        TypeError: ``fn`` cannot be called.
    """
    if not callable(fn):
        raise TypeError(f"measure needs a function to call, not {type(fn).__name__}; pass `step`, not `step()`")
    timer = benchmark.Timer("fn()", globals={"fn": fn}, num_threads=num_threads or torch.get_num_threads())
    return Measurement(timer.blocked_autorange(min_run_time=min_run_time).times, "s", label).to(unit)


def in_new_process(function: Callable[..., Any], *arguments: Any, threads: tuple[int, int] | None = None) -> Any:
    """Return ``function(*arguments)`` from a new process.

    For what only a new process shows (first calls), for what can be set once only (the inter-op pool), and for what
    would disturb later measurements (the profiler).

    Args:
        function: a function of an importable module, with arguments and a result that can be pickled.
        threads: the new process's intra-op and inter-op threads; PyTorch's defaults where it is None.

    Raises:
        RuntimeError: the function raised, or the process ended without a result; the message says which error.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, threads, function, arguments))
    process.start()
    sender.close()
    try:
        error, result = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the new process ended with exit code {process.exitcode}, without a result") from None
    finally:
        process.kill()
        process.join()
    if error:
        raise RuntimeError(error)
    return result


def _work(sender: Connection, threads: tuple[int, int] | None, function: Callable[..., Any], arguments: tuple) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if threads:
            torch.set_num_threads(threads[0])
            torch.set_num_interop_threads(threads[1])
        sender.send(("", function(*arguments)))
    except Exception as error:
        sender.send((f"{type(error).__name__}: {error}", None))
    os._exit(0)  # the inter-op pool's threads may abort a process that ends in the usual way


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone: nobody waits for the result."""
    multiprocessing.parent_process().join()
    os._exit(1)
