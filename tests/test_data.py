"""The data is right, and every kind of wrong data is refused with a way out."""

import hashlib
import os
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from tutorial_utils import data
from tutorial_utils.data import DataError, Mnist, batches, load_mnist

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_mnist_mini.py"
FULL_ROOT = os.environ.get("MNIST_ROOT")


@pytest.fixture(scope="module")
def mini() -> Mnist:
    return load_mnist()


def damaged(content: bytes, damage: str) -> bytes:
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"altered": altered, "truncated": content[:-1], "empty": b""}[damage]


# --- the embedded part ---------------------------------------------------------------------------------------------


def test_mini_has_the_documented_shapes_and_types(mini):
    assert mini.train_images.shape == (8192, 1, 28, 28) and mini.train_images.dtype == torch.float32
    assert mini.test_images.shape == (2048, 1, 28, 28) and mini.test_images.dtype == torch.float32
    assert mini.train_labels.shape == (8192,) and mini.train_labels.dtype == torch.int64
    assert mini.test_labels.shape == (2048,) and mini.test_labels.dtype == torch.int64
    assert mini.train_images.is_contiguous() and mini.test_images.is_contiguous()


def test_mini_is_mnist(mini):
    # The first labels of the two sets are well known; every digit is about a tenth of each.
    assert mini.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mini.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    for labels in (mini.train_labels, mini.test_labels):
        share = labels.bincount(minlength=10) / len(labels)
        assert len(share) == 10 and share.min() > 0.07 and share.max() < 0.13


def test_raw_images_are_the_normalized_ones_undone(mini):
    raw = load_mnist("mini", normalize=False)
    assert raw.train_images.dtype == torch.uint8 and raw.train_images.shape == (8192, 1, 28, 28)
    assert raw.train_images.min() == 0 and raw.train_images.max() == 255
    back = (mini.test_images * 0.3081 + 0.1307) * 255
    assert torch.equal(back.round().to(torch.uint8), raw.test_images)


def test_images_are_bitwise_those_of_torchvision(mini):
    transforms = pytest.importorskip("torchvision.transforms")
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    raw = load_mnist("mini", normalize=False)
    for ours, original in ((mini.train_images, raw.train_images), (mini.test_images, raw.test_images)):
        theirs = torch.stack([transform(image.squeeze(0).numpy()) for image in original[:512]])
        assert torch.equal(ours[:512], theirs)
    # All 256 values, so that no rounding is left to chance.
    every = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    assert torch.equal(data._normalize(every), transform(every.numpy()).squeeze(0))


def test_mini_needs_no_torchvision_and_no_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr(socket, "socket", None)
    assert len(load_mnist().train_labels) == 8192


@pytest.mark.parametrize("damage", ["altered", "truncated", "empty", "missing"])
def test_damaged_mini_is_refused(monkeypatch, tmp_path, damage):
    target = tmp_path / "mnist_mini.npz"
    if damage != "missing":
        target.write_bytes(damaged(data.MINI.read_bytes(), damage))
    monkeypatch.setattr(data, "MINI", target)
    with pytest.raises(DataError, match=r"mnist_mini\.npz .*Install the package again"):
        load_mnist()


def test_mini_is_small_and_has_its_licence_beside_it():
    assert data.MINI.stat().st_size <= 2.5e6
    licence = (data.MINI.parent / "README.md").read_text(encoding="utf-8")
    for phrase in ("Yann LeCun and Corinna Cortes", "Attribution-ShareAlike 3.0", "8,192", "2,048"):
        assert phrase in licence


def test_to_returns_the_same_data_elsewhere(mini):
    moved = mini.to("meta")
    for name, tensor in vars(mini).items():
        other = getattr(moved, name)
        assert other.is_meta and (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
    assert load_mnist(device="meta").train_images.is_meta


@pytest.mark.parametrize("which", ["Mini", None])
def test_unknown_set_is_refused(which):
    with pytest.raises(ValueError, match='"mini" or "full"'):
        load_mnist(which)


# --- batches -------------------------------------------------------------------------------------------------------


def test_batches_are_sequential_views_without_the_short_last_one(mini):
    images, labels = torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10)
    loader = batches(images, labels, 4)
    assert len(loader) == 2
    for _ in range(2):  # a second epoch gives the same
        got = list(loader)
        assert [label.tolist() for _, label in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [image.flatten().tolist() for image, _ in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert got[1][0].data_ptr() == images[4:].data_ptr(), "a batch is a view"
    assert len(batches(images, labels, 10)) == 1 and len(batches(images, labels, 1)) == 10
    assert len(batches(mini.train_images, mini.train_labels, 64)) == 128


def test_batches_refuses_bad_arguments():
    images, labels = torch.zeros(10, 1, 28, 28), torch.zeros(10)
    with pytest.raises(ValueError, match="10 images, 9 labels"):
        batches(images, labels[:9], 2)
    for batch_size in (0, -1, 11):
        with pytest.raises(ValueError, match="from 1 to 10"):
            batches(images, labels, batch_size)


# --- the full set --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch) -> dict[str, bytes]:
    """Four small IDX files that take the originals' place, so that their sums are the expected ones."""
    generator = np.random.default_rng(0)
    contents = {}
    for part, count in (("train", 6), ("t10k", 3)):
        size = count.to_bytes(4, "big")
        pixels = generator.integers(0, 256, count * 28 * 28, dtype=np.uint8).tobytes()
        contents[f"{part}-images-idx3-ubyte"] = bytes([0, 0, 8, 3]) + size + bytes([0, 0, 0, 28] * 2) + pixels
        digits = generator.integers(0, 10, count, dtype=np.uint8).tobytes()
        contents[f"{part}-labels-idx1-ubyte"] = bytes([0, 0, 8, 1]) + size + digits
    assert contents.keys() == data.FULL_SHA256.keys()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(data, "FULL_SHA256", sums)
    return contents


@pytest.fixture
def root(monkeypatch, tmp_path) -> Path:
    """An empty MNIST_ROOT, and no torchvision: what is there is read without it."""
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    return tmp_path


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, and no MNIST_ROOT."""
    monkeypatch.delenv("MNIST_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tutorial_utils" / "mnist"


def write_raw(root: Path, contents: dict[str, bytes]) -> Path:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (raw / name).write_bytes(content)
    return raw


def test_full_is_read_from_mnist_root(root, tiny):
    write_raw(root, tiny)
    full = load_mnist("full", normalize=False)
    assert full.train_images.shape == (6, 1, 28, 28) and full.test_images.shape == (3, 1, 28, 28)
    assert full.train_images.numpy().tobytes() == tiny["train-images-idx3-ubyte"][16:]
    assert full.test_images.numpy().tobytes() == tiny["t10k-images-idx3-ubyte"][16:]
    assert bytes(full.train_labels.tolist()) == tiny["train-labels-idx1-ubyte"][8:]
    assert bytes(full.test_labels.tolist()) == tiny["t10k-labels-idx1-ubyte"][8:]
    assert full.train_labels.dtype == torch.int64
    assert torch.equal(load_mnist("full").train_images, data._normalize(full.train_images))


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
@pytest.mark.parametrize("name", list(data.FULL_SHA256))
def test_damaged_file_of_the_full_set_is_refused(root, tiny, name, damage):
    raw = write_raw(root, tiny)
    if damage == "missing":
        (raw / name).unlink()
    else:
        (raw / name).write_bytes(damaged(tiny[name], damage))
    with pytest.raises(DataError, match=f"{name} .*raw must hold the four original files.*MNIST_ROOT"):
        load_mnist("full")


def test_mnist_root_is_not_written(root):
    with pytest.raises(DataError, match="MNIST_ROOT"):
        load_mnist("full")
    assert os.listdir(root) == []


def test_download_fills_the_cache_once_and_is_verified(cache, monkeypatch, tiny):
    datasets = pytest.importorskip("torchvision.datasets")
    calls = []

    def download(self):
        calls.append(self.root)
        write_raw(Path(self.root), tiny)

    monkeypatch.setattr(datasets.MNIST, "download", download)
    for _ in range(2):
        assert len(load_mnist("full").train_labels) == 6
    assert len(calls) == 1
    write_raw(cache, {"t10k-labels-idx1-ubyte": b"<html>sign in to this network</html>"})
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte .*Delete what is altered"):
        load_mnist("full")


def no_network(monkeypatch, cache):
    pytest.importorskip("torchvision")

    def getaddrinfo(*arguments, **keywords):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)  # torchvision's own code runs down to here
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def no_torchvision(monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)


def folder_that_cannot_be_written(monkeypatch, cache):
    pytest.importorskip("torchvision")
    cache.parent.parent.write_text("a file where the folder should be")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (no_network, "name resolution"),
        (no_torchvision, "torchvision.datasets"),
        (folder_that_cannot_be_written, "cache"),
    ],
)
def test_download_that_fails_names_the_reason_and_the_ways_out(monkeypatch, cache, fault, reason):
    fault(monkeypatch, cache)
    with pytest.raises(DataError, match=rf'(?s)into .*mnist \(.*{reason}.*set MNIST_ROOT.*load_mnist\("mini"\)'):
        load_mnist("full")


def test_cache_is_in_the_home_folder(monkeypatch):
    for name in ("MNIST_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert data.full_root() == Path.home() / ".cache" / "tutorial_utils" / "mnist"
    monkeypatch.setenv("MNIST_ROOT", "~/mnist")
    assert data.full_root() == Path.home() / "mnist"


# --- the script that makes the embedded part -----------------------------------------------------------------------


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


def test_script_refuses_what_is_not_the_original(tmp_path):
    out = tmp_path / "out.npz"
    result = run_script(tmp_path, "--out", out)
    assert result.returncode == 1 and "train-images-idx3-ubyte" in result.stderr
    write_raw(tmp_path, {name: b"not the original" for name in data.FULL_SHA256})
    result = run_script(tmp_path, "--out", out)
    assert result.returncode == 1 and "SHA-256" in result.stderr
    assert not out.exists()


@pytest.mark.full_data
@pytest.mark.skipif(not FULL_ROOT, reason="needs the full set: set MNIST_ROOT to the folder that holds MNIST/raw")
class TestFullData:
    def test_full_set_loads(self, mini):
        full = load_mnist("full")
        assert full.train_images.shape == (60000, 1, 28, 28) and full.test_images.shape == (10000, 1, 28, 28)
        assert torch.equal(full.train_images[:8192], mini.train_images)
        assert torch.equal(full.train_labels[:8192], mini.train_labels)
        assert torch.equal(full.test_images[:2048], mini.test_images)
        assert torch.equal(full.test_labels[:2048], mini.test_labels)
        # The constants of the normalization are the training set's mean and deviation.
        torch.testing.assert_close(full.train_images.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
        torch.testing.assert_close(full.train_images.std(), torch.tensor(1.0), atol=1e-3, rtol=0)
        assert len(batches(full.train_images, full.train_labels, 64)) == 937

    @pytest.mark.parametrize("train", [True, False])
    def test_full_set_is_what_torchvision_reads(self, train):
        datasets = pytest.importorskip("torchvision.datasets")
        images, labels = data.read_full()[:2] if train else data.read_full()[2:]
        theirs = datasets.MNIST(FULL_ROOT, train=train)
        assert torch.equal(images, theirs.data) and torch.equal(labels.long(), theirs.targets)

    def test_script_makes_the_embedded_part(self, tmp_path):
        for name in ("first.npz", "second.npz"):
            result = run_script(FULL_ROOT, "--out", tmp_path / name)
            assert result.returncode == 0, result.stderr
            assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in result.stdout
        assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()
        with np.load(tmp_path / "first.npz") as made, np.load(data.MINI) as old:
            assert sorted(made.files) == sorted(old.files)
            assert all(np.array_equal(made[key], old[key]) for key in old.files)
        if not getattr(zlib, "ZLIBNG_VERSION", None):  # another zlib compresses the same content to other bytes
            assert (tmp_path / "first.npz").read_bytes() == data.MINI.read_bytes()
