"""The data is right, and every kind of wrong data is refused with a way out."""

import dataclasses
import hashlib
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tutorial_utils import mnist
from tutorial_utils.mnist import DataError, Mnist, batches, load_mnist

TORCHVISION = importlib.util.find_spec("torchvision") is not None
needs_torchvision = pytest.mark.skipif(not TORCHVISION, reason="needs torchvision")
SCRIPT = Path(__file__).parent.parent / "scripts" / "make_mnist_mini.py"
FULL_ROOT = os.environ.get("MNIST_ROOT")
full_data = [
    pytest.mark.full_data,
    pytest.mark.skipif(not FULL_ROOT, reason="needs the full set: set MNIST_ROOT to the folder that holds MNIST/raw"),
]


@pytest.fixture(scope="module")
def mini() -> Mnist:
    return load_mnist()


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


def test_two_loads_share_no_memory(mini):
    other = load_mnist()
    assert other.train_images.data_ptr() != mini.train_images.data_ptr()
    other.test_labels.zero_()
    assert load_mnist().test_labels[0] == 7


@needs_torchvision
def test_images_are_bitwise_those_of_torchvision(mini):
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize((0.1307,), (0.3081,))])
    raw = load_mnist("mini", normalize=False)
    for ours, original in ((mini.train_images, raw.train_images), (mini.test_images, raw.test_images)):
        theirs = torch.stack([transform(image.squeeze(0).numpy()) for image in original[:512]])
        assert torch.equal(ours[:512], theirs)
    # All 256 values, so that no rounding is left to chance.
    every = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    assert torch.equal(mnist._normalize(every), transform(every.numpy()).squeeze(0))


def test_mini_needs_no_torchvision_and_no_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr(socket, "socket", None)
    assert len(load_mnist().train_labels) == 8192


@pytest.mark.parametrize("damage", ["altered", "truncated", "empty", "missing"])
def test_damaged_mini_is_refused(monkeypatch, tmp_path, damage):
    data = bytearray((mnist.files("tutorial_utils") / "data" / "mnist_mini.npz").read_bytes())
    target = tmp_path / "data" / "mnist_mini.npz"
    target.parent.mkdir()
    data[len(data) // 2] ^= 1 if damage == "altered" else 0
    if damage != "missing":
        target.write_bytes({"altered": data, "truncated": data[:-100], "empty": b""}[damage])
    monkeypatch.setattr(mnist, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"mnist_mini\.npz .*Install the package again"):
        load_mnist()


def test_mini_is_small_and_has_its_licence_beside_it():
    folder = mnist.files("tutorial_utils") / "data"
    assert (folder / "mnist_mini.npz").stat().st_size <= 2.5e6
    licence = (folder / "README.md").read_text(encoding="utf-8")
    for phrase in ("Yann LeCun and Corinna Cortes", "Attribution-ShareAlike 3.0", "8,192", "2,048"):
        assert phrase in licence


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["Mini", "", None, 3, "train"])
def test_unknown_set_is_refused(which):
    with pytest.raises(ValueError, match='"mini" or "full"'):
        load_mnist(which)


@pytest.mark.parametrize("device", ["gpu", "", None, "mps", "meta", f"cuda:{torch.cuda.device_count()}"])
def test_unknown_device_is_refused(mini, device):
    with pytest.raises(ValueError, match='"cpu", "cuda"'):
        load_mnist(device=device)
    with pytest.raises(ValueError, match='"cpu", "cuda"'):
        mini.to(device)


def test_to_returns_the_same_data(mini):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    moved = mini.to(device)
    for field in dataclasses.fields(Mnist):
        assert getattr(moved, field.name).device.type == device.type
        assert torch.equal(getattr(moved, field.name).cpu(), getattr(mini, field.name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mini.train_images = None


# --- batches -------------------------------------------------------------------------------------------------------


def test_batches_are_sequential_views_without_the_short_last_one():
    images, labels = torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10)
    loader = batches(images, labels, 4)
    assert len(loader) == 2
    for _ in range(2):  # a second epoch gives the same
        got = list(loader)
        assert [label.tolist() for _, label in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [image.flatten().tolist() for image, _ in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert got[1][0].data_ptr() == images[4:].data_ptr(), "a batch is a view"
    assert len(batches(images, labels, 10)) == 1 and len(batches(images, labels, 1)) == 10


def test_batches_of_the_source(mini):
    assert len(batches(mini.train_images, mini.train_labels, 64)) == 128
    assert len(batches(mini.test_images, mini.test_labels, 1000)) == 2


def test_batches_refuses_bad_arguments():
    images, labels = torch.zeros(10, 1, 28, 28), torch.zeros(10)
    with pytest.raises(ValueError, match="10 images, 9 labels"):
        batches(images, labels[:9], 2)
    for batch_size in (0, -1, 11, 2.0, "2", True, None):
        with pytest.raises(ValueError, match="integer from 1 to 10"):
            batches(images, labels, batch_size)


# --- the full set: from MNIST_ROOT ---------------------------------------------------------------------------------


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
    sums = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}
    assert sums.keys() == mnist._FULL_FILES.keys()
    monkeypatch.setattr(mnist, "_FULL_FILES", sums)
    return contents


def write_raw(root: Path, contents: dict[str, bytes]) -> Path:
    raw = Path(root) / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (raw / name).write_bytes(data)
    return raw


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@needs_torchvision
def test_full_is_read_from_mnist_root(monkeypatch, tmp_path, tiny):
    write_raw(tmp_path, tiny)
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    data = load_mnist("full", normalize=False)
    assert data.train_images.numpy().tobytes() == tiny["train-images-idx3-ubyte"][16:]
    assert data.test_images.numpy().tobytes() == tiny["t10k-images-idx3-ubyte"][16:]
    assert bytes(data.train_labels.tolist()) == tiny["train-labels-idx1-ubyte"][8:]
    assert bytes(data.test_labels.tolist()) == tiny["t10k-labels-idx1-ubyte"][8:]
    assert data.train_labels.dtype == torch.int64
    assert torch.equal(load_mnist("full").train_images, mnist._normalize(data.train_images))


@needs_torchvision
def test_mnist_root_may_be_read_only(monkeypatch, tmp_path, tiny):
    raw = write_raw(tmp_path, tiny)
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    before = snapshot(tmp_path)
    folders = [raw, raw.parent, tmp_path]
    try:
        for folder in folders:
            folder.chmod(0o555)
        assert len(load_mnist("full").train_labels) == 6
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert snapshot(tmp_path) == before, "nothing is written into MNIST_ROOT (root could, whatever the mode)"


@needs_torchvision
@pytest.mark.parametrize("damage", ["altered", "truncated", "empty", "longer", "missing"])
@pytest.mark.parametrize("name", list(mnist._FULL_FILES))
def test_damaged_file_in_mnist_root_is_refused(monkeypatch, tmp_path, tiny, name, damage):
    raw = write_raw(tmp_path, tiny)
    data = bytearray(tiny[name])
    data[-1] ^= 1 if damage == "altered" else 0
    if damage == "missing":
        (raw / name).unlink()
    else:
        (raw / name).write_bytes({"altered": data, "truncated": data[:-1], "empty": b"", "longer": data + b"0"}[damage])
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=f"{name} .*MNIST_ROOT must name a folder that holds MNIST/raw"):
        load_mnist("full")


@needs_torchvision
def test_missing_mnist_root_is_named_and_not_created(monkeypatch, tmp_path):
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere.*MNIST_ROOT must name a folder that holds MNIST/raw"):
        load_mnist("full")
    assert not (tmp_path / "nowhere").exists()


@needs_torchvision
def test_old_processed_files_are_not_read_unchecked(monkeypatch, tmp_path, tiny):
    write_raw(tmp_path, tiny)
    old = tmp_path / "MNIST" / "processed"
    old.mkdir()
    for name in ("training.pt", "test.pt"):
        torch.save((torch.zeros(2, 28, 28, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)), old / name)
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    assert len(load_mnist("full").train_labels) == 6


def test_full_without_torchvision_names_it(monkeypatch, tmp_path):
    for module in ("torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=r'needs torchvision.*load_mnist\("mini"\)'):
        load_mnist("full")


# --- the full set: from the cache ----------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, and no MNIST_ROOT."""
    monkeypatch.delenv("MNIST_ROOT", raising=False)
    monkeypatch.setenv("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tutorial_utils" / "mnist"


@pytest.fixture
def download(monkeypatch):
    """Put a function in the place of torchvision's download; returns how often it was called, as a list."""
    pytest.importorskip("torchvision")
    from torchvision.datasets import MNIST

    def install(fake) -> list[Path]:
        calls = []

        def replacement(self):
            calls.append(Path(self.root))
            fake(Path(self.root))

        monkeypatch.setattr(MNIST, "download", replacement)
        return calls

    return install


def test_download_fills_the_cache_once(cache, download, tiny):
    calls = download(lambda root: write_raw(root, tiny))
    assert len(load_mnist("full").train_labels) == 6
    assert len(load_mnist("full").train_labels) == 6
    assert len(calls) == 1 and calls[0] != cache and calls[0].parent == cache.parent
    assert os.listdir(cache.parent) == ["mnist"], "the temporary folder became the final one"


def failing(error: BaseException, contents: dict[str, bytes]):
    def fake(root: Path) -> None:
        write_raw(root, dict(list(contents.items())[:2]))  # half of it had arrived
        raise error

    return fake


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Error downloading train-images"), TimeoutError("timed out"), OSError(28, "No space left on device")],
    ids=["no network", "time-out", "disk full"],
)
def test_failed_download_leaves_nothing_and_names_the_ways_out(cache, download, tiny, error):
    calls = download(failing(error, tiny))
    with pytest.raises(DataError, match=r'could not be downloaded.*Set MNIST_ROOT.*load_mnist\("mini"\)') as caught:
        load_mnist("full")
    assert (error.args[-1]) in str(caught.value)
    assert os.listdir(cache.parent) == []
    with pytest.raises(DataError):
        load_mnist("full")
    assert len(calls) == 2, "what a failed download left is not trusted"


def test_interrupted_download_leaves_nothing(cache, download, tiny):
    download(failing(KeyboardInterrupt(), tiny))
    with pytest.raises(KeyboardInterrupt):
        load_mnist("full")
    assert os.listdir(cache.parent) == []


def test_download_waits_at_most_seconds_for_an_answer(cache, download, tiny):
    seen = []
    download(lambda root: seen.append(socket.getdefaulttimeout()) or write_raw(root, tiny))
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(1234)
        load_mnist("full")
        assert seen and 0 < seen[0] <= 30
        assert socket.getdefaulttimeout() == 1234, "the caller's own time-out is put back"
    finally:
        socket.setdefaulttimeout(before)


def test_wrong_download_is_not_kept(cache, download, tiny):
    download(lambda root: write_raw(root, tiny | {"t10k-labels-idx1-ubyte": b"<html>sign in to this network</html>"}))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte .*not the original.*MNIST_ROOT"):
        load_mnist("full")
    assert os.listdir(cache.parent) == []


def test_incomplete_download_is_not_kept(cache, download, tiny):
    download(lambda root: write_raw(root, dict(list(tiny.items())[:3])))
    with pytest.raises(DataError, match="MNIST_ROOT"):
        load_mnist("full")
    assert os.listdir(cache.parent) == []


def test_two_processes_may_download_at_once(cache, download, tiny):
    def slower(root: Path) -> None:
        write_raw(root, tiny)
        write_raw(cache, tiny)  # meanwhile another process was done

    download(slower)
    assert len(load_mnist("full").train_labels) == 6
    assert os.listdir(cache.parent) == ["mnist"]


@needs_torchvision
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damaged_cache_is_refused(cache, download, tiny, damage):
    calls = download(lambda root: None)
    raw = write_raw(cache, tiny)
    name = "train-images-idx3-ubyte"
    data = bytearray(tiny[name])
    data[-1] ^= 1 if damage == "altered" else 0
    (raw / name).unlink() if damage == "missing" else (raw / name).write_bytes(
        data[:-1] if damage == "truncated" else data
    )
    with pytest.raises(DataError, match=f"{name} .*Delete the folder .*mnist"):
        load_mnist("full")
    assert calls == []


def test_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path, cache, download, tiny):
    calls = download(lambda root: write_raw(root, tiny))
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cache folder .* cannot be written .*MNIST_ROOT"):
        load_mnist("full")
    assert calls == []


@needs_torchvision
def test_no_network_is_told_within_seconds(monkeypatch, cache):
    def no_network(*arguments, **keywords):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)  # torchvision's own code runs down to here
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with pytest.raises(DataError, match=r"(?s)could not be downloaded.*name resolution.*Set MNIST_ROOT"):
        load_mnist("full")
    assert os.listdir(cache.parent) == []


@pytest.mark.skipif(os.name == "nt", reason="the XDG convention is not Windows'")
def test_cache_folder_follows_the_convention(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert mnist.cache_folder() == Path("/elsewhere/tutorial_utils/mnist")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert mnist.cache_folder() == Path.home() / ".cache" / "tutorial_utils" / "mnist"


# --- the script that makes the embedded part -----------------------------------------------------------------------


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


def test_script_refuses_what_is_not_the_original(tmp_path):
    out = tmp_path / "out.npz"
    result = run_script(tmp_path, "--out", out)
    assert result.returncode == 1 and "train-images-idx3-ubyte" in result.stderr
    write_raw(tmp_path, {name: b"not the original" for name in mnist._FULL_FILES})
    result = run_script(tmp_path, "--out", out)
    assert result.returncode == 1 and "SHA-256" in result.stderr
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bnot gzip")
    result = run_script(tmp_path, "--out", out)
    assert result.returncode == 1 and "cannot be read" in result.stderr and "Traceback" not in result.stderr
    assert not out.exists()


class TestFullData:
    pytestmark = full_data

    def test_full_set_loads(self, mini):
        pytest.importorskip("torchvision")
        data = load_mnist("full")
        assert data.train_images.shape == (60000, 1, 28, 28) and data.test_images.shape == (10000, 1, 28, 28)
        assert torch.equal(data.train_images[:8192], mini.train_images)
        assert torch.equal(data.train_labels[:8192], mini.train_labels)
        assert torch.equal(data.test_images[:2048], mini.test_images)
        assert torch.equal(data.test_labels[:2048], mini.test_labels)
        # The constants of the normalization are the training set's mean and deviation.
        torch.testing.assert_close(data.train_images.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
        torch.testing.assert_close(data.train_images.std(), torch.tensor(1.0), atol=1e-3, rtol=0)
        assert len(batches(data.train_images, data.train_labels, 64)) == 937

    def test_script_makes_the_embedded_part(self, tmp_path):
        packaged = (mnist.files("tutorial_utils") / "data" / "mnist_mini.npz").read_bytes()
        for name in ("first.npz", "second.npz"):
            result = run_script(FULL_ROOT, "--out", tmp_path / name)
            assert result.returncode == 0, result.stderr
            assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in result.stdout
        assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()
        with (
            np.load(tmp_path / "first.npz") as made,
            np.load(mnist.files("tutorial_utils") / "data/mnist_mini.npz") as old,
        ):
            assert sorted(made.files) == sorted(old.files)
            assert all(np.array_equal(made[key], old[key]) for key in old.files)
        import zlib

        if not getattr(zlib, "ZLIBNG_VERSION", None):  # another zlib compresses the same content to other bytes
            assert (tmp_path / "first.npz").read_bytes() == packaged
