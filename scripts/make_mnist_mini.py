"""Make src/tutorial_utils/data/mnist_mini.npz from the four original MNIST files.

Usage::

    python scripts/make_mnist_mini.py ROOT [--out FILE]

ROOT, or ROOT/MNIST/raw, holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte, each raw or with the ending .gz. Their uncompressed bytes are compared with the SHA-256 sums
below before anything is written. The archive holds the first 8,192 training and the first 2,048 test images, uint8
``[N, 28, 28]``, with their labels, uint8 ``[N]``.

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

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
TRAIN, TEST = 8192, 2048
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "src" / "tutorial_utils" / "data" / "mnist_mini.npz"


def read_original(root: Path, name: str) -> bytes:
    """Return the uncompressed bytes of one original file, or stop with a message that names what is wrong."""
    for folder in (root, root / "MNIST" / "raw"):
        for path in (folder / name, folder / f"{name}.gz"):
            if not path.is_file():
                continue
            try:
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            except (OSError, EOFError) as error:
                sys.exit(f"{path}: cannot be read ({error}). Fetch the file again.")
            if hashlib.sha256(data).hexdigest() != SHA256[name]:
                sys.exit(f"{path}: this is not the original file: its SHA-256 differs. Fetch the file again.")
            return data
    sys.exit(f"{name}: neither it nor {name}.gz is in {root} or {root / 'MNIST' / 'raw'}.")


def images(data: bytes, count: int) -> np.ndarray:
    """The first ``count`` images of an IDX3 file, uint8 ``[count, 28, 28]``: the header has 16 bytes."""
    return np.frombuffer(data, np.uint8, count * 28 * 28, offset=16).reshape(count, 28, 28)


def labels(data: bytes, count: int) -> np.ndarray:
    """The first ``count`` labels of an IDX1 file, uint8 ``[count]``: the header has 8 bytes."""
    return np.frombuffer(data, np.uint8, count, offset=8)


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
    original = {name: read_original(arguments.root, name) for name in SHA256}
    data = pack(
        {
            "train_images": images(original["train-images-idx3-ubyte"], TRAIN),
            "train_labels": labels(original["train-labels-idx1-ubyte"], TRAIN),
            "test_images": images(original["t10k-images-idx3-ubyte"], TEST),
            "test_labels": labels(original["t10k-labels-idx1-ubyte"], TEST),
        }
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(data)
    print(f"{hashlib.sha256(data).hexdigest()}  {arguments.out.name}  {len(data)} bytes")


if __name__ == "__main__":
    main()
