"""The whole programs in examples/: each runs, and is what the notebooks show."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import torch
from torch.overrides import TorchFunctionMode

from tutorial_utils import cuda_stand_in, load_mnist

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SHOWN = {"05_replay.ipynb": "mnist_cuda_graph.py", "24_fork_models.ipynb": "lstm_fork.py"}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A folder as torchvision leaves it, with the first 320 + 256 embedded images; torchvision checks names alone."""
    folder = tmp_path_factory.mktemp("mnist")
    (raw := folder / "MNIST" / "raw").mkdir(parents=True)
    data = load_mnist(normalize=False)
    for name, images, labels in (
        ("train", data.train_images[:330], data.train_labels[:330]),
        ("t10k", data.test_images[:256], data.test_labels[:256]),
    ):
        header = b"".join(number.to_bytes(4, "big") for number in (0x803, len(images), 28, 28))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        header = b"".join(number.to_bytes(4, "big") for number in (0x801, len(labels)))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.to(torch.uint8).numpy().tobytes())
    return folder


class OnTheCpu(TorchFunctionMode):
    """Gives every call that names a CUDA device the CPU instead."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def moved(value):
            return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

        return func(*map(moved, args), **{key: moved(value) for key, value in (kwargs or {}).items()})


def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment}
    )


def test_the_graph_trainer_runs_unchanged_through_the_stand_in(mnist, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mnist_cuda_graph.py", "--data", str(mnist), "--epochs", "2"])
    names = ("CUDAGraph", "Stream", "current_stream", "get_rng_state", "graph", "set_rng_state", "stream")
    stand_in = {name: getattr(cuda_stand_in, name) for name in names} | {"is_available": lambda: True}
    with mock.patch.multiple(torch.cuda, **stand_in), OnTheCpu():
        variables = runpy.run_path(str(EXAMPLES / "mnist_cuda_graph.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].startswith("epoch 1: loss ") and lines[2].startswith("accuracy on 256")
    assert any(operation.name.startswith("aten.convolution") for operation in variables["graph"].operations)
    assert lines[0].split(",")[0][8:] != lines[1].split(",")[0][8:], "the loss stays: the replays do not train"


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_cuda_graph.py", "mnist_compile_and_capture.py"])
def test_a_trainer_runs_on_a_gpu(name, mnist):
    done = run(name, "--data", str(mnist), "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch ") == 3 and "accuracy on 256 test images" in done.stdout


@needs_gpu
@pytest.mark.slow
@pytest.mark.full_data
@pytest.mark.skipif(not os.environ.get("MNIST_ROOT"), reason="set MNIST_ROOT to the folder of the full MNIST data")
@pytest.mark.parametrize("name", ["mnist_cuda_graph.py", "mnist_compile_and_capture.py"])
def test_a_trainer_reaches_the_accuracy_of_the_source(name):
    done = run(name, "--data", os.environ["MNIST_ROOT"])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.98, done.stdout


@pytest.mark.parametrize("name", ["mnist_cuda_graph.py", "mnist_compile_and_capture.py"])
def test_a_trainer_says_that_it_needs_a_gpu(name):
    done = run(name, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "needs a GPU" in done.stderr and "Traceback" not in done.stderr


def test_the_forked_ensemble_runs():
    done = run("lstm_fork.py", "--inter", "2", "--size", "8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bitwise equal: True" in done.stdout and "forked: " in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_fits_on_a_screen_and_has_help(path):
    assert len(path.read_text().splitlines()) <= 84
    done = run(path.name, "--help")
    assert done.returncode == 0 and "usage:" in done.stdout


@pytest.mark.parametrize(("notebook", "program"), SHOWN.items())
def test_the_notebook_shows_the_program(notebook, program):
    cells = nbformat.read(ROOT / "notebooks" / notebook, as_version=4).cells
    block = f"```python\n{(EXAMPLES / program).read_text()}```"
    assert sum(block in cell.source for cell in cells if cell.cell_type == "markdown") == 1
