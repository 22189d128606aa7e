"""The checks of notebook 24: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor

from tutorial_utils.exercises import NotYet, check_24_1, check_24_2
from tutorial_utils.models import ForkedLSTMEnsemble, LSTMEnsemble

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")


class LargestEnsemble(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures: list[torch.jit.Future[Tensor]] = []
        for model in self.models:
            futures.append(torch.jit.fork(model, x))
        largest = torch.jit.wait(futures[0])
        for future in futures[1:]:
            largest = torch.maximum(largest, torch.jit.wait(future))
        return largest


class Stacked(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures]).amax(dim=0)


class OneLoop(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for model in self.models:
            outputs.append(torch.jit.wait(torch.jit.fork(model, x)))
        return torch.stack(outputs).amax(dim=0)


class Untyped(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = []
        for model in self.models:
            futures.append(torch.jit.fork(model, x))
        return torch.stack([torch.jit.wait(future) for future in futures]).amax(dim=0)


class LeavesOneOut(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures[1:]]).amax(dim=0)


@pytest.mark.parametrize("answer", [LargestEnsemble, Stacked])
def test_24_1_accepts_the_loop_and_the_comprehension(answer, capsys):
    check_24_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 24.1: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OneLoop, "1 of 3 tasks had started(.|\n)*wait in a second loop"),
        (Untyped, "is no TorchScript(.|\n)*needs an annotation"),
        (LeavesOneOut, "differs(.|\n)*maximum over all models"),
        (ForkedLSTMEnsemble, "differs(.|\n)*maximum over all models"),
    ],
)
def test_24_1_refuses_early_waits_no_types_and_other_results(answer, message):
    torch.manual_seed(0)
    with pytest.raises(NotYet, match=message):
        check_24_1(answer)


def test_24_2_accepts_whole_rounds(capsys):
    check_24_2(lambda tasks, cores: tasks / -(-tasks // cores))
    assert capsys.readouterr().out.startswith("Exercise 24.2: correct.")


@pytest.mark.parametrize(
    ("answer", "first"),
    [
        (lambda tasks, cores: min(tasks, cores), r"largest_speed_up\(8, 3\)"),
        (lambda tasks, cores: tasks, r"largest_speed_up\(8, 4\)"),
        (lambda tasks, cores: cores, r"largest_speed_up\(8, 16\)"),
    ],
)
def test_24_2_refuses_divided_tasks_and_a_bound_left_out(answer, first):
    with pytest.raises(NotYet, match=first + "(.|\n)*Hint: How many tasks does the busiest core run"):
        check_24_2(answer)
