"""Execute notebooks in order, each in a kernel of its own, and report seconds and memory.

    python scripts/run_notebooks.py                             # all of notebooks/, into build/ with an index page
    python scripts/run_notebooks.py notebooks/02_*.ipynb        # these alone
    python scripts/run_notebooks.py --in-place                  # store the outputs in the notebooks themselves

A notebook that fails does not stop the others; the exit status is then 1. Nothing here needs the network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # keeps jupyter_core from warning about its old folders

try:
    import nbformat
    import psutil
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbconvert import HTMLExporter
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"run_notebooks: {error}. Install the packages first: `make run`, or `pip install -e '.[lab,test]'`.")

ROOT = Path(__file__).resolve().parents[1]
# In a stored output a text progress bar is noise, as is the profiler's log. MPLBACKEND would replace inline pictures.
KERNEL_ENV = {"TQDM_DISABLE": "1", "KINETO_LOG_LEVEL": "6"}
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


@dataclass
class Result:
    """What one execution gave. ``peak_mib`` is the highest resident memory of the kernel and its children, in MiB."""

    name: str
    title: str
    teaches: str
    seconds: float
    peak_mib: float
    error: str | None = None


class ThisEnvironment(KernelSpecManager):
    """Names the Python that runs this script as the only kernel, whatever kernels the user has registered."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


class ThisKernel(AsyncKernelManager):
    """Starts the kernel of :class:`ThisEnvironment`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(kernel_spec_manager=ThisEnvironment(), **options)


class PeakMemory:
    """Samples the resident memory of this process's children, which is the kernel and what it starts."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(0.1):
            total = 0
            for child in this.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it ended in the meantime
                    total += child.memory_info().rss
            self.mib = max(self.mib, total / 2**20)


def describe(nb: nbformat.NotebookNode, name: str) -> tuple[str, str]:
    """Return a notebook's title and the sentence in its first cell that says what it is for."""
    lines = [line.strip() for line in nb.cells[0].source.split("\n")] if nb.cells else []
    title = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), name)
    head = ("# ", "[![", "{badges}", "On your own machine")
    text = "\n".join("" if line.startswith(head) else line for line in lines)
    return title, " ".join(text.strip().split("\n\n")[0].split())


def execute(nb: nbformat.NotebookNode, path: Path) -> Result:
    """Execute ``nb`` in a new kernel, in the notebook's own folder, filling its outputs in place."""
    number = 0  # of the code cell, as Jupyter counts it in In [1], In [2], ...
    failure: str | None = None
    progress = tqdm(total=len(nb.cells), desc=path.stem, unit="cell", position=1, leave=False, disable=None)

    def started(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal number
        number += cell.cell_type == "code" and bool(cell.source.strip())
        progress.update(cell_index - progress.n)

    client = NotebookClient(
        nb,
        kernel_name="python3",
        kernel_manager_class=ThisKernel,
        extra_arguments=["--log-level=ERROR"],
        timeout=600,
        startup_timeout=120,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        on_notebook_start=leave_signals_alone,
        on_cell_start=started,
    )
    memory = PeakMemory()
    memory.start()
    begin = time.perf_counter()
    try:
        client.execute()
    except CellExecutionError as error:
        failure = f"code cell {number}: {error.ename}: {shorten(error.evalue)}"
    except CellTimeoutError:
        failure = f"code cell {number}: did not end within {client.timeout} s"
    except DeadKernelError:
        failure = f"code cell {number}: the kernel died; it may have run out of memory"
    except KeyboardInterrupt:
        client.shutdown_kernel = "immediate"  # at the exit of this process, and without the kernel's own traceback
        raise
    except RuntimeError as error:
        failure = f"the kernel did not start: {shorten(str(error))}"
    finally:
        seconds = time.perf_counter() - begin
        memory.stop()
        progress.close()
    title, teaches = describe(nb, path.stem)
    return Result(path.stem, title, teaches, seconds, memory.mib, failure)


def leave_signals_alone(notebook: nbformat.NotebookNode) -> None:
    """Take back nbclient's signal handlers, which end in a traceback: Ctrl-C is a KeyboardInterrupt again."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().remove_signal_handler(number)


def shorten(text: str, limit: int = 200) -> str:
    """Return the first line of a message, without terminal colours, in at most ``limit`` characters."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).strip().splitlines() or [""]
    return lines[0] if len(lines[0]) <= limit else lines[0][: limit - 1] + "…"


def normalise(nb: nbformat.NotebookNode) -> None:
    """Leave out of ``nb`` what differs from machine to machine, or that an editor added; cell ids stay."""
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    for cell in nb.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})


def write(text: str, path: Path) -> None:
    """Write ``text`` to ``path`` at once, so that an interruption leaves the old file or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def to_html(nb: nbformat.NotebookNode, path: Path) -> str:
    exporter = HTMLExporter(embed_images=True)
    resources = {"metadata": {"name": path.stem, "path": str(path.parent)}}
    return exporter.from_notebook_node(nb, resources=resources)[0]


INDEX = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>CUDA graphs and fork/wait: executed notebooks</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
caption {{ text-align: left; padding-bottom: .5rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .5rem .75rem; border-bottom: 1px solid #8886; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
</style>
</head>
<body>
<main>
<h1>CUDA graphs and fork/wait: executed notebooks</h1>
<p>{summary}</p>
<div class="scroll">
<table>
<caption>Each notebook ran from top to bottom in a kernel of its own. Memory is that kernel's highest use.</caption>
<thead><tr><th scope="col">Notebook</th><th scope="col">What it teaches</th><th scope="col" class="number">Seconds</th>
<th scope="col" class="number">Peak MiB</th><th scope="col">Status</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<p>{machine}</p>
</main>
</body>
</html>
"""


def index_page(results: Sequence[Result], total: int) -> str:
    """Return the page that lists ``results`` and links to each executed notebook."""
    rows = []
    for result in results:
        title = html.escape(result.title)
        status = f"<strong>failed</strong>, {html.escape(result.error)}" if result.error else "passed"
        rows.append(
            f'<tr><th scope="row"><a href="{result.name}.html">{title}</a></th>'
            f"<td>{prose(result.teaches)} "
            f'<a href="{result.name}.ipynb" aria-label="{title}, as a notebook file">.ipynb</a></td>'
            f'<td class="number">{result.seconds:.1f}</td><td class="number">{result.peak_mib:.0f}</td>'
            f"<td>{status}</td></tr>"
        )
    failed = sum(result.error is not None for result in results)
    summary = f"{len(results)} of {total} notebooks have run; {failed or 'none'} failed."
    try:
        torch = f"PyTorch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "no PyTorch"
    machine = (
        f"Executed on {datetime.now():%Y-%m-%d %H:%M} with Python {platform.python_version()} and {torch}, "
        f"on {platform.system()} {platform.machine()} with {os.cpu_count()} logical cores."
    )
    return INDEX.format(summary=summary, rows="\n".join(rows), machine=html.escape(machine))


def prose(markdown: str) -> str:
    """Return one line of Markdown as HTML; code, bold and links are all that such a line holds."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def print_table(results: Sequence[Result]) -> None:
    width = max(len(result.name) for result in results)
    print(f"\n{'notebook':<{width}}  {'seconds':>7}  {'peak MiB':>8}  status")
    for result in results:
        status = f"FAILED, {result.error}" if result.error else "passed"
        print(f"{result.name:<{width}}  {result.seconds:7.1f}  {result.peak_mib:8.0f}  {status}")
    print(f"{'total':<{width}}  {sum(result.seconds for result in results):7.1f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks in order, each in a kernel of its own.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebook files (default: all of notebooks/)")
    parser.add_argument("--in-place", action="store_true", help="store the outputs in the notebooks themselves")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="output folder (default: build/)")
    options = parser.parse_args(arguments)

    paths = [path.resolve() for path in options.notebooks] or sorted((ROOT / "notebooks").glob("*.ipynb"))
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        what = f"no such file: {', '.join(missing)}" if missing else "no notebooks found in notebooks/"
        print(f"run_notebooks: {what}.", file=sys.stderr)
        return 2
    try:
        if not options.in_place:
            options.out.mkdir(parents=True, exist_ok=True)
            write(index_page([], len(paths)), options.out / "index.html")
    except OSError as error:
        message = f"cannot write to {options.out}: {error.strerror}. Name another folder with --out."
        print(f"run_notebooks: {message}", file=sys.stderr)
        return 2

    os.environ.update(KERNEL_ENV)
    os.environ.pop("MPLBACKEND", None)
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # nbconvert warns about each picture's alternative text
    results: list[Result] = []
    progress = tqdm(paths, desc="notebooks", unit="notebook", position=0, disable=None)
    for path in progress:
        try:
            nb = nbformat.read(path, as_version=4)
            result = execute(nb, path)
            normalise(nb)
            if not options.in_place:
                write(nbformat.writes(nb) + "\n", options.out / path.name)
                write(to_html(nb, path), options.out / f"{path.stem}.html")
            elif not result.error:
                write(nbformat.writes(nb) + "\n", path)
        except (OSError, ValueError) as error:  # an unreadable notebook, or a full disk
            result = Result(path.stem, path.stem, "", 0.0, 0.0, f"{type(error).__name__}: {shorten(str(error))}")
        except KeyboardInterrupt:
            progress.close()
            print(f"\nInterrupted in {path.name}.", file=sys.stderr)
            return 130
        results.append(result)
        progress.write(f"{path.name}: {result.seconds:.1f} s" + (f", FAILED, {result.error}" if result.error else ""))
        sys.stdout.flush()
        if not options.in_place:
            write(index_page(results, len(paths)), options.out / "index.html")

    print_table(results)
    failed = [result.name for result in results if result.error]
    if not options.in_place:
        print(f"\nOpen {os.path.relpath(options.out / 'index.html')} in a browser to read them.")
    if failed:
        kept = " Their files were left as they were." if options.in_place else ""
        print(f"{len(failed)} of {len(results)} notebooks failed: {', '.join(failed)}.{kept}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
