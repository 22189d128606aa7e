"""Notebook 06 would notice if its proof could not fail: with the comparison disabled, its own assertions do."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "06_is_it_correct.ipynb"
SHORTER = ("EPOCHS = 10", "EPOCHS = 1")
FAULTS = (
    "the comparison overlooks a flipped bit",
    "the proof overlooked the additional update",
    "the proof overlooked the stale learning rate",
    "the proof overlooked the swapped buffer",
    "the proof overlooked the missing dropout",
    "the proof overlooked the reversed order",
)


def run_cells(comparison=None):
    """Run the notebook's code cells in one namespace, as its kernel would, and return what failed, as messages.

    ``comparison`` replaces the notebook's ``first_difference`` right after the cell that defines it. A failed assertion
    ends its cell and not the run, so that one run shows every cell that notices.
    """
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    cells = [re.sub(r"(?m)^( *)%.*", r"\1pass", source) for source in cells]  # the set-up cell's magic is no Python
    assert sum(SHORTER[0] in source for source in cells) == 1, f"the notebook no longer sets {SHORTER[0]}"
    namespace, messages = {"__name__": "__main__"}, []
    for source in cells:
        try:
            exec(compile(source.replace(*SHORTER), NOTEBOOK.name, "exec"), namespace)
        except AssertionError as error:
            messages.append(str(error))
        if comparison is not None and re.search(r"^def first_difference\(", source, re.MULTILINE):
            namespace["first_difference"] = comparison
    plt.close("all")
    assert "first_difference" in namespace
    return messages


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


@pytest.mark.slow
def test_the_notebook_passes_with_its_own_comparison():
    assert run_cells() == []


@pytest.mark.slow
def test_the_notebook_fails_at_every_fault_when_the_comparison_always_says_equal():
    messages = run_cells(comparison=lambda expected, actual: None)
    assert [message for message in messages if message in FAULTS] == list(FAULTS)
