"""The checks of notebook 26: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet


def without_gradient(function, x):
    with torch.no_grad():
        return function(x)


def right(models, x, pool, task=without_gradient):
    futures = [(pool.submit(task, m.run_forwards, x), pool.submit(task, m.run_backwards, x)) for m in models]
    return torch.stack([torch.cat([a.result(), b.result()], dim=2) for a, b in futures]).sum(dim=0)


def test_26_1_accepts_eight_tasks_without_gradients(capsys):
    exercises.check_26_1(right)
    assert capsys.readouterr().out.startswith("Exercise 26.1: correct.")


def test_26_1_refuses_gradients_early_waits_tasks_per_model_and_a_wrong_order():
    def waits_early(models, x, pool):
        outputs = []
        for model in models:
            pair = [pool.submit(without_gradient, run, x) for run in (model.run_forwards, model.run_backwards)]
            outputs.append(torch.cat([future.result() for future in pair], dim=2))
        return torch.stack(outputs).sum(dim=0)

    def per_model(models, x, pool):
        futures = [pool.submit(without_gradient, model, x) for model in models]
        return torch.stack([future.result() for future in futures]).sum(dim=0)

    def directions_swapped(models, x, pool):
        return right(models, x, pool).roll(x.shape[2], dims=2)

    with pytest.raises(NotYet, match="computed with gradients(.|\n)*set it in the task"):
        exercises.check_26_1(lambda models, x, pool: right(models, x, pool, task=lambda function, x: function(x)))
    with pytest.raises(NotYet, match=r"2 tasks had been submitted before the first `result\(\)`, not 8"):
        exercises.check_26_1(waits_early)
    with pytest.raises(NotYet, match="4 tasks had been submitted"):
        exercises.check_26_1(per_model)
    with pytest.raises(NotYet, match="0 tasks had been submitted"):
        exercises.check_26_1(lambda models, x, pool: torch.stack([model(x) for model in models]).sum(dim=0))
    with pytest.raises(NotYet, match="differs from the expected tensor(.|\n)*dimension 2"):
        exercises.check_26_1(directions_swapped)


def rnn(x, w_ih, w_hh, b_ih, b_hh, h=None):
    h, states = torch.zeros_like(x[0] @ w_ih.T) if h is None else h, []
    for x_t in x:
        h = torch.tanh(x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
        states.append(h)
    return torch.stack(states)


def test_26_2_accepts_the_formula(capsys):
    exercises.check_26_2(rnn)
    assert capsys.readouterr().out.startswith("Exercise 26.2: correct.")


def test_26_2_refuses_the_last_state_a_missing_bias_and_another_beginning():
    with pytest.raises(NotYet, match=r"has shape \[2, 5\]; it should be \[7, 2, 5\]"):
        exercises.check_26_2(lambda *args: rnn(*args)[-1])
    with pytest.raises(NotYet, match="differs from the expected tensor(.|\n)*zeros"):
        exercises.check_26_2(lambda x, w_ih, w_hh, b_ih, b_hh: rnn(x, w_ih, w_hh, b_ih, 0 * b_hh))
    with pytest.raises(NotYet, match="differs from the expected tensor"):
        exercises.check_26_2(lambda *args: rnn(*args, h=torch.ones(2, 5)))
