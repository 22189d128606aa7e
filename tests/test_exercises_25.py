"""The checks of notebook 25: right answers pass, plausible wrong ones are refused with a hint."""

import pytest

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

    with pytest.raises(NotYet, match="first wrong entry is number 2(.|\n)*Hint: (.|\n)*once among `no fork`"):
        exercises.check_25_1(same_setting)


def test_25_1_refuses_no_fork_as_the_best_fork():
    def any_variant(medians: Medians) -> tuple[str, str, float]:
        times = {(v, s): t for v, by in medians.items() for s, t in by.items()}
        variant, setting = min(times, key=times.__getitem__)
        return variant, setting, min(medians["no fork"].values()) / times[variant, setting]

    with pytest.raises(NotYet, match="no fork(.|\n)*first wrong entry is number 0(.|\n)*Hint"):
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
    with pytest.raises(NotYet, match="threads_for(.|\n)*Hint: Inter-op: one thread for each task"):
        exercises.check_25_2(wrong)
