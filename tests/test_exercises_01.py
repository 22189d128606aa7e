"""The checks of notebook 01 accept the right answers and refuse plausible wrong ones with a hint."""

import pytest
import torch

from tutorial_utils.exercises import NotYet, check_01_1, check_01_2


def test_the_largest_gain_is_the_longer_time_over_the_kernels(capsys):
    check_01_1(lambda host_us, kernel_us: max(host_us, kernel_us) / kernel_us)
    assert capsys.readouterr().out.startswith("Exercise 01.1: correct.")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda host_us, kernel_us: host_us / kernel_us,
        lambda host_us, kernel_us: (host_us + kernel_us) / kernel_us,
        lambda host_us, kernel_us: kernel_us / max(host_us, kernel_us),
    ],
)
def test_another_gain_is_refused(wrong):
    with pytest.raises(NotYet, match="the larger of the two times"):
        check_01_1(wrong)


def test_an_unfilled_gain_is_refused():
    with pytest.raises(NotYet, match="not filled in"):
        check_01_1(...)


def in_loop(step, steps):
    total = 0.0
    for _ in range(steps):
        total += step().detach()
    return (total / steps).item()


def stacked(step, steps):
    return float(torch.stack([step() for _ in range(steps)]).mean().detach())


@pytest.mark.parametrize("right", [in_loop, stacked])
def test_one_read_is_enough(right, capsys):
    check_01_2(right)
    assert capsys.readouterr().out.startswith("Exercise 01.2: correct.")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda step, steps: sum(step().item() for _ in range(steps)) / steps, "4 times"),
        (lambda step, steps: sum(float(step().detach()) for _ in range(steps)) / steps, "4 times"),
        (lambda step, steps: torch.stack([step() for _ in range(steps)]).mean(), "after the loop"),
        (lambda step, steps: sum(step() for _ in range(steps)).item(), "divide by `steps`"),
        (lambda step, steps: torch.stack([step() for _ in range(steps)])[-1].item(), "divide by `steps`"),
    ],
)
def test_another_mean_is_refused(wrong, hint):
    with pytest.raises(NotYet, match=hint):
        check_01_2(wrong)
