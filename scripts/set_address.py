"""Write the repository's public address into the notebooks and the README.

The address stands in one place, ``project.urls`` of pyproject.toml. From it this script renders what depends on it: the
badge line and the set-up cell of every notebook, and the badge and the ``git clone`` line of the README.

    python scripts/set_address.py           # rewrite the files that differ
    python scripts/set_address.py --check   # change nothing; name the files that differ and exit with 1
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "https://example.invalid/OWNER/REPOSITORY"
BRANCH = "main"
BADGE_START = "[![Open in Colab]"
BADGE_IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"

# Installing with --no-deps leaves the machine's own PyTorch and NumPy as they are. The package is imported before
# torch, since it says clearly what to do where torch is missing or too old.
SETUP_CELL = """\
# Set-up: find the course's helper package, or install it where it is missing (in Colab). No other package is changed.
import importlib.util, pathlib, subprocess, sys

address = "{address}"
if importlib.util.find_spec("tutorial_utils") is None:
    if pathlib.Path("../src/tutorial_utils").is_dir():
        sys.path.insert(0, str(pathlib.Path("../src").resolve()))
    elif address.startswith("https://example.invalid/"):
        raise RuntimeError("Set the course's address in pyproject.toml, then run `make address`; or clone the course.")
    else:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"git+{{address}}"], check=True)
from tutorial_utils import cuda, device
import torch

_ = torch.manual_seed(0)"""


def read_address(root: Path = ROOT) -> str:
    """Return the address that pyproject.toml names, without a trailing slash or ``.git``.

    Raises:
        ValueError: it is missing, or neither the placeholder nor a GitHub repository.
    """
    with open(root / "pyproject.toml", "rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    address = urls.get("Repository", "").rstrip("/").removesuffix(".git")
    if address != PLACEHOLDER and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(
            f"pyproject.toml, [project.urls], Repository: {address!r} is not of the form "
            "https://github.com/<owner>/<repository>, and Colab opens no other notebooks."
        )
    return address


def badge(filename: str, address: str) -> str:
    """Return the Markdown badge that opens ``notebooks/filename`` in Colab."""
    repository = "/".join(address.split("/")[-2:])
    link = f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/notebooks/{filename}"
    return f"{BADGE_START}({BADGE_IMAGE})]({link})"


def render(nb: nbformat.NotebookNode, filename: str, address: str | None = None) -> nbformat.NotebookNode:
    """Fill the badge line of cell 0 and the set-up cell at index 1, in place, and return ``nb``.

    Cell 0 holds a line that starts with ``[![Open in Colab]`` or is the marker ``{badges}``; it is replaced by the
    badge and a line on how to open the notebook locally. Cell 1 is replaced where it is a set-up cell already, keeping
    its outputs (it prints nothing), and otherwise a new one is inserted there.

    Raises:
        ValueError: cell 0 has no such line.
    """
    address = address or read_address()
    first = nb.cells[0] if nb.cells else nbformat.v4.new_markdown_cell()
    lines = first.source.split("\n")
    at = next((i for i, line in enumerate(lines) if line.startswith(BADGE_START) or line.strip() == "{badges}"), None)
    if first.cell_type != "markdown" or at is None:
        raise ValueError(f"{filename}: its first cell has no line that starts with '{BADGE_START}' or is '{{badges}}'.")
    end = at + 2 if at + 1 < len(lines) and "make lab" in lines[at + 1] else at + 1
    local = f"On your own machine: `make lab`, then open `notebooks/{filename}`."
    lines[at:end] = [badge(filename, address), local]
    first.source = "\n".join(lines)

    source = SETUP_CELL.format(address=address)
    if len(nb.cells) > 1 and _is_setup(nb.cells[1]):
        nb.cells[1].source = source
    else:
        nb.cells.insert(1, nbformat.v4.new_code_cell(source, id="set-up"))
    return nb


def _is_setup(cell: nbformat.NotebookNode) -> bool:
    marked = cell.source.lower().startswith("# set-up")
    return cell.cell_type == "code" and (marked or "tutorial_utils" in cell.source and "find_spec" in cell.source)


def render_readme(text: str, address: str) -> str:
    """Return the README's text with its badge lines and ``git clone`` lines pointing to ``address``."""
    text = re.sub(rf"^{re.escape(BADGE_START)}.*$", badge("00_start_here.ipynb", address), text, flags=re.MULTILINE)
    return re.sub(r"^(\s*git clone )\S+", rf"\g<1>{address}", text, flags=re.MULTILINE)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description="Write the address in pyproject.toml into the notebooks and the README."
    )
    parser.add_argument("--check", action="store_true", help="change nothing, name the files that differ, exit with 1")
    options = parser.parse_args(arguments)

    differ: list[str] = []
    try:
        address = read_address(root)
        for path in sorted((root / "notebooks").glob("*.ipynb")):
            nb = nbformat.read(path, as_version=4)
            before = [cell.source for cell in nb.cells]
            if [cell.source for cell in render(nb, path.name, address).cells] != before:
                differ.append(path.relative_to(root).as_posix())
                if not options.check:
                    nbformat.write(nb, path)
        readme = root / "README.md"
        text = readme.read_text(encoding="utf-8")
        if (new := render_readme(text, address)) != text:
            differ.append(readme.name)
            if not options.check:
                readme.write_text(new, encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"set_address: {error}", file=sys.stderr)
        return 2

    for name in differ:
        print(f"{'differs' if options.check else 'written'}: {name}")
    if options.check and differ:
        print(f"Run `make address` to write {address} into them.", file=sys.stderr)
        return 1
    if not differ:
        print(f"Every file has the address {address}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
