"""What a helpdesk asks first: ``print_report()``, or ``python -m tutorial_utils.environment``.

Where torch or the package cannot be imported, run this file: it says why, and everything else that it can. The text
holds no user name: the home folder is written ``~``.
"""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Callable


def report() -> dict[str, str]:
    """Return labels and one line of text each. Needs no network; takes about a second. Never raises."""
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    compilers = (os.environ.get("CXX") or "c++", "g++", "clang++", "cl")
    answers = {"os": platform.platform(), "python": platform.python_version(), "cores": str(os.cpu_count())}
    for label, part in (("memory", _memory), ("torch", _torch), ("tutorial_utils.cuda", _package)):
        try:
            answers |= part()
        except Exception as error:  # a report is wanted most where something is broken
            answers[label] = f"{type(error).__name__}: {error}"
    answers["compiler"] = f"{next(filter(shutil.which, compilers), 'none found')} (only torch.compile needs one)"
    answers |= {name: installed.get(name, "none") for name in ("triton", "torchvision", "numpy", "jupyterlab", "nbval")}
    return {label: _without_home(text).partition("\n")[0] for label, text in answers.items()}


def print_report() -> None:
    """Print :func:`report`, one ``label: text`` a line."""
    for label, text in report().items():
        print(f"{label}: {text}")


def _without_home(text: str) -> str:
    user = os.path.basename(os.path.expanduser("~"))  # "" where the home folder is /
    return re.sub(rf"[^\s'\"(]*[/\\]{re.escape(user)}\b", "~", text) if user else text


def _memory() -> dict[str, str]:
    import psutil

    return {"memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB"}


def _torch() -> dict[str, str]:
    import torch
    from torch.utils import collect_env

    try:
        torch.ones(1, device="cuda").item()  # raises, and says why, where PyTorch cannot use a GPU
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        device = "; ".join(f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus)
    except (AssertionError, RuntimeError) as error:
        device = f"CPU; no GPU that PyTorch can use ({str(error).partition('. ')[0]})"
    return {
        "torch": f"{torch.__version__} (CUDA build: {torch.version.cuda or 'none'})",
        "device": device,
        "driver": collect_env.get_nvidia_driver_version(collect_env.run) or "none found",
        "threads": f"{torch.get_num_threads()} intra-op, {torch.get_num_interop_threads()} inter-op",
    }


def _package() -> dict[str, str]:
    from tutorial_utils import cuda, data

    root = data.full_root()
    return {
        "tutorial_utils.cuda": cuda.__name__,
        "data, embedded": _count(data.read_mini),
        "data, full": _count(data.read_full) if (root / "MNIST" / "raw").exists() else f"not in {root}",
    }


def _count(read: Callable[[], list]) -> str:
    try:
        _, train_labels, _, test_labels = read()
    except RuntimeError as error:
        return str(error)
    return f"complete ({len(train_labels):,} + {len(test_labels):,} images)"


if __name__ == "__main__":
    print_report()
