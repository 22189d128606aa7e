"""The committed notebooks keep the conventions; each rule refuses a notebook damaged in the way it guards against."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import nbformat
import notebook_rules
import pytest
import set_address
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_rules import IGNORE_TAG, MAX_LINES, ROOT, RULES, Notebook, check, check_shares, load, load_all

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAME = "02_static_buffers.ipynb"
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()

OPENING = """\
# 02 · Static buffers

{badges}

This notebook refactors a training loop.

**You will**

- allocate the data once
- refill it in place
- compare the losses

**You need** notebook 01; a GPU does not help.

**Time** 10 minutes of reading, 5 seconds of running."""

EXERCISE = """\
### BEGIN SOLUTION
answer = 6 * 7
### END SOLUTION
exercises.check_02_1(answer)"""
END_FIRST = "### END SOLUTION\na = 1\n### BEGIN SOLUTION\nexercises.check_02_1(a)"
CHECK_INSIDE = "### BEGIN SOLUTION\nexercises.check_02_1(42)\n### END SOLUTION"


def printed(source: str, text: str, **metadata: list[str]) -> NotebookNode:
    cell = new_code_cell(source, metadata=metadata)
    cell.outputs = [new_output("stream", name="stdout", text=text)]
    return cell


def picture(axes: int = 1) -> NotebookNode:
    data = {"text/plain": f"<Figure size 640x480 with {axes} Axes>", "image/png": PIXEL}
    return new_code_cell("plt.show()", outputs=[new_output("display_data", data)])


def good_notebook() -> NotebookNode:
    """A small notebook that keeps every rule; the damages below count on the indices of its cells."""
    cells = [
        new_markdown_cell(OPENING),  # 0; the set-up cell, 1, is inserted below
        new_markdown_cell(
            "## Does the address change?\n\nSee the [course](../README.md) and `example!` of 3 != 4."
        ),  # 2
        printed("print('3 steps of 64 images in', took)", "3 steps of 64 images in 12.5 ms, loss=0.123\n"),  # 3
        new_markdown_cell(
            "## What does the picture show?\n\nThe picture below shows the loss of every tenth step."
        ),  # 4
        picture(),  # 5
        new_markdown_cell("## Is it the same?\n\nYes: ![a diagram of both loops](https://example.org/loops.png)"),  # 6
        printed("assert mean == 0.1307\nprint(mean, device)", "0.1307 cuda:0\n", tags=[IGNORE_TAG]),  # 7
        new_markdown_cell("## In practice\n\nProfessionals do so."),  # 8
        new_markdown_cell("## Exercises\n\n### Exercise 1: the answer\n\nCompute it."),  # 9
        printed(EXERCISE, "Exercise 02.1: correct.\n"),  # 10
        new_markdown_cell("## What next\n\nGo on."),  # 11
        new_markdown_cell("## Further reading\n\n- [PyTorch](https://pytorch.org/docs)"),  # 12
    ]
    nb = set_address.render(new_notebook(cells=cells), NAME)
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for i, cell in enumerate(nb.cells):
        cell.id = f"cell-{i}"
    for count, cell in enumerate((cell for cell in nb.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return nb


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files that ``good_notebook`` refers to."""
    module = tmp_path / "src" / "tutorial_utils" / "exercises.py"
    module.parent.mkdir(parents=True)
    module.write_text("def check_02_1(answer): ...\n")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "README.md").write_text("# Course\n")
    return tmp_path


def stored(nb: NotebookNode, repository: Path, name: str = NAME) -> Notebook:
    """Write the notebook without repairing it, and read it back."""
    path = repository / "notebooks" / name
    path.write_text(nbformat.v4.writes(nb), encoding="utf-8")
    return load(path, repository)


# The committed notebooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_keeps_every_rule(path: Path) -> None:
    broken = check(load(path))
    assert not broken, "\n" + "\n".join(message for messages in broken.values() for message in messages)


@pytest.mark.skipif(not PATHS, reason="there are no notebooks yet")
def test_shares_of_ignored_and_compared_outputs() -> None:
    messages = check_shares(load_all())
    assert not messages, "\n".join(messages)


# Every rule refuses what it guards against ------------------------------------------------------------------------


def test_good_notebook_is_accepted(repository: Path) -> None:
    assert check(stored(good_notebook(), repository)) == {}


def source(i: int, old: str, new: str) -> Callable[[NotebookNode], None]:
    """Replace text in the source of cell ``i``."""

    def damage(nb: NotebookNode) -> None:
        assert old in nb.cells[i].source
        nb.cells[i].source = nb.cells[i].source.replace(old, new)

    return damage


def prints(text: str) -> Callable[[NotebookNode], None]:
    """Let cell 3 print this text instead."""
    return lambda nb: nb.cells[3].outputs[0].update(text=text)


def puts(i: int, **values: object) -> Callable[[NotebookNode], None]:
    """Set fields of cell ``i``."""
    return lambda nb: nb.cells[i].update(values)


def tagged(i: int, *names: str) -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[i].metadata.update(tags=list(names))


def shows(kind: str, data: str) -> Callable[[NotebookNode], None]:
    """Let cell 3 display this representation, too."""
    return lambda nb: nb.cells[3].outputs.append(new_output("display_data", {kind: data}))


def append_code(source: str, count: int | None) -> Callable[[NotebookNode], None]:
    """Append to the good notebook, under "In practice", a code cell; the exercise's count moves on."""

    def damage(nb: NotebookNode) -> None:
        nb.cells.insert(9, new_code_cell(source, id="added", execution_count=count))
        nb.cells[11].execution_count += 1

    return damage


def swap(i: int, j: int) -> Callable[[NotebookNode], None]:
    def damage(nb: NotebookNode) -> None:
        nb.cells[i], nb.cells[j] = nb.cells[j], nb.cells[i]

    return damage


ERROR = new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])
STDERR = new_output("stream", name="stderr", text="loading\n")

# What is wrong: the rule that has to refuse it, and how the good notebook is damaged.
DAMAGES: dict[str, tuple[str, Callable[[NotebookNode], object]]] = {
    "format 4.4": ("notebook_format", lambda nb: nb.update(nbformat_minor=4)),
    "two equal ids": ("notebook_format", puts(3, id="cell-2")),
    "no id": ("notebook_format", lambda nb: nb.cells[3].pop("id")),
    "not a notebook": ("notebook_format", lambda nb: nb.cells[3].outputs[0].pop("name")),
    "another kernel": ("notebook_format", lambda nb: nb.metadata.kernelspec.update(name="venv-a")),
    "too large": ("file_size", lambda nb: nb.cells[5].outputs[0].data.update({"image/png": "A" * 400_000})),
    "no title": ("opening", source(0, "# 02 · Static buffers", "Static buffers")),
    "another number": ("opening", source(0, "# 02 ·", "# 03 ·")),
    "two titles": ("opening", source(8, "Professionals", "# Professionals")),
    "no purpose": ("opening", source(0, "This notebook refactors a training loop.", "")),
    "no You will": ("opening", source(0, "**You will**", "")),
    "two outcomes": ("opening", source(0, "- compare the losses", "")),
    "six outcomes": ("opening", source(0, "- compare", "- one\n- two\n- three\n- compare")),
    "no You need": ("opening", source(0, "**You need**", "")),
    "no Time": ("opening", source(0, "**Time**", "")),
    "no minutes": ("opening", source(0, "10 minutes of reading, 5 seconds of running.", "not very much at all.")),
    "no badge": ("address", source(0, "[![Open in Colab]", "[Open in Colab]")),
    "badge of another notebook": ("address", source(0, "notebooks/02", "notebooks/03")),
    "no local line": ("address", source(0, "On your own machine: `make lab`", "`jupyter lab`")),
    "altered set-up cell": ("address", source(1, "manual_seed(0)", "manual_seed(1)")),
    "two sections": ("sections", source(6, "## Is it the same?\n\n", "")),
    "heading missing": ("sections", source(11, "## What next", "What next")),
    "heading misspelt": ("sections", source(12, "## Further reading", "## Further Reading")),
    "headings in another order": ("sections", swap(11, 12)),
    "heading twice": ("sections", source(4, "## What does the picture show?", "## Does the address change?")),
    "no exercise": ("exercises", source(9, "### Exercise 1: the answer", "")),
    "exercise misnumbered": ("exercises", source(9, "Exercise 1", "Exercise 2")),
    "exercise without a name": ("exercises", source(9, "Exercise 1: the answer", "Exercise 1")),
    "no code cell": ("exercises", swap(9, 10)),
    "no BEGIN": ("exercises", source(10, "### BEGIN SOLUTION\n", "")),
    "no END": ("exercises", source(10, "### END SOLUTION\n", "")),
    "END before BEGIN": ("exercises", source(10, EXERCISE, END_FIRST)),
    "mark misspelt": ("exercises", source(10, "### END SOLUTION", "# END SOLUTION")),
    "two solutions": ("exercises", source(10, "answer = 6 * 7", "### END SOLUTION\n### BEGIN SOLUTION\na = 1")),
    "empty solution": ("exercises", source(10, "answer = 6 * 7", "# to do")),
    "no check": ("exercises", source(10, "exercises.check_02_1(answer)", "print(answer)")),
    "check within the solution": ("exercises", source(10, EXERCISE, CHECK_INSIDE)),
    "check of another exercise": ("exercises", source(10, "check_02_1", "check_02_2")),
    "solution elsewhere": ("exercises", source(3, "print", "### BEGIN SOLUTION\n### END SOLUTION\nprint")),
    "count missing": ("execution_counts", puts(5, execution_count=None)),
    "count with a gap": ("execution_counts", puts(10, execution_count=9)),
    "count twice": ("execution_counts", puts(5, execution_count=2)),
    "empty cell": ("code_cells", append_code("", 5)),
    "cell of comments": ("code_cells", append_code("# nothing\n", 5)),
    "too many lines": ("code_cells", append_code("x = 1\n" * (MAX_LINES + 1), 5)),
    "skipped cell": ("tags", tagged(3, "nbval-skip")),
    "exception by tag": ("tags", tagged(3, "raises-exception")),
    "unknown tag": ("tags", tagged(3, "hide-input")),
    "tag on Markdown": ("tags", tagged(2, IGNORE_TAG)),
    "timestamps": ("tags", lambda nb: nb.cells[3].metadata.update(execution={"iopub.status.busy": "2026"})),
    "skip by comment": ("tags", source(3, "print", "# NBVAL_SKIP\nprint")),
    "ignore by comment": ("tags", source(7, "print", "# NBVAL_IGNORE_OUTPUT\nprint")),
    "ignored, nothing asserted": ("ignored_cells_assert", source(7, "assert", "# assert")),
    "ignored, vacuous assertion": ("ignored_cells_assert", source(7, "mean == 0.1307", "True")),
    "ignored, assertion of a tuple": ("ignored_cells_assert", source(7, "mean == 0.1307", "(mean, 0.1307)")),
    "stderr": ("streams", lambda nb: nb.cells[3].outputs.append(STDERR)),
    "error": ("streams", lambda nb: nb.cells[3].outputs.append(ERROR)),
    "warning": ("warnings_text", prints("mnist.py:3: UserWarning: deprecated\n")),
    "home folder": ("machine_paths", prints("read /home/anna/data\n")),
    "macOS folder": ("machine_paths", prints("read '/Users/anna/data'\n")),
    "temporary folder": ("machine_paths", prints("wrote /tmp/x\n")),
    "Windows folder": ("machine_paths", prints("read C:\\Users\\anna\n")),
    "installation": ("machine_paths", prints("lib/python3.12/site-packages/torch\n")),
    "this repository's folder": ("machine_paths", prints(f"in {ROOT}\n")),
    "user and host": ("machine_paths", prints("anna@laptop:~$ ls\n")),
    "user name": ("machine_paths", prints("user: anna\n")),
    "ANSI escape": ("terminal_codes", prints("\x1b[31mred\x1b[0m\n")),
    "progress bar": ("progress_bars", prints("100%|##########| 128/128\n")),
    "progress rate": ("progress_bars", prints("128/128 [00:01, 98.1it/s]\n")),
    "SVG": ("vector_pictures", shows("image/svg+xml", "<path/>")),
    "SVG in HTML": ("vector_pictures", shows("text/html", "<div><svg></svg></div>")),
    "tensor": ("tensor_reprs", prints("tensor([1, 2])\n")),
    "device of a tensor": ("tensor_reprs", prints("[1., 2.], device='cuda:0')\n")),
    "device": ("tensor_reprs", shows("text/plain", "device(type='cuda', index=0)")),
    "Matplotlib's lines": ("object_reprs", shows("text/plain", "[<matplotlib.lines.Line2D>]")),
    "Matplotlib's text": ("object_reprs", shows("text/plain", "Text(0.5, 1.0, 'loss')")),
    "Matplotlib's axes": ("object_reprs", shows("text/plain", "<Axes: >")),
    "memory address": ("object_reprs", prints("<function f at 0x7f12ab34>\n")),
    "measured number": ("measured_numbers", prints("mean loss: 0.4321\n")),
    "measured number, exponent": ("measured_numbers", prints("difference 1.2e-07\n")),
    "time without unit": ("measured_numbers", prints("eager: 1.2345\n")),
    "picture without a word": ("described_pictures", source(4, "below shows the loss of every tenth step.", "")),
    "picture without alternative text": ("described_pictures", source(6, "a diagram of both loops", "")),
    "dead link": ("links", source(2, "../README.md", "../NOTHING.md")),
    "link to the outside": ("links", source(2, "../README.md", "../../README.md")),
    "absolute link": ("links", source(2, "../README.md", "/README.md")),
    "unencrypted link": ("links", source(12, "https:", "http:")),
    "dead anchor": ("links", source(2, "../README.md", "#Nowhere")),
    "dead image": ("links", source(6, "https://example.org/loops.png", "loops.png")),
    "exclamation mark": ("prose", source(8, "so.", "so!")),
    "filler": ("prose", source(8, "Professionals do", "Professionals simply do")),
    "left over": ("prose", source(8, "Professionals do", "TODO: professionals do")),
    "emoji": ("prose", source(8, "so.", "so. \U0001f680")),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_notebook_is_refused_by_the_rule(
    rule: str, damage: Callable[[NotebookNode], object], repository: Path
) -> None:
    nb = good_notebook()
    damage(nb)
    broken = check(stored(nb, repository))
    assert broken.keys() == {rule}, broken
    assert all(message.startswith(NAME) for message in broken[rule])


@pytest.mark.parametrize("name", ["static_buffers.ipynb", "2_static.ipynb", "02-static.ipynb", "02_Static.ipynb"])
def test_file_name_is_refused(name: str, repository: Path) -> None:
    assert notebook_rules.file_name(stored(good_notebook(), repository, name))


def test_undefined_check_is_refused(repository: Path) -> None:
    (repository / "src" / "tutorial_utils" / "exercises.py").write_text("")
    broken = check(stored(good_notebook(), repository))
    assert broken.keys() == {"exercises"} and "not defined" in broken["exercises"][0]


def test_every_rule_has_been_seen_to_refuse() -> None:
    assert {rule for rule, _ in DAMAGES.values()} | {"file_name"} == RULES.keys()


# The shares over all notebooks ------------------------------------------------------------------------------------


def of_kinds(ignored: int, compared: int, empty: int, repository: Path) -> Notebook:
    cells = [printed("assert x", "1\n", tags=[IGNORE_TAG]) for _ in range(ignored)]
    cells += [printed("print(1)", "1\n") for _ in range(compared)] + [new_code_cell("x = 1") for _ in range(empty)]
    return Notebook(NAME, new_notebook(cells=cells), 0, repository)


def test_shares_within_the_limits_are_accepted(repository: Path) -> None:
    assert check_shares([of_kinds(15, 30, 0, repository), of_kinds(0, 30, 25, repository)]) == []


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ((16, 60, 24), "have their output ignored"),
        ((0, 59, 41), "output that is compared"),
        ((0, 0, 0), "no code cells"),
    ],
)
def test_shares_beyond_the_limits_are_refused(kinds: tuple[int, int, int], message: str, repository: Path) -> None:
    messages = check_shares([of_kinds(*kinds, repository)])
    assert len(messages) == 1 and message in messages[0]


def test_output_that_nbval_does_not_compare_counts_as_empty() -> None:
    cell = new_code_cell("x", outputs=[new_output("display_data", {"image/png": PIXEL})])
    assert notebook_rules.output_kind(cell) == "empty"
    assert notebook_rules.output_kind(picture()) == "compared"
    assert notebook_rules.output_kind(printed("x", " \n")) == "empty"
    assert notebook_rules.output_kind(printed("# NBVAL_SKIP", "1\n")) == "skipped"
