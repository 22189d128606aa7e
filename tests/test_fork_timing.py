"""Timing forked ensembles: the order, the results, and what is read from a sweep."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tutorial_utils import fork_timing
from tutorial_utils.fork_timing import (
    AFTER_FORKS,
    VARIANTS,
    Problem,
    best,
    scripted,
    settings_for,
    start_pool,
    sweep_of,
    time_each,
    time_variants,
)
from tutorial_utils.timeline import profile
from tutorial_utils.timing import Measurement, in_new_process

TINY = Problem(steps=3, batch=2, size=4, models=2, repeats=3)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(1, 2), (2, 1), (2, 2)]),
        (6, [(1, 6), (2, 3), (4, 1), (6, 6)]),
        (16, [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (16, 16)]),
    ],
)
def test_settings_share_the_cores_out(cores: int, expected: list[tuple[int, int]]) -> None:
    assert settings_for(cores) == expected


def test_every_variant_is_timed_under_the_threads_asked_for() -> None:
    measurements = in_new_process(time_variants, TINY, threads=(1, 2))
    assert list(measurements) == [*VARIANTS, AFTER_FORKS]
    for name, measurement in measurements.items():
        assert measurement.unit == "ms" and len(measurement.values) == 3 and min(measurement.values) > 0
        expected = {"variant": name, "intra_op": 1, "inter_op": 2, "size": 4, "repeats": 3}
        assert expected.items() <= measurement.settings.items()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called in what order, where each call takes a second."""
    called: list[str] = []

    def fake(variant: str, problem: Problem, share: object = None) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: called.append(f"{variant} of {problem.models}") or x + 0

    monkeypatch.setattr(fork_timing, "scripted", fake)
    monkeypatch.setattr(fork_timing, "start_pool", lambda: called.append("pool"))
    monkeypatch.setattr(fork_timing.time, "perf_counter", itertools.count().__next__)
    return called


def test_no_fork_is_timed_before_anything_is_forked_and_again_in_turns(called: list[str]) -> None:
    measurements = time_variants(TINY)
    assert {tuple(measurement.values) for measurement in measurements.values()} == {(1000.0,) * TINY.repeats}
    forked = [f"{variant} of 2" for variant in list(VARIANTS)[1:]]
    warm_up = 4
    first = called.index("pool")
    assert called[:first] == ["no fork of 2"] * (warm_up + TINY.repeats)
    turns = [*forked, "no fork of 2"] * TINY.repeats
    assert called[first + 1 :] == [variant for variant in forked for _ in range(warm_up)] + turns


def test_all_problems_are_timed_unforked_before_anything_is_forked(called: list[str]) -> None:
    measurements = time_each({"two": TINY, "three": replace(TINY, models=3, repeats=1)})
    assert [len(measurements[name]["models"].values) for name in ("two", "three")] == [3, 1]
    assert called[: called.index("pool")] == ["no fork of 2"] * 7 + ["no fork of 3"] * 5


def lanes_of_the_pool() -> set[str]:
    return {span.lane for span in profile(start_pool, warmup=0).spans if span.name == "aten::mm"}


def test_every_thread_of_the_pool_runs_a_task() -> None:
    assert len(in_new_process(lanes_of_the_pool, threads=(1, 4))) == 4


def test_a_wrong_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(fork_timing.LSTMEnsemble):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([model(x) for model in self.models]).sum(dim=0) + 1

    monkeypatch.setitem(VARIANTS, "models", (Wrong, fork_timing.BidirectionalLSTM))
    with pytest.raises(RuntimeError, match="models: the result differs from the unforked one"):
        time_variants(TINY)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_have_equal_parameters_or_share_those_of_one(variant: str) -> None:
    unforked = scripted("no fork", TINY)
    sharing, own = scripted(variant, TINY, unforked), scripted(variant, TINY)
    addresses = [{parameter.data_ptr() for parameter in net.parameters()} for net in (unforked, sharing, own)]
    assert addresses[0] == addresses[1] and not addresses[0] & addresses[2]
    x = torch.randn(3, 2, 4)
    with torch.no_grad():
        assert torch.equal(unforked(x), sharing(x)) and torch.equal(unforked(x), own(x))


def measured(intra_op: int, inter_op: int, **ms: float) -> list[Measurement]:
    threads = {"intra_op": intra_op, "inter_op": inter_op}
    return [Measurement([value], "ms", settings={**threads, "variant": name}) for name, value in ms.items()]


def test_the_best_is_sought_among_all_settings_the_unforked_one_before_the_forks() -> None:
    names = [*VARIANTS, AFTER_FORKS]
    sweep = sweep_of(
        measured(1, 4, **dict(zip(names, (8.0, 4.0, 3.0, 2.0, 1.0), strict=True)))
        + measured(4, 4, **dict(zip(names, (3.0, 5.0, 2.5, 4.0, 1.0), strict=True)))
    )
    assert {setting: list(variants) for setting, variants in sweep.items()} == {"1/4": names, "4/4": names}
    assert (best(sweep, forked=False).median, best(sweep, forked=True).median) == (3.0, 2.0)
    assert best(sweep, forked=True).settings == {"intra_op": 1, "inter_op": 4, "variant": "directions and models"}
