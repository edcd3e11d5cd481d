"""MNIST and CIFAR-10 files are read exactly as they are laid out."""

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.errors import BadData
from tacit.workloads.data.image_files import read_cifar10, read_mnist

RNG = np.random.default_rng(0)


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, ending: str, compress: Callable[[bytes], bytes]) -> dict[str, np.ndarray]:
    written = {}
    for prefix, count in (("train", 12), ("t10k", 5)):
        written[f"{prefix}-images-idx3"] = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        written[f"{prefix}-labels-idx1"] = RNG.integers(0, 10, count, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in written.items():
        (folder / f"{name}-ubyte{ending}").write_bytes(compress(idx(values)))
    return written


@pytest.mark.parametrize(
    ("subfolder", "ending", "compress"), [("", "", bytes), ("", ".gz", gzip.compress), ("mnist", ".xz", lzma.compress)]
)
def test_mnist_is_read_from_idx_files(
    tmp_path: Path, subfolder: str, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    written = write_mnist(tmp_path / subfolder, ending, compress)
    read = read_mnist(tmp_path)
    assert np.array_equal(read.x[:, 0], written["train-images-idx3"])
    assert np.array_equal(read.y, written["train-labels-idx1"])
    assert np.array_equal(read.test_x[:, 0], written["t10k-images-idx3"])
    assert np.array_equal(read.test_y, written["t10k-labels-idx1"])


def test_mnist_opens_standardised(tmp_path: Path) -> None:
    write_mnist(tmp_path, "", bytes)
    problem = workloads.mnist(tmp_path, model="cnn", batch_size=3).open(2, Streams(0))
    x, y = problem.collate([0, 1], [sampler.take(1)[0] for sampler in problem.samplers])
    assert x.shape == (2, 3, 1, 28, 28) and y.shape == (2, 3)
    pictures, _ = problem.training.span(0, 12)
    assert float(pictures.mean()) == pytest.approx(0, abs=1e-5)
    assert float(pictures.std()) == pytest.approx(1, abs=1e-3)
    assert len(problem.held_out) == 5


def test_missing_mnist_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none of train-images-idx3-ubyte, train-images-idx3-ubyte.gz, .* is in .*mnist"):
        workloads.mnist(tmp_path).open(1, Streams(0))
    with pytest.raises(BadData, match=r"the folder .*nowhere does not exist"):
        workloads.mnist(tmp_path / "nowhere").open(1, Streams(0))


def test_damaged_idx_files_are_told(tmp_path: Path) -> None:
    write_mnist(tmp_path, "", bytes)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(BadData, match="announces 12x28x28 bytes and holds 9407"):
        read_mnist(tmp_path)
    path.write_bytes(b"<html>")
    with pytest.raises(BadData, match=r"does not begin like an IDX file of bytes in 3 dimensions .*3c68746d"):
        read_mnist(tmp_path)
    path.write_bytes(idx(np.zeros((3, 28, 28), np.uint8)))
    with pytest.raises(BadData, match="holds 12 labels for the 3 pictures"):
        read_mnist(tmp_path)


def planes(x: np.ndarray, y: np.ndarray) -> bytes:
    """Lay pictures out as the .xz files do: labels, then R−G, G, B−G, each differenced along rows and columns."""
    red, green, blue = x.transpose(1, 0, 2, 3)
    stacked = np.stack([red - green, green, blue - green])
    stacked = np.diff(stacked, axis=3, prepend=np.uint8(0))
    return y.tobytes() + np.diff(stacked, axis=2, prepend=np.uint8(0)).tobytes()


def test_cifar10_is_read_from_differenced_planes(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (9, 3, 32, 32), dtype=np.uint8)
    y = RNG.integers(0, 10, 9, dtype=np.uint8)
    (tmp_path / "cifar10-train20000.xz").write_bytes(lzma.compress(planes(x, y)))
    with pytest.raises(BadData, match=r"none of cifar10-test10000\.xz is in"):
        read_cifar10(tmp_path)
    (tmp_path / "cifar10-test10000.xz").write_bytes(lzma.compress(planes(x[:2], y[:2])))
    read = read_cifar10(tmp_path)
    assert np.array_equal(read.x, x) and np.array_equal(read.y, y)
    assert np.array_equal(read.test_x, x[:2]) and np.array_equal(read.test_y, y[:2])
    problem = workloads.cifar10(tmp_path).open(3, Streams(0))
    pictures, _ = problem.training.span(0, 9)
    assert np.allclose(pictures.mean((0, 2, 3)), 0, atol=1e-5)
    assert np.allclose(pictures.std((0, 2, 3)), 1, atol=1e-3)


def test_cifar10_is_read_from_npz_with_channels_first_or_last(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    last = x.transpose(0, 2, 3, 1)
    np.savez(tmp_path / "cifar10.npz", x_train=last, y_train=[[0], [1], [2], [3]], x_test=x, y_test=[0, 1, 2, 3])
    read = read_cifar10(tmp_path)
    assert np.array_equal(read.x, x) and np.array_equal(read.test_x, x)
    assert read.y.tolist() == [0, 1, 2, 3]


def test_broken_cifar10_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"none of cifar10-train20000\.xz, cifar10\.npz is in"):
        read_cifar10(tmp_path)
    np.savez(tmp_path / "cifar10.npz", x_train=np.zeros(3))
    with pytest.raises(BadData, match="has no array y_train, x_test, y_test; it holds x_train"):
        read_cifar10(tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(b"not an archive")
    with pytest.raises(BadData, match=r"is not a readable \.npz archive"):
        read_cifar10(tmp_path)
    whole = lzma.compress(bytes(3073))
    (tmp_path / "cifar10-train20000.xz").write_bytes(whole[:-9])
    with pytest.raises(BadData, match="cannot be read further"):
        read_cifar10(tmp_path)
    (tmp_path / "cifar10-train20000.xz").write_bytes(lzma.compress(bytes(3074)))
    with pytest.raises(BadData, match="3074 bytes are not a whole number of labels and 32x32 pictures"):
        read_cifar10(tmp_path)
