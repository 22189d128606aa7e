"""The pictures: what stands in them, and what they refuse to draw."""

from __future__ import annotations

import io
from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from tutorial_utils import plots
from tutorial_utils.timing import Measurement


@pytest.fixture(autouse=True)
def figures():
    with plt.rc_context():
        plots.use_style()
        yield
        for number in plt.get_fignums():
            plt.figure(number).savefig(io.BytesIO())  # Every picture made here can also be drawn.
        plt.close("all")


def title(ax):
    return ax.get_title(loc="left") or ax.get_title()


def legend(ax):
    found = ax.get_legend() or ax.figure.legends[0]
    return [text.get_text() for text in found.get_texts()]


def test_style_keeps_text_readable_and_files_small():
    assert plt.rcParams["font.size"] >= 9 and plt.rcParams["legend.fontsize"] >= 9
    assert 90 <= plt.rcParams["figure.dpi"] <= 100
    assert len(set(plots.PALETTE)) == 8


def test_digits_stand_in_a_grid_under_their_labels():
    axes = plots.show_digits(torch.rand(10, 1, 28, 28), torch.arange(10), columns=4, title="Ten digits")
    assert axes.shape == (3, 4)
    assert [title(ax) for ax in axes.flat] == [*map(str, range(10)), "", ""]
    assert [len(ax.images) for ax in axes.flat] == [1] * 10 + [0, 0]
    assert axes[0, 0].figure.get_suptitle() == "Ten digits"


def test_digits_of_bfloat16_are_drawn_and_no_columns_refused():
    images = torch.eye(4, dtype=torch.bfloat16).expand(3, 4, 4)
    assert plots.show_digits(images, columns=3)[0, 0].images[0].get_array().shape == (4, 4)
    with pytest.raises(ValueError, match="columns is 0"):
        plots.show_digits(images, columns=0)


def test_a_wrong_prediction_is_marked_by_words_and_a_frame():
    right, wrong = plots.show_digits(torch.zeros(2, 28, 28, dtype=torch.uint8), [3, 4], predictions=[3, 9], columns=2)[
        0
    ]
    assert (title(right), title(wrong)) == ("3", "4, read as 9")
    assert not right.spines["top"].get_visible()
    assert wrong.spines["top"].get_visible() and wrong.spines["top"].get_linewidth() == 3


@pytest.mark.parametrize(
    ("images", "labels", "phrase"),
    [
        (torch.zeros(2, 3, 28, 28), None, r"not \[2, 3, 28, 28\]"),
        (torch.zeros(28, 28), None, r"not \[28, 28\]"),
        (torch.zeros(0, 1, 28, 28), None, "N > 0"),
        (torch.zeros(2, 1, 28, 28), [1], "labels holds 1 entries for 2 images"),
    ],
)
def test_digits_refuse_other_shapes(images, labels, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.show_digits(images, labels)


def test_curves_differ_in_more_than_colour():
    ax = plots.curves(
        {"eager": [3.0, 2.0, 1.0], "replay": torch.tensor([3.0, 2.0, 1.0]), "H200": ([16, 64], [5.0, 6.0])},
        xlabel="step",
        ylabel="loss",
        title="Training",
        log_y=True,
    )
    assert (ax.get_xlabel(), ax.get_ylabel(), title(ax), ax.get_yscale()) == ("step", "loss", "Training", "log")
    assert legend(ax) == ["eager", "replay", "H200"]
    assert [line.get_xdata().tolist() for line in ax.lines] == [[1, 2, 3], [1, 2, 3], [16, 64]]
    assert ax.lines[1].get_ydata().tolist() == [3.0, 2.0, 1.0]
    for look in ("get_linestyle", "get_marker", "get_color", "get_linewidth"):
        assert len({getattr(line, look)() for line in ax.lines}) == 3, look


def test_curves_take_common_x_values_and_refuse_what_does_not_fit():
    assert plots.curves({"a": [1, 2]}, x=[10, 20], xlabel="", ylabel="").lines[0].get_xdata().tolist() == [10, 20]
    with pytest.raises(ValueError, match="curve 'a' has 3 values for 2 x positions"):
        plots.curves({"a": [1, 2, 3]}, x=[10, 20], xlabel="", ylabel="")
    with pytest.raises(ValueError, match="no curve to draw"):
        plots.curves({}, xlabel="", ylabel="")


def test_bars_show_values_whiskers_and_what_was_recorded_elsewhere():
    measured = Measurement("eager", [1000.0, 2000.0, 3000.0], "cpu", 1, 1)
    ax = plots.bars(
        {"eager": measured, "graph": (1.0, 0.5, 1.75), "graph, H200": 0.12},
        unit="ms",
        xlabel="time of a step (ms)",
        title="One step",
        recorded={"graph, H200"},
        recorded_on="recorded on an H200",
    )
    assert [text.get_text() for text in ax.get_yticklabels()] == ["eager", "graph", "graph, H200"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([2.0, 1.0, 0.12])
    assert [text.get_text().strip() for text in ax.texts] == ["2 ms", "1 ms", "0.12 ms"]
    assert [bar.get_hatch() for bar in ax.patches] == ["", "", "///"]
    assert legend(ax) == ["this machine", "recorded on an H200"]
    whiskers = [c.get_segments()[0][:, 0].tolist() for c in ax.collections]
    assert whiskers == [pytest.approx([1.5, 2.5]), pytest.approx([0.5, 1.75])]
    assert ax.yaxis_inverted() and ax.get_xlim()[0] == 0


def test_bars_show_as_many_decimals_as_asked_for():
    ax = plots.bars({"a": (41.04, 40.0, 42.0), "b": 1234.56}, unit="ms", decimals=1)
    assert [text.get_text().strip() for text in ax.texts] == ["41.0 ms", "1,234.6 ms"]


def test_grouped_bars_stand_side_by_side_with_whiskers():
    values = {"no fork": {"1/16": (4.0, 3.0, 6.0), "16/1": (1.0, 1.0, 1.0)}}
    values["forked"] = {"1/16": (2.0, 1.5, 2.5), "16/1": (1.5, 1.0, 2.0)}
    ax = plots.grouped_bars(values, xlabel="threads", ylabel="time (s)", title="16 cores")
    assert [bar.get_height() for bar in ax.patches] == [4, 1, 2, 1.5]
    assert [bar.get_x() for bar in ax.patches] == pytest.approx([-0.4, 0.6, 0.0, 1.0])
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.4] * 4)
    assert [bar.get_hatch() for bar in ax.patches] == ["", "", "///", "///"]
    ends = [line[:, 1].tolist() for group in ax.collections for line in group.get_segments()]
    assert ends == [[3, 6], [1, 1], [1.5, 2.5], [1, 2]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1/16", "16/1"]
    assert (ax.get_xlabel(), ax.get_ylabel(), title(ax)) == ("threads", "time (s)", "16 cores")
    ax.legend()
    assert legend(ax) == ["no fork", "forked"]


@pytest.mark.parametrize(
    ("values", "phrase"),
    [
        ({}, "no bar to draw"),
        ({"a": {}}, "no bar to draw"),
        ({"a": {"x": (1, 1, 1)}, "b": {"y": (1, 1, 1)}}, "b has other groups than the first series, which has x"),
        ({"a": {"x": (1, 2, 3)}}, "bar 'a, x': the median 1 must lie between its quartiles 2 and 3"),
    ],
)
def test_grouped_bars_that_cannot_be_drawn_are_refused(values, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.grouped_bars(values, xlabel="", ylabel="")


def test_bars_on_a_logarithmic_scale():
    ax = plots.bars({"a": 1.0, "b": 12345.0}, unit="µs", log=True)
    assert ax.get_xscale() == "log"
    assert [text.get_text().strip() for text in ax.texts] == ["1 µs", "12,345 µs"]
    assert not ax.figure.legends
    with pytest.raises(ValueError, match="a logarithmic scale needs positive values"):
        plots.bars({"a": (1.0, 0.0, 2.0)}, unit="µs", log=True)


@pytest.mark.parametrize(
    ("values", "options", "phrase"),
    [
        ({}, {}, "no bar to draw"),
        ({"a": 1.0}, {"recorded": ["b"]}, "recorded names b, which is not among the bars: a"),
        ({"a": (1.0, 2.0)}, {}, "bar 'a' has 2 numbers"),
        ({"a": (3.0, 1.0, 2.0)}, {}, "must lie between its quartiles"),
        ({"a": float("nan")}, {}, "must lie between"),
        ({"a": 0.0}, {"log": True}, "needs positive values"),
        ({"a": Measurement("a", [1.0], "cpu", 1, 1)}, {"unit": "MiB"}, "bar 'a' is a time"),
    ],
)
def test_bars_refuse_what_they_cannot_draw(values, options, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.bars(values, **{"unit": "ms"} | options)


def operation(name, inputs, outputs, stream="side"):
    return SimpleNamespace(name=name, stream=stream, inputs=inputs, outputs=outputs)


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def boxes(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]


def test_a_recording_is_drawn_box_by_box_with_its_dependences():
    ax = plots.graph_diagram(
        [
            operation("aten.convolution.default", ["x", "weight"], ["a"]),
            operation("aten::relu", ["a"], ["b"]),
            operation("aten.mul_.Tensor", ["weight"], ["weight"]),
            operation("aten.max_pool2d_with_indices_backward.default", ["b", "a", "weight"], ["c"]),
        ],
        title="Four operations",
    )
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["1 convolution", "2 relu", "3 mul_", "1, 2 →", "4 max_pool2d_with_in…"]
    assert len(boxes(ax)) == 4
    assert len(arrows(ax)) == 2  # 1 to 2 and 3 to 4; what lies further away is a number
    assert "depends on" in ax.get_xlabel() and title(ax) == "Four operations"


def test_a_reader_depends_on_the_last_writer_only():
    ax = plots.graph_diagram(
        [
            operation("aten::fill_", [], ["buffer"]),
            operation("aten::mul_", ["buffer"], ["buffer"]),
            operation("aten::ones", [], ["other"]),
            operation("aten::sum", ["buffer"], ["total"]),
        ]
    )
    assert [text.get_text() for text in ax.texts] == ["1 fill_", "2 mul_", "3 ones", "2 →", "4 sum"]
    assert len(arrows(ax)) == 1


def test_groups_colour_the_boxes_and_name_their_counts():
    ax = plots.graph_diagram(
        [operation(f"aten::op{i}", [i], [i + 1]) for i in range(5)], groups=[("forward", 2), ("backward", 3)]
    )
    assert [to_hex(box.get_edgecolor()).upper() for box in boxes(ax)] == [plots.PALETTE[0]] * 2 + [plots.PALETTE[1]] * 3
    assert legend(ax) == ["forward (2 operations)", "backward (3 operations)"]
    assert len(arrows(ax)) == 4 and ax.get_xlabel() == ""


def test_streams_get_a_lane_each_and_arrows_between_them():
    ax = plots.graph_diagram(
        [
            operation("aten::a", [], [1], "A"),
            operation("aten::b", [1], [2], "B"),
            operation("aten::c", [1, 2], [3], "A"),
        ]
    )
    assert [box.get_x() + 0.35 for box in boxes(ax)] == pytest.approx([0, 1, 0])
    assert [text.get_text() for text in ax.texts][-2:] == ["stream A", "stream B"]
    assert len(arrows(ax)) == 3


def test_a_long_recording_wraps_into_columns_that_fit_a_page():
    ax = plots.graph_diagram([operation("aten::add", [i], [i + 1]) for i in range(90)], rows=24)
    assert len({round(box.get_x(), 3) for box in boxes(ax)}) == 4
    assert len(arrows(ax)) == 86  # within the columns; from one column to the next it is a number
    assert [t.get_text() for t in ax.texts if "→" in t.get_text()] == ["24 →", "48 →", "72 →"]
    assert ax.figure.get_size_inches()[0] <= 12


@pytest.mark.parametrize(
    ("operations", "groups", "error", "phrase"),
    [
        ([], None, ValueError, "holds no operation"),
        (
            [SimpleNamespace(name="a", inputs=[])],
            None,
            TypeError,
            "operation 0 .* without the attribute stream, outputs",
        ),
        ([operation("a", [], [])], [("forward", 2)], ValueError, "add up to 2, but there are 1 operations"),
    ],
)
def test_a_recording_that_cannot_be_drawn_is_refused(operations, groups, error, phrase):
    with pytest.raises(error, match=phrase):
        plots.graph_diagram(operations, groups=groups)


def test_a_heat_map_colours_gains_and_losses_apart():
    nan = float("nan")
    ax = plots.heat_map([[2, 0.5], [nan, 1]], rows=["fork", "none"], columns=["1/16", "16/1"], xlabel="threads")
    plots.gain_scale(ax, "gain")
    assert [text.get_text() for text in ax.texts] == ["2.00x", "0.50x", "–", "1.00x"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fork", "none"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1/16", "16/1"]
    picture = ax.images[0]
    red, _, blue = picture.cmap(picture.norm(2.0))[:3]
    assert blue > red  # purple above 1
    red, _, blue = picture.cmap(picture.norm(0.5))[:3]
    assert blue < red  # orange below 1
    scale = ax.figure.axes[-1]
    assert [label.get_text() for label in scale.get_yticklabels()] == ["1/4", "1/2", "1", "2", "4"]
    assert scale.get_ylabel() == "gain"


def test_a_heat_map_writes_on_dark_cells_in_white():
    ax = plots.heat_map([[5, 0.2, 1.5]], rows=["a"], columns="xyz", texts=[["p", "q", "r"]])
    assert [(text.get_text(), text.get_color()) for text in ax.texts] == [
        ("p", "white"),
        ("q", "white"),
        ("r", "black"),
    ]


@pytest.mark.parametrize(
    ("gains", "more", "phrase"),
    [
        ([[1.0]], {}, r"shape \[1, 1\] for 1 rows and 2 columns"),
        ([[1.0, 0.0]], {}, "positive and finite"),
        ([[1.0, float("inf")]], {}, "positive and finite"),
        ([[1.0, 2.0]], {"texts": [["one"]]}, "one entry for each gain"),
        ([[1.0, 2.0]], {"largest": 1}, "largest is 1"),
    ],
)
def test_a_heat_map_that_cannot_be_drawn_is_refused(gains, more, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.heat_map(gains, rows=["a"], columns=["x", "y"], **more)


def test_pictures_draw_into_given_axes():
    ax = plt.subplots()[1]
    assert plots.curves({"a": [1, 2]}, xlabel="", ylabel="", ax=ax) is ax
    assert plots.bars({"a": 1}, unit="s", ax=ax) is ax
    assert plots.graph_diagram([operation("a", [], [])], ax=ax) is ax
    assert plots.heat_map([[1]], rows=["a"], columns=["b"], ax=ax) is ax
    assert plots.grouped_bars({"a": {"x": (1, 1, 1)}}, xlabel="", ylabel="", ax=ax) is ax
    assert len(plt.get_fignums()) == 1
