"""What the checks of exercises are made of. A check prints its verdict and never raises on an answer.

An error of the answer itself becomes a "not yet"; an error in a check stays an error, so that a test finds it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HIDDEN = str(Path(torch.__file__).parent), str(Path(__file__).parent)


class NotYet(Exception):
    """Its arguments are what an answer still lacks, and a hint, which may be empty."""


def require(right: Any, what: str, hint: str) -> None:
    """Raise :class:`NotYet` unless something is right."""
    if not right:
        raise NotYet(what, hint)


def check(number: str, correct: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function that raises :class:`NotYet` into the check of exercise ``number`` ("02.1").

    The check prints ``not yet: ...`` with a hint, or ``correct.`` and what the answer shows. The random generators are
    as before after it.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def verdict(*answers: Any) -> None:
            try:
                with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # named: several GPUs would warn
                    given = all(answer is not None and answer is not Ellipsis for answer in answers)
                    require(given, "there is no answer yet.", "Write it in this cell, above the check.")
                    function(*answers)
            except NotYet as not_yet:
                what, hint = not_yet.args
                print(f"Exercise {number}: not yet: {what}" + f"\n  Hint: {hint}" * bool(hint))
            else:
                print(f"Exercise {number}: correct. {correct}")

        return verdict

    return decorate


def call(answer: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """Return ``answer(*arguments)``. :class:`NotYet` where the answer cannot be called, or raises."""
    name = getattr(answer, "__name__", type(answer).__name__)
    require(callable(answer), f"the answer is of type {type(answer).__name__}; it should be a function.", hint)
    try:
        return answer(*arguments)
    except Exception as error:
        if "previous error during capture" in str(error):
            error = error.__context__ or error  # read the first error, not the one that surfaces
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(HIDDEN)]
        line = f" in the line `{frames[0].line}`" if frames and frames[0].line else ""
        raise NotYet(f"`{name}` raised {type(error).__name__}{line}: {first_line(error)}", hint) from None


def result(answer: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """As :func:`call`, for an answer that must return something; the hint is for an error of its."""
    value = call(answer, *arguments, hint=hint)
    name = getattr(answer, "__name__", type(answer).__name__)
    nothing = value is None or value is Ellipsis
    require(not nothing, f"`{name}` returns nothing yet.", "End it with `return` and your result.")
    return value


def first_line(error: BaseException) -> str:
    """What an error says, in one line; TorchScript puts a traceback before its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it says no more"]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return lines[-1].removeprefix("RuntimeError: ") if "TorchScript interpreter" in lines[0] else first


def equal(value: Any, expected: Any, what: str, hint: str = "", tolerance: float = 0.0) -> None:
    """Require ``value``, which ``what`` names, to be the expected number, tensor or other object.

    Numbers and floating-point tensors may differ by ``tolerance``, relative or absolute. Tensors have the expected
    shape and dtype, on any device.
    """
    if isinstance(expected, Tensor):
        require(isinstance(value, Tensor), f"{what} is of type {type(value).__name__}, not a torch.Tensor.", hint)
        options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "check_device": False}
        try:
            torch.testing.assert_close(value.detach(), expected, **options)
        except AssertionError as error:
            said = " ".join(str(error).split()).partition(" Greatest relative")[0]
            raise NotYet(f"{what} is wrong. {said}", hint) from None
        return
    value = value.tolist() if hasattr(value, "tolist") else value
    value = type(expected)(value) if type(value) in (list, tuple) and isinstance(expected, (list, tuple)) else value
    same = False
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # what is no number is not close to one
        same = bool(value == expected) or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    require(same, f"{what} is {value!r}, which is not right.", hint)


def letters(answer: Any, right: str, hint: str) -> None:
    """Require these letters, in a set, a list or a string, in either case. Which ones are wrong is not given away."""
    strings = isinstance(answer, Iterable) and all(isinstance(entry, str) for entry in answer)
    require(strings, f"the answer is {answer!r}; it should be a set of letters.", 'Such as {"a", "b"}.')
    given = {letter for entry in answer for letter in entry.casefold() if letter.isalpha()}
    require(given, "the set is empty.", hint)
    wrong = len(given ^ set(right))
    require(not wrong, f"{wrong} of the letters {'are' if wrong > 1 else 'is'} missing or too much.", hint)
