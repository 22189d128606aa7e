"""MNIST, the embedded part and the full set, checked before it is used.

MNIST is by Yann LeCun and Corinna Cortes, CC BY-SA 3.0; see ``data/README.md`` beside this file.
"""

import hashlib
import io
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MEAN, STD = 0.1307, 0.3081  # of the training set's pixels, as in the LibTorch MNIST example
_MINI_SHA256 = "b8d357008859bbd447c3f6a8c2b8bd6e9e27e42529dd3b2892d0723c45822491"
_FULL_FILES = {  # uncompressed file: (size in bytes, SHA-256). torchvision checks what it downloads, not what is there.
    "train-images-idx3-ubyte": (47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": (60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
_WAYS_OUT = (
    "Set MNIST_ROOT to a folder that holds MNIST/raw with the four uncompressed files, "
    'or use the embedded part, load_mnist("mini"), which needs no network.'
)


class DataError(RuntimeError):
    """The data is missing, altered or out of reach; the message names the file and the way out."""


@dataclass(frozen=True)
class Mnist:
    """Images ``[N, 1, 28, 28]`` (float32 normalized, or uint8) and labels ``[N]`` (int64, 0 to 9)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def to(self, device: str | torch.device) -> "Mnist":
        """Return the same data on ``device``: "cpu", "cuda" or "cuda:N". ValueError for any other."""
        device = _check_device(device)
        return Mnist(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def load_mnist(which: str = "mini", *, normalize: bool = True, device: str | torch.device = "cpu") -> Mnist:
    """Load MNIST.

    Args:
        which: "mini" is the embedded part, the first 8,192 training and 2,048 test images; it needs no network. "full"
            is the whole set, 60,000 and 10,000: from ``$MNIST_ROOT/MNIST/raw`` if that variable is set (read only),
            else from the user's cache, into which torchvision downloads it once.
        normalize: True gives float32 images, bitwise those of torchvision's ToTensor and
            Normalize((0.1307,), (0.3081,)). False gives the raw uint8 images.
        device: "cpu", "cuda" or "cuda:N".

    Raises:
        ValueError: another ``which`` or ``device``.
        DataError: a file is missing, altered or truncated, the cache cannot be written, there is no network, or
            torchvision is missing ("full" only).
    """
    if which not in ("mini", "full"):
        raise ValueError(f'which must be "mini" or "full"; got {which!r}.')
    device = _check_device(device)
    train_images, train_labels, test_images, test_labels = _read_mini() if which == "mini" else _read_full()
    prepare = _normalize if normalize else torch.clone
    return Mnist(
        prepare(train_images.unsqueeze(1)), train_labels.long(), prepare(test_images.unsqueeze(1)), test_labels.long()
    ).to(device)


class batches:
    """Slices of ``images`` and ``labels`` in sequential order; a short last batch is left out.

    Iterating yields ``(images[k:k + batch_size], labels[k:k + batch_size])``, views without a copy. ``len()`` is the
    number of batches; the object can be iterated any number of times.

    Raises:
        ValueError: ``images`` and ``labels`` differ in length, or ``batch_size`` is no integer from 1 to that length.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int) -> None:
        if len(images) != len(labels):
            raise ValueError(f"images and labels must be equally many; got {len(images)} images, {len(labels)} labels.")
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or not 1 <= batch_size <= len(images):
            raise ValueError(
                f"batch_size must be an integer from 1 to {len(images)}, the number of images; got {batch_size!r}."
            )
        self.images, self.labels, self.batch_size = images, labels, batch_size

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield self.images[start : start + self.batch_size], self.labels[start : start + self.batch_size]


def cache_folder() -> Path:
    """The folder that holds ``MNIST/raw`` once the full set was downloaded (it need not exist)."""
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return base / "tutorial_utils" / "mnist"


def _check_device(device: str | torch.device) -> torch.device:
    allowed = '"cpu", "cuda" or "cuda:N" with N below the number of GPUs'
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be {allowed}; got {device!r}.") from error
    if checked.type == "cuda" and (checked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={str(checked)!r}: PyTorch finds {torch.cuda.device_count()} GPUs; use {allowed}.")
    if checked.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be {allowed}; got {str(checked)!r}.")
    return checked


def _normalize(images: Tensor) -> Tensor:
    # The operations of ToTensor and Normalize in their order, on the CPU: a GPU divides with another rounding.
    return images.to(torch.float32).div_(255).sub_(torch.tensor(MEAN)).div_(torch.tensor(STD))


def _read_mini() -> list[Tensor]:
    path = files("tutorial_utils") / "data" / "mnist_mini.npz"
    way_out = 'Install the package again, or restore the file with "git checkout".'
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}). {way_out}") from error
    if hashlib.sha256(data).hexdigest() != _MINI_SHA256:
        raise DataError(f"{path} is altered or truncated ({len(data)} bytes): its SHA-256 differs. {way_out}")
    with np.load(io.BytesIO(data)) as archive:
        return [torch.from_numpy(archive[name]) for name in Mnist.__dataclass_fields__]


def _read_full() -> list[Tensor]:
    try:
        from torchvision.datasets import MNIST as TorchvisionMnist
    except (ImportError, RuntimeError, OSError) as error:  # torchvision of another torch's build raises RuntimeError
        message = 'load_mnist("full") needs torchvision, which cannot be imported'
        raise DataError(f'{message} ({error}). Install it, or use load_mnist("mini").') from error

    class MNIST(TorchvisionMnist):  # the name decides the folder, ROOT/MNIST/raw
        def _check_legacy_exist(self) -> bool:
            return False  # an old MNIST/processed/*.pt beside the raw files would be read instead of them, unchecked

    if os.environ.get("MNIST_ROOT"):
        root = Path(os.environ["MNIST_ROOT"]).expanduser()
        verify_full(root, "MNIST_ROOT must name a folder that holds MNIST/raw with the four uncompressed IDX files.")
    else:
        root = cache_folder()
        if not os.path.exists(root):  # pathlib's raises where a parent cannot be searched
            _download(root, MNIST)
        verify_full(root, f"Delete the folder {root} and call load_mnist again, or set MNIST_ROOT.")
    train, test = MNIST(root, train=True, download=False), MNIST(root, train=False, download=False)
    return [train.data, train.targets, test.data, test.targets]


def verify_full(root: Path, way_out: str) -> None:
    """Raise DataError naming the first of the four files in ``root/MNIST/raw`` that is missing or not the original."""
    for name, (size, sha256) in _FULL_FILES.items():
        path = root / "MNIST" / "raw" / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({type(error).__name__}). {way_out}") from error
        if len(data) != size:
            raise DataError(f"{path} is truncated or altered: {len(data)} bytes instead of {size}. {way_out}")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DataError(f"{path} is altered: its SHA-256 differs from the original's. {way_out}")


def _download(root: Path, dataset: type) -> None:
    """Fill ``root``, which appears only once everything in it was verified."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix="mnist-part-", dir=root.parent))
    except OSError as error:
        raise DataError(f"The cache folder {root.parent} cannot be written ({error}). {_WAYS_OUT}") from error
    timeout = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(10)  # torchvision sets none: a network that swallows packets would hang for minutes
        dataset(part, download=True)
        verify_full(part, f"The download was not the original. {_WAYS_OUT}")
        try:
            part.rename(root)
        except OSError:
            if not root.exists():  # it does when another process was faster; its copy is verified like any other
                raise
    except DataError:
        raise
    except (RuntimeError, OSError, HTTPException) as error:
        raise DataError(f"MNIST could not be downloaded into {root} ({error}). {_WAYS_OUT}") from error
    finally:
        socket.setdefaulttimeout(timeout)
        shutil.rmtree(part, ignore_errors=True)
