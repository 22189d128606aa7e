"""The checks of notebook 26: the right answer passes, plausible wrong ones are refused with a hint."""

from concurrent.futures import wait

import pytest
import torch

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet


def without_gradient(function, x):
    with torch.no_grad():
        return function(x)


def right(models, x, pool, task=without_gradient):
    futures = [(pool.submit(task, m.run_forward, x), pool.submit(task, m.run_backward, x)) for m in models]
    return torch.stack([torch.cat([a.result(), b.result()], dim=2) for a, b in futures]).sum(dim=0)


def test_26_1_accepts_eight_tasks_without_gradients(capsys):
    exercises.check_26_1(right)
    assert capsys.readouterr().out.startswith("Exercise 26.1: correct.")


def test_26_1_refuses_gradients_early_waits_tasks_per_model_and_a_wrong_order():
    def waits_early(models, x, pool):
        outputs = []
        for model in models:
            pair = [pool.submit(without_gradient, run, x) for run in (model.run_forward, model.run_backward)]
            outputs.append(torch.cat([future.result() for future in pair], dim=2))
        return torch.stack(outputs).sum(dim=0)

    def per_model(models, x, pool):
        futures = [pool.submit(without_gradient, model, x) for model in models]
        return torch.stack([future.result() for future in futures]).sum(dim=0)

    def directions_swapped(models, x, pool):
        return right(models, x, pool).roll(x.shape[2], dims=2)

    with pytest.raises(NotYet, match="computed with gradients(.|\n)*set it in the task"):
        exercises.check_26_1(lambda models, x, pool: right(models, x, pool, task=lambda function, x: function(x)))
    with pytest.raises(NotYet, match="was given 2 tasks before the first wait, not 8(.|\n)*Submit both"):
        exercises.check_26_1(waits_early)
    with pytest.raises(NotYet, match="was given 4 tasks in all, not 8(.|\n)*Submit both"):
        exercises.check_26_1(per_model)
    with pytest.raises(NotYet, match="was given no tasks in all, not 8(.|\n)*Submit both"):
        exercises.check_26_1(lambda models, x, pool: torch.stack([model(x) for model in models]).sum(dim=0))
    with pytest.raises(NotYet, match="differs from the expected tensor(.|\n)*dimension 2"):
        exercises.check_26_1(directions_swapped)


def futures_of(models, x, pool):
    return [pool.submit(without_gradient, run, x) for m in models for run in (m.run_forward, m.run_backward)]


def summed(outputs):
    return torch.stack([torch.cat(outputs[k : k + 2], dim=2) for k in range(0, 8, 2)]).sum(dim=0)


def with_timeout(models, x, pool):
    return summed([future.result(timeout=60) for future in futures_of(models, x, pool)])


def waits_for_all(models, x, pool):
    futures = futures_of(models, x, pool)
    wait(futures)
    return summed([future.result() for future in futures])


def mapped(models, x, pool):
    runs = [run for model in models for run in (model.run_forward, model.run_backward)]
    return summed(list(pool.map(without_gradient, runs, [x] * 8)))


def inference_mode(models, x, pool):
    def task(function):
        with torch.inference_mode():
            return function(x)

    futures = [pool.submit(task, run) for model in models for run in (model.run_forward, model.run_backward)]
    return summed([future.result() for future in futures])


@pytest.mark.parametrize("answer", [with_timeout, waits_for_all, mapped, inference_mode])
def test_26_1_accepts_other_ways_to_submit_and_wait(answer, capsys):
    state = torch.get_rng_state()
    exercises.check_26_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 26.1: correct.")
    assert torch.equal(torch.get_rng_state(), state)


def runs_at_submit(models, x, pool):
    runs = [run for model in models for run in (model.run_forward, model.run_backward)]
    futures = [pool.submit(lambda result: result, run(x)) for run in runs]
    return summed([future.result() for future in futures])


def every_model_twice(models, x, pool):
    futures = [pool.submit(without_gradient, model, x) for model in models for _ in range(2)]
    return torch.stack([future.result() for future in futures[::2]]).sum(dim=0)


def backwards_in_the_caller(models, x, pool):
    futures = [pool.submit(without_gradient, model.run_forward, x) for model in models]
    outputs = [model.run_backward(x) for model in models]
    both = [torch.cat([one.result(), other], dim=2) for one, other in zip(futures, outputs, strict=True)]
    return torch.stack(both).sum(dim=0)


def waits_each_time(models, x, pool):
    futures = []
    for model in models:
        for run in (model.run_forward, model.run_backward):
            futures.append(pool.submit(without_gradient, run, x))
            wait(futures)
    return summed([future.result() for future in futures])


def asks_for_errors(models, x, pool):
    futures = []
    for model in models:
        for run in (model.run_forward, model.run_backward):
            futures.append(pool.submit(without_gradient, run, x))
            assert futures[-1].exception() is None
    return summed([future.result() for future in futures])


def idle_tasks(models, x, pool):
    for _ in range(8):
        pool.submit(int)
    return torch.stack([model(x) for model in models]).sum(dim=0)


def models_and_idle_tasks(models, x, pool):
    futures = [pool.submit(without_gradient, model, x) for model in models]
    futures += [pool.submit(int) for _ in models]
    return torch.stack([future.result() for future in futures[:4]]).sum(dim=0)


def nine_tasks(models, x, pool):
    pool.submit(int)
    return with_timeout(models, x, pool)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (runs_at_submit, "Outside the pool's tasks, for example in the caller, an LSTM ran 8 times(.|\n)*runs at once"),
        (
            every_model_twice,
            "The LSTMs ran 16 times in 8 tasks, not 8 times in 8 tasks(.|\n)*one direction of one model",
        ),
        (backwards_in_the_caller, "was given 4 tasks in all, not 8(.|\n)*Submit both"),
        (waits_each_time, "was given 1 task before the first wait, not 8(.|\n)*Submit both"),
        (asks_for_errors, "was given 1 task before the first wait, not 8(.|\n)*Submit both"),
        (idle_tasks, "Outside the pool's tasks, for example in the caller, an LSTM ran 8 times"),
        (models_and_idle_tasks, "The LSTMs ran 8 times in 4 tasks, not 8 times in 8 tasks"),
        (nine_tasks, "was given 9 tasks in all, not 8"),
        (lambda models, x: None, "raised TypeError: (.|\n)*Submit both"),
        (
            lambda models, x, pool: pool.submit(models[0].run_sideways, x),
            "raised AttributeError in the line `.*run_side",
        ),
    ],
)
def test_26_1_refuses_work_elsewhere_early_waits_and_errors(answer, message):
    with pytest.raises(NotYet, match=message):
        exercises.check_26_1(answer)


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


def writes_into_a_buffer(x, w_ih, w_hh, b_ih, b_hh):
    states = torch.zeros(x.shape[0], x.shape[1], w_hh.shape[0])
    h = torch.zeros(x.shape[1], w_hh.shape[0])
    for t in range(len(x)):
        h = torch.tanh(x[t] @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
        states[t] = h
    return states


def test_26_2_accepts_a_plain_tensor_of_zeros(capsys):
    exercises.check_26_2(lambda x, *weights: rnn(x, *weights, h=x.new_zeros(x.shape[1], weights[1].shape[0])))
    assert capsys.readouterr().out.startswith("Exercise 26.2: correct.")


def test_26_2_refuses_one_size_alone_and_explains_the_errors():
    with pytest.raises(NotYet, match="raised RuntimeError in the line `(.|\n)*zeros, of shape"):
        exercises.check_26_2(lambda *args: rnn(*args, h=torch.zeros(2, 5)))
    with pytest.raises(NotYet, match="rnn under vmap` raised RuntimeError in the line `(.|\n)*vmap(.|\n)*in a list"):
        exercises.check_26_2(writes_into_a_buffer)
    with pytest.raises(NotYet, match="raised RuntimeError in the line `(.|\n)*zeros, of shape"):
        exercises.check_26_2(lambda x, *weights: rnn(x, *weights, h=torch.zeros_like(x[0])))
    with pytest.raises(NotYet, match="raised TypeError: (.|\n)*zeros, of shape"):
        exercises.check_26_2(lambda x, weights: x)
