"""The check of notebook 00 accepts the right answer and refuses plausible wrong ones with a hint."""

import pytest

from tutorial_utils.exercises import NotYet, check_00_1


def test_three_replays_double_three_inputs(capsys):
    check_00_1([2.0, 4.0, 6.0])
    assert capsys.readouterr().out.startswith("Exercise 00.1: correct.")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ([2.0, 2.0, 2.0], "fill `x` in place"),  # the name was moved
        ([1.0, 2.0, 3.0], "fill `x` in place"),  # the input was appended
        ([], "should have 3"),
        (..., "not filled in"),
    ],
)
def test_another_answer_is_refused(wrong, hint):
    with pytest.raises(NotYet, match=hint):
        check_00_1(wrong)
