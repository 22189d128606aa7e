"""The checks of notebook 23: right answers pass, plausible wrong ones are refused with a hint."""

import math
from itertools import combinations, pairwise

import pytest
import torch

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


def test_23_1_accepts_a_float32_tensor(capsys):
    def overlap(intervals: list[tuple[float, float]]) -> torch.Tensor:
        busy = torch.zeros(400, dtype=torch.bool)
        for start, end in intervals:
            busy[int(start) : int(end)] = True
        return torch.tensor(work(intervals)) / busy.sum()

    exercises.check_23_1(overlap)
    assert capsys.readouterr().out.startswith("Exercise 23.1: correct.")


def test_23_1_refuses_the_work_minus_every_pairs_overlap():
    def pairs(intervals: list[tuple[float, float]]) -> float:
        both = [min(a[1], b[1]) - max(a[0], b[0]) for a, b in combinations(intervals, 2)]
        return work(intervals) / (work(intervals) - sum(max(0.0, length) for length in both))

    with pytest.raises(NotYet, match=r"\(30.0, 60.0\)\]\)` is 3.0(.|\n)*too large(.|\n)*Hint: Sort by start"):
        exercises.check_23_1(pairs)


def test_23_1_says_what_an_answer_raised():
    with pytest.raises(NotYet, match="raised TypeError in the line `.*`: (.|\n)*Hint: Sort by start"):
        exercises.check_23_1(lambda intervals: sum(intervals))
    with pytest.raises(NotYet, match="is not filled in yet: it returns nothing(.|\n)*end it with `return`"):
        exercises.check_23_1(lambda intervals: print(end=""))
    with pytest.raises(NotYet, match="of type complex; it should be of type float"):
        exercises.check_23_1(lambda intervals: 1j)


def lane_as_one_interval(trace: Timeline) -> float:
    ends = {}
    for span in trace.spans:
        start, end = ends.get(span.lane, (span.start_us, span.end_us))
        ends[span.lane] = min(start, span.start_us), max(end, span.end_us)
    return alone(list(ends.values()))


def alone(intervals: list[tuple[float, float]]) -> float:
    times = sorted({time for interval in intervals for time in interval})
    busy = [(b - a, sum(start <= a and b <= end for start, end in intervals)) for a, b in pairwise(times)]
    return sum(length for length, lanes in busy if lanes == 1)


def test_23_2_accepts_a_sweep_over_the_spans(capsys):
    exercises.check_23_2(lambda trace: alone([(span.start_us, span.end_us) for span in trace.spans]))
    assert capsys.readouterr().out.startswith("Exercise 23.2: correct.")


@pytest.mark.parametrize(
    "answer",
    [
        lane_as_one_interval,
        lambda trace: alone([(span.start_us, span.end_us) for span in trace.spans[:2]]),  # the first two alone
        lambda trace: 2 * min(100.0, trace.spans[1].start_us - trace.spans[0].start_us),  # spans of 100 µs
    ],
)
def test_23_2_refuses_answers_for_one_span_per_lane_and_shows_the_trace(answer):
    with pytest.raises(
        NotYet, match=r"`alone_us\(trace\)` is \d(.|\n)*too small(.|\n)*work from 0 to \d+ µs in lane a, "
    ):
        exercises.check_23_2(answer)
