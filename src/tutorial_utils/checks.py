"""What the checks of exercises are made of. A check prints its verdict and never raises on an answer.

An error of the answer itself becomes a "not yet"; an error in a check stays an error, so that a test finds it.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TORCH = str(Path(torch.__file__).parent)


class NotYet(Exception):
    """What an answer still lacks, and a hint."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


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
                    if any(answer is None or answer is Ellipsis for answer in answers):
                        raise NotYet("there is no answer yet.", "Write yours in the place of the `...`.")
                    function(*answers)
            except NotYet as not_yet:
                print(f"Exercise {number}: not yet: {not_yet}")
                if not_yet.hint:
                    print(f"  Hint: {not_yet.hint}")
            else:
                print(f"Exercise {number}: correct. {correct}")

        return verdict

    return decorate


def call(answer: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """Return ``answer(*arguments)``. :class:`NotYet` where the answer cannot be called, or raises."""
    name = getattr(answer, "__name__", type(answer).__name__)
    if not callable(answer):
        raise NotYet(f"the answer is of type {name}; it should be a function.", hint)
    try:
        return answer(*arguments)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__)[1:] if not f.filename.startswith(TORCH)]
        line = f" in the line `{frames[0].line}`" if frames and frames[0].line else ""
        raise NotYet(f"`{name}` raised {type(error).__name__}{line}: {first_line(error)}", hint) from None


def result(answer: Callable[..., Any], *arguments: Any, hint: str = "") -> Any:
    """As :func:`call`, for an answer that must return something."""
    value = call(answer, *arguments, hint=hint)
    if value is None or value is Ellipsis:
        name = getattr(answer, "__name__", "the answer")
        raise NotYet(f"`{name}` returns nothing yet.", hint or "End it with `return` and your result.")
    return value


def first_line(error: BaseException) -> str:
    """What an error says, in one line; TorchScript puts a traceback before its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it says no more"]
    return lines[-1].removeprefix("RuntimeError: ") if "TorchScript interpreter" in lines[0] else lines[0]


def equal(value: Any, expected: Any, what: str, hint: str = "", tolerance: float = 0.0) -> None:
    """Require ``value``, which ``what`` names, to be the expected number, tensor or other object.

    Numbers and floating-point tensors may differ by ``tolerance``, relative or absolute. Tensors have the expected
    shape and dtype, on any device.
    """
    if isinstance(expected, Tensor):
        if not isinstance(value, Tensor):
            raise NotYet(f"{what} is of type {type(value).__name__}; it should be a torch.Tensor.", hint)
        try:
            torch.testing.assert_close(
                value.detach(), expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_device=False
            )
        except AssertionError as error:
            said = " ".join(str(error).split()).partition(" Greatest relative")[0]
            raise NotYet(f"{what} is wrong. {said}", hint) from None
        return
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    numbers = isinstance(expected, (int, float)) and isinstance(value, (int, float))
    same = math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance) if numbers else value == expected
    if not same:
        raise NotYet(f"{what} is {value!r}, which is not right.", hint)


def letters(answer: Any, right: str, hint: str) -> None:
    """Require these letters, in a set, a list or a string, in either case. Which ones are wrong is not given away."""
    if not isinstance(answer, Iterable) or not all(isinstance(entry, str) for entry in answer):
        raise NotYet(f"the answer is {answer!r}; it should be a set of letters.", 'Such as {"a", "b"}.')
    given = {letter for entry in answer for letter in entry.casefold() if letter.isalpha()}
    if not given:
        raise NotYet("the set is empty.", hint)
    if wrong := given ^ set(right):
        raise NotYet(f"{len(wrong)} of the letters {'are' if len(wrong) > 1 else 'is'} missing or too much.", hint)
