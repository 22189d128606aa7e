"""What a helpdesk asks first: ``print_report()``, or ``python -m tutorial_utils.environment``.

Where the package itself cannot be imported (an unsupported Python or torch), run this file: it needs only the standard
library. No probe raises; what cannot be found out is reported as ``unknown (reason)``. The text holds no user name: the
home folder is written ``~``.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

GIB = 2**30


def report() -> dict[str, str]:
    """Return label and value of every probe, in reading order. Never raises."""
    return {label: _guarded(probe) for label, probe in _PROBES.items()}


def print_report() -> None:
    """Print :func:`report`, one ``label: value`` a line."""
    for label, value in report().items():
        print(f"{label}: {value}")


def _guarded(probe: Callable[[], str]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a driver that is too old warns at every question; "device" says so once
            return _without_names(probe())
    except Exception as error:
        return _without_names(f"unknown ({type(error).__name__}: {_first_line(error)})")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no message")


def _without_names(text: str) -> str:
    """Replace the home folder by ``~`` and the user's name, as a part of a path, by ``USER``."""
    home = os.path.expanduser("~")
    if len(home) > 1:
        text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
    user = os.environ.get("USER") or os.environ.get("USERNAME") or os.path.basename(home)
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", text) if user else text


def _python() -> str:
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    kind = "conda environment" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else kind
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    kind += "" if supported else ", not supported: this course needs 3.11 to 3.13"
    return f"{platform.python_version()} ({platform.python_implementation()}, {kind})"


def _torch() -> str:
    import torch

    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    supported = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) >= (2, 9)
    return (
        f"{torch.__version__} (built {build}{'' if supported else ', not supported: this course needs 2.9 or later'})"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        torch.ones(1, device="cuda").item()  # raises where PyTorch has no code for this GPU
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return "; ".join(
            f"{gpu.name}, {gpu.total_memory / GIB:.1f} GiB, compute capability {gpu.major}.{gpu.minor}" for gpu in gpus
        )
    try:
        torch.cuda.init()  # says why there is none: no driver, one too old, no device visible, a build without CUDA
        return "CPU; no GPU that PyTorch can use"
    except Exception as error:
        return f"CPU; no GPU that PyTorch can use ({_first_line(error)})"


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver found (nvidia-smi is not on the PATH)"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    answer = (result.stdout.strip() or result.stderr.strip() or "no answer").splitlines()[0]
    return answer if result.returncode == 0 else f"unknown (nvidia-smi: {answer})"


def _cuda() -> str:
    from tutorial_utils import cuda

    return "torch.cuda" if cuda.__name__ == "torch.cuda" else f"{cuda.__name__} (stand-in on the CPU)"


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{os.cpu_count()}, of which this process may use {usable}"


def _threads() -> str:
    import torch

    intra, inter = torch.get_num_threads(), torch.get_num_interop_threads()
    return f"{intra} intra-op, {inter} inter-op, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}"


def _memory() -> str:
    try:
        import psutil

        total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    except ImportError:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        total, free = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    return f"{total / GIB:.1f} GiB, of which {free / GIB:.1f} GiB available"


def _compiler() -> str:
    names = ["cl"] if os.name == "nt" else [os.environ.get("CXX") or "c++", "g++", "clang++"]
    found = next((os.path.basename(name) for name in names if shutil.which(name)), "none found")
    return f"{found} (only torch.compile and the C++ program need one)"


def _mini() -> str:
    from tutorial_utils.mnist import load_mnist

    data = load_mnist("mini", normalize=False)
    return f"complete ({len(data.train_labels):,} + {len(data.test_labels):,} images)"


def _full() -> str:
    from tutorial_utils.mnist import DataError, cache_folder, verify_full

    where = "MNIST_ROOT" if os.environ.get("MNIST_ROOT") else "cache"
    root = Path(os.environ["MNIST_ROOT"]).expanduser() if where == "MNIST_ROOT" else cache_folder()
    if where == "cache" and not os.path.exists(root):
        parent = next(folder for folder in root.parents if os.path.exists(folder))
        writable = "can" if parent.is_dir() and os.access(parent, os.W_OK) else "cannot"
        return f'not downloaded (load_mnist("full") does it; the cache {root.parent} {writable} be written)'
    try:
        verify_full(root, "")
    except DataError as error:
        return f"{where}, not usable: {str(error).strip()}"
    return f"{where}, complete (60,000 + 10,000 images)"


_PROBES: dict[str, Callable[[], str]] = {
    "os": lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
    "python": _python,
    "torch": _torch,
    "tutorial_utils.cuda": _cuda,
    "device": _device,
    "driver": _driver,
    "cores": _cores,
    "threads": _threads,
    "memory": _memory,
    "compiler": _compiler,
    **{name: lambda name=name: _version(name) for name in ("triton", "torchvision", "numpy", "jupyterlab", "nbval")},
    "data, embedded": _mini,
    "data, full": _full,
}

if __name__ == "__main__":
    print_report()
