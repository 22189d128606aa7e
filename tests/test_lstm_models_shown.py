"""The network classes that notebooks show are those of tutorial_utils.models; the docstrings alone may be left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from benchmarks import alternatives
from tutorial_utils import models

ROOT = Path(__file__).resolve().parents[1]

PACKAGE = Path(models.__file__).read_text(encoding="utf-8")
SHOWN = {
    "21_lstm_ensemble.ipynb": {"BidirectionalLSTM", "LSTMEnsemble"},
    "22_fork_directions.ipynb": {"BidirectionalLSTM", "ForkedBidirectionalLSTM"},
    "24_fork_models.ipynb": {"ForkedLSTMEnsemble"},
}


def classes(source: str) -> dict[str, str]:
    """Return the code of every class at the top level of ``source``, without docstrings, comments and formatting."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner) is not None:
                    inner.body = inner.body[1:]
            found[node.name] = ast.unparse(node)
    return found


def drifted(cells: list[str], package: str = PACKAGE) -> list[str]:
    """Return the classes of the package that some cell defines otherwise, once for each such cell."""
    expected = classes(package)
    shown = [item for cell in cells for item in classes(cell).items()]
    return [name for name, code in shown if name in expected and code != expected[name]]


def code_cells(path: Path) -> list[str]:
    """Return the sources of a notebook's code cells; a line magic is replaced, since it is no Python."""
    cells = nbformat.read(path, as_version=4).cells
    return [re.sub(r"(?m)^( *)%.*", r"\1pass", cell.source) for cell in cells if cell.cell_type == "code"]


NOTEBOOKS = {path.name: code_cells(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_class_of_the_package_is_shown_otherwise(name: str) -> None:
    assert drifted(NOTEBOOKS[name]) == [], f"{name} defines these classes otherwise than tutorial_utils.models"


@pytest.mark.parametrize("name", SHOWN)
def test_the_notebook_shows_its_classes(name: str) -> None:
    found = {shown for cell in NOTEBOOKS[name] for shown in classes(cell)}
    assert SHOWN[name] <= found


def test_a_docstring_and_a_comment_may_be_left_out() -> None:
    package = (
        'class Net:\n    """Long."""\n\n    def forward(self, x):\n        """Short."""\n        return x  # same\n'
    )
    assert drifted(["class Net:\n    def forward(self, x):\n        return x\n"], package) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nn.LSTM(size, size)", "nn.LSTM(size, size, bias=False)"),
        ("dims=[0]", "dims=[1]"),
        ("class BidirectionalLSTM(nn.Module)", "class BidirectionalLSTM(nn.Sequential)"),
        ("def run_backward(self, x: Tensor)", "def run_backward(self, y: Tensor)"),
        ("    def run_forward", "    @torch.jit.export\n    def run_forward"),
    ],
)
def test_a_class_that_drifts_is_found(old: str, new: str) -> None:
    cell = ast.unparse(next(n for n in ast.parse(PACKAGE).body if getattr(n, "name", "") == "BidirectionalLSTM"))
    assert drifted([cell]) == []
    assert old in cell
    assert drifted([cell, cell.replace(old, new, 1)]) == ["BidirectionalLSTM"]


def test_a_cell_that_is_no_class_is_of_no_interest() -> None:
    assert drifted(["x = 1", "class Other:\n    pass\n"]) == []


def body(source: str, function: str) -> list[str]:
    """Return the statements of a function at the top level of ``source``, without docstring; [] if there is none."""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function]
    return [ast.unparse(line) for node in found for line in node.body[ast.get_docstring(node) is not None :]]


def test_the_lstm_by_hand_that_is_timed_is_the_one_that_is_shown() -> None:
    timed = body(Path(alternatives.__file__).read_text(encoding="utf-8"), "lstm")
    cells = NOTEBOOKS["26_after_torchscript.ipynb"] + NOTEBOOKS["27_which_way.ipynb"]
    shown = [lines for cell in cells if (lines := body(cell, "lstm"))]
    assert timed and shown == [timed] * 2
