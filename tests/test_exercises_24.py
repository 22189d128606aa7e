"""The checks of notebook 24: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor
from torch.jit import fork, wait

from tutorial_utils.exercises import NotYet, check_24_1, check_24_2
from tutorial_utils.models import BidirectionalLSTM, ForkedLSTMEnsemble, LSTMEnsemble

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


class ImportedNames(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [fork(model, x) for model in self.models]
        return torch.stack([future.wait() for future in futures]).amax(dim=0)


def identity(x: Tensor) -> Tensor:
    return x


class Dummies(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [fork(identity, x) for _ in self.models]
        inputs = [wait(future) for future in futures]
        return torch.stack([model(inputs[0]) for model in self.models]).amax(dim=0)


class OneTaskForAll(LSTMEnsemble):
    def largest(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).amax(dim=0)

    def forward(self, x: Tensor) -> Tensor:
        return wait(fork(self.largest, x))


@pytest.mark.parametrize("answer", [LargestEnsemble, Stacked, ImportedNames])
def test_24_1_accepts_the_loop_and_the_comprehension(answer, capsys):
    check_24_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 24.1: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OneLoop, "model 1 is forked only after the first wait, when 1 task had started(.|\n)*wait in a second loop"),
        (Dummies, "model 0 runs in the caller, not in a task(.|\n)*wait in a second loop"),
        (OneTaskForAll, "model 1 runs in the same task as model 0(.|\n)*wait in a second loop"),
        (LargestEnsemble([BidirectionalLSTM(6)]), "an instance of LargestEnsemble(.|\n)*without parentheses"),
        (BidirectionalLSTM, "is no subclass of LSTMEnsemble(.|\n)*Begin it with"),
        (LSTMEnsemble, "is not filled in yet: it has no `forward`"),
        (lambda: None, "raised TypeError(.|\n)*Fork in one loop"),
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


def test_24_2_says_what_an_answer_raised():
    with pytest.raises(
        NotYet, match=r"largest_speed_up\(8, 16\)` raised ZeroDivisionError in the line(.|\n)*busiest core"
    ):
        check_24_2(lambda tasks, cores: tasks / (tasks // cores))
