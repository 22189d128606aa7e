"""Time an ensemble of bidirectional LSTMs, forked and not, under several thread settings.

The inter-op pool is made once per process (``torch.set_num_interop_threads`` raises after parallel work has started),
so that :func:`sweep` starts one process per setting. A setting that fails is noted and the others go on; with a file,
an interrupted sweep continues where it stopped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
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
from tutorial_utils.reference import is_positive, measured, write

VARIANTS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "no fork": (LSTMEnsemble, BidirectionalLSTM),
    "directions": (LSTMEnsemble, ForkedBidirectionalLSTM),
    "models": (ForkedLSTMEnsemble, BidirectionalLSTM),
    "directions and models": (ForkedLSTMEnsemble, ForkedBidirectionalLSTM),
}
AFTER_FORKS = "no fork, after forks"
"""What :func:`measure` calls the unforked network in a process that has forked; :data:`VARIANTS` has it before."""
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
            if type(value) is not int or value < 1:  # a bool is an int, too
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
        note = "in a row, about 50 ms without fork, at least one; autograd off; no fork first, then in turns"
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

    A sample is the mean over calls in a row, as many as take about 50 ms without fork, and at least one. "no fork" is
    measured first: with several intra-op threads the same network can take several times as long in a process that has
    forked, since OpenMP's threads no longer spin while they wait once there are more of them than cores. Then the
    forked variants take turns with it, so that a change of the host's load meets all; its samples there are those of
    :data:`AFTER_FORKS`. Before its first sample each is called twice on two time steps, which lets TorchScript
    optimise, and once on all: that starts the threads and reserves memory.

    Raises:
        RuntimeError: a variant's result is not bitwise that of the unforked one.
    """
    unforked = scripted("no fork", problem)
    x = torch.randn(problem.steps, problem.batch, problem.size, generator=torch.Generator().manual_seed(1))
    samples: dict[str, list[float]] = {name: [] for name in [*VARIANTS, AFTER_FORKS]}

    def warm_up(net: nn.Module) -> None:
        for part in (x[:2], x[:2], x):
            net(part)

    def sample(name: str, net: nn.Module) -> None:
        start = time.perf_counter()
        for _ in range(calls):
            result = net(x)
        samples[name].append(float(f"{(time.perf_counter() - start) / calls:.6g}"))
        if not torch.equal(result, expected):
            raise RuntimeError(f"{name}: the result differs from the unforked one")

    with torch.no_grad():
        warm_up(unforked)
        start = time.perf_counter()
        expected = unforked(x)
        calls = max(1, round(0.05 / (time.perf_counter() - start)))
        for _ in range(problem.repeats):
            sample("no fork", unforked)
        nets = {name: scripted(name, problem, unforked) for name in VARIANTS if name != "no fork"}
        for net in nets.values():
            warm_up(net)
        for _ in range(problem.repeats):
            for name, net in (nets | {AFTER_FORKS: unforked}).items():
                sample(name, net)
    return samples


def measure_setting(problem: Problem, intra_op: int, inter_op: int, timeout_s: float = 300.0) -> dict[str, Any]:
    """Return what :func:`measure` gives in a new process with these threads, or ``{"error": why}``."""
    command = [sys.executable, "-m", "tutorial_utils.sweep", str(intra_op), str(inter_op), json.dumps(asdict(problem))]
    source = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    try:
        alive, held = os.pipe()  # whose end the worker sees as soon as this process is gone, however it ended
        try:
            done = subprocess.run(
                command, stdin=alive, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        finally:
            os.close(alive)
            os.close(held)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {timeout_s:g} s"}
    except OSError as error:
        return {"error": f"the process could not be started: {error}"}
    if done.returncode:
        return {"error": _why_it_ended(done.returncode, done.stderr)}
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        result = None
    gave = done.stdout.strip()[-100:] or "nothing"
    return result if _is_entry(result) else {"error": f"the process gave no result, but {gave}"}


def _why_it_ended(code: int, stderr: str) -> str:
    """The last line that looks like an error, else the last one; and the signal if one has killed the process."""
    lines = stderr.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)(: |$)", line)]
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return ": ".join([f"killed by {names.get(-code, f'signal {-code}')}", *errors[-1:]])
    return (errors or lines or [f"the process ended with code {code}"])[-1]


def _is_entry(entry: Any) -> bool:
    """Whether it is what :func:`measure` returns."""
    lists = [entry.get(variant) for variant in VARIANTS] if isinstance(entry, dict) else [None]
    return all(isinstance(samples, list) and samples and all(map(is_positive, samples)) for samples in lists)


def fork(plan: SweepPlan, problem: str, intra_op: int, inter_op: int) -> dict[str, Any]:
    """s of a call without fork, in a new process with these threads; beside it those of all else that was measured."""
    asked = plan.problems[problem]
    samples = measure_setting(asked, intra_op, inter_op)
    if "error" in samples:
        raise RuntimeError(samples["error"])
    beside = {name: measured("s", times, {"variant": name}) for name, times in samples.items() if name != "no fork"}
    settings = {"variant": "no fork", **asdict(asked), "intra_op": intra_op, "inter_op": inter_op}
    return measured("s", samples["no fork"], settings, **beside)


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
        ValueError: ``file`` holds the sweep of another problem, PyTorch or number of cores, or no sweep.
        OSError: ``file`` cannot be read or, before the first setting, written. Later that is a warning.
    """
    path = None if file is None else Path(file)
    made_with = {"problem": asdict(problem), "torch": torch.__version__, "cores": os.cpu_count()}
    results = _saved(path, made_with) if path is not None and path.exists() else {}
    names = {f"{intra}/{inter}": (intra, inter) for intra, inter in settings}
    todo = [name for name in names if "error" in results.get(name, {"error": "not measured yet"})]
    if path is not None and todo:
        write(path, made_with | {"results": results})  # now, not after the first measurement
    for name in (bar := tqdm(todo, unit="setting")):
        bar.set_postfix_str(f"{name} threads")
        results[name] = measure_setting(problem, *names[name], timeout_s)
        if path is not None:
            try:
                write(path, made_with | {"results": results})
            except OSError as error:
                warnings.warn(f"{error}. The sweep goes on and returns its results.", stacklevel=2)
    return {name: results[name] for name in names}


def _saved(path: Path, made_with: dict[str, Any]) -> Results:
    """Return the results in a file that :func:`sweep` wrote for the same problem, PyTorch and number of cores."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        found, results = {key: saved[key] for key in made_with}, saved["results"]
        damaged = [name for name, entry in results.items() if not ("error" in entry or _is_entry(entry))]
        if damaged:
            raise ValueError(f"no samples at {damaged[0]}")
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror}); choose another file.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no sweep ({error}); delete it or choose another file.") from error
    for key, value in made_with.items():
        if found[key] != value:
            raise ValueError(f"{path} was measured with {key} = {found[key]}, not {value}; choose another file.")
    return results


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
            parts = {v: entry if v == "no fork" else entry.get(v) for v in [*VARIANTS, AFTER_FORKS]}
            samples = {v: part["samples"] for v, part in parts.items() if isinstance(part, dict) and "samples" in part}
            if "error" in entry or _is_entry(samples):  # a file may hold measurements of another version
                results["/".join(setting.groups())] = {"error": entry["error"]} if "error" in entry else samples
    return results


def _end_with_parent() -> None:
    """Wait until standard input, a pipe whose other end the parent holds, is at its end; then end this process."""
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(int(sys.argv[1]))
        torch.set_num_interop_threads(int(sys.argv[2]))
        print(json.dumps(measure(Problem(**json.loads(sys.argv[3])))), flush=True)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # the inter-op pool's threads may abort a process that ends in the usual way
