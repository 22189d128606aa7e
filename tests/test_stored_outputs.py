"""An altered digit of a stored output makes strict nbval fail, but for the forms that may differ between machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from check_notebooks import IGNORE, ROOT, code_cells, tags_of, texts
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONFIGURATION = ROOT / "tests" / "nbval_sanitize.cfg"
SANITISE = dict(get_sanitize_patterns(CONFIGURATION.read_text(encoding="ascii")))

# What may differ, written a second time and without a look at the patterns of nbval_sanitize.cfg.
MAY_DIFFER = re.compile(
    r"(?m)^ *(?:os|python|torch|torchvision|triton|numpy|jupyterlab|nbval|device|driver):.*$"
    r"|\b(?:loss|acc|diff)=\S+"
    r"|[\d.,]+[ \u00a0](?:[num\u00b5\u03bc]?s|min|B|[kMG]i?B)\b"
    r"|[\d.,]+[x×](?!\d)"
)


def sanitise(text: str) -> str:
    """Apply the patterns as nbval does."""
    for pattern, replacement in SANITISE.items():
        text = re.sub(pattern, replacement, text)
    return text


def test_every_pattern_is_read() -> None:
    """nbval passes over a pattern without its replacement, silently."""
    assert len(SANITISE) == len(re.findall("(?m)^regex", CONFIGURATION.read_text(encoding="ascii"))) > 0


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
    assert sanitise(one) == sanitise(other) != one


@pytest.mark.parametrize(
    "text",
    [
        "3 steps", "64 samples", "10 Bytes", "4096 bytes", "5 minutes", "2 sections", "2 msgs", "conv2d", "fc1.weight",
        "[64, 1, 28, 28]", "28x28", "640x480", "5×5", "28 x 28", "3 x 4 s-shaped", "28x 28", "5x5 kernels", "5x-wide",
        "<Figure size 640x480 with 1 Axes>", "2 of 3", "#7", "98.3 %", "98.3%", "12.3ms", "3s", "v1.2.3", "1.2.3 s",
        "1-2 ms and 3", "layer-3 s", "step_3 s", "h200 s", "64 s=1", "loss=3", "loss=0.1.2", "loss 0.123",
        "train_loss=0.123", "loss=nan 3", "acc=0.945%", "loss: 0.123", "torch 2.14", "my torch: 2", "cores: 2",
        "threads: 4 intra-op", "devices: 3", "nan ms 1", "2 B-trees", "1e5", "16,384", "3 xs", "4 x", "0.5 h", "1 Mi",
    ],
)  # fmt: skip
def test_every_other_digit_is_compared(text: str) -> None:
    assert sanitise(text) == text


def overlooked(text: str) -> list[str]:
    """Return what surrounds each digit that could be altered unnoticed, though it must not differ."""
    excused = {i for match in MAY_DIFFER.finditer(text) for i in range(*match.span())}
    found = []
    for match in re.finditer(r"\d", text):
        i = match.start()
        altered = text[:i] + str((int(match[0]) + 1) % 10) + text[i + 1 :]
        if i not in excused and sanitise(altered) == sanitise(text):
            found.append(text[max(0, i - 20) : i + 20])
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_altered_digit_is_noticed(path: Path) -> None:
    cells = [cell for _, cell in code_cells(nbformat.read(path, as_version=4)) if IGNORE not in tags_of(cell)]
    outputs = [text for cell in cells for text in texts(cell)]
    assert re.search(r"\d", MAY_DIFFER.sub("", "".join(outputs))), "it prints no number that is compared"
    assert [around for text in outputs for around in overlooked(text)] == []


# Printed by the kernel, stored in the notebook, and whether nbval has to notice the difference.
CELLS = [
    ("3 steps of 64 images", "3 steps of 65 images", True),
    ("took 12.5 ms, 3.4x, 5.6 MiB", "took 9.1 µs, 2.0x, 128 GiB", False),
    ("took 12.5 ms in 3 steps", "took 12.5 ms in 4 steps", True),
    ("loss=0.123 acc=0.945", "loss=0.456 acc=0.9", False),
    ("loss=0.123 at step 3", "loss=0.123 at step 4", True),
    ("torch: 2.14.1+cu130", "torch: 2.9.0", False),
    ("<Figure size 640x480 with 1 Axes>", "<Figure size 640x480 with 2 Axes>", True),
]


def test_nbval_notices_what_it_must(tmp_path: Path) -> None:
    cells = []
    for printed, stored, _ in CELLS:
        if printed.startswith("<Figure"):
            source = f"from IPython.display import display\ndisplay({{'text/plain': {printed!r}}}, raw=True)"
            output = new_output("display_data", {"text/plain": stored})
        else:
            source, output = f"print({printed!r})", new_output("stream", name="stdout", text=stored + "\n")
        cells.append(new_code_cell(source, outputs=[output], execution_count=len(cells) + 1))
    nbformat.write(new_notebook(cells=cells), tmp_path / "tiny.ipynb")
    options = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", CONFIGURATION, "--rootdir", tmp_path]
    command = [sys.executable, "-m", "pytest", *options, tmp_path / "tiny.ipynb"]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    failed = [bool(re.search(rf"(?m)^FAILED .*::Cell {i}\b", report)) for i in range(len(CELLS))]
    assert failed == [noticed for _, _, noticed in CELLS], report
    assert report.count("Cell outputs differ") >= sum(failed)
