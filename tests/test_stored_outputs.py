"""An altered digit of a stored output makes strict nbval fail, but for the forms that may differ between machines.

Which forms these are is decided here a second time, by :func:`may_vary`, not by the patterns of ``nbval_sanitize.cfg``.
"""

from __future__ import annotations

import copy
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams
from notebook_rules import NEVER_COMPARED, ROOT, SANITIZE, output_kind, sanitise, sanitise_patterns

from tutorial_utils import environment

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SAMPLE = 30
UNITS = {"ns", "us", "µs", "μs", "ms", "s", "min", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"}
LABELS = {"os", "python", "torch", "torchvision", "triton", "numpy", "jupyterlab", "nbval", "device", "driver"}
needs_notebooks = pytest.mark.skipif(not PATHS, reason="there are no notebooks yet")


def may_vary(text: str, position: int) -> bool:
    """Whether DESIGN's rules let the digit at ``position`` differ: it belongs to a number with a unit, say."""
    before, after = text[:position], text[position:]
    line = before.rpartition("\n")[2] + after.partition("\n")[0]
    if ":" in line and line.partition(":")[0].strip(" ") in LABELS:
        return True
    head = re.split(r"[\s(\[{|/'\"]", before)[-1]
    tail = re.split(r"[\s)\]}|/'\"]", after)[0]
    word = (head + tail).rstrip(".,:;")
    if word.startswith(("loss=", "acc=")):
        return _is_number(word.partition("=")[2]) and "." in word
    word = word.rpartition("=")[2].rpartition(":")[2]
    if word.endswith(("x", "×")):
        return _is_number(word[:-1])
    following = after[len(tail) :]
    unit = re.match(r"\w*", following[1:]).group(0) if following[:1] in (" ", "\u00a0") else ""
    return unit in UNITS and _is_number(head.rpartition("=")[2].rpartition(":")[2] + tail)


def _is_number(word: str) -> bool:
    try:
        float(word.replace(",", ""))
    except ValueError:
        return False
    return word[-1].isdigit()


# The sanitiser alone ----------------------------------------------------------------------------------------------


def test_every_pattern_is_read() -> None:
    """nbval passes over a pattern without its replacement, silently."""
    text = SANITIZE.read_text(encoding="ascii")
    assert len(sanitise_patterns()) == len(re.findall("^regex", text, re.MULTILINE)) > 0
    assert len(sanitise_patterns()) == len(re.findall("^replace", text, re.MULTILINE))


def test_only_labels_of_the_environment_report_are_known() -> None:
    labels = re.search(r"\(\?:(os\|[^)]*)\)", SANITIZE.read_text(encoding="ascii")).group(1).split("|")
    assert set(labels) == LABELS <= environment.report().keys()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("eager: 1234.5 µs (1200.1 µs to 1300.2 µs)", "eager: 4.5 µs (1.1 µs to 90.7 µs)"),
        ("1,234.5 µs", "950.0 ns"),
        ("1.2e-05 s", "3 s"),
        ("12.3\u00a0ms", "4.5 \u03bcs"),
        ("took 5 min.", "took 61 min."),
        ("-0.3 ms", "+1.2 ms"),
        ("[1.2 ms, 3.4 ms]", "[5.6 ms, 7.8 ms]"),
        ("12 ms/step", "9 ms/step"),
        ("3.4x", "12x"),
        ("3.4×, 1.0x  2.0x", "0.9×, 2.0x  1.5x"),
        ("5.6 MiB of 139 GiB", "1,024 B of 80 kB"),
        ("12.3 GB/s", "4.5 MB/s"),
        ("eager:   950.1 ms", "eager: 12345.6 ms"),
        ("loss=0.123, acc=0.945", "loss=2.3026, acc=1.000"),
        ("loss=1.2e-05;", "loss=0.1;"),
        ("torch: 2.14.1+cu130 (built for CUDA 13.0)\nnext", "torch: 2.9.0\nnext"),
        ("  device: NVIDIA H200, 139.8 GiB", "  device: CPU; no GPU that PyTorch can use"),
    ],
)
def test_forms_that_may_differ_are_normalised(one: str, other: str) -> None:
    assert sanitise(one) == sanitise(other)
    assert "<" in sanitise(one)


@pytest.mark.parametrize(
    "text",
    [
        "3 steps", "64 samples", "64 images in 128 batches", "10 Bytes", "4096 bytes", "5 minutes", "2 sections",
        "8 blocks", "2 msgs", "conv2d", "fc1.weight", "[64, 1, 28, 28]", "(10, 20)", "28x28", "640x480", "5×5",
        "28 x 28", "28 × 28", "3 x 4 s-shaped", "28x 28", "5x5 kernels", "5x-wide",
        "<Figure size 640x480 with 1 Axes>", "2 of 3", "epoch 3", "#7", "98.3 %", "98.3%", "12.3ms", "3s", "v1.2.3",
        "1.2.3 s", "1-2 ms and 3", "layer-3 s", "step_3 s", "h200 s", "64 s=1", "loss=3", "loss=0.1.2", "loss 0.123",
        "train_loss=0.123", "loss=nan 3", "acc=0.945%", "loss: 0.123", "0.945 accuracy", "torch 2.14", "my torch: 2",
        "cores: 2", "threads: 4 intra-op", "devices: 3", "nan ms 1", "2 B-trees", "1e5", "16,384",
        "Exercise 02.1: correct.", "True, 3 times", "3 xs", "4 x", "0.5 h", "7 days", "1 Mi", "sm_90",
    ],
)  # fmt: skip
def test_every_other_digit_is_compared(text: str) -> None:
    assert sanitise(text) == text


# nbval's own comparison, on the stored outputs --------------------------------------------------------------------


@dataclass(frozen=True)
class Digit:
    """Where a digit of a stored output stands; ``kind`` is "text" in a stream, else a type such as "text/plain"."""

    cell: IPyNbCell
    output: int
    kind: str
    position: int

    def altered(self) -> list[NotebookNode]:
        """Return a copy of the cell's stored outputs with this one digit altered."""
        outputs = copy.deepcopy(self.cell.cell.outputs)
        holder = outputs[self.output] if self.kind == "text" else outputs[self.output].data
        text = holder[self.kind]
        new = str((int(text[self.position]) + 1) % 10)
        holder[self.kind] = text[: self.position] + new + text[self.position + 1 :]
        return outputs

    def is_noticed(self) -> bool:
        """Whether nbval's comparison of the altered with the stored outputs fails."""
        stored = copy.deepcopy(self.cell.cell.outputs)
        return not self.cell.compare_outputs(coalesce_streams(stored), coalesce_streams(self.altered()))

    def __str__(self) -> str:
        output = self.cell.cell.outputs[self.output]
        text = output.text if self.kind == "text" else output.data[self.kind]
        around = text[max(self.position - 30, 0) : self.position + 30]
        return f"{self.cell.path.name}, code cell {self.cell.cell_num}: digit {text[self.position]} in {around!r}"


def digits(path: Path, session: pytest.Session) -> Iterator[Digit]:
    """Yield every digit that nbval has to compare, with nbval's own objects, and without starting a kernel."""
    notebook = IPyNbFile.from_parent(session, path=path)
    notebook.sanitize_patterns.update(sanitise_patterns())
    for cell in notebook.collect():
        if output_kind(cell.cell) != "compared":
            continue
        for i, output in enumerate(cell.cell.outputs):
            texts = {"text": output.text} if output.output_type == "stream" else output.get("data", {})
            for kind, text in texts.items():
                if kind not in NEVER_COMPARED and isinstance(text, str):
                    for match in re.finditer(r"[0-9]", text):
                        if not may_vary(text, match.start()):
                            yield Digit(cell, i, kind, match.start())


def sample(session: pytest.Session) -> list[Digit]:
    """Return the same 30 digits every time, spread evenly over the notebooks, and over cells while these suffice."""
    chosen: list[Digit] = []
    queues = []
    for path in PATHS:
        found = list(digits(path, session))
        random.Random(path.name).shuffle(found)
        first = {digit.cell.cell_num: digit for digit in reversed(found)}
        queues.append(list(first.values()) + [digit for digit in found if digit not in first.values()])
    while len(chosen) < SAMPLE and any(queues):
        chosen += [queue.pop(0) for queue in queues if queue]
    return chosen[:SAMPLE]


@needs_notebooks
def test_thirty_altered_digits_are_noticed(request: pytest.FixtureRequest) -> None:
    chosen = sample(request.session)
    assert len(chosen) == SAMPLE, f"the stored outputs hold only {len(chosen)} digits that are compared"
    missed = [str(digit) for digit in chosen if not digit.is_noticed()]
    assert not missed, "nbval overlooks:\n" + "\n".join(missed)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_altered_digit_is_noticed(path: Path, request: pytest.FixtureRequest) -> None:
    found = list(digits(path, request.session))
    assert found, f"{path.name} prints no number that is compared"
    missed = [str(digit) for digit in found if not digit.is_noticed()]
    assert not missed, "nbval overlooks:\n" + "\n".join(missed)


# nbval itself, with a kernel --------------------------------------------------------------------------------------


def run_nbval(*paths: Path) -> dict[str, str]:
    """Run strict nbval as `make test` does; return ``passed`` or the failure's text, by "name::Cell n"."""
    report = paths[0].parent / "report.xml"
    command = [
        *(sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SANITIZE)),
        *("-q", "--color=no", "-p", "no:cacheprovider", "--rootdir", str(paths[0].parent), f"--junit-xml={report}"),
    ]
    result = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [child for child in case if child.tag in ("failure", "error", "skipped")]
        assert len(failures) <= 1
        text = failures[0].text or "" if failures else "passed"
        notebook = case.get("classname").removesuffix(".ipynb").rpartition(".")[2]
        outcomes[f"{notebook}::{case.get('name')}"] = text
    return outcomes


# Printed by the kernel, stored in the notebook, and whether nbval has to notice the difference.
CELLS = [
    ("3 steps of 64 images", "3 steps of 64 images", False),
    ("3 steps of 64 images", "3 steps of 65 images", True),
    ("took 12.5 ms, 3.4x, 5.6 MiB", "took 9.1 µs, 2.0x, 128 GiB", False),
    ("took 12.5 ms in 3 steps", "took 12.5 ms in 4 steps", True),
    ("loss=0.123 acc=0.945", "loss=0.456 acc=0.9", False),
    ("loss=0.123 at step 3", "loss=0.123 at step 4", True),
    ("torch: 2.14.1+cu130", "torch: 2.9.0", False),
    ("[64, 1, 28, 28]", "[64, 1, 28, 29]", True),
    ("<Figure size 640x480 with 1 Axes>", "<Figure size 640x480 with 2 Axes>", True),
]


def test_nbval_notices_what_it_must(tmp_path: Path) -> None:
    cells = []
    for count, (printed, stored, _) in enumerate(CELLS, start=1):
        if printed.startswith("<Figure"):
            source = f"from IPython.display import display\ndisplay({{'text/plain': {printed!r}}}, raw=True)"
            output = new_output("display_data", {"text/plain": stored})
        else:
            source = f"print({printed!r})"
            output = new_output("stream", name="stdout", text=stored + "\n")
        cells.append(new_code_cell(source, outputs=[output], execution_count=count))
    nbformat.write(new_notebook(cells=cells), tmp_path / "tiny.ipynb")
    outcomes = list(run_nbval(tmp_path / "tiny.ipynb").values())
    assert len(outcomes) == len(CELLS)
    for (_, stored, noticed), outcome in zip(CELLS, outcomes, strict=True):
        assert ("Cell outputs differ" in outcome) == noticed, f"{stored}: {outcome}"
        assert noticed or outcome == "passed", f"{stored}: {outcome}"


def test_summary_says_what_was_compared(tmp_path: Path) -> None:
    """The root conftest counts the cells, here loaded as a plugin, since the notebook lies elsewhere."""
    one = [new_output("stream", name="stdout", text="1\n")]
    cells = [
        new_code_cell("print(1)", outputs=one),
        new_code_cell("print(2)", outputs=copy.deepcopy(one)),  # fails, yet its output was compared
        new_code_cell("x = 1"),
        new_code_cell("print(2)", outputs=copy.deepcopy(one), metadata={"tags": ["nbval-ignore-output"]}),
        new_code_cell("1 / 0", metadata={"tags": ["nbval-skip"]}),
    ]
    for count, cell in enumerate(cells, start=1):
        cell.execution_count = count
    nbformat.write(new_notebook(cells=cells), tmp_path / "tiny.ipynb")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "--nbval",
        "--nbval-current-env",
        "--rootdir",
        tmp_path,
    ]
    result = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path / "tiny.ipynb"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    line = "nbval: 1 notebook, 4 code cells run: 2 outputs compared, 1 empty, 1 ignored, 1 skipped"
    assert line in result.stdout.splitlines(), result.stdout + result.stderr
    assert result.returncode == 1


@needs_notebooks
@pytest.mark.slow
@pytest.mark.skipif("RERUN_ALTERED" not in os.environ, reason="runs every notebook once more; set RERUN_ALTERED=1")
def test_new_run_differs_from_altered_notebooks_only_where_altered(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The sample again, one altered digit to a cell, but compared with what a kernel prints now."""
    altered = {(digit.cell.path.name, digit.cell.cell_num): digit for digit in sample(request.session)}
    for path in PATHS:
        nb = nbformat.read(path, as_version=4)
        for number, cell in enumerate(cell for cell in nb.cells if cell.cell_type == "code"):
            if digit := altered.get((path.name, number)):
                cell.outputs = digit.altered()
        nbformat.write(nb, tmp_path / path.name)
    outcomes = run_nbval(*(tmp_path / path.name for path in PATHS))
    failed = {cell for cell, outcome in outcomes.items() if outcome != "passed"}
    assert failed == {f"{Path(name).stem}::Cell {number}" for name, number in altered}
    assert all("Cell outputs differ" in outcomes[cell] for cell in failed)
