"""The checks of notebook 22: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor

from tutorial_utils.exercises import NotYet, check_22_1, check_22_2
from tutorial_utils.models import BidirectionalLSTM, ForkedBidirectionalLSTM

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")


class BothForked(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.fork(self.run_forwards, x)
        backwards = torch.jit.fork(self.run_backwards, x)
        return torch.cat([torch.jit.wait(forwards), torch.jit.wait(backwards)], dim=2)


class OneAfterTheOther(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.wait(torch.jit.fork(self.run_forwards, x))
        return torch.cat([forwards, torch.jit.wait(torch.jit.fork(self.run_backwards, x))], dim=2)


class WrongOrder(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.fork(self.run_forwards, x)
        backwards = torch.jit.fork(self.run_backwards, x)
        return torch.cat([torch.jit.wait(backwards), torch.jit.wait(forwards)], dim=2)


class NotScriptable(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        futures = []
        futures.append(torch.jit.fork(self.run_forwards, x))
        futures.append(torch.jit.fork(self.run_backwards, x))
        return torch.cat([torch.jit.wait(future) for future in futures], dim=2)


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
        (OneAfterTheOther, "but 1 of 2 tasks had started(.|\n)*only then wait"),
        (ForkedBidirectionalLSTM, "but 1 of 2 tasks had started(.|\n)*only then wait"),
        (BidirectionalLSTM, "but 0 of 2 tasks had started(.|\n)*only then wait"),
        (WrongOrder, "differs(.|\n)*The forward direction comes first"),
        (NotScriptable, "is no TorchScript(.|\n)*needs an annotation"),
    ],
)
def test_22_2_refuses_fewer_tasks_another_result_and_no_script(answer, message):
    with pytest.raises(NotYet, match=message):
        check_22_2(answer)
