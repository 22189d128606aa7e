"""The command line: ``python -m benchmarks PART --out FILE``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import alternatives, captures, forks, graphs, machine, throughput, trace
from .record import Case, Part, Recording

MODULES = (graphs, captures, forks, trace, alternatives, throughput)
PARTS = {module.__name__.rpartition(".")[2]: module.part for module in MODULES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a part. Return 0, or 1 where something failed, or 130 where the run was interrupted."""
    parser = parser_of_arguments()
    options = parser.parse_args(arguments)
    if options.root:
        os.environ["MNIST_ROOT"] = options.root
    part = PARTS[options.part](options.quick)
    if options.out.exists():
        fault = "is a folder" if options.out.is_dir() else "exists, and no run is continued"
        parser.error(f"{options.out} {fault}; choose another file for --out")
    try:
        chosen = choose(part, options.only)
    except ValueError as error:
        parser.error(str(error))
    try:
        recording = Recording(part, options.out)
        recording.measure(chosen)
    except OSError as error:
        parser.error(f"{options.out} cannot be written: {error.strerror}; mend that or choose another file for --out")
    except KeyboardInterrupt:
        print(f"interrupted; {options.out} has what was measured, the other cases are left out", file=sys.stderr)
        return 130
    return report(recording, chosen)


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the notebooks quote.")
    parser.add_argument("part", choices=PARTS, help="which benchmark")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file, which must not exist")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure only these cases")
    parser.add_argument("--root", metavar="MNIST_ROOT", help="the folder that holds MNIST/raw; else a download")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    return parser


def choose(part: Part, only: list[str]) -> list[Case]:
    """Return the cases to measure here, all or those named. ValueError for a name that cannot be measured."""
    cases = {case.name: case for case in part.cases()}
    for name in only:
        if name not in cases:
            raise ValueError(f"no case {name!r} in {part.name}; there are {', '.join(cases)} (with --quick fewer)")
        if cases[name].needs_gpu and not machine.HAS_GPU:
            raise ValueError(f"{name} needs a GPU, and there is none here")
    possible = [case for case in cases.values() if machine.HAS_GPU or not case.needs_gpu]
    return [case for case in possible if not only or case.name in only]


def report(recording: Recording, chosen: list[Case]) -> int:
    """Print what was measured and what was not; return the exit status."""
    data = recording.data
    for name, why in data["failed"].items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    need_gpu = [case.name for case in recording.part.cases() if case.needs_gpu and not machine.HAS_GPU]
    left_out = f"; left out, since they need a GPU: {', '.join(need_gpu)}" if need_gpu else ""
    print(f"{recording.path}: {len(data['measurements'])} measurements of {len(chosen)} cases{left_out}")
    return 1 if data["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
