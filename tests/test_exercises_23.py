"""The checks of notebook 23: right answers pass, plausible wrong ones are refused with a hint."""

import math

import pytest

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet
from tutorial_utils.timeline import Timeline


def work(intervals: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


def test_23_1_accepts_a_sweep_over_sorted_intervals(capsys):
    def overlap(intervals: list[tuple[float, float]]) -> float:
        busy, reached = 0.0, -math.inf
        for start, end in sorted(intervals):
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return work(intervals) / busy

    exercises.check_23_1(overlap)
    assert capsys.readouterr().out.startswith("Exercise 23.1: correct.")


def test_23_1_refuses_the_whole_span_as_busy_time():
    def with_gaps(intervals: list[tuple[float, float]]) -> float:
        return work(intervals) / (max(end for _, end in intervals) - min(start for start, _ in intervals))

    with pytest.raises(NotYet, match="too small(.|\n)*Hint: Sort by start"):
        exercises.check_23_1(with_gaps)


def test_23_1_refuses_the_last_end_instead_of_the_latest():
    def last_end(intervals: list[tuple[float, float]]) -> float:
        busy, reached = 0.0, -math.inf
        for start, end in sorted(intervals):
            busy += max(0.0, end - max(start, reached))
            reached = end
        return work(intervals) / busy

    with pytest.raises(NotYet, match=r"overlap\(\[\(0.0, 100.0\), \(10.0, 20.0\), (.|\n)*Hint: (.|\n)*latest end"):
        exercises.check_23_1(last_end)


def work_us(trace: Timeline) -> float:
    return sum(span.duration_us for span in trace.spans)


def test_23_2_accepts_twice_the_busy_time_minus_the_work(capsys):
    exercises.check_23_2(lambda trace: 2 * work_us(trace) / trace.busy_lanes() - work_us(trace))
    assert capsys.readouterr().out.startswith("Exercise 23.2: correct.")


def test_23_2_refuses_the_time_of_both_and_the_difference_of_the_lanes():
    with pytest.raises(NotYet, match="is 50(.|\n)*too small(.|\n)*Hint: The work counts"):
        exercises.check_23_2(lambda trace: work_us(trace) - work_us(trace) / trace.busy_lanes())
    with pytest.raises(NotYet, match="Hint: The work counts"):
        exercises.check_23_2(lambda trace: abs(trace.spans[0].duration_us - trace.spans[1].duration_us))
    with pytest.raises(NotYet, match="`alone_us` is not filled in"):
        exercises.check_23_2(...)
