"""Notebook 06 would notice if its proof could not fail: with the comparison disabled, its output is another one."""

import contextlib
import io
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "06_is_it_correct.ipynb"
CELLS = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
SHORTER = ("STEPS = 256", "STEPS = 16")
FAULTS = {
    "stale learning rate": "step 65, first in parameter conv1.weight",
    "one update too many": "step 1, first in loss",
    "swapped input buffer": "step 2, first in loss",
    "dropout in eval mode": "step 1, first in generator",
    "lost momentum": "step 2, first in momentum_buffer conv1.weight",
}


def run_cells(comparison=None):
    """Run the notebook's code cells in one namespace, as its kernel would, and return what they print.

    ``comparison`` replaces the notebook's ``first_difference`` right after the cell that defines it.
    """
    sources = [re.sub(r"(?m)^( *)%.*", r"\1pass", cell.source) for cell in CELLS]  # a magic is no Python
    assert sum(SHORTER[0] in source for source in sources) == 1, f"the notebook no longer sets {SHORTER[0]}"
    namespace = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for source in sources:
            exec(compile(source.replace(*SHORTER), NOTEBOOK.name, "exec"), namespace)
            if comparison is not None and re.search(r"^def first_difference\(", source, re.MULTILINE):
                namespace["first_difference"] = comparison
    plt.close("all")
    assert "first_difference" in namespace
    return printed.getvalue()


def found(printed):
    """Return what a text says of each fault, from the table of five lines."""
    rows = {fault: re.findall(rf"(?m)^{fault} +(step .*)$", printed) for fault in FAULTS}
    assert all(len(row) == 1 for row in rows.values()), rows
    return {fault: row for fault, (row,) in rows.items()}


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """The set-up cell looks for the package beside the notebook, and the notebook sets a global flag."""
    import torch

    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(plt, "show", lambda: None)
    before, style = torch.backends.cudnn.deterministic, dict(plt.rcParams)
    yield
    torch.backends.cudnn.deterministic = before
    plt.rcParams.update(style)


def test_the_stored_output_names_each_fault():
    stored = "".join(output.get("text", "") for cell in CELLS for output in cell.outputs)
    assert found(stored) == FAULTS


@pytest.mark.slow
def test_the_notebook_finds_each_fault_with_its_own_comparison():
    assert found(run_cells()) == FAULTS


@pytest.mark.slow
def test_no_fault_is_found_when_the_comparison_always_says_equal():
    rows = found(run_cells(comparison=lambda expected, actual: (None, ["nothing"])))
    assert rows == dict.fromkeys(FAULTS, "step None, first in nothing")
