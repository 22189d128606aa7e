"""The checks of notebook 22: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor, nn
from torch.jit import fork, wait

from tutorial_utils.exercises import NotYet, check_22_1, check_22_2
from tutorial_utils.models import BidirectionalLSTM, ForkedBidirectionalLSTM

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")


class BothForked(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.fork(self.run_forward, x)
        backwards = torch.jit.fork(self.run_backward, x)
        return torch.cat([torch.jit.wait(forwards), torch.jit.wait(backwards)], dim=2)


class OneAfterTheOther(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.wait(torch.jit.fork(self.run_forward, x))
        return torch.cat([forwards, torch.jit.wait(torch.jit.fork(self.run_backward, x))], dim=2)


class WrongOrder(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.fork(self.run_forward, x)
        backwards = torch.jit.fork(self.run_backward, x)
        return torch.cat([torch.jit.wait(backwards), torch.jit.wait(forwards)], dim=2)


class NotScriptable(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        futures = []
        futures.append(torch.jit.fork(self.run_forward, x))
        futures.append(torch.jit.fork(self.run_backward, x))
        return torch.cat([torch.jit.wait(future) for future in futures], dim=2)


def identity(x: Tensor) -> Tensor:
    return x


class Serial(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.run_forward(x), self.run_backward(x)], dim=2)


class OneAndADummy(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards, dummy = fork(self.run_forward, x), fork(identity, x)
        return torch.cat([wait(forwards), self.run_backward(wait(dummy))], dim=2)


class ThrownAway(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards, backwards = fork(self.run_forward, x), fork(self.run_backward, x)
        wait(forwards), wait(backwards)
        return torch.cat([self.run_forward(x), self.run_backward(x)], dim=2)


class BothInOneTask(BidirectionalLSTM):
    def both(self, x: Tensor) -> Tensor:
        return torch.cat([self.run_forward(x), self.run_backward(x)], dim=2)

    def forward(self, x: Tensor) -> Tensor:
        both, dummy = fork(self.both, x), fork(identity, x)
        return wait(both) + 0 * wait(dummy).sum()


class Plain(nn.Module):
    """What a notebook shows in a cell, under the name BidirectionalLSTM."""

    def __init__(self, size: int) -> None:
        nn.Module.__init__(self)
        self.forward_lstm, self.backward_lstm = nn.LSTM(size, size), nn.LSTM(size, size)

    def run_forward(self, x: Tensor) -> Tensor:
        return self.forward_lstm(x)[0]

    def run_backward(self, x: Tensor) -> Tensor:
        return self.backward_lstm(x.flip(0))[0].flip(0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.run_forward(x), self.run_backward(x)], dim=2)


class NoReturn(BidirectionalLSTM):
    def forward(self, x: Tensor):
        fork(self.run_forward, x)


class OneArgumentTooMany(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        return wait(fork(self.run_forward, x, x))


class Unfilled(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor: ...


class ImportedNames(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        backwards, forwards = fork(self.run_backward, x), fork(self.run_forward, x)
        return torch.cat([forwards.wait(), wait(backwards)], dim=2)


class ForksTheLSTM(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards, backwards = fork(self.forward_lstm, x), fork(self.backward_lstm, x.flip(0))
        return torch.cat([wait(forwards)[0], wait(backwards)[0].flip(0)], dim=2)


class ForkedTwice(ForkedBidirectionalLSTM):
    """Its forward direction is forked by the parent, its backward one by its own method."""

    def run_backward(self, x: Tensor) -> Tensor:
        return wait(fork(self.read_backwards, x))

    def read_backwards(self, x: Tensor) -> Tensor:
        return self.backward_lstm(x.flip(0))[0].flip(0)


@pytest.mark.parametrize("answer", [("b", "d"), ["D", "B"], "bd", frozenset("bd")])
def test_22_1_accepts_any_collection_in_either_case(answer, capsys):
    check_22_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 22.1: correct.")


@pytest.mark.parametrize("answer", [ImportedNames, ForksTheLSTM, ForkedTwice, lambda size: ImportedNames(size)])
def test_22_2_accepts_other_ways_to_fork_both(answer, capsys):
    state = torch.get_rng_state()
    check_22_2(answer)
    assert capsys.readouterr().out.startswith("Exercise 22.2: correct.")
    assert torch.equal(torch.get_rng_state(), state)


def test_22_2_accepts_a_class_whose_parent_a_notebook_defines(capsys):
    parent = type("BidirectionalLSTM", (nn.Module,), {k: v for k, v in vars(Plain).items() if callable(v)})
    check_22_2(type("BothForked", (parent,), {"forward": ImportedNames.forward}))
    assert capsys.readouterr().out.startswith("Exercise 22.2: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (BothForked(8), "an instance of BothForked(.|\n)*Pass the class itself, without parentheses"),
        (nn.LSTM, "is no subclass of BidirectionalLSTM(.|\n)*class LSTM"),
        (lambda size: nn.LSTM(size, size), "is of type LSTM; it should be a BidirectionalLSTM"),
        (lambda: BothForked(8), "raised TypeError(.|\n)*Fork `run_forward`"),
        (lambda size: BothForked(size + 1), "loading its weights into a BidirectionalLSTM` raised RuntimeError"),
        (..., "is not filled in yet"),
    ],
)
def test_22_2_refuses_what_is_not_the_class(answer, message):
    with pytest.raises(NotYet, match=message):
        check_22_2(answer)


def test_22_2_asks_for_the_plain_class():
    for answer in (torch.jit.script(BothForked(8)), lambda size: torch.jit.script(BothForked(size))):
        with pytest.raises(NotYet, match="scripted already(.|\n)*pass the plain (class|module); the check scripts it"):
            check_22_2(answer)


def test_22_1_accepts_the_two(capsys):
    check_22_1({"d", "b"})
    assert capsys.readouterr().out.startswith("Exercise 22.1: correct.")


@pytest.mark.parametrize("answer", [set(), {"b"}, {"a", "b", "d"}, {"b", "d", "e"}, {"c", "d"}])
def test_22_1_refuses_other_sets(answer):
    with pytest.raises(NotYet, match="Hint: Between a fork and its own wait"):
        check_22_1(answer)


def test_22_2_accepts_two_tasks(capsys):
    check_22_2(BothForked)
    assert capsys.readouterr().out.startswith("Exercise 22.2: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            OneAfterTheOther,
            "backward direction is forked only after the first wait, when 1 task had(.|\n)*only then wait",
        ),
        (ForkedBidirectionalLSTM, "backward direction runs in the caller, not in a task(.|\n)*only then wait"),
        (BidirectionalLSTM, "is not filled in yet: it has no `forward` of its own(.|\n)*only then wait"),
        (Serial, "forward direction runs in the caller, not in a task(.|\n)*only then wait"),
        (OneAndADummy, "backward direction runs in the caller, not in a task(.|\n)*only then wait"),
        (ThrownAway, "forward direction runs in the caller(.|\n)*only then wait"),
        (BothInOneTask, "backward direction runs in the same task as the forward direction(.|\n)*only then wait"),
        (Unfilled, "is not filled in yet"),
        (NoReturn, "is not filled in yet: it returns nothing(.|\n)*end it with `return`"),
        (OneArgumentTooMany, "is no TorchScript: Expected at most 2 arguments but found 3 positional arguments"),
        (WrongOrder, "differs(.|\n)*The forward direction comes first"),
        (NotScriptable, "is no TorchScript(.|\n)*needs an annotation"),
    ],
)
def test_22_2_refuses_fewer_tasks_another_result_and_no_script(answer, message):
    with pytest.raises(NotYet, match=message):
        check_22_2(answer)
