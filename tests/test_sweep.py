"""The thread sweep: its arithmetic, and that it survives failures and interruptions."""

from __future__ import annotations

import json

import pytest

from tutorial_utils import sweep as s

TINY = s.Problem(steps=3, batch=2, size=4, models=2, repeats=3)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, [(1, 1)]), (2, [(1, 2), (2, 1), (2, 2)]), (6, [(1, 6), (2, 3), (4, 1), (6, 6)])],
)
def test_settings_share_the_cores_out(cores, expected) -> None:
    assert s.settings_for(cores) == expected


def test_a_sweep_measures_every_variant_in_its_own_process() -> None:
    results = s.sweep(TINY, [(1, 1), (1, 2)])
    assert list(results) == ["1/1", "1/2"] and s.failures(results) == {}
    for entry in results.values():
        assert list(entry) == list(s.VARIANTS)
        assert all(len(samples) == 3 and min(samples) > 0 for samples in entry.values())


def test_a_failing_setting_is_named_and_the_others_go_on() -> None:
    results = s.sweep(TINY, [(0, 1), (1, 1)])
    assert "error" not in results["1/1"]
    assert list(s.failures(results)) == ["0/1"] and "positive" in s.failures(results)["0/1"]
    assert list(s.medians(results)["no fork"]) == ["1/1"]


def test_a_setting_that_takes_too_long_is_given_up() -> None:
    assert s.measure_setting(TINY, 1, 1, timeout_s=0.01) == {"error": "no result within 0 s"}


def test_an_interrupted_sweep_resumes(tmp_path, monkeypatch) -> None:
    asked = []

    def fake(problem, intra, inter, timeout_s):
        asked.append((intra, inter))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"error": "lost"} if intra == 4 else {name: [0.1 * intra] for name in s.VARIANTS}

    monkeypatch.setattr(s, "measure_setting", fake)
    file, settings = tmp_path / "sweep.json", [(1, 4), (2, 2), (4, 1)]
    with pytest.raises(KeyboardInterrupt):
        s.sweep(TINY, settings, file)
    assert list(json.loads(file.read_text())["results"]) == ["1/4"]
    results = s.sweep(TINY, settings, file)
    assert asked == [(1, 4), (2, 2), (2, 2), (4, 1)] and list(results) == ["1/4", "2/2", "4/1"]
    s.sweep(TINY, settings, file)
    assert asked[4:] == [(4, 1)], "what failed is tried again, what succeeded is not"


def test_a_file_of_another_problem_is_refused(tmp_path) -> None:
    file = tmp_path / "sweep.json"
    file.write_text('{"problem": {"size": 1}, "results": {}}')
    with pytest.raises(ValueError, match="sweep.json holds the sweep of another problem"):
        s.sweep(TINY, [(1, 1)], file)
    file.write_text("{")
    with pytest.raises(ValueError, match="sweep.json holds no sweep"):
        s.sweep(TINY, [(1, 1)], file)


def test_medians() -> None:
    results = {"1/2": {name: [3.0, 1.0, 2.0] for name in s.VARIANTS}, "2/1": {"error": "why"}}
    assert s.medians(results)["models"] == {"1/2": 2.0}


@pytest.mark.parametrize("value", [0, -1, 1.5, "3"])
def test_a_problem_needs_positive_numbers(value) -> None:
    with pytest.raises(ValueError, match="Problem.size must be a positive int"):
        s.Problem(size=value)


def test_a_wrong_result_is_refused(monkeypatch) -> None:
    class Wrong(s.LSTMEnsemble):
        def forward(self, x: s.torch.Tensor) -> s.torch.Tensor:
            return s.torch.stack([model(x) for model in self.models]).sum(dim=0) + 1

    monkeypatch.setitem(s.VARIANTS, "models", (Wrong, s.BidirectionalLSTM))
    with pytest.raises(RuntimeError, match="models: the result differs from the unforked one"):
        s.measure(TINY)


def test_variants_can_share_the_parameters_of_one() -> None:
    unforked = s.scripted("no fork", TINY)
    for variant in s.VARIANTS:
        sharing, own = s.scripted(variant, TINY, unforked), s.scripted(variant, TINY)
        addresses = [{p.data_ptr() for p in net.parameters()} for net in (unforked, sharing, own)]
        assert addresses[0] == addresses[1] and not addresses[0] & addresses[2]
        x = s.torch.randn(3, 2, 4)
        with s.torch.no_grad():
            assert s.torch.equal(unforked(x), sharing(x)) and s.torch.equal(unforked(x), own(x))


RESULTS = {
    "1/4": {"no fork": [8.0, 9.0, 7.0], "directions": [4.0], "directions and models": [2.0], "models": [3.0]},
    "2/2": {"error": "why"},
    "4/4": {"no fork": [3.0], "directions": [5.0], "directions and models": [4.0], "models": [2.5, 1.5]},
}


def test_best_compares_the_best_settings_and_those_with_one_thread() -> None:
    assert s.best(RESULTS) == {
        "best_unforked_s": 3.0,
        "best_unforked_at": "4/4: no fork",
        "best_forked_s": 2.0,
        "best_forked_at": "1/4: directions and models",
        "gain": 1.5,
        "gain_1_thread": 4.0,
    }
    without_one = s.best({"4/4": RESULTS["4/4"], "2/2": RESULTS["2/2"]})
    assert without_one["gain_1_thread"] is None and without_one["gain"] == 1.5
    assert set(s.best({"2/2": {"error": "why"}}).values()) == {None}


def test_a_recorded_sweep_reads_like_one_of_this_machine() -> None:
    measurements = {"step_eager": {"samples": [1.0]}, "fork_other_1_4": {"error": "another problem"}}
    for at, entry in RESULTS.items():
        name = "fork_small_" + at.replace("/", "_")
        measurements[name] = (
            entry
            if "error" in entry
            else {"samples": entry["no fork"]}
            | {variant: {"samples": samples} for variant, samples in entry.items() if variant != "no fork"}
        )
    assert s.recorded(measurements, "small") == RESULTS
    assert s.recorded(measurements, "source") == {}
