"""The checks of notebook 20: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")


def norm(column: Tensor) -> Tensor:
    return column.square().sum().sqrt()


def add_noise(x: Tensor, noise: Tensor) -> Tensor:
    return x + noise


def add_some_noise(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def test_20_1_accepts_a_loop_and_a_comprehension(capsys):
    def loop(x: Tensor) -> Tensor:
        futures: list[torch.jit.Future[Tensor]] = []
        for column in range(x.size(1)):
            futures.append(torch.jit.fork(norm, x[:, column]))
        return torch.stack([torch.jit.wait(future) for future in futures])

    def comprehension(x: Tensor) -> Tensor:
        futures = [torch.jit.fork(norm, x[:, column]) for column in range(x.size(1))]
        return torch.stack([torch.jit.wait(future) for future in futures])

    for answer in (loop, comprehension):
        exercises.check_20_1(answer)
        assert capsys.readouterr().out.startswith("Exercise 20.1: correct.")


def test_20_1_refuses_rows_waiting_in_the_loop_no_fork_and_no_annotation():
    def rows(x: Tensor) -> Tensor:
        futures = [torch.jit.fork(norm, x[row]) for row in range(x.size(0))]
        return torch.stack([torch.jit.wait(future) for future in futures])

    def waits_at_once(x: Tensor) -> Tensor:
        return torch.stack([torch.jit.wait(torch.jit.fork(norm, x[:, k])) for k in range(x.size(1))])

    def plain(x: Tensor) -> Tensor:
        return torch.stack([norm(x[:, k]) for k in range(x.size(1))])

    def without_annotation(x: Tensor) -> Tensor:
        futures = []
        for column in range(x.size(1)):
            futures.append(torch.jit.fork(norm, x[:, column]))
        return torch.stack([torch.jit.wait(future) for future in futures])

    with pytest.raises(NotYet, match=r"shape \[4\]; it should be \[3\]"):
        exercises.check_20_1(rows)
    with pytest.raises(NotYet, match="but 1 tasks had started before the first wait, not 3(.|\n)*second loop"):
        exercises.check_20_1(waits_at_once)
    with pytest.raises(NotYet, match="but 0 tasks"):
        exercises.check_20_1(plain)
    with pytest.raises(NotYet, match="is no TorchScript(.|\n)*annotation"):
        exercises.check_20_1(without_annotation)


def test_20_2_accepts_numbers_drawn_before_the_forks(capsys):
    def noisy_pair(x: Tensor) -> Tensor:
        noise = torch.rand(2, x.size(0))
        first, second = torch.jit.fork(add_noise, x, noise[0]), torch.jit.fork(add_noise, x, noise[1])
        return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])

    exercises.check_20_2(noisy_pair)
    assert capsys.readouterr().out.startswith("Exercise 20.2: correct.")


def test_20_2_refuses_drawing_in_tasks_equal_rows_and_no_tasks():
    def draws_in_tasks(x: Tensor) -> Tensor:
        first, second = torch.jit.fork(add_some_noise, x), torch.jit.fork(add_some_noise, x)
        return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])

    def one_noise(x: Tensor) -> Tensor:
        noise = torch.rand(x.size(0))
        first, second = torch.jit.fork(add_noise, x, noise), torch.jit.fork(add_noise, x, noise)
        return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])

    def no_tasks(x: Tensor) -> Tensor:
        return torch.stack([x + torch.rand_like(x), x + torch.rand_like(x)])

    with pytest.raises(NotYet, match="depends on which task runs first(.|\n)*before the first fork"):
        exercises.check_20_2(draws_in_tasks)
    with pytest.raises(NotYet, match="same noise"):
        exercises.check_20_2(one_noise)
    with pytest.raises(NotYet, match="0 tasks were forked"):
        exercises.check_20_2(no_tasks)


def test_20_3_accepts_the_true_statements_and_refuses_others(capsys):
    exercises.check_20_3({"a", "c", "e", "f"})
    assert capsys.readouterr().out.startswith("Exercise 20.3: correct.")
    with pytest.raises(NotYet, match="has too much: b"):
        exercises.check_20_3({"a", "b", "c", "e", "f"})
    with pytest.raises(NotYet, match="lacks 2"):
        exercises.check_20_3({"a", "c"})
