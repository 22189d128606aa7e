"""The course's pictures, but for timelines. Every function returns its Axes and leaves ``plt.show()`` to the caller.

Colours are those of Okabe and Ito, which readers with the usual colour vision deficiencies can tell apart; no picture
relies on colour alone. (M. Okabe, K. Ito, "Color Universal Design", 2008, https://jfly.uni-koeln.de/color/)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from torch import Tensor

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
"""Eight colours: blue, orange, green, vermilion, purple, sky blue, yellow, black."""
GREY = "#767676"
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_HATCHES = ("", "///", "...", "xxx")
_MICROSECONDS = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}


def use_style() -> None:
    """Set readable defaults for the whole notebook: 10-point text, 96 dots per inch, no frame, the palette."""
    plt.rcParams.update(
        {
            "figure.dpi": 96,
            "savefig.dpi": 96,
            "figure.figsize": (8, 3.6),
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": plt.cycler(color=PALETTE),
            "legend.fontsize": 9,
            "legend.frameon": False,
        }
    )


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """``ax`` itself, or the axes of a new figure of this size in inches."""
    return ax if ax is not None else plt.subplots(figsize=(width, height), layout="constrained")[1]


def show_digits(
    images: Tensor,
    labels: Iterable[int] | None = None,
    *,
    predictions: Iterable[int] | None = None,
    columns: int = 8,
    title: str = "",
) -> np.ndarray:
    """Draw images as a grid, each under its label; return the ``[rows, columns]`` array of Axes.

    ``images`` is ``[N, 1, H, W]`` or ``[N, H, W]`` of any dtype. ``labels`` and ``predictions`` hold N integers. With
    predictions, a wrong one gets a heavy frame and the words "read as", so that it shows without colour.
    """
    if images.dim() not in (3, 4) or (images.dim() == 4 and images.shape[1] != 1) or len(images) == 0:
        raise ValueError(f"images must be [N, 1, H, W] or [N, H, W] with N > 0, not {list(images.shape)}")
    if columns < 1:
        raise ValueError(f"columns is {columns}; it must be at least 1")
    pictures = images.detach().cpu().float().reshape(len(images), *images.shape[-2:]).numpy()  # NumPy has no bfloat16
    names = {"labels": labels, "predictions": predictions}
    numbers = {name: [int(v) for v in values] for name, values in names.items() if values is not None}
    for name, values in numbers.items():
        if len(values) != len(pictures):
            raise ValueError(f"{name} holds {len(values)} entries for {len(pictures)} images; pass one for each image")
    rows = math.ceil(len(pictures) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(columns, 1.35 * rows + 0.3 * bool(title)), squeeze=False, layout="constrained"
    )
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for i, (ax, picture) in enumerate(zip(axes.flat, pictures, strict=False)):
        ax.imshow(picture, cmap="gray_r")
        label, guess = (numbers[name][i] if name in numbers else None for name in names)
        wrong = guess is not None and label is not None and guess != label
        text = f"{label}, read as {guess}" if wrong else str(label if label is not None else guess)
        if label is not None or guess is not None:
            ax.set_title(text, fontsize=9, fontweight="bold" if wrong else "normal", loc="center")
        if wrong:
            ax.spines[:].set(visible=True, color=PALETTE[3], linewidth=3)
    if title:
        figure.suptitle(title, fontsize=11)
    return axes


def curves(
    lines: Mapping[str, Any],
    *,
    xlabel: str,
    ylabel: str,
    x: Sequence[float] | None = None,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw one curve for each ``{label: values}``; ``xlabel`` and ``ylabel`` name the quantity and its unit.

    ``values`` is a sequence of numbers (a tensor or an array too), drawn over ``x``, or over 1 to n without it. A pair
    of sequences is a curve with x values of its own. Curves differ in colour, dashes, marker and width, so that two
    that coincide are both seen.
    """
    if not lines:
        raise ValueError("there is no curve to draw: pass {label: values}")
    ax = new_axes(ax, 8, 3.6)
    for i, (label, values) in enumerate(lines.items()):
        if isinstance(values, tuple) and len(values) == 2 and all(np.ndim(v) == 1 for v in values):
            xs, ys = ([float(v) for v in part] for part in values)
        else:
            ys = [float(v) for v in values]
            xs = list(x) if x is not None else list(range(1, len(ys) + 1))
        if len(xs) != len(ys) or not ys:
            raise ValueError(f"curve {label!r} has {len(ys)} values for {len(xs)} x positions; they must match")
        style = {"linestyle": _DASHES[i % 4], "marker": _MARKERS[i % 8], "markersize": 4, "color": PALETTE[i % 8]}
        ax.plot(xs, ys, label=label, linewidth=max(1.2, 3.0 - 0.9 * i), markevery=max(1, len(ys) // 12), **style)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    ax.set_title(title)
    ax.grid(alpha=0.25)
    ax.legend()
    return ax


def _median_and_quartiles(label: str, value: Any, unit: str) -> tuple[float, float, float]:
    if hasattr(value, "median_us"):
        if unit not in _MICROSECONDS:
            raise ValueError(f"bar {label!r} is a time; give its unit as {', '.join(_MICROSECONDS)}, not {unit!r}")
        median, low, high = (v / _MICROSECONDS[unit] for v in (value.median_us, *value.quartiles_us))
    elif isinstance(value, (tuple, list)):
        if len(value) != 3:
            raise ValueError(f"bar {label!r} has {len(value)} numbers; pass one number or (median, q1, q3)")
        median, low, high = (float(v) for v in value)
    else:
        median = low = high = float(value)
    if not low <= median <= high:  # also refuses NaN
        raise ValueError(f"bar {label!r}: the median {median:g} must lie between its quartiles {low:g} and {high:g}")
    return median, low, high


def bars(
    values: Mapping[str, Any],
    *,
    unit: str,
    title: str = "",
    xlabel: str = "",
    log: bool = False,
    decimals: int | None = None,
    recorded: Collection[str] = (),
    recorded_on: str = "recorded on another machine",
    ax: Axes | None = None,
) -> Axes:
    """Draw horizontal bars with their values, from the top in the order given.

    A value is a number, a triple ``(median, q1, q3)``, or a :class:`~tutorial_utils.timing.Measurement` (``unit`` is
    then ns, µs, ms or s); whiskers reach from the first to the third quartile. With ``decimals`` all values show as
    many; otherwise each shows three digits. The labels in ``recorded`` were not measured on the reader's machine: their
    bars are hatched, and the legend says ``recorded_on``.
    """
    if not values:
        raise ValueError("there is no bar to draw: pass {label: value}")
    unknown = sorted(set(recorded) - set(values))
    if unknown:
        raise ValueError(f"recorded names {', '.join(unknown)}, which is not among the bars: {', '.join(values)}")
    triples = [_median_and_quartiles(label, value, unit) for label, value in values.items()]
    if log and min(t[1] for t in triples) <= 0:
        raise ValueError("a logarithmic scale needs positive values; pass log=False")
    ax = new_axes(ax, 8, 0.9 + 0.42 * len(values))
    for i, (label, (median, low, high)) in enumerate(zip(values, triples, strict=True)):
        hatched = label in recorded
        look = {"hatch": "///" if hatched else "", "color": PALETTE[5] if hatched else PALETTE[0], "edgecolor": "white"}
        ax.barh(i, median, height=0.62, **look)
        if high > low:
            ax.errorbar(median, i, xerr=[[median - low], [high - median]], fmt="none", ecolor="black", capsize=4)
        digits = f".{decimals}f" if decimals is not None else ".3g" if median < 1000 else ".0f"
        ax.annotate(f" {median:,{digits}} {unit}", (high, i), va="center")
    ax.set(yticks=range(len(values)), xlabel=xlabel or unit, xscale="log" if log else "linear")
    ax.set_yticklabels(list(values))
    ax.invert_yaxis()
    ax.set_title(title)
    top, bottom = max(t[2] for t in triples), min(t[1] for t in triples)
    # Room for the value label at the end of the longest bar.
    ax.set_xlim((bottom / 3, top * (top / bottom * 3) ** 0.25) if log else (0, top * 1.22 or 1))
    if recorded:
        here = Patch(facecolor=PALETTE[0], label="this machine")
        elsewhere = Patch(facecolor=PALETTE[5], edgecolor="white", hatch="///", label=recorded_on)
        handles = [here, elsewhere] if len(recorded) < len(values) else [elsewhere]
        ax.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return ax


def grouped_bars(
    values: Mapping[str, Mapping[str, tuple[float, float, float]]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw upright bars in groups: ``values`` holds for each series ``{group: (median, q1, q3)}``, all the same groups.

    Whiskers reach from the first to the third quartile. Series differ in colour and hatching.
    """
    if not values or not all(values.values()):
        raise ValueError("there is no bar to draw: pass {series: {group: (median, q1, q3)}}")
    groups = list(next(iter(values.values())))
    if differing := [series for series, by_group in values.items() if list(by_group) != groups]:
        raise ValueError(f"{differing[0]} has other groups than the first series, which has {', '.join(groups)}")
    ax, width = new_axes(ax, 9, 4), 0.8 / len(values)
    for k, (series, by_group) in enumerate(values.items()):
        triples = [_median_and_quartiles(f"{series}, {group}", triple, "") for group, triple in by_group.items()]
        median, low, high = np.array(triples).T
        look = {"color": PALETTE[k % len(PALETTE)], "hatch": _HATCHES[k % len(_HATCHES)], "edgecolor": "white"}
        places = np.arange(len(groups)) + width * (k - (len(values) - 1) / 2)
        whiskers = {"yerr": [median - low, high - median], "capsize": 2, "error_kw": {"lw": 1}}
        ax.bar(places, median, width, label=series, **whiskers, **look)
    ax.set(xticks=range(len(groups)), xticklabels=groups, xlabel=xlabel, ylabel=ylabel, title=title)
    return ax


def heat_map(
    gains: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    texts: Sequence[Sequence[str]] | None = None,
    title: str = "",
    xlabel: str = "",
    largest: float = 6.0,
    ax: Axes | None = None,
) -> Axes:
    """Draw ``[len(rows), len(columns)]`` gains as cells: above 1 purple, below 1 orange, on a logarithmic scale.

    A gain that is NaN was not measured; its cell stays white. ``texts`` stand in the cells, by default the gain as
    ``1.25x``. The colours end at ``largest`` and at its reciprocal. :func:`gain_scale` draws the scale beside it.
    """
    table = np.array(gains, dtype=float)
    if table.shape != (len(rows), len(columns)):
        raise ValueError(f"gains has the shape {list(table.shape)} for {len(rows)} rows and {len(columns)} columns")
    if np.any(table <= 0) or np.any(np.isinf(table)):
        raise ValueError("gains must be positive and finite, or NaN where there is none")
    if largest <= 1:
        raise ValueError(f"largest is {largest}; it must be greater than 1")
    texts = texts if texts is not None else [["–" if gain != gain else f"{gain:.2f}x" for gain in row] for row in table]
    if [len(row) for row in texts] != [len(columns)] * len(rows):
        raise ValueError("texts must have one entry for each gain")
    ax = new_axes(ax, 2 + 1.4 * len(columns), 1.2 + 0.42 * len(rows))
    ax.imshow(table, cmap="PuOr", norm=LogNorm(1 / largest, largest), aspect="auto")
    for (row, column), gain in np.ndenumerate(table):
        dark = max(gain, 1 / gain) > largest / 2  # False for NaN
        ax.text(column, row, texts[row][column], ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(len(columns)), list(columns))
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set(xlabel=xlabel, title=title)
    return ax


def gain_scale(axes: Axes | Iterable[Axes], label: str) -> None:
    """Draw the one scale of colours of some :func:`heat_map` beside them."""
    axes = [axes] if isinstance(axes, Axes) else list(np.ravel(axes))
    largest = axes[0].images[0].norm.vmax
    fractions = {1 / 4: "1/4", 1 / 2: "1/2", 1: "1", 2: "2", 4: "4"}
    shown = {value: text for value, text in fractions.items() if 1 / largest <= value <= largest}
    bar = axes[0].figure.colorbar(axes[0].images[0], ax=axes, label=label, ticks=list(shown))
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(list(shown.values()))


def graph_diagram(
    operations: Sequence[Any],
    *,
    groups: Sequence[tuple[str, int]] | None = None,
    title: str = "",
    rows: int = 24,
    ax: Axes | None = None,
) -> Axes:
    """Draw a recording: one numbered box an operation, down the columns in order, with one lane for each stream.

    Each operation has ``.name``, ``.stream``, ``.inputs`` and ``.outputs``; the last two are sequences of storage
    identifiers. An operation depends on the last one that wrote a storage it reads. An arrow shows that from one box to
    the next of its lane and between lanes; the numbers beside a box name the operations further away on which it
    depends. ``groups`` colours the boxes: ``[("forward", 14), ...]``, whose counts add up to the number of operations.
    """
    if not operations:
        raise ValueError("the recording holds no operation; pass a captured graph's operations")
    for i, operation in enumerate(operations):
        lacks = [name for name in ("name", "stream", "inputs", "outputs") if not hasattr(operation, name)]
        if lacks:
            raise TypeError(f"operation {i} is a {type(operation).__name__} without the attribute {', '.join(lacks)}")
    groups = groups or [("", len(operations))]
    total = sum(count for _, count in groups)
    if total != len(operations):
        raise ValueError(f"the groups' counts add up to {total}, but there are {len(operations)} operations")
    colours = [PALETTE[g % 8] for g, (_, count) in enumerate(groups) for _ in range(count)]
    streams = list(dict.fromkeys(str(operation.stream) for operation in operations))
    rows = min(rows, len(operations))
    columns = math.ceil(len(operations) / rows) * len(streams)
    ax = new_axes(ax, min(12.0, 2.4 * columns), 1.0 + 0.3 * rows)
    grey, writer, at, numbered = {"color": GREY, "fontsize": 9, "va": "center"}, {}, [], False
    for i, operation in enumerate(operations):
        x, y = (i // rows) * len(streams) + streams.index(str(operation.stream)), i % rows
        previous = max((k for k, centre in enumerate(at) if centre[0] == x), default=None)
        far = []
        for k in sorted({writer[storage] for storage in operation.inputs if storage in writer}):
            if k == previous:
                _draw_arrow(ax, (x, at[k][1] + 0.32), (x, y - 0.32))
            elif at[k][0] != x and k // rows == i // rows:
                side = math.copysign(0.35, x - at[k][0])
                _draw_arrow(ax, (at[k][0] + side, at[k][1]), (x - side, y))
            else:
                far.append(str(k + 1))
        if far:
            numbered = True
            ax.text(x - 0.37, y, f"{', '.join(far)} →", ha="right", **grey)
        shape = FancyBboxPatch((x - 0.35, y - 0.32), 0.7, 0.64, "round,pad=0,rounding_size=0.08")
        shape.set(facecolor="white", edgecolor=colours[i], linewidth=1.6, zorder=3)
        ax.add_patch(shape)
        name = re.sub(r"\.\w+$", "", re.sub(r"^aten(::|\.)", "", str(operation.name)))  # aten.mul.Tensor: mul
        label = f"{i + 1} {name}"
        label = label if len(label) <= 21 else label[:20] + "…"
        ax.text(x, y, label, ha="center", va="center", fontsize=9, zorder=4)
        writer.update(dict.fromkeys(operation.outputs, i))
        at.append((x, y))
    for x in range(columns if len(streams) > 1 else 0):
        ax.text(x, -0.8, f"stream {streams[x % len(streams)]}", ha="center", **grey)
    ax.set(xlim=(-0.62, columns - 0.6), ylim=(rows - 0.5, -1.1 if len(streams) > 1 else -0.6), xticks=[], yticks=[])
    ax.set_title(title)
    if numbered:
        ax.set_xlabel("A number beside a box: the operation depends on that earlier one, too.", fontsize=9, color=GREY)
    ax.spines[:].set_visible(False)
    if len(groups) > 1:
        names = [f"{name} ({count} operations)" for name, count in groups]
        handles = [Patch(fc="white", ec=PALETTE[g % 8], lw=1.6, label=name) for g, name in enumerate(names)]
        ax.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return ax


def _draw_arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.9, "color": GREY}
    ax.add_patch(FancyArrowPatch(start, end, zorder=2, **style))
