"""What the checks of exercises are made of: an error, and comparisons that say what differs and hint.

Jupyter shows the error's message alone, without a traceback; a test run still counts it as a failure.
"""

from __future__ import annotations

import cmath
import math
import numbers
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class NotYet(AssertionError):
    """An exercise whose answer is not right yet. The message says what is wrong and gives a hint."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this method, when an exception has it, in place of formatting the traceback.
        return str(self).splitlines()


def fail(exercise: str, what: str, hint: str = "") -> None:
    """Raise :class:`NotYet` for ``exercise`` ("02.1"), saying ``what`` is wrong and how to go on."""
    raise NotYet(f"Exercise {exercise}: not yet. {what}" + (f"\n  Hint: {hint}" if hint else ""))


def passed(exercise: str, why: str) -> None:
    """Print the one line of a right answer; ``why`` says what the answer shows."""
    print(f"Exercise {exercise}: correct. {why}")


def expect_filled(exercise: str, name: str, value: Any) -> None:
    """Refuse an answer that is still ``...`` or ``None``."""
    if value is None or value is Ellipsis:
        fail(exercise, f"`{name}` is not filled in yet.", f"Replace the `...` so that `{name}` holds your answer.")


def expect_callable(exercise: str, name: str, value: Any) -> None:
    """Require something that can be called, such as the function the task asks for."""
    expect_filled(exercise, name, value)
    if not callable(value):
        what = f"`{name}` is of type {type(value).__name__}; it should be a function."
        fail(exercise, what, f"Define it with `def {name}(...):`, and pass the function itself, without calling it.")


def call(exercise: str, name: str, function: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """Return ``function(*arguments)``, or say that it returns nothing, or which error an answer's line raised."""
    try:
        value = function(*arguments)
    except NotYet:
        raise
    except Exception as error:
        fail(exercise, f"`{name}` raised {type(error).__name__}{_own_line(error)}: {reason(error)}", hint)
    if value is None or value is Ellipsis:
        what = f"`{name}` is not filled in yet: it returns nothing."
        fail(exercise, what, "Write your answer between the two SOLUTION marks, and end it with `return`.")
    return value


def reason(error: BaseException) -> str:
    """What an error says, in one line: TorchScript puts a traceback before its message, or a schema."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it says no more"]
    if "TorchScript interpreter" in lines[0]:
        return lines[-1].removeprefix("RuntimeError: ")
    messages = [line for line in lines if not re.fullmatch(r"[\w.:]+\(.*\) -> .*:", line)]
    return (messages or lines)[0].rstrip(":")


def _own_line(error: BaseException) -> str:
    # The last frame that is neither Python's, an installed package's nor this package's belongs to the answer.
    folders = (Path(os.__file__).parent, Path(torch.__file__).parents[1], Path(__file__).parent)
    others = (*map(str, folders), "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    return f" in the line `{frames[-1].line}`" if frames and frames[-1].line else ""


def expect_tensor(
    exercise: str, name: str, value: Any, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> None:
    """Require a tensor, of this ``shape`` and ``dtype`` where they are given."""
    expect_filled(exercise, name, value)
    if not isinstance(value, Tensor):
        fail(exercise, f"`{name}` is of type {type(value).__name__}; it should be a torch.Tensor.")
    if shape is not None and tuple(value.shape) != tuple(shape):
        what = f"`{name}` has shape {list(value.shape)}; it should be {list(shape)}."
        fail(exercise, what, "Compare the sizes dimension by dimension; the first is usually the batch.")
    if dtype is not None and value.dtype != dtype:
        what = f"`{name}` has dtype {value.dtype}; it should be {dtype}."
        fail(exercise, what, "Give `dtype=` where the tensor is created.")


def expect_equal(
    exercise: str, name: str, value: Any, expected: Any, hint: str = "", *, tolerance: float = 0.0
) -> None:
    """Require ``value`` to equal ``expected``: a number, string, boolean, collection or tensor.

    Numbers and floating-point tensors may differ by ``tolerance``, relative or absolute; at 0 they must be equal.
    Strings are compared without regard to case and surrounding space. Tensors are compared
    on the CPU, and the first index that differs is reported. The expected answer itself is never given away, but for
    the one element of a tensor.
    """
    expect_filled(exercise, name, value)
    if isinstance(expected, Tensor):
        expect_tensor(exercise, name, value, expected.shape, expected.dtype)
        _expect_equal_tensor(exercise, name, value.detach().cpu(), expected.detach().cpu(), hint, tolerance)
        return
    if hasattr(value, "item") and math.prod(value.shape) == 1:
        value = value.item()  # a number of torch's or of NumPy's
    kinds = (bool, numbers.Number, str, (set, frozenset), Mapping, (list, tuple), object)
    kind = next(kind for kind in kinds if isinstance(expected, kind))
    too_wide = (kind is not bool and isinstance(value, bool)) or (
        isinstance(value, complex) and not isinstance(expected, complex)
    )
    if not isinstance(value, kind) or too_wide:
        wanted = type(expected).__name__
        fail(exercise, f"`{name}` is of type {type(value).__name__}; it should be of type {wanted}.", hint)
    same, detail = _same(value, expected), ""
    if kind is str:
        same = value.strip().casefold() == expected.strip().casefold()
    elif kind is numbers.Number:
        same = cmath.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
        if not isinstance(value, complex) and not math.isnan(value):
            detail = f" It is too {'large' if value > expected else 'small'}."
    elif kind == (set, frozenset):
        surplus = ", ".join(sorted(map(str, value - expected))) or "nothing"
        detail = f" It lacks {len(expected - value)} and has too much: {surplus}."
    elif kind == (list, tuple):
        first = next((i for i, (a, b) in enumerate(zip(value, expected, strict=False)) if not _same(a, b)), None)
        same = first is None and len(value) == len(expected)
        detail = f" It has {len(value)} entries and should have {len(expected)}."
        detail = f" Its first wrong entry is number {first}, counted from 0." if first is not None else detail
    if not same:
        fail(exercise, f"`{name}` is {_short(value)}, which is not the answer.{detail}", hint)


def expect_result(
    exercise: str,
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    expected: Any,
    hint: str = "",
    *,
    tolerance: float = 0.0,
) -> Any:
    """Require ``function(*arguments)``, the call ``name``, to return ``expected``; return what it returned."""
    value = call(exercise, name, function, *arguments, hint=hint)
    expect_equal(exercise, name, value, expected, hint, tolerance=tolerance)
    return value


def _same(value: Any, expected: Any) -> bool:
    try:
        return bool(value == expected)
    except (RuntimeError, TypeError, ValueError):  # several elements of a tensor or an array are no single truth
        return False


def _expect_equal_tensor(
    exercise: str, name: str, value: Tensor, expected: Tensor, hint: str, tolerance: float
) -> None:
    same = torch.isclose(value, expected, rtol=tolerance, atol=tolerance, equal_nan=value.is_floating_point())
    if not bool(same.all()):
        where = (~same).nonzero()
        index = tuple(where[0].tolist())
        place = f", at index {list(index)}," if index else ""
        what = f"`{name}` differs from the expected tensor in {len(where)} of {same.numel()} elements; the first{place}"
        fail(exercise, f"{what} is {value[index].item():.9g} instead of {expected[index].item():.9g}.", hint)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def expect_letters(exercise: str, name: str, value: Any, expected: set[str], hint: str = "") -> None:
    """Require these letters, in either case: a set, list or tuple of strings, or one string of them all."""
    expect_filled(exercise, name, value)
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (set, frozenset, list, tuple)) or not all(isinstance(entry, str) for entry in entries):
        what = f"`{name}` is {_short(value)}; it should be a set of letters."
        fail(exercise, what, f'Write each letter in quotation marks: `{name} = {{"a", "b"}}`, with your letters.')
    letters = {letter for entry in entries for letter in entry.casefold() if letter.isalpha()}
    expect_filled(exercise, name, None if entries and not letters else letters)
    expect_equal(exercise, name, letters, expected, hint)


def expect_same_storage(exercise: str, name: str, value: Any, original: Tensor | int, hint: str = "") -> None:
    """Require ``value`` to lie at the address of ``original``, a tensor or an earlier ``data_ptr()``."""
    expect_tensor(exercise, name, value)
    address = original.data_ptr() if isinstance(original, Tensor) else original
    if value.data_ptr() != address:
        what = f"`{name}` lies at another address than before: a new tensor took its place."
        fail(exercise, what, hint or f"Write into the existing tensor, for example with `{name}.copy_(...)`.")


def expect_raises(
    exercise: str,
    name: str,
    function: Callable[[], Any],
    error: type[Exception] | tuple[type[Exception], ...],
    phrase: str = "",
    hint: str = "",
) -> str:
    """Require ``function()`` to raise ``error`` with ``phrase`` in its message; return the message's first line."""
    expect_callable(exercise, name, function)
    kinds = error if isinstance(error, tuple) else (error,)
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        function()
        raised, got = None, "nothing"
    except Exception as caught:
        raised, got = caught, f"{type(caught).__name__} ({_short(str(caught))})"
    if not isinstance(raised, kinds):
        fail(exercise, f"`{name}` raised {got}; it should raise {wanted}.", hint)
    if phrase not in str(raised):
        fail(exercise, f"`{name}` raised {got}, whose message does not contain {phrase!r}.", hint)
    return str(raised).partition("\n")[0]
