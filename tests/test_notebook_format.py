"""The committed notebooks keep the rules of scripts/check_notebooks.py; each rule refuses what it is there for."""

from __future__ import annotations

from pathlib import Path

import address
import check_notebooks
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

PATHS = sorted((check_notebooks.ROOT / "notebooks").glob("*.ipynb"))
IGNORE = check_notebooks.IGNORE

OPENING = """\
# 02 · Static buffers

This notebook refactors a training loop.

**You will**

- allocate the data once
- refill it in place
- compare the losses,
  bit for bit

**You need** notebook 01; a GPU does not help.

**Time** 10 minutes of reading, 5 seconds of running."""
STUB = "answer = ...  # your answer\nexercises.check_02_1(answer)"
SOLUTION = "# @title Solution\nanswer = 6 * 7\nexercises.check_02_1(answer)"


def code(source: str, text: str, *tags: str, **data: str) -> nbformat.NotebookNode:
    outputs = [new_output("stream", name="stdout", text=text)]
    if data:
        outputs.append(new_output("display_data", {"image/png": data["png"]}))
    return new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)} if tags else {})


def good_notebook() -> nbformat.NotebookNode:
    cells = [
        new_markdown_cell(OPENING),  # 0; the set-up cell, 1, is inserted below
        new_markdown_cell("## Does it change?\n\nSee the [course](../README.md) and [below](#What-next)."),  # 2
        code("print(took)", "3 steps in 12.5 ms, loss=0.123\n"),  # 3
        new_markdown_cell("## What shows it?\n\nThe picture below shows the loss of every tenth step."),  # 4
        code("plt.show()", "0.1307\n", png="AAAA"),  # 5
        code("assert mean == 0.1307\nprint(mean, device)", "0.4321 cuda:0\n", IGNORE),  # 6
        new_markdown_cell("## In practice\n\nProfessionals do so."),  # 7
        new_markdown_cell("## Exercises\n\n### Exercise 1: the answer\n\nCompute it."),  # 8
        code(STUB, "Exercise 02.1: not yet: there is no answer yet.\n", "exercise"),  # 9
        code(SOLUTION, "Exercise 02.1: correct. It is.\n", "solution", "hide-input"),  # 10
        new_markdown_cell("## What next\n\nGo on."),  # 11
        new_markdown_cell("## Further reading\n\n- [PyTorch](https://pytorch.org/docs)"),  # 12
    ]
    nb = address.render(new_notebook(cells=cells), "02_static_buffers.ipynb", address.read())
    nb.cells[10].metadata.update(jupyter={"source_hidden": True}, cellView="form")
    nb.cells[5].metadata.mystnb = {"image": {"alt": "A curve that falls from 2.3 to 0.4 within 500 steps."}}
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    for count, (_, cell) in enumerate(check_notebooks.code_cells(nb), start=1):
        cell.execution_count = count
    return nb


def faults(nb: nbformat.NotebookNode, root: Path) -> list[str]:
    (root / "notebooks").mkdir()
    (root / "README.md").touch()
    path = root / "notebooks" / "02_static_buffers.ipynb"
    path.write_text(nbformat.v4.writes(nb), encoding="utf-8")
    return check_notebooks.check(path)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_keeps_every_rule(path: Path) -> None:
    found = check_notebooks.check(path)
    assert not found, "\n".join(found)


LIMITS = {"words": 1600, "cells": 50, "median code cell": 8, "longest code cell": 25, "widest line": 88}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_keeps_the_limits(path: Path) -> None:
    found = zip(LIMITS, check_notebooks.measures(nbformat.read(path, as_version=4)), strict=False)
    assert {what: number for what, number in found if number > LIMITS[what]} == {}


def test_good_notebook_is_accepted(tmp_path: Path) -> None:
    assert faults(good_notebook(), tmp_path) == []


# The rule that refuses it, the cell, and what is replaced by what in its source.
SOURCES = [
    ("opening", 0, "# 02 ·", "# 03 ·"),
    ("opening", 0, "This notebook refactors a training loop.\n\n", ""),
    ("opening", 0, "- compare the losses,\n  bit for bit\n", ""),
    ("opening", 0, "- compare", "- one\n- two\n- three\n- compare"),
    ("opening", 0, "**You need** notebook 01; a GPU does not help.", "**You need**"),
    ("opening", 0, "10 minutes of reading, 5 seconds", "not much"),
    ("set_up", 0, "notebooks/02_static", "notebooks/03_static"),
    ("set_up", 0, "On your own machine", "At home"),
    ("set_up", 1, "manual_seed(0)", "manual_seed(1)"),
    ("sections", 12, "## Further reading", "Further reading"),
    ("sections", 12, "- [PyTorch]", "## Afterwards\n\n[PyTorch]"),
    ("exercises", 8, "### Exercise 1: the answer", ""),
    ("exercises", 8, "Exercise 1", "Exercise 2"),
    ("exercises", 9, "check_02_1", "check_02_2"),
    ("exercises", 10, "# @title Solution", "# Solution"),
    ("tags", 3, "print", "# NBVAL_SKIP\nprint"),
    ("tags", 6, "assert mean == 0.1307", "mean == 0.1307"),
    ("tags", 6, "mean == 0.1307", "True, 0.1307"),
    ("links", 2, "../README.md", "../NOTHING.md"),
    ("links", 2, "#What-next", "#What-else"),
    ("links", 12, "https://", "http://"),
]


@pytest.mark.parametrize(("rule", "cell", "old", "new"), SOURCES)
def test_source_is_refused(tmp_path: Path, rule: str, cell: int, old: str, new: str) -> None:
    nb = good_notebook()
    assert old in nb.cells[cell].source
    nb.cells[cell].source = nb.cells[cell].source.replace(old, new)
    (fault,) = faults(nb, tmp_path)
    assert fault.endswith(f"({rule})")


# The rule that refuses it, and what cell 3 prints.
OUTPUTS = [
    ("outputs", "read /home/anna/data"),
    ("outputs", "read C:\\Users\\anna"),
    ("outputs", "lib/python3.12/site-packages/torch"),
    ("outputs", "anna@laptop:~$ ls"),
    ("outputs", "user: anna"),
    ("outputs", "mnist.py:3: UserWarning: deprecated"),
    ("outputs", "tensor([1, 2], device='cuda:0')"),
]


@pytest.mark.parametrize(("rule", "text"), OUTPUTS)
def test_output_is_refused(tmp_path: Path, rule: str, text: str) -> None:
    nb = good_notebook()
    nb.cells[3].outputs[0].text = text
    (fault,) = faults(nb, tmp_path)
    assert fault.startswith("02_static_buffers.ipynb, cell 3: ") and fault.endswith(f"({rule})")


# The rule that refuses it, and what is done to the notebook.
DAMAGES = {
    "too large": ("file", lambda nb: nb.cells[5].outputs[1].data.update({"image/png": "A" * 400_000})),
    "another kernel": ("file", lambda nb: nb.metadata.kernelspec.update(name="venv-a")),
    "count with a gap": ("file", lambda nb: nb.cells[9].update(execution_count=9)),
    "not executed": ("file", lambda nb: nb.cells[5].update(execution_count=None)),
    "no set-up cell": ("set_up", lambda nb: nb.cells[1].update(source="import torch")),
    "headings in another order": ("sections", lambda nb: nb.cells.insert(11, nb.cells.pop())),
    "no alternative text": ("pictures", lambda nb: nb.cells[5].metadata.pop("mystnb")),
    "stub that is solved": (
        "exercises",
        lambda nb: nb.cells[9].outputs[0].update(text="Exercise 02.1: correct. It is.\n"),
    ),
    "stub without its tag": ("exercises", lambda nb: nb.cells[9].metadata.pop("tags")),
    "solution in sight": ("exercises", lambda nb: nb.cells[10].metadata.pop("jupyter")),
    "solution that is wrong": (
        "exercises",
        lambda nb: nb.cells[10].outputs[0].update(text="Exercise 02.1: not yet: no\n"),
    ),
    "no cell": ("set_up", lambda nb: nb.cells.clear()),
    "no cell but a title": ("set_up", lambda nb: nb.update(cells=nb.cells[:1])),
    "Markdown before the stub": ("exercises", lambda nb: nb.cells.insert(9, new_markdown_cell("A hint."))),
    "no solution": ("exercises", lambda nb: (nb.cells.pop(10), nb.cells[10].update(source="## What next"))),
    "skipped cell": ("tags", lambda nb: nb.cells[3].metadata.update(tags=["nbval-skip"])),
    "stderr": ("outputs", lambda nb: nb.cells[3].outputs[0].update(name="stderr")),
}


@pytest.mark.parametrize(("rule", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_refused(tmp_path: Path, rule: str, damage) -> None:
    nb = good_notebook()
    damage(nb)
    (fault,) = faults(nb, tmp_path)
    assert fault.endswith(f"({rule})")


def test_every_rule_has_refused_something() -> None:
    refused = {row[0] for row in [*SOURCES, *OUTPUTS, *DAMAGES.values()]}
    assert refused == {rule.__name__ for rule in check_notebooks.RULES}


@pytest.mark.parametrize(("ignored", "accepted"), [(3, True), (4, False)])
def test_at_most_15_per_cent_are_ignored(ignored: int, accepted: bool) -> None:
    cells = [code("x", "1\n", *[IGNORE] * (i < ignored)) for i in range(20)]
    assert (check_notebooks.check_shares([new_notebook(cells=cells)]) == []) == accepted


def test_measures() -> None:
    cells = [
        new_markdown_cell("# A title\n\nSee [this page](https://a.b/c) and https://d.e.\n\n```\nno word\n```"),
        code("x = 1\ny = 22", "", png="AAAA"),
        new_markdown_cell("## Exercises\n\n### Exercise 1: name\n\nDo it."),
        code("z = 333\n\n\n\n", "", "solution"),
        new_markdown_cell("## What next\n\nGo on."),
    ]
    # words, cells, median and longest code cell, widest line, pictures, exercises
    assert check_notebooks.measures(new_notebook(cells=cells)) == (12, 4, 3, 4, 7, 1, 1)


def test_command_names_faults(tmp_path: Path, capsys, monkeypatch) -> None:
    nb = good_notebook()
    nb.cells[3].outputs[0].text = "/tmp/x\n"
    faults(nb, tmp_path)
    folder = tmp_path / "notebooks"
    (folder / "01_broken.ipynb").write_text('{"cells": [')
    (folder / "04_no_notebook.ipynb").write_text('{"cells": [], "metadata": {}}')
    nbformat.write(new_notebook(), folder / "05_empty.ipynb")
    monkeypatch.setattr("sys.argv", ["", *map(str, sorted(folder.iterdir())), "06_none.ipynb"])
    assert check_notebooks.main() == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["notebook", "02_static_buffers", "05_empty"]
    for name in ("01_broken", "04_no_notebook", "06_none"):
        assert f"{name}.ipynb is no notebook: " in err
    assert "05_empty.ipynb, cell 0: write the title" in err
    assert "02_static_buffers.ipynb, cell 3: the output holds '/tmp/', a path" in err
