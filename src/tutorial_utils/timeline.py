"""What ran when, on which thread or stream: a trace of torch.profiler as numbers and as a picture."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

# The profiler's tracing library logs to the C-level standard error, which would end up in a notebook's output.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
import torch.profiler
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from .plots import GREY, new_axes

_HOST = {"cpu_op": "operator", "cuda_runtime": "CUDA call", "cuda_driver": "CUDA call"}
_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memory set"}
_ANNOTATIONS = {"user_annotation", "gpu_user_annotation"}
_KINDS = {*_HOST, *_DEVICE, *_ANNOTATIONS}
_DAY_US = 24 * 3600 * 1e6


@dataclass(frozen=True)
class Span:
    """One stretch of work in one lane. Times are in microseconds from the start of the timeline."""

    name: str
    lane: str
    """``thread 1 (Python)``, ``thread 2``, ``stream 7``, ..."""
    start_us: float
    duration_us: float
    category: str
    """operator, CUDA call, wait (a CUDA call that blocks the host), kernel, copy or memory set."""
    scope: str = ""
    """The innermost ``record_function`` around it in its lane; torch's own around an optimizer only if it is alone."""

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class Timeline:
    """The spans of a trace by start; lanes in order of appearance, Python's thread first, streams last."""

    spans: list[Span]
    lanes: list[str]

    @classmethod
    def from_chrome_trace(cls, path: str | Path, *, nested: bool = False) -> Timeline:
        """Read a trace that torch.profiler exported.

        Of each thread only the outermost operators are kept, unless ``nested`` is True. Spans that merely contain
        operators, such as a scripted function, are left out with the nested ones: a thread that waits for a forked task
        stays inside the function, but does no work.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no trace of torch.profiler, or holds no operator and no kernel.
        """
        return cls._from_events(_read_events(Path(path)), nested, str(path))

    @classmethod
    def _from_events(cls, events: list[dict[str, Any]], nested: bool, source: str) -> Timeline:
        host = [event for event in events if event["cat"] in _HOST]
        # Linux gives the main thread the process's number; elsewhere the first event is Python's.
        main = next((event for event in host if event["tid"] == event["pid"]), host[0] if host else None)
        threads = {main["lane"]: "thread 1 (Python)"} if main else {}
        streams: dict[Any, str] = {}
        several_gpus = len({event["pid"] for event in events if event["cat"] in _DEVICE}) > 1
        for event in events:
            if event["cat"] in _HOST:
                threads.setdefault(event["lane"], f"thread {len(threads) + 1}")
            elif event["cat"] in _DEVICE:
                gpu = f" (GPU {event['pid']})" if several_gpus else ""
                streams.setdefault(event["lane"], f"stream {event['tid']}{gpu}")
        labels = threads | streams
        origin = min((event["ts"] for event in events if event["cat"] not in _ANNOTATIONS), default=0.0)
        spans: list[Span] = []
        operator_end: dict[Any, float] = {}
        scopes: dict[Any, list[tuple[float, str]]] = {}
        for event in events:
            key, start, end = event["lane"], event["ts"], event["ts"] + event["dur"]
            scope = scopes.setdefault(key, [])
            while scope and scope[-1][0] <= start:
                scope.pop()
            if event["cat"] in _ANNOTATIONS:
                own = event["name"].startswith("Optimizer.")  # torch's own, e.g. Optimizer.step#SGD.step
                if not (own and scope):
                    scope.append((end, event["name"].partition("#")[0] if own else event["name"]))
                continue
            inside = event["cat"] in _HOST and end <= operator_end.get(key, float("-inf"))
            container = event["cat"] == "cpu_op" and "::" not in event["name"]
            if not container:
                operator_end[key] = max(end, operator_end.get(key, end))
            if nested or not (inside or container):
                category = (_HOST | _DEVICE)[event["cat"]]
                category = "wait" if category == "CUDA call" and "Synchronize" in event["name"] else category
                name = scope[-1][1] if scope else ""
                spans.append(Span(event["name"], labels[key], start - origin, event["dur"], category, name))
        if not spans:
            raise ValueError(f"{source} holds no operator and no kernel; profile a function that computes something")
        used = {span.lane for span in spans}
        return cls(spans, [lane for lane in labels.values() if lane in used])

    @property
    def duration_us(self) -> float:
        """From the start of the first span to the end of the last."""
        return max(span.end_us for span in self.spans) - min(span.start_us for span in self.spans)

    def _busy(self, *lanes: str) -> list[tuple[float, float]]:
        """The stretches of time in which any of the lanes works; waiting is not work."""
        if unknown := set(lanes) - set(self.lanes):
            raise ValueError(f"there is no lane {unknown.pop()!r}; the lanes are {', '.join(self.lanes)}")
        stretches: list[tuple[float, float]] = []
        for span in sorted(self.spans, key=lambda span: span.start_us):
            if span.lane not in lanes or span.category == "wait":
                continue
            if stretches and span.start_us <= stretches[-1][1]:
                stretches[-1] = (stretches[-1][0], max(stretches[-1][1], span.end_us))
            else:
                stretches.append((span.start_us, span.end_us))
        return stretches

    def _busy_us(self, *lanes: str) -> float:
        return sum(end - start for start, end in self._busy(*lanes))

    def busy_lanes(self, lanes: Iterable[str] | None = None) -> float:
        """Mean number of lanes busy at once, over the time in which any is. 1 means that nothing ran in parallel.

        All ``lanes`` count unless some are named. Spans that overlap in one lane count once.
        """
        lanes = self.lanes if lanes is None else list(lanes)
        any_busy = self._busy_us(*lanes)
        return sum(self._busy_us(lane) for lane in lanes) / any_busy if any_busy else 0.0

    @staticmethod
    def most_at_once(spans: Iterable[Span]) -> int:
        """The largest number of ``spans`` under way at one moment; one may start where another ends."""
        edges = sorted(edge for span in spans for edge in ((span.start_us, 1), (span.end_us, -1)))
        return max(accumulate(change for _, change in edges), default=0)

    def plot(
        self,
        *,
        title: str = "",
        color_by: Callable[[Span], str] | None = None,
        colors: Mapping[str, str] | None = None,
        limits_us: tuple[float, float] | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the lanes from top to bottom over time, with a legend of what the colours mean.

        ``color_by`` gives a span's label in the legend; by default this is its scope where the trace has any, else its
        category. The eight labels that took most time get a colour, the rest are grey; ``colors`` gives the labels
        that have one instead, so that several pictures agree. ``limits_us`` shows a part.
        """
        if color_by is None:
            has_scopes = any(span.scope for span in self.spans)
            color_by = (lambda span: span.scope or "no scope") if has_scopes else (lambda span: span.category)
        start, end = limits_us or (0.0, max(span.end_us for span in self.spans))
        shown = [(span, color_by(span)) for span in self.spans if span.end_us > start and span.start_us < end]
        cost: dict[str, float] = {}
        for span, label in shown:
            cost[label] = cost.get(label, 0.0) + span.duration_us
        top = sorted(cost, key=cost.__getitem__, reverse=True)[:8]
        # In order of appearance, so that a label keeps its colour from one run to the next.
        colors = colors or {label: f"C{i}" for i, label in enumerate(label for label in cost if label in top)}
        unit, scale = ("ms", 1e-3) if end - start >= 2000 else ("µs", 1.0)
        ax = new_axes(ax, 9, 1.5 + 0.5 * len(self.lanes))
        for row, lane in enumerate(self.lanes):
            mine = [(span, colors.get(label, GREY)) for span, label in shown if span.lane == lane]
            bars = [(span.start_us * scale, span.duration_us * scale) for span, _ in mine]
            # White edges tell adjoining bars apart, but would cover a bar that is no wider than they are.
            edges = [0.5 * (span.duration_us > 0.005 * (end - start)) for span, _ in mine]
            fill = [colour for _, colour in mine]
            ax.broken_barh(bars, (row - 0.35, 0.7), facecolors=fill, edgecolors="white", linewidths=edges)
        ax.set(xlim=(start * scale, end * scale), xlabel=f"time ({unit})", title=title)
        ax.set(yticks=range(len(self.lanes)), yticklabels=self.lanes, ylim=(len(self.lanes) - 0.5, -0.5))
        handles = [Patch(color=colour, label=label) for label, colour in colors.items()]
        if cost.keys() - colors.keys():
            handles.append(Patch(color=GREY, label="other"))
        columns = max(4, math.ceil(len(handles) / 2))
        ax.figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        return ax


def _read_events(path: Path) -> list[dict[str, Any]]:
    """The trace's spans that have a lane here, outer before inner ones."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        events = [event for event in events if event["ph"] == "X" and event.get("cat") in _KINDS]
        for event in events:
            event["lane"] = (event["pid"], event["tid"])
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        # The profiler sometimes writes the time 0 among absolute ones; the trace would then seem to last for years.
        return [event for event in events if event["ts"] > events[-1]["ts"] - _DAY_US]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a trace of torch.profiler: {error!r}") from error


def profile(
    fn: Callable[[], Any], *, steps: int = 1, warmup: int = 1, path: str | Path | None = None, nested: bool = False
) -> Timeline:
    """Call ``fn()`` ``warmup`` times unseen and ``steps`` times under torch.profiler; return what ran.

    The chrome trace is written to ``path`` where one is given, and can be opened at https://ui.perfetto.dev. ``nested``
    is that of :meth:`Timeline.from_chrome_trace`. Threads of the inter-op pool are recorded, too. A forked task that
    ``fn`` leaves behind, by an error or without a wait, must end within 0.2 s; otherwise the profiler may crash.

    Raises:
        OSError: ``path`` cannot be written.
        RuntimeError: a profiler is running already, for example because ``fn`` itself calls this function.
        TypeError: ``fn`` cannot be called.
        ValueError: ``fn`` runs no operator and no kernel, or ``steps`` is less than 1.
    """
    if not callable(fn):
        raise TypeError(f"profile needs a function to call, not {type(fn).__name__}; pass `step`, not `step()`")
    if steps < 1:
        raise ValueError(f"profile needs at least one step, not {steps}")
    if torch.autograd.profiler._is_profiler_enabled:  # a second profiler would crash the process
        raise RuntimeError("a profiler is running already; call profile outside of it, and not in a profiled function")
    on_gpu = torch.cuda.is_available()
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    # The first use of the profiler is slow itself, therefore the warm-up runs under one, too.
    for calls in (warmup, steps):
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            try:
                for _ in range(calls):
                    fn()
                if on_gpu:
                    torch.cuda.synchronize()
            finally:
                # A forked task hands over its result, or fn an error, before its thread has noted the end of its last
                # span. Without this pause the profiler may be gone by then, and the process crashes (seen with PyTorch
                # 2.9.0 and 2.14.1).
                time.sleep(0.2)
    with tempfile.TemporaryDirectory() as folder:
        # Not to ``path`` at once: where the profiler cannot write, it leaves the file that is there and says nothing.
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        timeline = Timeline._from_events(_read_events(trace), nested, "the profiled function")
        if path is not None:
            shutil.copyfile(trace, path)
    return timeline
