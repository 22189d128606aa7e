"""The checks of notebook 21: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import nn

from tutorial_utils.exercises import NotYet, check_21_1, check_21_2
from tutorial_utils.models import BidirectionalLSTM


def convert(library: nn.LSTM, forwards_end: str = "", backwards_end: str = "_reverse") -> BidirectionalLSTM:
    model, weights = BidirectionalLSTM(library.input_size), dict(library.named_parameters())
    for part, end in ((model.forwards, forwards_end), (model.backwards, backwards_end)):
        part.load_state_dict({name: weights[name + end] for name, _ in part.named_parameters()})
    return model


def test_21_1_accepts_the_weights_of_both_directions(capsys):
    check_21_1(convert)
    assert capsys.readouterr().out.startswith("Exercise 21.1: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda library: convert(library, "_reverse", ""), "differs(.|\n)*`_reverse` at the end"),
        (lambda library: convert(library, "", ""), "differs(.|\n)*`_reverse` at the end"),
        (lambda library: BidirectionalLSTM(library.input_size), "differs(.|\n)*Hint"),
        (lambda library: None, r"`from_library\(library\)` is not filled in yet"),
        (..., "`from_library` is not filled in yet"),
    ],
)
def test_21_1_refuses_swapped_repeated_and_new_weights(answer, message):
    torch.manual_seed(0)
    with pytest.raises(NotYet, match=message):
        check_21_1(answer)


def test_21_2_accepts_the_product(capsys):
    check_21_2(lambda steps, batch, size, models: models * 2 * steps * batch * 2 * 4 * size * size)
    assert capsys.readouterr().out.startswith("Exercise 21.2: correct.")


@pytest.mark.parametrize(
    "answer",
    [
        lambda steps, batch, size, models: models * steps * batch * 2 * 4 * size * size,  # one direction
        lambda steps, batch, size, models: models * 2 * steps * batch * 4 * size * size,  # one matrix
        lambda steps, batch, size, models: 16 * steps * size * size * models,  # one sequence
        lambda steps, batch, size, models: 16 * batch * size * size * models,  # one step
    ],
)
def test_21_2_refuses_a_factor_left_out(answer):
    with pytest.raises(NotYet, match=r"multiply_adds\((.|\n)*too small(.|\n)*Hint: Two matrices"):
        check_21_2(answer)
