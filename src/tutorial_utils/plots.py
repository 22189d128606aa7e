"""The course's pictures, but for timelines, in the look of ``plt.style.use("tutorial_utils.course")``.

Every function returns its Axes and leaves ``plt.show()`` to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from torch import Tensor

from .timing import Measurement

GREY = "#767676"
_LARGEST = 6.0  # the gain at which a heat map's colours end, and its reciprocal


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

    ``images`` is ``[N, 1, H, W]`` or ``[N, H, W]`` of any dtype. ``labels`` and ``predictions`` hold N integers each. A
    wrong prediction gets a heavy frame and the words "read as", so that it shows without colour.

    Raises:
        ValueError: the images have another shape, or there are not as many labels or predictions, or predictions come
            without labels.
    """
    if images.dim() not in (3, 4) or (images.dim() == 4 and images.shape[1] != 1) or len(images) == 0:
        raise ValueError(f"images must be [N, 1, H, W] or [N, H, W] with N > 0, not {list(images.shape)}")
    if labels is None and predictions is not None:
        raise ValueError("predictions are compared with labels: pass the labels, too")
    pictures = images.detach().cpu().float().reshape(len(images), *images.shape[-2:]).numpy()  # NumPy has no bfloat16
    known = [""] * len(images) if labels is None else [int(label) for label in labels]
    guesses = known if predictions is None else [int(guess) for guess in predictions]
    if not len(known) == len(guesses) == len(images):
        raise ValueError(f"{len(images)} images need as many labels, not {len(known)}, {len(guesses)} predictions")
    rows = math.ceil(len(pictures) / columns)
    size = (columns, 1.35 * rows + 0.3 * bool(title))
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for ax, picture, label, guess in zip(axes.flat, pictures, known, guesses, strict=False):
        ax.imshow(picture, cmap="gray_r")
        if guess == label:
            ax.set_title(label, fontsize=9, loc="center")
        else:
            ax.set_title(f"{label}, read as {guess}", fontsize=9, fontweight="bold", loc="center")
            ax.spines[:].set(visible=True, color="C3", linewidth=3)
    if title:
        figure.suptitle(title)
    return axes


def curves(
    lines: Mapping[str, Iterable[float]],
    *,
    x: Sequence[float] | None = None,
    xlabel: str,
    ylabel: str,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw one curve for each ``{label: values}``, over ``x`` or over 1 to n; the labels name quantity and unit.

    A value that is NaN leaves a gap. The style gives every curve a colour, dashes, a marker and a width of its own.
    """
    ax = new_axes(ax, 8, 3.6)
    for label, values in lines.items():
        ys = [float(value) for value in values]
        ax.plot(x if x is not None else range(1, len(ys) + 1), ys, label=label, markevery=max(1, len(ys) // 12))
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    ax.grid()
    ax.legend()
    return ax


def _median_and_whiskers(values: Mapping[str, Measurement | float], unit: str) -> tuple[np.ndarray, np.ndarray]:
    """The N medians, and ``[2, N]`` lengths of whiskers down to q1 and up to q3; NaN where there is none."""
    medians, whiskers = [], []
    for label, value in values.items():
        if isinstance(value, Measurement):
            value = value.to(unit)
            medians.append(value.median)
            whiskers.append((value.median - value.q1, value.q3 - value.median))
        elif not hasattr(value, "__float__"):
            raise TypeError(f"the bar {label!r} needs a number or a Measurement, not {value!r}")
        else:
            medians.append(float(value))
            whiskers.append((0.0, 0.0))
    lengths = np.array(whiskers).T
    return np.array(medians), np.where(lengths.any(axis=0), lengths, np.nan)


def bars(
    values: Mapping[str, Measurement | float],
    *,
    unit: str,
    title: str = "",
    xlabel: str = "",
    log: bool = False,
    recorded_on: str = "",
    recorded: Collection[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw horizontal bars with their values to three digits, from the top in the order given.

    A :class:`~tutorial_utils.timing.Measurement` is converted to ``unit``; its bar ends at the median, its whiskers
    reach from the first to the third quartile. ``recorded_on`` says where values were recorded that were not measured
    on the reader's machine: all of them, or the labels in ``recorded``. Their bars are hatched.

    Raises:
        TypeError: ``values`` is no mapping, or a value is neither a Measurement nor a number.
        ValueError: there is no value, one is in another kind of unit or not positive on a logarithmic scale, or
            ``recorded`` names no bar or comes without ``recorded_on``.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"bars needs a mapping, not {type(values).__name__}: pass {{label: value}}")
    if not values:
        raise ValueError("there is no bar to draw: pass {label: value}")
    if recorded is not None and not (recorded_on and set(recorded) <= set(values)):
        raise ValueError("recorded must name labels of the bars, and recorded_on say where they were recorded")
    medians, whiskers = _median_and_whiskers(values, unit)
    low, high = medians - np.nan_to_num(whiskers[0]), medians + np.nan_to_num(whiskers[1])
    if log and min(low) <= 0:
        raise ValueError("a logarithmic scale needs positive values; pass log=False")
    hatched = [bool(recorded_on) and (recorded is None or label in recorded) for label in values]
    look = {
        "color": ["C5" if elsewhere else "C0" for elsewhere in hatched],
        "hatch": ["///" if elsewhere else "" for elsewhere in hatched],
        "edgecolor": "white",
        "error_kw": {"capsize": 4, "lw": 1.5},
    }
    ax = new_axes(ax, 8, 0.9 + 0.42 * len(values))
    ax.barh(range(len(values)), medians, 0.62, tick_label=list(values), xerr=whiskers, **look)
    for i, median in enumerate(medians):
        ax.annotate(f" {median:,{'.3g' if abs(median) < 999.5 else '.0f'}} {unit}", (high[i], i), va="center")
    ax.set(xlabel=xlabel or unit, xscale="log" if log else "linear", title=title)
    ax.invert_yaxis()
    # Room for the text at the end of the longest bar.
    bottom, top = min(low), max(high)
    ax.set_xlim((bottom / 3, top * (top / bottom * 3) ** 0.25) if log else (0, top * 1.22 or 1))
    if recorded_on:
        elsewhere = Patch(facecolor="C5", edgecolor="white", hatch="///", label=recorded_on)
        handles = [elsewhere] if all(hatched) else [Patch(facecolor="C0", label="this machine"), elsewhere]
        ax.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return ax


def heat_map(
    gains: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    texts: Sequence[Sequence[str]] | None = None,
    title: str = "",
    xlabel: str = "",
    label: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw ``[rows, columns]`` gains as cells: above 1 purple, below 1 orange, on a logarithmic scale.

    A gain that is NaN was not measured; its cell stays white. ``texts`` stand in the cells, by default the gain as
    ``1.25x``. With a ``label``, the scale of colours stands beside the picture, under this name.

    Raises:
        ValueError: gains have another shape than rows and columns, or one is not positive.
    """
    table = np.array(gains, dtype=float)
    if table.shape != (len(rows), len(columns)) or np.any(table <= 0):
        raise ValueError(f"gains must be [{len(rows)}, {len(columns)}] positive numbers, or NaN where there is none")
    ax = new_axes(ax, 2 + 1.4 * len(columns), 1.2 + 0.42 * len(rows))
    picture = ax.imshow(table, cmap="PuOr", norm=LogNorm(1 / _LARGEST, _LARGEST), aspect="auto")
    for (row, column), gain in np.ndenumerate(table):
        text = texts[row][column] if texts is not None else "–" if math.isnan(gain) else f"{gain:.2f}x"
        dark = max(gain, 1 / gain) > _LARGEST / 2  # False for NaN
        ax.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=xlabel, title=title)
    if label:
        scale = ax.figure.colorbar(picture, ax=ax, label=label)
        scale.minorticks_off()
        scale.set_ticks([1 / 4, 1 / 2, 1, 2, 4], labels=["1/4", "1/2", "1", "2", "4"])
    return ax
