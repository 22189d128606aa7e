"""The helpers of the exercises' checks: each accepts right answers, and refuses wrong ones with the hint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet

HINT = "Count the replays."


def refused(check, *arguments, **options):
    with pytest.raises(NotYet) as raised:
        check("02.1", "answer", *arguments, **options)
    text = str(raised.value)
    assert text.startswith("Exercise 02.1: not yet. `answer` ")
    return text


def test_not_yet_is_a_failure_that_jupyter_shows_without_a_traceback():
    with pytest.raises(AssertionError) as raised:
        exercises.fail("02.1", "The loss is stale.", HINT)
    assert raised.value._render_traceback_() == ["Exercise 02.1: not yet. The loss is stale.", f"  Hint: {HINT}"]


def test_ipython_prints_the_message_alone(capsys):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    result = shell.run_cell("from tutorial_utils import exercises\nexercises.expect_equal('02.1', 'n', 2, 3, 'Think.')")
    assert isinstance(result.error_in_exec, NotYet)
    shown = capsys.readouterr().out
    assert "Exercise 02.1: not yet. `n` is 2, which is not the answer. It is too small.\n  Hint: Think." in shown
    assert "Traceback" not in shown


def test_a_right_answer_prints_one_line(capsys):
    exercises.passed("02.1", "The address never changed.")
    assert capsys.readouterr().out == "Exercise 02.1: correct. The address never changed.\n"


@pytest.mark.parametrize("value", [None, ...])
@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (exercises.expect_filled, ()),
        (exercises.expect_callable, ()),
        (exercises.expect_tensor, ()),
        (exercises.expect_equal, (3,)),
        (exercises.expect_same_storage, (0,)),
        (exercises.expect_raises, (ValueError,)),
    ],
)
def test_an_unfinished_answer_is_not_filled_in_yet(check, arguments, value):
    assert "is not filled in yet." in refused(check, value, *arguments)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (3.0, 3),
        (torch.tensor(3), 3),
        (np.float64(2.5), 2.5),
        (True, True),
        (" Replay ", "replay"),
        ({1, 2}, {2, 1}),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"a": 1}),
        (torch.arange(4), torch.arange(4)),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])),
        (torch.empty(0), torch.empty(0)),
    ],
)
def test_equal_accepts_the_right_answer(value, expected):
    exercises.expect_equal("02.1", "answer", value, expected, HINT)


@pytest.mark.parametrize(
    ("value", "expected", "what"),
    [
        (4, 3, "is 4, which is not the answer. It is too large."),
        (2.9, 3, "It is too small."),
        (float("nan"), 3, "is nan, which is not the answer."),
        (True, 1, "is of type bool; it should be of type int."),
        (1, True, "is of type int; it should be of type bool."),
        (False, True, "is False, which is not the answer."),
        ("3", 3, "is of type str; it should be of type int."),
        (3, "three", "is of type int; it should be of type str."),
        ("eager", "replay", "is 'eager', which is not the answer."),
        ({1, 9}, {1, 2, 3}, "It lacks 2 and has too much: 9."),
        ([1], [1, 2], "It has 1 entries and should have 2."),
        ([1, 5, 3], [1, 2, 3], "Its first wrong entry is number 1, counted from 0."),
        ({"a": 1}, {"a": 2}, "is {'a': 1}, which is not the answer."),
        (torch.arange(3), 3, "is of type Tensor"),
        (
            torch.tensor([[1, 2], [3, 5]]),
            torch.tensor([[1, 2], [3, 4]]),
            "1 of 4 elements; the first, at index [1, 1], is 5",
        ),
        (torch.tensor(1.0), torch.tensor(2.0), "in 1 of 1 elements; the first is 1 instead of 2."),
        (torch.tensor([float("nan")]), torch.tensor([0.0]), "is nan instead of 0."),
    ],
)
def test_equal_refuses_a_wrong_answer_and_hints(value, expected, what):
    text = refused(exercises.expect_equal, value, expected, HINT)
    assert what in text
    assert text.endswith(f"\n  Hint: {HINT}")


def test_equal_tolerates_only_what_it_is_told_to():
    near, exact = torch.tensor([1.0, 2.0001]), torch.tensor([1.0, 2.0])
    assert "is 2.0000999 instead of 2." in refused(exercises.expect_equal, near, exact, HINT)
    exercises.expect_equal("02.1", "answer", near, exact, HINT, tolerance=1e-3)
    refused(exercises.expect_equal, 0.31, 0.3, HINT)
    exercises.expect_equal("02.1", "answer", 0.31, 0.3, HINT, tolerance=0.05)


def test_tensor_names_the_shape_and_dtype_that_are_wrong():
    exercises.expect_tensor("02.1", "answer", torch.zeros(64, 10), (64, 10), torch.float32)
    assert "is of type list; it should be a torch.Tensor." in refused(exercises.expect_tensor, [1.0])
    assert "has shape [10, 64]; it should be [64, 10]." in refused(
        exercises.expect_tensor, torch.zeros(10, 64), (64, 10)
    )
    wrong_type = refused(exercises.expect_tensor, torch.zeros(2), None, torch.int64)
    assert "has dtype torch.float32; it should be torch.int64." in wrong_type and "Hint:" in wrong_type


def test_same_storage_tells_a_copy_in_place_from_a_new_tensor():
    static = torch.zeros(4)
    address = static.data_ptr()
    static.copy_(torch.ones(4))
    exercises.expect_same_storage("02.1", "answer", static, address)
    exercises.expect_same_storage("02.1", "answer", static[:2], static)
    text = refused(exercises.expect_same_storage, static + 1, static)
    assert "lies at another address than before" in text and "answer.copy_(...)" in text
    assert HINT in refused(exercises.expect_same_storage, torch.ones(4), address, HINT)


def test_callable_wants_the_function_itself():
    exercises.expect_callable("02.1", "answer", len)
    assert "is of type int; it should be a function." in refused(exercises.expect_callable, 3)


def fail_with(error):
    def function():
        raise error

    return function


def test_raises_returns_the_first_line_of_the_right_error():
    function = fail_with(RuntimeError("operation not permitted when stream is capturing\nmore"))
    line = exercises.expect_raises("07.1", "answer", function, (RuntimeError, ValueError), "not permitted", HINT)
    assert line == "operation not permitted when stream is capturing"


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda: None, "raised nothing; it should raise RuntimeError."),
        (fail_with(KeyError("x")), "raised KeyError"),
        (fail_with(RuntimeError("other")), "whose message does not contain 'not permitted'."),
    ],
)
def test_raises_refuses_no_error_and_another_one(function, what):
    text = refused(exercises.expect_raises, function, RuntimeError, "not permitted", HINT)
    assert what in text and text.endswith(HINT)
