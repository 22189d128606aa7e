"""Make src/tutorial_utils/data/mnist_mini.npz from the four original MNIST files.

Usage::

    python scripts/make_mnist_mini.py ROOT [--out FILE]

ROOT, or ROOT/MNIST/raw, holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte, each raw or with the ending .gz. Their uncompressed bytes are compared with the SHA-256 sums in
``tutorial_utils.data`` before anything is written, so the package must be installed. The archive holds the first 8,192
training and the first 2,048 test images, uint8 ``[N, 28, 28]``, with their labels, uint8 ``[N]``.

The archive is the same byte for byte at every run: members have a fixed order, date and mode. Its compressed bytes
depend on zlib alone, so a Python built with another implementation (zlib-ng) makes an equal archive with another sum.
"""

import argparse
import gzip
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

from tutorial_utils.data import FULL_SHA256, read_idx

TRAIN, TEST = 8192, 2048
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "src" / "tutorial_utils" / "data" / "mnist_mini.npz"


def read_original(root: Path, name: str) -> np.ndarray:
    """Return the content of one original file, uint8, or stop with a message that names what is wrong."""
    paths = [folder / f"{name}{end}" for folder in (root, root / "MNIST" / "raw") for end in ("", ".gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        sys.exit(f"{name}: neither it nor {name}.gz is in {root} or {root / 'MNIST' / 'raw'}.")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if hashlib.sha256(data).hexdigest() != FULL_SHA256[name]:
        sys.exit(f"{path}: this is not the original file: its SHA-256 differs. Fetch the file again.")
    return read_idx(data).numpy()


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """Return a compressed .npz. ``numpy.savez_compressed`` does not promise equal bytes at every run; this does."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            file.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return archive.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, help="folder with the four original files")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="file to write")
    arguments = parser.parse_args()
    originals = [read_original(arguments.root, name) for name in FULL_SHA256]
    counts = {"train_images": TRAIN, "train_labels": TRAIN, "test_images": TEST, "test_labels": TEST}
    data = pack({name: array[: counts[name]] for name, array in zip(counts, originals, strict=True)})
    arguments.out.write_bytes(data)
    print(f"{hashlib.sha256(data).hexdigest()}  {arguments.out.name}  {len(data)} bytes")


if __name__ == "__main__":
    main()
