"""The environment report never raises, whatever is missing, and names nobody."""

import builtins
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from tutorial_utils import environment, mnist

LABELS = [
    "os", "python", "torch", "tutorial_utils.cuda", "device", "driver", "cores", "threads", "memory", "compiler",
    "triton", "torchvision", "numpy", "jupyterlab", "nbval", "data, embedded", "data, full",
]  # fmt: skip


@pytest.fixture
def home(monkeypatch, tmp_path) -> Path:
    """A home folder and a user whose name must not appear, and no MNIST_ROOT."""
    folder = tmp_path / "adalovelace"
    folder.mkdir()
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(folder))
    for name in ("USER", "USERNAME", "LOGNAME"):
        monkeypatch.setenv(name, "adalovelace")
    for name in ("MNIST_ROOT", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def hide(monkeypatch, *names: str) -> None:
    """Let every import of ``names`` fail."""
    original = builtins.__import__

    def fail(name, *arguments, **keywords):
        if name.split(".")[0] in names:
            raise ImportError(f"No module named {name!r}")
        return original(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", fail)


def test_report_answers_every_question(home):
    report = environment.report()
    assert list(report) == LABELS
    assert all(isinstance(value, str) and value and "\n" not in value for value in report.values())
    assert report["torch"].startswith(torch.__version__)
    assert report["python"].startswith(".".join(map(str, sys.version_info[:2])))
    assert report["data, embedded"] == "complete (8,192 + 2,048 images)"
    assert f"{torch.get_num_threads()} intra-op, {torch.get_num_interop_threads()} inter-op" in report["threads"]
    assert report["cores"].startswith(f"{os.cpu_count()}, of which")
    unknown = {label for label, value in report.items() if value.startswith("unknown")}
    assert unknown <= {"driver", "memory"}, "only these may be out of reach where the tests run"


def test_print_report_is_one_line_a_label(home, capsys):
    environment.print_report()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == LABELS


def test_report_names_nobody(home, monkeypatch):
    raw = home / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    monkeypatch.setenv("MNIST_ROOT", str(home / "data"))
    text = "\n".join(environment.report().values())
    assert "adalovelace" not in text
    assert os.path.join("~", "data", "MNIST", "raw", "train-images-idx3-ubyte") in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{}/x", "~/x"), ("in {}, too", "in ~, too"), ("{}er/x", "{}er/x"), ("/scratch/ada/x", "/scratch/USER/x")],
)
def test_home_and_user_are_abbreviated(monkeypatch, text, expected):
    home = "/home/ada"
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, home)
    monkeypatch.setenv("USER", "ada")
    assert environment._without_names(text.format(home)) == expected.format(home)


def test_every_probe_may_fail(home, monkeypatch):
    def broken():
        raise ValueError(f"broken in {home}\nsecond line")

    monkeypatch.setattr(environment, "_PROBES", {label: broken for label in environment._PROBES})
    assert environment.report() == {label: "unknown (ValueError: broken in ~)" for label in LABELS}


def test_without_torch_and_package_the_rest_is_reported(home, monkeypatch):
    hide(monkeypatch, "torch", "tutorial_utils", "psutil", "numpy")
    report = environment.report()
    assert list(report) == LABELS
    for label in ("torch", "tutorial_utils.cuda", "device", "threads", "data, embedded", "data, full"):
        assert report[label].startswith("unknown (ImportError: No module named"), label
    for label in ("os", "python", "cores", "compiler", "numpy"):
        assert not report[label].startswith("unknown"), label


def test_the_file_runs_alone():
    """Where the package refuses the versions, the file itself still reports."""
    result = subprocess.run(
        [sys.executable, "-S", environment.__file__], capture_output=True, text=True, check=True, timeout=60
    )  # -S: no installed packages, so no torch
    assert [line.split(": ")[0] for line in result.stdout.splitlines()] == LABELS
    assert "torch: unknown (ModuleNotFoundError" in result.stdout


@pytest.mark.parametrize(("version", "supported"), [((3, 10, 9), False), ((3, 11, 0), True), ((3, 14, 0), False)])
def test_unsupported_python_is_said(monkeypatch, version, supported):
    monkeypatch.setattr(sys, "version_info", version)
    assert ("not supported" not in environment.report()["python"]) == supported


@pytest.mark.parametrize(
    ("version", "supported"), [("2.8.1+cpu", False), ("2.9.0", True), ("2.14.1+cu130", True), ("3.0a0", True)]
)
def test_unsupported_torch_is_said(monkeypatch, version, supported):
    monkeypatch.setattr(torch, "__version__", version)
    report = environment.report()["torch"]
    assert report.startswith(version) and ("not supported" not in report) == supported


# --- device and driver ---------------------------------------------------------------------------------------------


def test_old_driver_is_said_without_warnings(no_gpu, monkeypatch):
    def init():
        warnings.warn("CUDA initialization: the driver is too old", stacklevel=1)
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = environment.report()
    assert "built for CUDA 13.0" in report["torch"]
    assert report["device"].startswith("CPU; no GPU that PyTorch can use (The NVIDIA driver on your system is too old")
    assert "11040" in report["device"]


def test_build_without_cuda_is_said(no_gpu, monkeypatch):
    def init():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", None)
    report = environment.report()
    assert "built without CUDA" in report["torch"] and "not compiled with CUDA" in report["device"]


def test_gpu_without_code_for_it_is_said(monkeypatch):
    def ones(*arguments, **keywords):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", ones)
    assert "no kernel image is available" in environment.report()["device"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_stand_in_is_named_where_there_is_no_gpu():
    report = environment.report()
    assert "cuda_stand_in" in report["tutorial_utils.cuda"] and "stand-in" in report["tutorial_utils.cuda"]
    assert report["device"].startswith("CPU; no GPU that PyTorch can use (")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_is_named():
    report = environment.report()
    assert report["tutorial_utils.cuda"] == "torch.cuda"
    assert torch.cuda.get_device_name(0) in report["device"] and "compute capability" in report["device"]


@pytest.mark.skipif(os.name == "nt", reason="the fake program is a shell script")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 580.95.05; echo 580.95.05", "580.95.05"),
        ("echo no devices were found; exit 6", "unknown (nvidia-smi: no devices were found)"),
        ("exit 9", "unknown (nvidia-smi: no answer)"),
    ],
)
def test_driver_is_what_nvidia_smi_says(monkeypatch, tmp_path, script, expected):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.report()["driver"] == expected


def test_nothing_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    report = environment.report()
    assert report["driver"].startswith("no NVIDIA driver found") and report["compiler"].startswith("none found")


# --- memory and data -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs /proc")
def test_memory_without_psutil(monkeypatch):
    with_psutil = environment.report()["memory"]
    hide(monkeypatch, "psutil")
    without = environment.report()["memory"]
    assert without.endswith("available") and without.split(",")[0] == with_psutil.split(",")[0]


def test_full_data_not_there(home):
    report = environment.report()["data, full"]
    assert report.startswith("not downloaded") and report.endswith("can be written)")
    assert os.path.join("~", ".cache", "tutorial_utils") in report or os.name == "nt"
    assert list(home.iterdir()) == [], "a report writes nothing"


@pytest.mark.skipif(os.name == "nt", reason="the XDG convention is not Windows'")
def test_cache_that_cannot_be_written_is_said(home):
    (home / ".cache").write_text("a file where the folder should be")
    assert environment.report()["data, full"].endswith("cannot be written)")


def test_states_of_the_full_data(home, monkeypatch, tmp_path):
    root = tmp_path / "root"
    monkeypatch.setenv("MNIST_ROOT", str(root))
    assert environment.report()["data, full"].startswith("MNIST_ROOT, not usable: ")
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    sums = {}
    for name in mnist._FULL_FILES:
        (raw / name).write_bytes(b"")
        sums[name] = (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")  # SHA-256 of nothing
    assert "truncated" in environment.report()["data, full"]
    monkeypatch.setattr(mnist, "_FULL_FILES", sums)
    assert environment.report()["data, full"] == "MNIST_ROOT, complete (60,000 + 10,000 images)"


def test_damaged_embedded_data_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "files", lambda package: tmp_path)
    report = environment.report()["data, embedded"]
    assert report.startswith("unknown (DataError: ") and "mnist_mini.npz cannot be read" in report
