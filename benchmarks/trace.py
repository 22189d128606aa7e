"""What runs when on which thread in a call of the LSTM ensemble with all its LSTMs forked, by profiler."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median_low
from typing import Any, ClassVar

import torch

from tutorial_utils import timeline
from tutorial_utils.fork_timing import SMALL, SOURCE_SIZE, Problem, scripted, start_pool
from tutorial_utils.results import Results
from tutorial_utils.timing import Measurement, in_new_process

from .forks import TINY
from .graphs import as_fact
from .machine import gpu_hidden
from .record import Case, Measurements

VARIANT = "directions and models"


@dataclass(frozen=True)
class Trace:
    """Each problem with one intra-op thread, and a pool of ``inter_op``."""

    problems: dict[str, Problem]
    inter_op: int

    name: ClassVar[str] = "trace"
    uses_gpu: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        return {"plan": asdict(self), "dtype": "float32", "sample": "one call under the profiler; autograd off"}

    def cases(self) -> list[Case]:
        return [Case(problem, partial(self.run, problem)) for problem in self.problems]

    def run(self, problem: str) -> Measurements:
        """Return ms from the first operator's start to the last one's end of ``repeats`` calls, each profiled alone.

        The fact ``spans`` holds the outermost operators of the call with the median time, in the order of their starts:
        ``name``, ``category``, ``lane`` (a thread), ``start_us`` from the first one's start, ``duration_us``.
        """
        with gpu_hidden():
            ms, spans = in_new_process(traced, self.problems[problem], threads=(1, self.inter_op))
        settings = {"problem": problem, "variant": VARIANT, "intra_op": 1, "inter_op": self.inter_op}
        settings |= asdict(self.problems[problem])
        return {problem: Measurement(ms, "ms", problem, settings, {"spans": spans})}

    def derive(self, results: Results) -> dict[str, Any]:
        return {}


def part(quick: bool, cores: int = os.cpu_count() or 1) -> Trace:
    return Trace({"small": TINY} if quick else {"source": SOURCE_SIZE, "small": SMALL}, cores)


def traced(problem: Problem) -> tuple[list[float], list[dict[str, Any]]]:
    net, x = scripted(VARIANT, problem), torch.randn(problem.steps, problem.batch, problem.size)
    start_pool()
    with torch.no_grad():
        for part in (x[:2], x[:2], x, x):
            net(part)
        traces = [timeline.profile(partial(net, x)) for _ in range(problem.repeats)]
    ms = [trace.duration_us / 1e3 for trace in traces]
    middle = traces[ms.index(median_low(ms))]
    return ms, [{"lane": span.lane, **as_fact(span, 0.0)} for span in middle.spans]
