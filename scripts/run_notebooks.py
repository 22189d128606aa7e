"""Execute notebooks in order, each in a kernel of its own, and report seconds and memory.

    python scripts/run_notebooks.py                             # all of notebooks/, into build/ with an index page
    python scripts/run_notebooks.py notebooks/02_*.ipynb        # these alone
    python scripts/run_notebooks.py --in-place                  # store the outputs in the notebooks themselves

A notebook that fails does not stop the others; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import kernels
import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    # Without the last two, nbconvert writes magics as they stand when it makes a script.
    "language_info": {"name": "python", "file_extension": ".py", "nbconvert_exporter": "python"},
}
KEPT = {"tags", "jupyter", "cellView", "mystnb"}
HEAD = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'


@dataclass
class Run:
    """One execution: its seconds, the peak of the kernel and its children in MiB, code cells begun, how it ended."""

    name: str
    title: str = ""
    seconds: float = 0.0
    mib: float = 0.0
    cells: int = 0
    status: str = "passed"


def execute(nb: nbformat.NotebookNode, folder: Path, run: Run) -> None:
    """Execute ``nb`` in ``folder``, filling its outputs in, and note in ``run`` how that went."""

    def begins(cell: nbformat.NotebookNode, cell_index: int) -> None:
        run.cells += 1

    def kernel() -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)

    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    how = {"timeout": 600, "record_timing": False, "coalesce_streams": True, "extra_arguments": ["--log-level=ERROR"]}
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(nb, kernel_name="python3", resources=resources, on_cell_execute=begins, **how)
    begin = time.perf_counter()
    with ThreadPoolExecutor() as pool:  # in another thread, nbclient leaves Ctrl-C to this one
        execution = pool.submit(client.execute)
        try:
            while not execution.done():
                wait([execution], timeout=0.1)
                with contextlib.suppress(psutil.Error):  # a process has ended
                    run.mib = max(run.mib, sum(process.memory_info().rss for process in kernel()) / 2**20)
        except KeyboardInterrupt:
            for process in kernel():
                process.kill()
            raise
    run.seconds = time.perf_counter() - begin
    if error := execution.exception():
        text = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
        run.status = f"FAILED, In [{run.cells}]: {text}".splitlines()[0]


def normalise(nb: nbformat.NotebookNode) -> None:
    """Leave out of ``nb`` what differs from machine to machine, or that an editor added."""
    nb.metadata = nbformat.from_dict(METADATA)
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in KEPT & cell.metadata.keys()})


def process(path: Path, run: Run, out: Path | None) -> None:
    """Execute the notebook at ``path``; store it and its HTML in ``out``, or in place where that is None."""
    nb = nbformat.read(path, as_version=4)
    run.title = html.escape(nb.cells[0].source.splitlines()[0].removeprefix("# "))
    execute(nb, path.resolve().parent, run)
    normalise(nb)
    if out:
        nbformat.write(nb, out / path.name)
        page, _ = HTMLExporter(embed_images=True).from_notebook_node(nb, {"metadata": {"name": path.stem}})
        (out / f"{path.stem}.html").write_text(page, encoding="utf-8")
    elif run.status == "passed":
        nbformat.write(nb, path)


def write_index(runs: list[Run], out: Path) -> None:
    lines = [HEAD, "<title>Executed notebooks</title>", "<h1>Executed notebooks</h1>", "<ol>"]
    for run in runs:
        measured = f"{run.seconds:.1f} s, {run.mib:.0f} MiB, {html.escape(run.status)}"
        lines.append(f'<li><a href="{run.name}.html">{run.title}</a>: {measured}')
    (out / "index.html").write_text("\n".join([*lines, "</ol>"]), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks in order, each in a kernel of its own.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebook files (default: all of notebooks/)")
    parser.add_argument("--in-place", action="store_true", help="store the outputs in the notebooks that pass")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="output folder (default: build/)")
    options = parser.parse_args()
    paths = options.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    if missing := [str(path) for path in paths if not path.is_file()]:
        parser.error(f"there is no file {', '.join(missing)}")
    out = None if options.in_place else options.out
    runs: list[Run] = []
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
            write_index(runs, out)
    except OSError as error:
        parser.error(f"cannot write to {out}: {error.strerror}. Name another folder with --out.")

    kernels.prepare()
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # nbconvert warns of each picture without alternative text
    print(f"{'notebook':<24}  seconds  peak MiB  status", flush=True)
    for path in (progress := tqdm(paths, unit="notebook", leave=False, disable=None)):
        progress.set_description(path.stem)
        runs.append(run := Run(path.stem, path.stem))
        try:
            process(path, run, out)
        except KeyboardInterrupt:
            progress.close()
            print(f"\nInterrupted in {path.name}.", file=sys.stderr)
            return 130
        except Exception as error:  # no notebook, or a full disk
            run.status = f"FAILED, {type(error).__name__}: {error}".splitlines()[0]
        progress.write(f"{run.name:<24} {run.seconds:8.1f}  {run.mib:8.0f}  {run.status}")
        if out:
            write_index(runs, out)

    failed = sum(run.status != "passed" for run in runs)
    print(f"{'total':<24} {sum(run.seconds for run in runs):8.1f}            {failed or 'none'} of {len(runs)} failed")
    if out:
        print(f"Open {os.path.relpath(out / 'index.html')} in a browser to read them.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
