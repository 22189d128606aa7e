"""Write the repository's public address into the notebooks and the README.

The address stands in one place, ``project.urls`` of pyproject.toml. What depends on it is written from there: the badge
line and the set-up cell of every notebook, and the badge and the ``git clone`` line of the README.

    python scripts/address.py
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "https://example.invalid/OWNER/REPOSITORY"
BADGE = "[![Open in Colab]"
IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"

# With --no-deps, the machine's own PyTorch and NumPy stay as they are. A failed import shows the comment beside it.
SETUP_CELL = """\
try:
    from tutorial_utils import cuda, device
except ModuleNotFoundError:  # No network? Put src/tutorial_utils beside this notebook.
    %pip install -q --no-deps git+{address}
    from tutorial_utils import cuda, device
import torch

torch.manual_seed(0)
print("device:", device)"""


def read(root: Path = ROOT) -> str:
    """Return the address that pyproject.toml names; ValueError where Colab could not open it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"].rstrip("/").removesuffix(".git")
    if address != PLACEHOLDER and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(f"pyproject.toml, Repository: write {address!r} as https://github.com/<owner>/<repository>")
    return address


def badge(name: str, address: str) -> str:
    """Return the Markdown badge that opens the notebook ``name`` in Colab."""
    repository = "/".join(address.split("/")[-2:])
    return f"{BADGE}({IMAGE})](https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name})"


def render(nb: nbformat.NotebookNode, name: str, address: str) -> nbformat.NotebookNode:
    """Write the two lines with the badge under the title, and the set-up cell 1; return ``nb``.

    A set-up cell keeps its outputs; any other cell 1 moves down.
    """
    title, *rest = nb.cells[0].source.split("\n")
    rest = [line for line in rest if not line.startswith((BADGE, "On your own machine:"))]
    while rest and not rest[0]:
        del rest[0]
    local = f"On your own machine: `make lab`, then open `notebooks/{name}`."
    nb.cells[0].source = "\n".join([title, "", badge(name, address), local, "", *rest])
    if len(nb.cells) < 2 or "import cuda, device" not in nb.cells[1].source:
        nb.cells.insert(1, nbformat.v4.new_code_cell(id="set-up"))
    nb.cells[1].source = SETUP_CELL.format(address=address)
    return nb


def render_readme(text: str, address: str) -> str:
    """Return the README's text with its badge and ``git clone`` line leading to ``address``."""
    text = re.sub(rf"(?m)^{re.escape(BADGE)}.*$", badge("00_start_here.ipynb", address), text)
    return re.sub(r"(?m)^(\s*git clone )\S+", rf"\g<1>{address}", text)


def main(root: Path = ROOT) -> None:
    address = read(root)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = nbformat.writes(render(nbformat.reads(before, as_version=4), path.name, address)) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.name}")
    readme = root / "README.md"
    readme.write_text(render_readme(readme.read_text(encoding="utf-8"), address), encoding="utf-8")


if __name__ == "__main__":
    main()
