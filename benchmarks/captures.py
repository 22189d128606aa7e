"""Captures that fail, with both of their errors, and the proof that a replay computes what eager does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from tutorial_utils import batches
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .graphs import BATCH, DEVICE, EAGER, GRAPH, SEED, load, prepared
from .record import Case, Measurements, reason


@dataclass(frozen=True)
class Captures:
    steps: int  # of the proof
    processes: int  # in which each failure is tried

    name: ClassVar[str] = "captures"
    uses_gpu: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        return {"steps": self.steps, "processes": self.processes, "batch": BATCH, "seed": SEED, "dtype": "float32"}

    def cases(self) -> list[Case]:
        failures = [(f"fails_{work.__name__}", partial(failure, work, self.processes)) for work in FAILURES]
        proofs = [
            (f"proof{'_fused' * fused}{'' if deterministic else '_not_deterministic'}", (fused, deterministic))
            for fused in (False, True)
            for deterministic in (True, False)
        ]
        runs = failures + [(name, partial(proof, self.steps, *how)) for name, how in proofs]
        return [Case(name, partial(run, name), needs_gpu=True) for name, run in runs]

    def derive(self, results: Results) -> dict[str, Any]:
        return {}


def part(quick: bool) -> Captures:
    """Return the benchmark; ``quick`` takes seconds instead of minutes."""
    return Captures(8, 1) if quick else Captures(400, 3)


# Each prepares a capture that fails, and returns the work that is captured.


def synchronising_read() -> Callable[[], Any]:
    x = torch.ones(3, device=DEVICE)
    return lambda: x.sum().item()


def first_linear() -> Callable[[], Any]:
    layer, x = nn.Linear(8, 8).to(DEVICE), torch.ones(4, 8, device=DEVICE)
    return lambda: layer(x)


def first_convolution() -> Callable[[], Any]:
    layer, x = nn.Conv2d(1, 8, 3).to(DEVICE), torch.ones(4, 1, 8, 8, device=DEVICE)
    return lambda: layer(x)


def warm_up_on_the_default_stream() -> Callable[[], Any]:
    layer, x = nn.Linear(8, 8).to(DEVICE), torch.ones(4, 8, device=DEVICE)
    loss = layer(x).sum()
    loss.backward()
    return lambda kept=loss: layer(x).sum().backward()


def random_numbers() -> Callable[[], Any]:
    x = torch.ones(64, device=DEVICE)
    F.dropout(x)
    return lambda: F.dropout(x).sum().item()


FAILURES = (synchronising_read, first_linear, first_convolution, warm_up_on_the_default_stream, random_numbers)


def failure(work: Callable[[], Callable[[], Any]], processes: int, name: str) -> Measurements:
    """How many of some new processes refuse to capture ``work()``.

    The fact ``errors`` holds of each process the error that surfaced, the one behind it, the current stream afterwards,
    and the error of an eager dropout on the default stream, if there is one.
    """
    errors = [in_new_process(failed_capture, work) for _ in range(processes)]
    refused = sum(error["surfaced"] is not None for error in errors)
    return {name: Measurement([refused], "refusals", name, {"processes": processes}, {"errors": errors})}


def failed_capture(prepare: Callable[[], Callable[[], Any]]) -> dict[str, Any]:
    work, graph = prepare(), torch.cuda.CUDAGraph()
    found: dict[str, Any] = {"surfaced": None, "behind": None, "dropout_afterwards": None}
    try:
        with torch.cuda.graph(graph):
            work()
    except Exception as error:
        found |= {"surfaced": reason(error), "behind": reason(error.__context__) if error.__context__ else None}
    found["stream_afterwards"] = "default" if torch.cuda.current_stream() == torch.cuda.default_stream() else "other"
    torch.cuda.set_stream(torch.cuda.default_stream())
    try:
        F.dropout(torch.ones(64, device=DEVICE)).sum().item()
    except Exception as error:
        found["dropout_afterwards"] = reason(error)
    return found


def proof(steps: int, fused: bool, deterministic: bool, name: str) -> Measurements:
    """The steps after which a replay's parameters, momentum and loss were compared with eager's, in a new process.

    Facts: ``equal_steps``, after which every bit was equal; ``first_difference``, the largest one at the first step
    that differs, or None.
    """
    facts = in_new_process(compared, steps, fused, deterministic)
    settings = {"batch": BATCH, "fused": fused, "cudnn_deterministic": deterministic}
    return {name: Measurement([steps], "steps", name, settings, facts)}


def compared(steps: int, fused: bool, deterministic: bool) -> dict[str, Any]:
    torch.backends.cudnn.deterministic = deterministic
    expected, actual = (states(form, steps, fused) for form in (EAGER, GRAPH))
    gaps = []
    for ours, theirs in zip(actual, expected, strict=True):
        differ = [float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True) if not torch.equal(a, b)]
        gaps.append(max(differ, default=None))
    different = [gap for gap in gaps if gap is not None]
    return {"equal_steps": steps - len(different), "first_difference": next(iter(different), None)}


def states(form: str, steps: int, fused: bool) -> list[list[torch.Tensor]]:
    """Return copies of parameters, momentum and loss after each step, from the same seed for every form."""
    trainer, data = prepared(form, fused=fused), load("mini")
    train, found = batches(data.train_images, data.train_labels, BATCH), []
    for images, labels in islice(cycle(train), steps):
        loss = trainer.step_on(images, labels)
        momentum = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
        found.append([t.detach().clone() for t in (*trainer.model.parameters(), *momentum, loss)])
    return found
