"""The checks of notebook 25: right answers pass, plausible wrong ones are refused with a hint."""

import math
from collections.abc import Callable

import pytest
import torch

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet

Medians = dict[str, dict[str, float]]


def best_fork(medians: Medians) -> tuple[str, str, float]:
    unforked = min(medians["no fork"].values())
    forked = {(v, s): t for v, by in medians.items() if v != "no fork" for s, t in by.items()}
    variant, setting = min(forked, key=forked.__getitem__)
    return variant, setting, unforked / forked[variant, setting]


def test_25_1_accepts_the_best_over_the_best(capsys):
    exercises.check_25_1(best_fork)
    assert capsys.readouterr().out.startswith("Exercise 25.1: correct.")


def test_25_1_refuses_the_gain_at_the_same_setting():
    def same_setting(medians: Medians) -> tuple[str, str, float]:
        variant, setting, _ = best_fork(medians)
        return variant, setting, medians["no fork"].get(setting, 8.0) / medians[variant][setting]

    with pytest.raises(
        NotYet, match=r"`gain of best_fork\(medians\)` is 2.6\d*, (.|\n)*Hint: (.|\n)*once among `no fork`"
    ):
        exercises.check_25_1(same_setting)


def test_25_1_refuses_no_fork_as_the_best_fork():
    def any_variant(medians: Medians) -> tuple[str, str, float]:
        times = {(v, s): t for v, by in medians.items() for s, t in by.items()}
        variant, setting = min(times, key=times.__getitem__)
        return variant, setting, min(medians["no fork"].values()) / times[variant, setting]

    with pytest.raises(NotYet, match=r"`variant of best_fork\(medians\)` is 'no fork'(.|\n)*Hint"):
        exercises.check_25_1(any_variant)


def test_25_2_accepts_the_rule(capsys):
    exercises.check_25_2(lambda cores, tasks: (cores // min(tasks, cores), min(tasks, cores)))
    assert capsys.readouterr().out.startswith("Exercise 25.2: correct.")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cores, tasks: (cores // tasks, tasks),  # 0 threads where the tasks outnumber the cores
        lambda cores, tasks: (min(tasks, cores), cores // min(tasks, cores)),  # the order
        lambda cores, tasks: (cores / min(tasks, cores), min(tasks, cores)),  # no integer where it does not divide
        lambda cores, tasks: (cores, cores),
    ],
)
def test_25_2_refuses_too_many_threads_and_none(wrong):
    with pytest.raises(NotYet, match="threads_for(.|\n)*Hint: (.|\n)*Inter-op: one thread for each task"):
        exercises.check_25_2(wrong)


def test_25_1_accepts_a_list_and_a_rounded_gain(capsys):
    def other(medians: Medians) -> list[object]:
        variant, setting, _ = best_fork(medians)
        unforked = min(medians["no fork"].values())
        return [variant, setting, math.exp(math.log(unforked) - math.log(medians[variant][setting]))]

    exercises.check_25_1(other)
    assert capsys.readouterr().out.startswith("Exercise 25.1: correct.")


def test_25_1_refuses_two_variants_of_three_and_the_first_or_last_unforked_setting():
    def two_variants(medians: Medians) -> tuple[str, str, float]:
        return best_fork({name: medians[name] for name in ("no fork", "directions", "models")})

    def unforked(place: int) -> Callable[[Medians], tuple[str, str, float]]:
        return lambda medians: best_fork(medians | {"no fork": {"1": list(medians["no fork"].values())[place]}})

    with pytest.raises(NotYet, match=r"`variant of best_fork\(medians\)` is 'directions'(.|\n)*directions and models"):
        exercises.check_25_1(two_variants)
    for place in (0, -1):
        with pytest.raises(
            NotYet, match=r"`gain of best_fork\(medians\)` is(.|\n)*too large(.|\n)*once among `no fork`"
        ):
            exercises.check_25_1(unforked(place))


def test_25_1_says_what_an_answer_raised_and_what_it_lacks():
    def same_settings(medians: Medians) -> tuple[str, str, float]:
        gains = {(v, s): medians["no fork"][s] / t for v, by in medians.items() for s, t in by.items()}
        return (*max(gains, key=gains.__getitem__), max(gains.values()))

    with pytest.raises(
        NotYet, match="raised KeyError in the line `.*`: '2/2'(.|\n)*Not every variant has every setting"
    ):
        exercises.check_25_1(same_settings)
    with pytest.raises(NotYet, match="no tuple of three(.|\n)*`return variant, setting, gain`"):
        exercises.check_25_1(lambda medians: best_fork(medians)[:2])
    with pytest.raises(NotYet, match="is not filled in yet"):
        exercises.check_25_1(lambda medians: None)


def test_25_2_accepts_a_list_and_refuses_other_numbers_and_errors(capsys):
    exercises.check_25_2(lambda cores, tasks: [cores // min(tasks, cores), min(tasks, cores)])
    assert capsys.readouterr().out.startswith("Exercise 25.2: correct.")
    with pytest.raises(NotYet, match=r"is \(2.0, 8\), which are no integers(.|\n)*Divide with `//`"):
        exercises.check_25_2(lambda cores, tasks: (float(cores // min(tasks, cores)), min(tasks, cores)))
    with pytest.raises(NotYet, match="first wrong entry is number 0(.|\n)*Hint: Inter-op"):
        exercises.check_25_2(lambda cores, tasks: (torch.ones(2), tasks))
    with pytest.raises(NotYet, match="raised TypeError: (.|\n)*Hint: Inter-op"):
        exercises.check_25_2(lambda cores: (1, cores))
