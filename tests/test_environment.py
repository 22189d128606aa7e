"""The environment report answers whatever is missing, and names nobody; the package imports with little else."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tutorial_utils import data, environment

LABELS = {
    "os", "python", "cores", "memory", "torch", "device", "driver", "threads", "tutorial_utils.cuda", "data, embedded",
    "data, full", "compiler", "triton", "torchvision", "numpy", "jupyterlab", "nbval",
}  # fmt: skip
PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60)


# --- the report ----------------------------------------------------------------------------------------------------


def test_report_answers_every_question(monkeypatch, tmp_path, capsys):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "adalovelace"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MNIST_ROOT", raising=False)
    report = environment.report()
    assert report.keys() == LABELS
    assert all(isinstance(text, str) and text and "\n" not in text for text in report.values())
    assert report["torch"].startswith(torch.__version__)
    assert report["data, embedded"] == "complete (8,192 + 2,048 images)"
    assert report["data, full"] == f"not in {Path('~', '.cache', 'tutorial_utils', 'mnist')}"
    assert f"{torch.get_num_threads()} intra-op, {torch.get_num_interop_threads()} inter-op" in report["threads"]
    environment.print_report()
    assert capsys.readouterr().out.splitlines() == [f"{label}: {text}" for label, text in report.items()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /home/ada/x, too", "in ~/x, too"),
        ("in '/scratch/ada'", "in '~'"),
        (r"C:\Users\ada\x", r"~\x"),
        ("/adapter", "/adapter"),
    ],
)
def test_home_and_user_are_abbreviated(monkeypatch, text, expected):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, "/home/ada")
    assert environment._without_home(text) == expected


def test_the_file_runs_without_torch():
    result = run("-S", environment.__file__)  # -S: no installed packages
    assert "torch: ModuleNotFoundError: No module named 'torch'" in result.stdout.splitlines(), result.stderr
    assert "torchvision: none" in result.stdout and "python: 3." in result.stdout


def test_the_file_runs_where_the_package_refuses_torch():
    old = "import runpy, torch; torch.__version__ = type(torch.__version__)('2.8.1')"
    result = run("-c", f"{old}; runpy.run_path({environment.__file__!r}, run_name='__main__')")
    assert "torch: 2.8.1 (CUDA build: " in result.stdout, result.stderr
    assert "tutorial_utils.cuda: ImportError: This course needs PyTorch 2.9 or later; this is 2.8.1." in result.stdout


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might"),
    ],
)
def test_why_there_is_no_gpu_is_said(monkeypatch, error):
    def ones(*arguments, **keywords):
        raise error

    monkeypatch.setattr(torch, "ones", ones)
    reason = re.split(r"\n|\. ", str(error))[0]
    assert environment.report()["device"].startswith(f"CPU; no GPU that PyTorch can use ({reason}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_is_named():
    report = environment.report()
    assert report["tutorial_utils.cuda"] == "torch.cuda"
    assert torch.cuda.get_device_name(0) in report["device"]


def test_nothing_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    report = environment.report()
    assert report["driver"] == "none found" and report["compiler"].startswith("none found")


def test_damaged_data_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "MINI", tmp_path / "mnist_mini.npz")
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    report = environment.report()
    assert "mnist_mini.npz cannot be read" in report["data, embedded"]
    assert "train-images-idx3-ubyte cannot be read" in report["data, full"]


# --- the import ----------------------------------------------------------------------------------------------------


def test_import_needs_no_tqdm_jupyterlab_or_torchvision():
    modules = ["tutorial_utils"]
    for name in ("data", "environment", "models", "timing", "results", "plots", "timeline"):
        modules += [f"tutorial_utils.{name}"] if find_spec(f"tutorial_utils.{name}") else []
    code = f"import sys; sys.modules.update(tqdm=None, jupyterlab=None, torchvision=None); import {', '.join(modules)}"
    result = run("-c", code)
    assert result.returncode == 0, result.stderr


def test_oldest_torch_is_the_one_of_pyproject():
    [bound] = [
        re.match(r"torch>=(\d+)\.(\d+)", line)
        for line in PYPROJECT["project"]["dependencies"]
        if line.startswith("torch>")
    ]
    major, minor = map(int, bound.groups())
    for version, accepted in ((f"{major}.{minor}.0+cpu", True), (f"{major}.{minor - 1}.1", False)):
        code = f"import torch; torch.__version__ = type(torch.__version__)({version!r}); import tutorial_utils"
        result = run("-c", code)
        assert (result.returncode == 0) == accepted, result.stderr
        assert accepted or f"needs PyTorch {major}.{minor} or later; this is {version}" in result.stderr
