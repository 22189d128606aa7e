"""The checks of notebook 21: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import nn

from tutorial_utils.exercises import NotYet, check_21_1, check_21_2
from tutorial_utils.models import BidirectionalLSTM

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")


def convert(library: nn.LSTM, forwards_end: str = "", backwards_end: str = "_reverse") -> BidirectionalLSTM:
    model, weights = BidirectionalLSTM(library.input_size), dict(library.named_parameters())
    for part, end in ((model.forward_lstm, forwards_end), (model.backward_lstm, backwards_end)):
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


def test_21_1_accepts_a_class_of_that_name_and_shared_weights_and_leaves_the_seed(capsys):
    # As notebook 21 does, in which the class is defined in a cell.
    class BidirectionalLSTM(nn.Module):
        def __init__(self, library: nn.LSTM) -> None:
            super().__init__()
            self.forward_lstm = nn.LSTM(library.input_size, library.input_size)
            self.backward_lstm = nn.LSTM(library.input_size, library.input_size)
            for name, _ in list(self.forward_lstm.named_parameters()):
                setattr(self.forward_lstm, name, getattr(library, name))
                setattr(self.backward_lstm, name, getattr(library, f"{name}_reverse"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.forward_lstm(x)[0], self.backward_lstm(x.flip(0))[0].flip(0)
            return torch.cat([left, right], dim=2)

    state = torch.get_rng_state()
    check_21_1(BidirectionalLSTM)
    assert capsys.readouterr().out.startswith("Exercise 21.1: correct.")
    assert torch.equal(torch.get_rng_state(), state)


class Wraps(BidirectionalLSTM):
    def __init__(self, library: nn.LSTM) -> None:
        super().__init__(library.input_size)
        self.library = library

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.library(x)[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda library: lambda x: library(x)[0], "of type function; it should be a BidirectionalLSTM(.|\n)*Make one"),
        (lambda library: library, "of type LSTM; it should be a BidirectionalLSTM"),
        (Wraps, r"`from_library\(library\).forward_lstm.weight_ih_l0` differs"),
        (lambda library: convert(library).double(), "have dtype torch.float64; it should be(.|\n)*`.double\\(\\)`"),
        (lambda library, size: convert(library), "raised TypeError: (.|\n)*Hint: It takes one argument"),
        (lambda library: convert(library, "_forward"), "raised KeyError in the line `.*`: 'weight_ih_l0_forward'"),
        (lambda library: torch.jit.script(convert(library)), "scripted already(.|\n)*pass the plain module"),
    ],
)
def test_21_1_refuses_the_library_itself_other_types_and_errors(answer, message):
    with pytest.raises(NotYet, match=message):
        check_21_1(answer)


def test_21_2_accepts_the_product(capsys):
    check_21_2(lambda steps, batch, size, models: models * 2 * steps * batch * 2 * 4 * size * size)
    printed = capsys.readouterr().out
    assert printed.startswith("Exercise 21.2: correct. At the source's size these are 168 billion, half")


def test_21_2_says_what_an_answer_raised():
    with pytest.raises(NotYet, match=r"multiply_adds\(1, 1, 1, 1\)` raised TypeError: (.|\n)*Hint: Two matrices"):
        check_21_2(lambda steps, batch, size: 0)
    with pytest.raises(NotYet, match="of type complex; it should be of type int"):
        check_21_2(lambda *sizes: 16 + 0j)


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
