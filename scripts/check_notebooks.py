"""Check what the notebooks have in common, beyond what ruff, nbformat and nbval check, and print their measures.

    python scripts/check_notebooks.py [FILE ...]            # default: all of notebooks/

A fault is named with its file, its cell (counted from 0, Markdown included), the way out and its rule; the exit status
is then 1. Words are those of Markdown, without code blocks, addresses and exercises; cells are all but exercises.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import address
import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
LAST = ["In practice", "Exercises", "What next", "Further reading"]
IGNORE = "nbval-ignore-output"
TAGS = {IGNORE, "exercise", "solution", "hide-input"}
MAX_BYTES = 400_000
MAX_IGNORED = 0.15
ASSERTS = r"(?m)^\s*(assert (?!True)|.*\bassert_(close|equal)\(|.*\bcheck_\w+\()"
FOLDERS = "home|root|tmp|usr|opt|var|etc|mnt|srv|private|Users|Library|content|kaggle|workspace"
FORBIDDEN = [
    (rf"(?<![\w.:/])/(?:{FOLDERS})/|\b[A-Z]:\\\w|\b(?:site|dist)-packages\b|ipykernel_\d", "a path; print `path.name`"),
    (r"[\w.-]+@[\w-]+[:~]|\b(?i:user|login|user ?name|host ?name)[:=]\s*\S", "a user or host name; leave it out"),
    (r"\w*Warning: |\bwarnings\.warn\(", "a warning; remove its cause"),
    (r"\btensor\(|\bdevice\(type=", "a tensor, which a GPU prints otherwise; print a number, a shape or a boolean"),
]
OPENING = [  # the first cell matches these patterns
    (r"\A# {number} · \S", "begin with the title, `# {number} · ...`"),
    (r"(?m)^(?!On your own).*\.\n+\*\*You will\*\*", "say in a sentence before **You will** what it is for"),
    (r"\*\*You will\*\*\n+(?:[-*] .*\n+(?:  .*\n+)*){{3,5}}(?![-*] )", "list 3 to 5 outcomes under **You will**"),
    (r"(?m)^\*\*You need\*\*.{{10}}", "say in a line **You need** what to have read"),
    (r"(?m)^\*\*Time\*\*.*\d", "say in a line **Time** how many minutes it takes"),
]
Faults = Iterator[tuple[int, str]]


def code_cells(nb: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(i, cell) for i, cell in enumerate(nb.cells) if cell.cell_type == "code"]


def prose(nb: NotebookNode) -> list[tuple[int, str]]:
    """Return the index and text of each Markdown cell, without its code blocks and code spans."""
    cells = ((i, cell.source) for i, cell in enumerate(nb.cells) if cell.cell_type == "markdown")
    return [(i, re.sub(r"(?ms)^```.*?^```|`[^`\n]+`", "``", source)) for i, source in cells]


def headings(nb: NotebookNode, level: int) -> list[tuple[int, str]]:
    return [(i, text) for i, cell in prose(nb) for text in re.findall(rf"(?m)^#{{{level}}} (.+)$", cell)]


def tags_of(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def texts(cell: NotebookNode) -> list[str]:
    """Return the texts in a cell's outputs."""
    data = [value for output in cell.outputs for kind, value in output.get("data", {}).items() if "image" not in kind]
    return [output.text for output in cell.outputs if "text" in output] + [text for text in data if type(text) is str]


def pictures_of(cell: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


# The rules: each yields the cell and what is wrong with it, and the way out.


def file(nb: NotebookNode, path: Path) -> Faults:
    way_out = f"run `python scripts/run_notebooks.py --in-place notebooks/{path.name}`"
    if path.stat().st_size > MAX_BYTES:
        yield 0, f"the file has {path.stat().st_size:,} of {MAX_BYTES:,} bytes; draw smaller pictures"
    if nb.metadata.get("kernelspec", {}).get("name") != "python3":
        yield 0, f"the kernel is not `python3`; {way_out}"
    counts = [cell.execution_count for _, cell in code_cells(nb)]
    if counts != list(range(1, len(counts) + 1)):
        yield 0, f"the execution counts are {counts}, not 1 to {len(counts)}; {way_out}"


def opening(nb: NotebookNode, path: Path) -> Faults:
    for pattern, way_out in OPENING:
        if not re.search(pattern.format(number=path.name[:2]), nb.cells[0].source):
            yield 0, way_out.format(number=path.name[:2])


def set_up(nb: NotebookNode, path: Path) -> Faults:
    rendered = address.render(copy.deepcopy(nb), path.name, address.read())
    for i in (0, 1):
        if rendered.cells[i].source != nb.cells[i].source:
            yield i, f"the {('badge', 'set-up cell')[i]} is not that of scripts/address.py; run `make address`"


def sections(nb: NotebookNode, path: Path) -> Faults:
    if [text for _, text in headings(nb, 2)][-4:] != LAST:
        yield len(nb.cells) - 1, "end with the sections " + ", ".join(f"`## {text}`" for text in LAST)


def exercises(nb: NotebookNode, path: Path) -> Faults:
    """A task, a cell with a stub and a check, and a folded cell with a solution and the same check."""
    tasks = [(i, text) for i, text in headings(nb, 3) if text.startswith("Exercise")]
    if not 1 <= len(tasks) <= 3:
        yield 0, f"{len(tasks)} headings `### Exercise k: ...`; set one to three exercises"
    for k, (i, text) in enumerate(tasks, start=1):
        cells = [cell for cell in nb.cells[i + 1 : i + 3] if cell.cell_type == "code"]
        if len(cells) < 2:
            yield i, "next: a code cell with the stub, and one with the solution; nothing stands between"
            continue
        stub, solution = cells
        check, verdict = f"exercises.check_{path.name[:2]}_{k}(", f"Exercise {path.name[:2]}.{k}: "
        kept = {"tags": ["solution", "hide-input"], "jupyter": {"source_hidden": True}, "cellView": "form"}
        right = [
            (re.match(rf"Exercise {k}: \S", text), f"write the heading as `### Exercise {k}: name`"),
            (tags_of(stub) == {"exercise"} and check in stub.source, f"tag a stub `exercise`, which calls `{check})`"),
            (f"{verdict}not yet: " in "".join(texts(stub)), "the stub does not print `not yet`; run it unsolved"),
            (kept.items() <= solution.metadata.items(), f"the solution's cell needs the metadata {kept}"),
            (solution.source.startswith("# @title Solution\n"), "the solution begins with `# @title Solution`"),
            (f"{verdict}correct. " in "".join(texts(solution)), f"the solution's `{check})` does not print `correct`"),
        ]
        yield from ((i, way_out) for keeps, way_out in right if not keeps)


def tags(nb: NotebookNode, path: Path) -> Faults:
    for i, cell in code_cells(nb):
        if tags_of(cell) - TAGS or re.search(r"# *(NBVAL|PYTEST_VALIDATE)_", cell.source):
            yield i, f"of tags, only {sorted(TAGS)} are allowed, and no comment for nbval; skip no cell"
        if IGNORE in tags_of(cell) and not re.search(ASSERTS, cell.source):
            yield i, "its output is ignored and nothing asserted; add an `assert`, or print what can be compared"


def outputs(nb: NotebookNode, path: Path) -> Faults:
    for i, cell in code_cells(nb):
        if any(output.get("name") == "stderr" for output in cell.outputs):
            yield i, "it wrote to stderr; remove the cause"
        for pattern, what in FORBIDDEN:
            if found := re.search(pattern, "\n".join(texts(cell))):
                yield i, f"the output holds {found[0]!r}, {what}"


def pictures(nb: NotebookNode, path: Path) -> Faults:
    for i, cell in code_cells(nb):
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if pictures_of(cell) and len(alt) < 40:
            yield i, "its picture has no alternative text; say in the metadata, mystnb.image.alt, what it shows"


def links(nb: NotebookNode, path: Path) -> Faults:
    anchors = {text.replace(" ", "-") for level in (1, 2, 3) for _, text in headings(nb, level)}
    for i, text in prose(nb):
        for target in re.findall(r"\]\(<?([^)\s>]+)", text):
            file, _, anchor = unquote(target).partition("#")
            dead = not (path.parent / file).exists() if file else anchor not in anchors
            if dead and not target.startswith("https://"):
                yield i, f"the link {target} leads nowhere; write a path from notebooks/, `#A-heading` or https://"


RULES = (file, opening, set_up, sections, exercises, tags, outputs, pictures, links)


def check(path: Path) -> list[str]:
    """Return a line for each fault of the notebook at ``path``; JSONDecodeError or ValidationError where it is none."""
    nb = nbformat.v4.reads(path.read_text(encoding="utf-8"))  # nbformat.read would repair it
    nbformat.validate(copy.deepcopy(nb))
    if len(nb.cells) < 2:
        return [f"{path.name}, cell 0: write the title and a sentence, and run `make address` (set_up)"]
    return [f"{path.name}, cell {i}: {text} ({rule.__name__})" for rule in RULES for i, text in rule(nb, path)]


def check_shares(notebooks: list[NotebookNode]) -> list[str]:
    """Return a line where too many of all the cells have their output ignored."""
    cells = [cell for nb in notebooks for _, cell in code_cells(nb)]
    ignored = sum(IGNORE in tags_of(cell) for cell in cells)
    fault = f"{ignored} of {len(cells)} code cells have the tag {IGNORE}; at most {MAX_IGNORED:.0%} may (shares)"
    return [fault] if ignored > MAX_IGNORED * len(cells) else []


def measures(nb: NotebookNode) -> tuple[int, ...]:
    """Return words, cells, median and longest code cell in lines, widest line, pictures, exercises."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    words = re.sub(r"(?ms)^```.*?^```|\]\([^)]*\)|https?://\S+|^## Exercises$.*?(?=^## What next$|\Z)", " ", text)
    cells = sum(not tags_of(cell) & {"exercise", "solution"} for cell in nb.cells)
    lines = [cell.source.splitlines() for _, cell in code_cells(nb)] or [[]]
    median, longest = int(statistics.median(map(len, lines))), max(map(len, lines))
    widest = max((len(line) for cell in lines for line in cell), default=0)
    pictures = sum(pictures_of(cell) for _, cell in code_cells(nb))
    number = sum(text.startswith("Exercise ") for _, text in headings(nb, 3))
    return len(words.split()), cells, median, longest, widest, pictures, number


def main() -> int:
    parser = argparse.ArgumentParser(description="Check what the notebooks have in common, and print their measures.")
    parser.add_argument("files", nargs="*", type=Path, help="notebook files (default: all of notebooks/)")
    files = parser.parse_args().files
    paths = files or sorted((ROOT / "notebooks").glob("*.ipynb"))
    print(f"{'notebook':<24} words  cells  median lines  longest  widest  pictures  exercises")
    faults, notebooks = [], []
    for path in paths:
        try:
            faults += check(path)
        except (OSError, json.JSONDecodeError, nbformat.ValidationError) as error:
            faults.append(f"{path} is no notebook: {type(error).__name__}: {error}".splitlines()[0])
            continue
        notebooks.append(nbformat.read(path, as_version=4))
        print("{:<24} {:5}  {:5}  {:12}  {:7}  {:6}  {:8}  {:9}".format(path.stem, *measures(notebooks[-1])))
    if not files:
        faults += check_shares(notebooks)
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
