"""The checks of notebook 20: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor
from torch.jit import fork, wait

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
    with pytest.raises(NotYet, match="but 1 task had started before the first wait, not 3(.|\n)*second loop"):
        exercises.check_20_1(waits_at_once)
    with pytest.raises(NotYet, match="but no tasks had"):
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
    with pytest.raises(NotYet, match="forks no tasks before the first wait; it should fork 2"):
        exercises.check_20_2(no_tasks)


def test_20_3_accepts_the_true_statements_and_refuses_others(capsys):
    exercises.check_20_3({"a", "c", "e", "f"})
    assert capsys.readouterr().out.startswith("Exercise 20.3: correct.")
    with pytest.raises(NotYet, match="has too much: b"):
        exercises.check_20_3({"a", "b", "c", "e", "f"})
    with pytest.raises(NotYet, match="lacks 2"):
        exercises.check_20_3({"a", "c"})


def identity(x: Tensor) -> Tensor:
    return x


def keep_column(column: Tensor) -> Tensor:
    return column * 1


def norm_of(x: Tensor, k: int) -> float:
    return float(x[:, k].square().sum().sqrt())


def imported_names(x: Tensor) -> Tensor:
    futures = [fork(norm, x[:, k]) for k in range(x.size(1))]
    return torch.stack([wait(future) for future in futures])


def method_wait(x: Tensor) -> Tensor:
    futures = torch.jit.annotate(list[torch.jit.Future[Tensor]], [])
    for k in range(x.size(1)):
        futures.append(torch.jit.fork(norm, x[:, k]))
    return torch.stack([future.wait() for future in futures])


def numbers(x: Tensor) -> Tensor:
    futures = [torch.jit._fork(norm_of, x, k) for k in range(x.size(1))]
    return torch.tensor([torch.jit._wait(future) for future in futures])


@pytest.mark.parametrize("answer", [imported_names, method_wait, numbers])
def test_20_1_accepts_other_names_of_fork_and_wait(answer, capsys):
    exercises.check_20_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 20.1: correct.")
    assert fork is torch.jit.fork is torch.jit._async.fork and wait is torch.jit.wait is torch.jit._async.wait


def test_20_1_accepts_names_of_an_enclosing_function(capsys):
    from torch.jit import fork as start
    from torch.jit import wait as result

    def answer(x: Tensor) -> Tensor:
        futures = [start(norm, x[:, k]) for k in range(x.size(1))]
        return torch.stack([result(future) for future in futures])

    exercises.check_20_1(answer)
    assert capsys.readouterr().out.startswith("Exercise 20.1: correct.")
    assert start is torch.jit.fork and result is torch.jit.wait


def idle_tasks(x: Tensor) -> Tensor:
    futures = [fork(identity, norm(x[:, k])) for k in range(x.size(1))]
    return torch.stack([wait(future) for future in futures])


def norm_of_norm(x: Tensor) -> Tensor:
    futures = [fork(norm, norm(x[:, k]).unsqueeze(0)) for k in range(x.size(1))]
    return torch.stack([wait(future) for future in futures])


def results_thrown_away(x: Tensor) -> Tensor:
    futures = [fork(norm, x[:, k]) for k in range(x.size(1))]
    for future in futures:
        wait(future)
    return torch.stack([norm(x[:, k]) for k in range(x.size(1))])


def never_waits(x: Tensor) -> Tensor:
    futures = [fork(norm, x[:, k]) for k in range(x.size(1))]
    return torch.stack([norm(x[:, k]) for k in range(len(futures))])


def norm_in_the_caller(x: Tensor) -> Tensor:
    futures = [fork(keep_column, x[:, k]) for k in range(x.size(1))]
    return torch.stack([norm(wait(future)) for future in futures])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (idle_tasks, "a task only returns what it was given(.|\n)*Give each task a column"),
        (norm_of_norm, "a task only returns what it was given(.|\n)*Give each task a column"),
        (results_thrown_away, "it is not what the tasks return(.|\n)*Give each task a column"),
        (never_waits, "it is not what the tasks return(.|\n)*Give each task a column"),
        (norm_in_the_caller, "it is not what the tasks return(.|\n)*Give each task a column"),
    ],
)
def test_20_1_refuses_tasks_that_do_not_do_the_work(answer, message):
    with pytest.raises(NotYet, match=message):
        exercises.check_20_1(answer)


def two_arguments(x: Tensor, k: int) -> Tensor:
    return norm(x[:, k])


def fails(x: Tensor) -> Tensor:
    return x[100]


def unfilled(x: Tensor) -> Tensor: ...


def unknown_method(x: Tensor) -> Tensor:
    return x.norms()


def without_a_type(x: Tensor) -> Tensor:
    futures = []
    for k in range(x.size(1)):
        futures.append(fork(norm, x[:, k]))
    return torch.stack([wait(future) for future in futures])


def test_20_1_says_what_an_answer_raised_and_hints():
    with pytest.raises(NotYet, match=r"raised RuntimeError: two_arguments\(\) is missing value(.|\n)*Hint: One task"):
        exercises.check_20_1(two_arguments)
    with pytest.raises(NotYet, match=r"raised RuntimeError: select\(\): index 100 out of range(.|\n)*Hint: One task"):
        exercises.check_20_1(fails)


def test_20_1_hints_at_an_annotation_only_where_it_is_missing():
    with pytest.raises(NotYet, match="`column_norms` is not filled in yet") as raised:
        exercises.check_20_1(unfilled)
    assert "annotation" not in str(raised.value)
    with pytest.raises(NotYet, match="is no TorchScript: 'Tensor' object has no attribute or method 'norms'") as raised:
        exercises.check_20_1(unknown_method)
    assert "An empty list" not in str(raised.value)
    with pytest.raises(NotYet, match=r"Could not match type Future(.|\n)*list\[torch.jit.Future\[Tensor\]\] = \[\]"):
        exercises.check_20_1(without_a_type)


def test_20_1_and_20_2_ask_for_the_plain_function():
    for check in (exercises.check_20_1, exercises.check_20_2):
        with pytest.raises(
            NotYet, match="is scripted already(.|\n)*pass the plain function; the check scripts it itself"
        ):
            check(torch.jit.script(imported_names))


def noise_between_the_forks(x: Tensor) -> Tensor:
    first = fork(add_noise, x, torch.rand_like(x))
    second = fork(add_noise, x, torch.rand_like(x))
    return torch.stack([second.wait(), first.wait()])


def test_20_2_accepts_drawing_between_the_forks_and_waits_in_any_order(capsys):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    exercises.check_20_2(noise_between_the_forks)
    assert capsys.readouterr().out.startswith("Exercise 20.2: correct.")
    assert torch.equal(torch.get_rng_state(), state)


def one_task_draws(x: Tensor) -> Tensor:
    first, second = fork(add_some_noise, x), fork(add_noise, x, torch.rand_like(x))
    return torch.stack([wait(first), wait(second)])


def sets_a_seed(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    noise = torch.rand(2, x.size(0))
    first, second = fork(add_noise, x, noise[0]), fork(add_noise, x, noise[1])
    return torch.stack([wait(first), wait(second)])


def seeded_noise(x: Tensor, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return x + torch.rand_like(x)


def tasks_set_seeds(x: Tensor) -> Tensor:
    first, second = fork(seeded_noise, x, 1), fork(seeded_noise, x, 2)
    return torch.stack([wait(first), wait(second)])


def constant_noise(x: Tensor) -> Tensor:
    first, second = fork(add_noise, x, torch.zeros_like(x)), fork(add_noise, x, torch.ones_like(x))
    return torch.stack([wait(first), wait(second)])


def no_x(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = fork(add_noise, torch.zeros_like(x), noise[0]), fork(add_noise, torch.zeros_like(x), noise[1])
    return torch.stack([wait(first), wait(second)])


def one_length(x: Tensor) -> Tensor:
    noise = torch.rand(2, 5)
    first, second = fork(add_noise, x, noise[0]), fork(add_noise, x, noise[1])
    return torch.stack([wait(first), wait(second)])


def adds_in_the_caller(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = fork(identity, x + noise[0]), fork(identity, x + noise[1])
    return torch.stack([wait(first), wait(second)])


def waits_for_nothing(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = fork(add_noise, x, noise[0]), fork(add_noise, x, noise[1])
    wait(first), wait(second)
    return x + noise


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (one_task_draws, "depends on which task runs first(.|\n)*before the first fork"),
        (sets_a_seed, "sets a seed itself(.|\n)*The caller sets the seed"),
        (tasks_set_seeds, "sets a seed itself(.|\n)*The caller sets the seed"),
        (constant_noise, "Two seeds give the same result(.|\n)*torch.rand"),
        (no_x, "is not `x` plus noise(.|\n)*Pass `x` itself"),
        (one_length, r"`noisy_pair\(torch.zeros\(3\)\)` raised RuntimeError(.|\n)*noise of its length"),
        (adds_in_the_caller, "a task only returns what it was given(.|\n)*`add_noise` as its function"),
        (waits_for_nothing, "it is not what the tasks return(.|\n)*`add_noise` as its function"),
    ],
)
def test_20_2_refuses_races_seeds_constants_and_idle_tasks(answer, message):
    with pytest.raises(NotYet, match=message):
        exercises.check_20_2(answer)


@pytest.mark.parametrize(
    "answer", [["a", "c", "e", "f"], ("A", "C", "E", "F"), "f, e, c, a", "ACEF", frozenset("acef")]
)
def test_20_3_accepts_any_collection_in_either_case(answer, capsys):
    exercises.check_20_3(answer)
    assert capsys.readouterr().out.startswith("Exercise 20.3: correct.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"..."}, "is not filled in yet"),
        ("abc", "lacks 2 and has too much: b"),
        ({1, 3}, "should be a set of letters(.|\n)*quotation marks"),
        ([torch.ones(2)], "should be a set of letters(.|\n)*quotation marks"),
        (3, "should be a set of letters(.|\n)*quotation marks"),
    ],
)
def test_20_3_refuses_what_is_no_letter(answer, message):
    with pytest.raises(NotYet, match=message):
        exercises.check_20_3(answer)
