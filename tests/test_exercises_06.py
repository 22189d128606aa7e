"""The checks of notebook 06 accept the right answers and refuse plausible wrong ones with a hint."""

from types import SimpleNamespace

import pytest
import torch

from tutorial_utils.exercises import NotYet, check_06_1, check_06_2


def sgd(lr, **options):
    return torch.optim.SGD([torch.zeros(1)], lr=lr, momentum=0.5, **options)


def test_the_fifth_fault_begins_at_the_second_step(capsys):
    check_06_1(SimpleNamespace(step=2, name="conv1.weight"))
    assert capsys.readouterr().out.startswith("Exercise 06.1: correct.")


@pytest.mark.parametrize(
    ("found", "hint"),
    [
        (..., "not a difference between two runs"),
        (None, "warm_up=no_warm_up"),
        (2, "store all that the proof returns"),
        (SimpleNamespace(step=1), "warm_up=no_warm_up"),
    ],
)
def test_another_answer_to_the_fifth_fault_is_refused(found, hint):
    with pytest.raises(NotYet, match=hint.replace(".", r"\.")):
        check_06_1(found)


def test_the_repaired_learning_rate_is_a_tensor_in_a_fused_optimizer(capsys):
    check_06_2(sgd(torch.tensor(0.01), fused=True), None)
    assert capsys.readouterr().out.startswith("Exercise 06.2: correct.")


@pytest.mark.parametrize(
    ("optimizer", "repaired", "hint"),
    [
        (..., None, "`optimizer` is not filled in yet"),
        (sgd(0.01), None, "Python number"),
        (sgd(0.01, fused=True), None, "Python number"),
        (sgd(torch.tensor(0.01)), None, "fused=True"),
        (sgd(torch.tensor(0.1), fused=True), None, "Keep the value"),
        (sgd(torch.tensor(0.01), fused=True), SimpleNamespace(step=9), "Let both runs use"),
    ],
)
def test_another_repair_is_refused(optimizer, repaired, hint):
    with pytest.raises(NotYet, match=hint):
        check_06_2(optimizer, repaired)
