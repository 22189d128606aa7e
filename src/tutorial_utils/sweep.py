"""Time an ensemble of bidirectional LSTMs, forked and not, under several thread settings.

The inter-op pool is made once per process (``torch.set_num_interop_threads`` raises after parallel work has started),
so that :func:`sweep` starts one process per setting. A setting that fails is noted and the others go on; with a file,
an interrupted sweep continues where it stopped.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tutorial_utils.models import BidirectionalLSTM, ForkedBidirectionalLSTM, ForkedLSTMEnsemble, LSTMEnsemble
from tutorial_utils.reference import measured

VARIANTS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "no fork": (LSTMEnsemble, BidirectionalLSTM),
    "directions": (LSTMEnsemble, ForkedBidirectionalLSTM),
    "directions and models": (ForkedLSTMEnsemble, ForkedBidirectionalLSTM),
    "models": (ForkedLSTMEnsemble, BidirectionalLSTM),
}
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Problem:
    """What is computed: ``models`` bidirectional LSTMs on float32 ``[steps, batch, size]``, under no_grad."""

    steps: int = 50
    batch: int = 50
    size: int = 1024
    models: int = 4
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Problem.{name} must be a positive int, not {value!r}.")


SOURCE_SIZE = Problem()
SMALL = Problem(batch=8, size=128)


def settings_for(cores: int) -> list[tuple[int, int]]:
    """Return ``(intra-op, inter-op)`` pairs for ``cores`` cores: those that share them out, and PyTorch's default."""
    shared = [(2**k, max(1, cores // 2**k)) for k in range(cores.bit_length()) if 2**k <= cores]
    return list(dict.fromkeys([*shared, (cores, cores)]))


@dataclass(frozen=True)
class SweepPlan:
    """What ``python -m tutorial_utils.benchmark --part fork`` measures: each problem under each thread setting."""

    problems: dict[str, Problem]
    threads: list[tuple[int, int]]

    def settings(self) -> dict[str, Any]:
        """What a rerun must agree with, beside the machine."""
        note = "in a row, as many as take about 50 ms without fork, at least one; autograd off; the variants take turns"
        return {"part": "fork", "plan": asdict(self), "dtype": "float32", "sample": f"the mean of calls {note}"}

    def measurements(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """Every measurement by its name."""
        pairs = [(problem, *pair) for problem in self.problems for pair in self.threads]
        return {f"fork_{p}_{a}_{b}": partial(fork, problem=p, intra_op=a, inter_op=b) for p, a, b in pairs}

    def derive(self, entries: dict[str, Any]) -> dict[str, Any]:
        """What :func:`best` says of each problem, which precedes the name."""
        found = {problem: best(recorded(entries, problem)) for problem in self.problems}
        return {f"{problem}_{key}": value for problem, keys in found.items() for key, value in keys.items()}


def sweep_plan(quick: bool, cores: int) -> SweepPlan:
    """Return the benchmark's plan for a machine with ``cores`` cores; ``quick`` takes seconds instead of minutes."""
    if quick:
        return SweepPlan({"small": Problem(steps=3, batch=2, size=4, models=2, repeats=2)}, settings_for(cores)[:2])
    return SweepPlan(
        {"source": replace(SOURCE_SIZE, repeats=9), "small": replace(SMALL, repeats=9)}, settings_for(cores)
    )


def scripted(variant: str, problem: Problem, share: nn.Module | None = None) -> nn.Module:
    """Return the scripted ensemble of a variant in :data:`VARIANTS`; all variants have the same weights.

    With ``share``, another variant of the same problem, it holds that one's own parameters instead of equal ones.
    """
    ensemble, model = VARIANTS[variant]
    torch.manual_seed(0)
    with torch.device("cpu" if share is None else "meta"):
        net = ensemble([model(problem.size) for _ in range(problem.models)])
    if share is not None:
        net.load_state_dict(share.state_dict(), assign=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script` is deprecated")
        return torch.jit.script(net)


def measure(problem: Problem) -> dict[str, list[float]]:
    """Return each variant's seconds per call in this process, ``repeats`` samples.

    A sample is the mean over calls in a row, as many as take about 50 ms without fork, and at least one. The variants
    take turns, so that a change of the host's load meets all of them. Before the first sample each is called twice
    on two time steps, which lets TorchScript optimise, and once on all: that starts the threads and reserves memory.

    Raises:
        RuntimeError: a variant's result is not bitwise that of the unforked one.
    """
    unforked = scripted("no fork", problem)
    nets = {name: unforked if name == "no fork" else scripted(name, problem, unforked) for name in VARIANTS}
    x = torch.randn(problem.steps, problem.batch, problem.size, generator=torch.Generator().manual_seed(1))
    samples: dict[str, list[float]] = {name: [] for name in nets}
    with torch.no_grad():
        for net in nets.values():
            for part in (x[:2], x[:2], x):
                net(part)
        start = time.perf_counter()
        expected = unforked(x)
        calls = max(1, round(0.05 / (time.perf_counter() - start)))
        for _ in range(problem.repeats):
            for name, net in nets.items():
                start = time.perf_counter()
                for _ in range(calls):
                    result = net(x)
                samples[name].append(float(f"{(time.perf_counter() - start) / calls:.6g}"))
                if not torch.equal(result, expected):
                    raise RuntimeError(f"{name}: the result differs from the unforked one")
    return samples


def measure_setting(problem: Problem, intra_op: int, inter_op: int, timeout_s: float = 300.0) -> dict[str, Any]:
    """Return what :func:`measure` gives in a new process with these threads, or ``{"error": why}``."""
    command = [sys.executable, "-m", "tutorial_utils.sweep", str(intra_op), str(inter_op), json.dumps(asdict(problem))]
    source = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, "PYTHONPATH": path}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {timeout_s:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"the process ended with code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def fork(plan: SweepPlan, problem: str, intra_op: int, inter_op: int) -> dict[str, Any]:
    """s of a call without fork, in a new process with these threads; and of one of each forked variant."""
    asked = plan.problems[problem]
    samples = measure_setting(asked, intra_op, inter_op)
    if "error" in samples:
        raise RuntimeError(samples["error"])
    forked = {name: measured("s", samples[name], {"variant": name}) for name in VARIANTS if name != "no fork"}
    settings = {"variant": "no fork", **asdict(asked), "intra_op": intra_op, "inter_op": inter_op}
    return measured("s", samples["no fork"], settings, **forked)


def sweep(
    problem: Problem,
    settings: list[tuple[int, int]],
    file: str | Path | None = None,
    timeout_s: float = 300.0,
) -> Results:
    """Measure every setting in a process of its own.

    Args:
        problem: what is computed.
        settings: ``(intra-op threads, inter-op threads)`` pairs.
        file: JSON that is written after every setting, and continued if it exists; failed settings are tried again.
        timeout_s: seconds after which a setting counts as failed.

    Returns:
        For each setting, as ``"intra/inter"``, seconds per call by variant, or ``{"error": why}``.

    Raises:
        ValueError: ``file`` holds the sweep of another problem, or no sweep.
    """
    results: Results = {}
    path = None if file is None else Path(file)
    if path is not None and path.exists():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            previous, results = saved["problem"], saved["results"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name} holds no sweep ({error}); delete it or choose another file.") from error
        if previous != asdict(problem):
            raise ValueError(f"{path.name} holds the sweep of another problem, {previous}; choose another file.")
    names = {f"{intra}/{inter}": (intra, inter) for intra, inter in settings}
    todo = [name for name in names if "error" in results.get(name, {"error": "not measured yet"})]
    for name in (bar := tqdm(todo, unit="setting")):
        bar.set_postfix_str(f"{name} threads")
        results[name] = measure_setting(problem, *names[name], timeout_s)
        if path is not None:
            part = path.with_name(path.name + ".part")
            part.write_text(json.dumps({"problem": asdict(problem), "results": results}, indent=1), encoding="utf-8")
            os.replace(part, path)
    return {name: results[name] for name in names}


def failures(results: Results) -> dict[str, str]:
    """Return why each failed setting failed."""
    return {name: entry["error"] for name, entry in results.items() if "error" in entry}


def medians(results: Results) -> dict[str, dict[str, float]]:
    """Return the median seconds per call, by variant and setting; failed settings are left out."""
    good = {name: entry for name, entry in results.items() if "error" not in entry}
    return {v: {name: statistics.median(entry[v]) for name, entry in good.items()} for v in VARIANTS}


def best(results: Results) -> dict[str, Any]:
    """Return what a sweep says of a problem; None where the settings that it takes were not measured or failed.

    ``best_unforked_s`` and ``best_forked_s``: the shortest seconds per call. ``best_unforked_at`` and
    ``best_forked_at``: the setting and the variant that take it, such as ``4/4: models``. ``gain``: the first over the
    second. ``gain_1_thread``: no fork over directions and models forked, at the first setting with one intra-op thread.
    """
    seconds = {(variant, at): s for variant, by in medians(results).items() for at, s in by.items()}
    found: dict[str, Any] = {}
    for kind in ("unforked", "forked"):
        times = {key: s for key, s in seconds.items() if (key[0] == "no fork") == (kind == "unforked")}
        variant, at = min(times, key=times.__getitem__, default=("", ""))
        found[f"best_{kind}_s"] = times.get((variant, at))
        found[f"best_{kind}_at"] = f"{at}: {variant}" if times else None
    one = next((at for variant, at in seconds if at.startswith("1/")), "")
    gains = {"gain": (found["best_unforked_s"], found["best_forked_s"])}
    gains["gain_1_thread"] = seconds.get(("no fork", one)), seconds.get(("directions and models", one))
    return found | {name: above / below if above and below else None for name, (above, below) in gains.items()}


def recorded(measurements: dict[str, Any], problem: str) -> Results:
    """Return the sweep of ``problem`` among a recording's measurements, as :func:`sweep` returns it."""
    results: Results = {}
    for name, entry in measurements.items():
        if setting := re.fullmatch(rf"fork_{re.escape(problem)}_(\d+)_(\d+)", name):
            samples = {v: (entry if v == "no fork" else entry[v])["samples"] for v in VARIANTS if "error" not in entry}
            results["/".join(setting.groups())] = samples or {"error": entry["error"]}
    return results


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_num_interop_threads(int(sys.argv[2]))
    print(json.dumps(measure(Problem(**json.loads(sys.argv[3])))), flush=True)
    os._exit(0)  # the inter-op pool's threads may abort a process that ends in the usual way
