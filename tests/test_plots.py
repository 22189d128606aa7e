"""The pictures: what stands in them, and what they refuse to draw."""

from __future__ import annotations

import io
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

from tutorial_utils import plots
from tutorial_utils.timing import Measurement

NAN = float("nan")
THREE = Measurement([1000.0, 2000.0, 3000.0], "µs")  # in ms: q1 1.5, median 2, q3 2.5


@pytest.fixture(autouse=True)
def figures():
    with plt.style.context("tutorial_utils.course"):
        yield
        for number in plt.get_fignums():
            plt.figure(number).savefig(io.BytesIO())  # Every picture made here can also be drawn.
        plt.close("all")


def title(ax):
    return ax.get_title(loc="left") or ax.get_title()


def texts(artists):
    return [text.get_text().strip() for text in artists]


def legend(ax):
    return texts((ax.get_legend() or ax.figure.legends[0]).get_texts())


def test_the_style_keeps_text_readable_and_files_small():
    assert min(plt.rcParams["font.size"], plt.rcParams["legend.fontsize"]) >= 9
    assert 90 <= plt.rcParams["figure.dpi"] <= 100
    cycle = plt.rcParams["axes.prop_cycle"].by_key()
    assert [len(set(cycle[look])) for look in ("color", "marker", "linestyle")] == [8, 8, 4]


def test_digits_stand_in_a_grid_under_their_labels():
    axes = plots.show_digits(torch.rand(10, 1, 28, 28), torch.arange(10), columns=4, title="Ten digits")
    assert axes.shape == (3, 4)
    assert [title(ax) for ax in axes.flat] == [*map(str, range(10)), "", ""]
    assert [len(ax.images) for ax in axes.flat] == [1] * 10 + [0, 0]
    assert axes[0, 0].figure.get_suptitle() == "Ten digits"


def test_digits_of_bfloat16_are_drawn_without_labels():
    axes = plots.show_digits(torch.eye(4, dtype=torch.bfloat16).expand(3, 4, 4), columns=3)
    assert axes[0, 0].images[0].get_array().shape == (4, 4) and title(axes[0, 0]) == ""


def test_a_wrong_prediction_is_marked_by_words_and_a_frame():
    images = torch.zeros(2, 28, 28, dtype=torch.uint8)
    right, wrong = plots.show_digits(images, [3, 4], predictions=[3, 9], columns=2)[0]
    assert (title(right), title(wrong)) == ("3", "4, read as 9")
    assert [ax.spines["top"].get_visible() for ax in (right, wrong)] == [False, True]


@pytest.mark.parametrize(
    ("shape", "more", "phrase"),
    [
        ((2, 3, 28, 28), {}, r"not \[2, 3, 28, 28\]"),
        ((28, 28), {}, r"not \[28, 28\]"),
        ((0, 1, 28, 28), {}, "N > 0"),
        ((2, 1, 28, 28), {"labels": [1]}, "2 images need as many labels, not 1"),
        ((2, 1, 28, 28), {"labels": [1, 2], "predictions": [1]}, "1 predictions"),
        ((2, 1, 28, 28), {"predictions": [1, 2]}, "pass the labels, too"),
    ],
)
def test_digits_that_cannot_be_drawn_are_refused(shape, more, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.show_digits(torch.zeros(shape), **more)


def test_curves_differ_in_more_than_colour():
    lines = {"eager": [3.0, 2.0, 1.0], "replay": torch.tensor([3.0, 2.0, 1.0]), "gap": [1.0, NAN, 2.0]}
    ax = plots.curves(lines, xlabel="step", ylabel="loss", title="Training")
    assert (ax.get_xlabel(), ax.get_ylabel(), title(ax)) == ("step", "loss", "Training")
    assert legend(ax) == list(lines)
    assert [list(line.get_xdata()) for line in ax.lines] == [[1, 2, 3]] * 3
    assert list(ax.lines[1].get_ydata()) == [3.0, 2.0, 1.0]
    for look in ("get_linestyle", "get_marker", "get_color", "get_linewidth"):
        assert len({getattr(line, look)() for line in ax.lines}) == 3, look
    assert list(plots.curves({"a": [1, 2]}, x=[10, 20], xlabel="", ylabel="").lines[0].get_xdata()) == [10, 20]


def test_a_long_curve_has_few_markers():
    assert plots.curves({"a": range(1200)}, xlabel="", ylabel="").lines[0].get_markevery() == 100


def whiskers(ax, axis):
    """The ends of those that are drawn, by bars."""
    lines = [line for group in ax.collections for line in group.get_segments() if line.size]
    return [pytest.approx(line[:, axis]) for line in lines]


def test_bars_show_values_whiskers_and_what_was_recorded_elsewhere():
    ax = plots.bars(
        {"eager": THREE, "graph": 1234.5, "graph, H200": Measurement([0.00012], "s")},
        unit="ms",
        xlabel="time of a step (ms)",
        title="One step",
        recorded=["graph, H200"],
        recorded_on="recorded on an H200",
    )
    assert texts(ax.get_yticklabels()) == ["eager", "graph", "graph, H200"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([2.0, 1234.5, 0.12])
    assert texts(ax.texts) == ["2 ms", "1,234 ms", "0.12 ms"]
    assert whiskers(ax, 0) == [[1.5, 2.5]], "a single number has none"
    assert [bar.get_hatch() for bar in ax.patches] == ["", "", "///"]
    assert legend(ax) == ["this machine", "recorded on an H200"]
    assert (ax.get_xlabel(), title(ax)) == ("time of a step (ms)", "One step")
    assert ax.yaxis_inverted() and ax.get_xlim()[0] == 0


def test_bars_that_were_all_recorded_are_all_hatched():
    ax = plots.bars({"a": THREE, "b": 1}, unit="ms", recorded_on="an H200")
    assert [bar.get_hatch() for bar in ax.patches] == ["///", "///"] and legend(ax) == ["an H200"]


def test_bars_on_a_logarithmic_scale():
    ax = plots.bars({"a": 1.0, "b": 999.4, "c": 999.9, "d": 12345.0}, unit="µs", log=True)
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "µs" and not ax.figure.legends
    assert texts(ax.texts) == ["1 µs", "999 µs", "1,000 µs", "12,345 µs"]


@pytest.mark.parametrize(
    ("values", "options", "phrase"),
    [
        ({}, {}, "no bar to draw"),
        ({"a": 1.0}, {"recorded": ["b"], "recorded_on": "x"}, "recorded must name labels of the bars"),
        ({"a": 1.0}, {"recorded": ["a"]}, "recorded_on say where"),
        ({"a": 0.0}, {"log": True}, "needs positive values"),
        ({"a": Measurement([-1.0, 1.0, 1.0], "ms")}, {"log": True}, "needs positive values"),
        ({"a": THREE}, {"unit": "MiB"}, "cannot convert µs to MiB"),
    ],
)
def test_bars_that_cannot_be_drawn_are_refused(values, options, phrase):
    with pytest.raises(ValueError, match=phrase):
        plots.bars(values, **{"unit": "ms"} | options)


LOOKS_LIKE_ONE = SimpleNamespace(median=1.0, q1=0.5, q3=1.5, to=lambda unit: THREE)


@pytest.mark.parametrize("value", ["12 ms", "12", (1.0, 0.5, 1.5), LOOKS_LIKE_ONE])
def test_only_a_measurement_or_a_number_is_a_bar(value):
    with pytest.raises(TypeError, match="the bar 'a' needs a number or a Measurement, not "):
        plots.bars({"a": value}, unit="ms")
    with pytest.raises(TypeError, match="bars needs a mapping, not list: pass {label: value}"):
        plots.bars([value], unit="ms")


def test_a_heat_map_colours_gains_and_losses_apart():
    ax = plots.heat_map([[2, 0.5], [NAN, 5]], ["fork", "none"], ["1/16", "16/1"], xlabel="threads", title="Gains")
    assert texts(ax.texts) == ["2.00x", "0.50x", "–", "5.00x"]
    assert [text.get_color() for text in ax.texts] == ["black", "black", "black", "white"]
    assert texts(ax.get_yticklabels()) == ["fork", "none"] and texts(ax.get_xticklabels()) == ["1/16", "16/1"]
    assert (ax.get_xlabel(), title(ax)) == ("threads", "Gains")
    red, _, blue = ax.images[0].cmap(ax.images[0].norm(2.0))[:3]
    assert blue > red  # purple above 1
    red, _, blue = ax.images[0].cmap(ax.images[0].norm(0.5))[:3]
    assert blue < red  # orange below 1
    assert len(ax.figure.axes) == 1


def test_a_heat_map_with_a_label_has_its_scale_and_own_texts():
    ax = plots.heat_map([[5, 0.2]], ["a"], ["x", "y"], texts=[["p", "q"]], label="gain")
    assert texts(ax.texts) == ["p", "q"]
    scale = ax.figure.axes[1]
    assert scale.get_ylabel() == "gain" and texts(scale.get_yticklabels()) == ["1/4", "1/2", "1", "2", "4"]


@pytest.mark.parametrize("gains", [[[1.0]], [[1.0, 0.0]], [[1.0, -2.0]]])
def test_gains_of_another_shape_or_not_positive_are_refused(gains):
    with pytest.raises(ValueError, match=r"gains must be \[1, 2\] positive numbers"):
        plots.heat_map(gains, ["a"], ["x", "y"])


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plots.curves({"a": [1, 2]}, xlabel="", ylabel="", ax=ax),
        lambda ax: plots.bars({"a": 1}, unit="s", ax=ax),
        lambda ax: plots.heat_map([[1]], ["a"], ["b"], ax=ax),
    ],
)
def test_pictures_draw_into_given_axes(draw):
    ax = plt.subplots()[1]
    assert draw(ax) is ax and len(plt.get_fignums()) == 1
