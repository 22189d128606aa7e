"""For every pytest run from the repository's root: the kernels' environment, and a summary of what nbval compared."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

# The notebooks' rules, and the script that renders what every notebook has in common.
ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

# As in the Makefile. Kernels inherit them: progress bars and the profiler's log would stand in compared outputs, and
# MPLBACKEND would replace the inline pictures.
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.pop("MPLBACKEND", None)

CELLS = pytest.StashKey[dict[str, tuple[str, str]]]()
RAN = pytest.StashKey[set[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note of each notebook cell that was collected its notebook, and what happens to its output."""
    session.config.stash[CELLS] = cells = {}
    session.config.stash[RAN] = set()
    if not session.config.getoption("nbval", default=False):
        return
    from nbval.plugin import IPyNbCell
    from notebook_rules import output_kind

    for item in session.items:
        if isinstance(item, IPyNbCell):
            cells[item.nodeid] = (str(item.path), output_kind(item.cell))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.when == "call" and not report.skipped:
        item.config.stash[RAN].add(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    cells = config.stash.get(CELLS, {})
    if not cells:
        return
    ran = config.stash[RAN] & cells.keys()
    kinds = Counter(cells[node][1] for node in ran)
    notebooks = len({notebook for notebook, _ in cells.values()})
    terminalreporter.write_line(
        f"nbval: {notebooks} notebook{'s' * (notebooks != 1)}, {len(ran)} code cells run: "
        f"{kinds['compared']} outputs compared, {kinds['empty']} empty, {kinds['ignored']} ignored, "
        f"{len(cells) - len(ran)} skipped"
    )
