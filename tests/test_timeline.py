"""Timelines: hand-made traces with known answers, real ones, and files that are no traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from tutorial_utils.timeline import Span, Timeline, profile

MAIN, OTHER = 100, 101


def event(name, ts, dur, tid=MAIN, cat="cpu_op", pid=100):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": {}}


@pytest.fixture(autouse=True)
def figures():
    with plt.style.context("tutorial_utils.course"):
        yield
        plt.close("all")


@pytest.fixture
def read(tmp_path):
    def read(*events, **options):
        path = tmp_path / "trace.json"
        noise = [
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": MAIN, "ts": 0, "args": {"name": "thread 100"}},
            {"ph": "s", "id": 1, "cat": "fwdbwd", "name": "fwdbwd", "pid": 100, "tid": MAIN, "ts": 1},
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "P", "ts": 0, "dur": 9},
        ]
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": noise + list(events)}))
        return Timeline.from_chrome_trace(path, **options)

    return read


def test_two_threads_that_overlap_by_half(read):
    timeline = read(event("aten::mm", 1000, 100), event("aten::mm", 1050, 100, OTHER))
    assert timeline.lanes == ["thread 1 (Python)", "thread 2"]
    assert [(s.start_us, s.duration_us, s.end_us) for s in timeline.spans] == [(0, 100, 100), (50, 100, 150)]
    # 200 µs of work within the 150 µs in which any thread is busy.
    assert timeline.busy_lanes() == pytest.approx(200 / 150)
    assert timeline.busy_lanes(["thread 2"]) == pytest.approx(1.0)
    assert timeline.duration_us == 150


def test_the_time_zero_among_absolute_ones_is_no_time(read):
    """Else the whole trace would seem to begin in 1970."""
    lost, first, second = (
        event("gemm", 0, 5, 7, "kernel", 0),
        event("aten::a", 1e15, 10),
        event("aten::b", 1e15 + 20, 5),
    )
    timeline = read(lost, first, second)
    assert [(span.name, span.start_us) for span in timeline.spans] == [("aten::a", 0), ("aten::b", 20)]
    assert timeline.lanes == ["thread 1 (Python)"] and timeline.duration_us == 25


def test_idle_time_does_not_count_and_sequential_threads_give_one(read):
    timeline = read(event("aten::mm", 0, 100), event("aten::mm", 100, 100, OTHER), event("aten::mm", 500, 100))
    assert timeline.busy_lanes() == pytest.approx(1.0)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_busy_at_the_same_time_are_counted(read, threads):
    timeline = read(*(event("aten::mm", 10, 70, MAIN + k) for k in range(threads)))
    assert timeline.busy_lanes() == pytest.approx(threads)


def test_most_at_once_counts_spans_under_way(read):
    spans = read(
        event("aten::a", 0, 100),
        event("aten::b", 50, 100, OTHER),
        event("aten::c", 60, 10, OTHER + 1),
        event("aten::d", 100, 20),  # starts where the first ends
        event("aten::e", 200, 5),
    ).spans
    assert Timeline.most_at_once(spans) == 3
    assert Timeline.most_at_once(span for span in spans if span.name in ("aten::a", "aten::d", "aten::e")) == 1
    assert Timeline.most_at_once(span for span in spans if span.name in ("aten::a", "aten::b", "aten::d")) == 2
    assert Timeline.most_at_once([]) == 0


def test_nested_and_overlapping_spans_of_a_lane_count_once(read):
    events = (
        event("aten::linear", 0, 100),
        event("aten::addmm", 10, 80),
        event("aten::copy_", 20, 10),
        event("aten::mm", 90, 60),  # overlaps the first without lying in it
        event("aten::mm", 0, 150, OTHER),
    )
    timeline = read(*events)
    assert [s.name for s in timeline.spans if s.lane == "thread 1 (Python)"] == ["aten::linear", "aten::mm"]
    assert timeline.busy_lanes() == pytest.approx(2.0)
    everything = read(*events, nested=True)
    assert len(everything.spans) == 5
    assert everything.busy_lanes() == pytest.approx(2.0)


def test_an_operator_inside_a_longer_one_is_nested_even_after_a_sibling(read):
    timeline = read(
        event("aten::a", 0, 100), event("aten::b", 0, 10), event("aten::c", 50, 10), event("aten::d", 100, 5)
    )
    assert [s.name for s in timeline.spans] == ["aten::a", "aten::d"]


def test_a_scripted_function_that_waits_is_not_work(read):
    timeline = read(
        event("forward", 0, 1000),  # contains the wait
        event("aten::lstm", 10, 90),
        event("<forked function>", 10, 390, OTHER),
        event("aten::lstm", 20, 380, OTHER),
    )
    assert [s.name for s in timeline.spans] == ["aten::lstm", "aten::lstm"]
    assert timeline.busy_lanes() == pytest.approx((90 + 380) / 390)
    # Even the thread's number comes from the function, which started first.
    assert timeline.spans[0].lane == "thread 1 (Python)"


def test_pythons_thread_comes_first_wherever_it_can_be_told(read):
    busy_earlier = read(event("aten::mm", 0, 100, OTHER), event("aten::mm", 50, 100))
    assert busy_earlier.lanes == ["thread 1 (Python)", "thread 2"]
    assert busy_earlier.spans[0].lane == "thread 2"
    # Here no thread bears the process's number.
    elsewhere = read(event("aten::mm", 0, 9, tid=7), event("aten::mm", 1, 9, tid=8))
    assert [span.lane for span in elsewhere.spans] == ["thread 1 (Python)", "thread 2"]


def test_busy_stretches_of_a_lane(read):
    timeline = read(
        event("aten::a", 0, 10), event("aten::b", 30, 10), event("aten::c", 35, 15), event("aten::d", 90, 10)
    )
    lane = timeline.lanes[0]
    assert timeline._busy(lane) == [(0, 10), (30, 50), (90, 100)]
    assert timeline._busy_us(lane) / timeline.duration_us == pytest.approx(0.4)
    with pytest.raises(ValueError, match=r"no lane 'thread 9'; the lanes are thread 1 \(Python\)"):
        timeline.busy_lanes(["thread 9"])


def test_streams_are_lanes_and_a_synchronising_call_is_a_wait(read):
    timeline = read(
        event("cudaGraphLaunch", 0, 10, cat="cuda_runtime"),
        event("gemm", 20, 100, tid=7, cat="kernel", pid=0),
        event("copy", 120, 80, tid=13, cat="gpu_memcpy", pid=0),
        event("cudaDeviceSynchronize", 10, 190, cat="cuda_runtime"),
        event("aten::add", 200, 50),
        event("cudaLaunchKernel", 210, 10, cat="cuda_runtime"),  # inside the operator
    )
    assert timeline.lanes == ["thread 1 (Python)", "stream 7", "stream 13"]
    assert [(s.name, s.category) for s in timeline.spans] == [
        ("cudaGraphLaunch", "CUDA call"),
        ("cudaDeviceSynchronize", "wait"),
        ("gemm", "kernel"),
        ("copy", "copy"),
        ("aten::add", "operator"),
    ]
    assert timeline.busy_lanes() == pytest.approx(1.0)
    assert timeline._busy_us("thread 1 (Python)") / timeline.duration_us == pytest.approx(60 / 250)


def test_streams_with_the_same_number_on_two_gpus_are_two_lanes(read):
    timeline = read(*(event("gemm", 0, 100, tid=7, cat="kernel", pid=gpu) for gpu in (0, 1)))
    assert timeline.lanes == ["stream 7 (GPU 0)", "stream 7 (GPU 1)"]
    assert timeline.busy_lanes() == pytest.approx(2.0)


def test_scopes_are_the_innermost_annotation_of_the_lane(read):
    timeline = read(
        event("forward", 0, 100, cat="user_annotation"),
        event("aten::conv2d", 5, 20),
        event("layer 2", 40, 30, cat="user_annotation"),
        event("aten::linear", 45, 10),
        event("aten::relu", 80, 10),
        event("aten::mm", 80, 10, OTHER),
        event("update", 100, 50, cat="user_annotation"),
        event("Optimizer.step#SGD.step", 105, 40, cat="user_annotation"),
        event("aten::add_", 110, 10),
        event("Optimizer.zero_grad#SGD.zero_grad", 160, 10, cat="user_annotation"),
        event("aten::zero_", 162, 5),
        event("aten::item", 200, 5),
    )
    assert {s.name: s.scope for s in timeline.spans} == {
        "aten::conv2d": "forward",
        "aten::linear": "layer 2",
        "aten::relu": "forward",
        "aten::mm": "",
        "aten::add_": "update",
        "aten::zero_": "Optimizer.zero_grad",
        "aten::item": "",
    }


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "is not a trace"),
        (b"\x1f\x8b\xff\xfe", "is not a trace"),
        (b"3", "is not a trace"),
        (b"{}", "KeyError('traceEvents')"),
        (b'{"traceEvents": [7]}', "is not a trace"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "pid": 1, "tid": 1}]}',
            "KeyError('dur')",
        ),
        (b'{"traceEvents": []}', "holds no operator and no kernel"),
        (b'{"traceEvents": [{"ph": "X", "cat": "browser", "name": "x"}]}', "holds no operator and no kernel"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_files_name(tmp_path, content, phrase):
    path = tmp_path / "strange.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as raised:
        Timeline.from_chrome_trace(path)
    assert "strange.json" in str(raised.value) and phrase in str(raised.value)


def test_spans_that_merely_contain_operators_are_no_work(read):
    with pytest.raises(ValueError, match="holds no operator"):
        read(event("function", 0, 9), event("forward", 0, 9, cat="user_annotation"))


def test_profile_sees_each_step_and_not_the_warmup(tmp_path):
    calls = []
    a, b = torch.randn(32, 32), torch.randn(32, 32)

    def step():
        calls.append(1)
        with torch.profiler.record_function("product"):
            a @ b

    path = tmp_path / "kept.json"
    timeline = profile(step, steps=3, warmup=2, path=path)
    assert len(calls) == 5
    products = [s for s in timeline.spans if s.name == "aten::matmul"]
    assert [s.scope for s in products] == ["product"] * 3
    assert timeline.lanes[0] == "thread 1 (Python)"
    if not torch.cuda.is_available():
        assert timeline.lanes == ["thread 1 (Python)"]
    assert all(s.duration_us > 0 and s.start_us >= 0 for s in timeline.spans)
    assert Timeline.from_chrome_trace(path) == timeline
    assert {s.name for s in Timeline.from_chrome_trace(path, nested=True).spans} >= {"aten::matmul", "aten::mm"}


def test_what_computes_nothing_and_a_path_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "kept.json"
    with pytest.raises(ValueError, match="^the profiled function holds no operator"):
        profile(lambda: None, path=path)
    with pytest.raises(ValueError, match="at least one step, not 0"):
        profile(lambda: torch.ones(2) + 1, steps=0, path=path)
    with pytest.raises(TypeError, match="needs a function to call, not Tensor; pass `step`, not `step\\(\\)`"):
        profile(torch.ones(2) + 1, path=path)
    assert not path.exists()
    for unwritable in (tmp_path, tmp_path / "absent" / "trace.json"):
        with pytest.raises(OSError):
            profile(lambda: torch.ones(2) + 1, path=unwritable)


def test_a_trace_is_plain_json_whatever_its_name(tmp_path):
    timeline = profile(lambda: torch.ones(2) + 1, path=tmp_path / "trace.json.gz")
    assert Timeline.from_chrome_trace(tmp_path / "trace.json.gz") == timeline


def test_a_second_profiler_is_refused():
    def nested():
        torch.ones(2) + 1
        profile(lambda: torch.ones(2) + 1)

    with pytest.raises(RuntimeError, match="a profiler is running already"):
        profile(nested)
    assert profile(lambda: torch.ones(2) + 1).spans, "the next one works"


WITHOUT_OTHERS = """
import sys
sys.modules.update(dict.fromkeys(("tqdm", "IPython", "ipykernel", "jupyterlab", "nbformat", "psutil")))
import torch
from tutorial_utils import plots
from tutorial_utils.timeline import profile
print(len(profile(lambda: torch.ones(2) + 1).spans))
"""


def test_profiling_needs_no_jupyter_and_writes_nothing_to_stderr():
    command = [sys.executable, "-c", WITHOUT_OTHERS]
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.stderr == "" and int(done.stdout) >= 2


def test_plot_shows_every_lane_span_and_label(read):
    timeline = read(event("aten::lstm", 0, 100), event("aten::add", 200, 50), event("aten::lstm", 20, 80, OTHER))
    ax = timeline.plot(title="Two threads", color_by=lambda span: span.name)
    assert ax.get_title(loc="left") + ax.get_title() == "Two threads"
    assert ax.get_xlabel() == "time (µs)"
    assert [t.get_text() for t in ax.get_yticklabels()] == ["thread 1 (Python)", "thread 2"]
    assert [len(bars.get_paths()) for bars in ax.collections] == [2, 1]
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["aten::lstm", "aten::add"]
    assert len(ax.figure.axes) == 1
    colours = ax.collections[0].get_facecolors()
    assert tuple(colours[0]) != tuple(colours[1])
    assert tuple(colours[0]) == tuple(ax.collections[1].get_facecolors()[0])


def test_plot_uses_milliseconds_limits_and_scopes(read):
    timeline = read(
        event("forward", 0, 2500, cat="user_annotation"), event("aten::a", 0, 2500), event("aten::b", 9000, 1000)
    )
    ax = timeline.plot()
    assert ax.get_xlabel() == "time (ms)" and ax.get_xlim() == pytest.approx((0, 10))
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["forward", "no scope"]
    part = timeline.plot(limits_us=(0, 3000))
    assert part.get_xlim() == pytest.approx((0, 3))
    assert len(part.collections[0].get_paths()) == 1


def test_plot_has_at_most_eight_colours_and_names_the_rest_other():
    spans = [Span(f"aten::op{i}", "thread 1", 10.0 * i, 1.0 + 0.1 * i, "operator") for i in range(11)]
    ax = Timeline(spans, ["thread 1"]).plot(color_by=lambda span: span.name)
    texts = [t.get_text() for t in ax.figure.legends[0].get_texts()]
    assert texts == [*(f"aten::op{i}" for i in range(3, 11)), "other"], "those that took most time, as they appear"
    assert len({tuple(c) for c in ax.collections[0].get_facecolors()}) == 9


def test_bars_have_white_edges_unless_these_would_cover_them(read):
    ax = read(event("aten::a", 0, 500), event("aten::b", 500, 496), event("aten::c", 996, 4)).plot()
    bars = ax.collections[0]
    assert list(bars.get_linewidths()) == [0.5, 0.5, 0]
    assert to_hex(bars.get_edgecolors()[0]) == "#ffffff"


@pytest.mark.parametrize(("labels", "columns"), [(2, 4), (8, 4), (10, 5)])
def test_the_legend_has_two_rows_or_four_columns(read, labels, columns):
    ax = read(event("aten::a", 0, 10)).plot(colors={f"label {k}": "C0" for k in range(labels - 1)})
    assert ax.figure.legends[0]._ncols == columns


def test_colours_can_be_given_so_that_pictures_agree(read):
    timeline = read(event("aten::lstm", 0, 100), event("aten::cat", 100, 5), event("aten::sum", 105, 50, OTHER))
    colours = {"aten::sum": "#0072B2", "aten::lstm": "#E69F00"}
    ax = timeline.plot(color_by=lambda span: span.name, colors=colours)
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["aten::sum", "aten::lstm", "other"]
    first, grey = ax.collections[0].get_facecolors()
    assert to_hex(first) == "#e69f00" and to_hex(grey) == "#767676"
    part = timeline.plot(color_by=lambda span: span.name, colors=colours, limits_us=(0, 90))
    assert [t.get_text() for t in part.figure.legends[0].get_texts()] == ["aten::sum", "aten::lstm"]


FORKED = """
import gc
import warnings
warnings.simplefilter("ignore")
import torch
from torch.profiler import record_function
from tutorial_utils.models import ForkedBidirectionalLSTM, ForkedLSTMEnsemble
from tutorial_utils.timeline import profile

class Labelled(torch.nn.Module):
    def __init__(self, lstm: torch.nn.LSTM, label: str) -> None:
        super().__init__()
        self.lstm = lstm
        self.label = label

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        with record_function(self.label):
            result = self.lstm(x)
        return result

torch.set_num_threads(1)
torch.set_num_interop_threads(2)
net, x = ForkedLSTMEnsemble([ForkedBidirectionalLSTM(16) for _ in range(4)]), torch.randn(5, 4, 16)
bare = torch.jit.script(net)
for i, model in enumerate(net.models):
    model.forward_lstm = Labelled(model.forward_lstm, f"{i} f")
    model.backward_lstm = Labelled(model.backward_lstm, f"{i} b")
labelled = torch.jit.script(net)
with torch.no_grad():
    lstms = {span.scope: span.lane for span in profile(lambda: labelled(x)).spans if span.name == "aten::lstm"}
    assert len(lstms) == 8 and set(lstms.values()) <= {"thread 2", "thread 3"}, lstms
    for _ in range(30):
        profile(lambda: bare(x), warmup=0)
        gc.collect()
print("recorded", flush=True)
"""


def test_a_function_that_fails_gets_the_pause_in_which_its_tasks_end(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", lambda s: pauses.append((s, torch.autograd.profiler._is_profiler_enabled)))
    with pytest.raises(ZeroDivisionError):
        profile(lambda: 1 / 0)
    assert pauses == [(0.2, True)], "without it the process may crash, because the profiler is gone before the tasks"


def test_forked_tasks_are_recorded_with_their_labels_and_without_a_crash(tmp_path):
    (script := tmp_path / "forked.py").write_text(FORKED)  # a file, because TorchScript needs the source
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "recorded\n", f"code {done.returncode}: {done.stderr[-500:]}"
