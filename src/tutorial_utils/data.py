"""MNIST, the embedded part and the full set, checked before it is used.

MNIST is by Yann LeCun and Corinna Cortes, CC BY-SA 3.0; see ``data/README.md`` beside this file.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MEAN, STD = 0.1307, 0.3081  # of the training set's pixels, as in the LibTorch MNIST example
MINI = Path(__file__).parent / "data" / "mnist_mini.npz"
MINI_SHA256 = "b8d357008859bbd447c3f6a8c2b8bd6e9e27e42529dd3b2892d0723c45822491"
FULL_SHA256 = {  # of the uncompressed files. torchvision checks what it downloads, not what is there.
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


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
        """Return the same data on ``device``, anything that ``Tensor.to`` takes."""
        return Mnist(*(tensor.to(device) for tensor in vars(self).values()))


def load_mnist(which: str = "mini", *, normalize: bool = True, device: str | torch.device = "cpu") -> Mnist:
    """Load MNIST.

    Args:
        which: "mini" is the embedded part, the first 8,192 training and 2,048 test images; it needs no network. "full"
            is the whole set, 60,000 and 10,000: from ``$MNIST_ROOT/MNIST/raw`` if that variable is set (read only),
            else from the user's cache, into which torchvision downloads it once.
        normalize: True gives float32 images, bitwise those of torchvision's ToTensor and
            Normalize((0.1307,), (0.3081,)). False gives the raw uint8 images.
        device: anything that ``Tensor.to`` takes.

    Raises:
        ValueError: another ``which``.
        DataError: a file is missing or altered, or the download failed: no network, no torchvision, a folder that
            cannot be written.
    """
    if which not in ("mini", "full"):
        raise ValueError(f'which must be "mini" or "full"; got {which!r}.')
    if which == "full":
        _download()
    train_images, train_labels, test_images, test_labels = read_full() if which == "full" else read_mini()
    images = [train_images.unsqueeze(1), test_images.unsqueeze(1)]
    train_images, test_images = map(_normalize, images) if normalize else images
    return Mnist(train_images, train_labels.long(), test_images, test_labels.long()).to(device)


class batches:
    """Slices of ``images`` and ``labels`` in sequential order; a short last batch is left out.

    Iterating yields ``(images[k:k + batch_size], labels[k:k + batch_size])``, views without a copy. ``len()`` is the
    number of batches; the object can be iterated any number of times.

    Raises:
        ValueError: ``images`` and ``labels`` differ in length, or ``batch_size`` is not from 1 to that length.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int) -> None:
        if len(images) != len(labels):
            raise ValueError(f"images and labels must be equally many; got {len(images)} images, {len(labels)} labels.")
        if not 1 <= batch_size <= len(images):
            raise ValueError(f"batch_size must be from 1 to {len(images)}, the number of images; got {batch_size}.")
        self.images, self.labels, self.batch_size = images, labels, batch_size

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield self.images[start : start + self.batch_size], self.labels[start : start + self.batch_size]


def full_root() -> Path:
    """The folder that holds ``MNIST/raw`` with the full set, or will: ``$MNIST_ROOT``, else one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("MNIST_ROOT") or cache / "tutorial_utils" / "mnist").expanduser()


def read_mini() -> list[Tensor]:
    """Read the embedded part: images uint8 ``[N, 28, 28]`` and labels uint8 ``[N]``, training set first."""
    data = _verified(MINI, MINI_SHA256, 'Install the package again, or restore the file with "git checkout".')
    with np.load(io.BytesIO(data)) as archive:
        return [torch.from_numpy(archive[name]) for name in Mnist.__dataclass_fields__]


def read_full() -> list[Tensor]:
    """Read the full set from :func:`full_root`, in the form of :func:`read_mini`. DataError where it is not there."""
    raw = full_root() / "MNIST" / "raw"
    way_out = f"{raw} must hold the four original files, uncompressed. Delete what is altered, or set MNIST_ROOT."
    return [read_idx(_verified(raw / name, FULL_SHA256[name], way_out)) for name in FULL_SHA256]


def read_idx(data: bytes) -> Tensor:
    """The content of an uncompressed MNIST file: images uint8 ``[N, 28, 28]`` or labels uint8 ``[N]``."""
    dimensions = data[3]  # IDX: two zeros, the type, the number of dimensions; then each size as a big-endian int32
    shape = np.frombuffer(data, ">i4", dimensions, offset=4).tolist()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _normalize(images: Tensor) -> Tensor:
    # The operations of ToTensor and Normalize in their order, on the CPU: a GPU divides with another rounding.
    return images.to(torch.float32).div_(255).sub_(torch.tensor(MEAN)).div_(torch.tensor(STD))


def _verified(path: Path, sha256: str, way_out: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}). {way_out}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(f"{path} is altered or truncated ({len(data)} bytes): its SHA-256 differs. {way_out}")
    return data


def _download() -> None:
    root = full_root()
    if os.environ.get("MNIST_ROOT") or all((root / "MNIST" / "raw" / name).exists() for name in FULL_SHA256):
        return
    try:
        from torchvision.datasets import MNIST

        MNIST(root, download=True)
    except (ImportError, RuntimeError, OSError) as error:  # torchvision of another torch's build raises RuntimeError
        raise DataError(
            f"MNIST could not be downloaded into {root} ({error}). This needs torchvision, the network and a folder "
            "that can be written. Else set MNIST_ROOT to a folder that holds MNIST/raw with the four uncompressed "
            'files, or use the embedded part, load_mnist("mini").'
        ) from error
