"""Readers for the files of MNIST and CIFAR-10."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.errors import BadData
from tacit.workloads.data.files import find_file, read_bytes

_IDX_BYTES = 0x08  # the IDX code for unsigned bytes
_ENDINGS = ("", ".gz", ".xz")


class Pictures(NamedTuple):
    """Pictures ``[count, channels, height, width]`` of bytes and their labels, for training and for testing."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]


def read_mnist(folder: str | Path) -> Pictures:
    """Read the four IDX files (plain, .gz or .xz) in ``folder`` or its subfolder ``mnist``."""
    folders = [Path(folder), Path(folder) / "mnist"]

    def part(prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        pictures_path = find_file(folders, [f"{prefix}-images-idx3-ubyte{ending}" for ending in _ENDINGS])
        labels_path = find_file(folders, [f"{prefix}-labels-idx1-ubyte{ending}" for ending in _ENDINGS])
        pictures, labels = read_idx(pictures_path, 3), read_idx(labels_path, 1)
        if len(pictures) != len(labels):
            raise BadData(
                f"{labels_path}: holds {len(labels)} labels for the {len(pictures)} pictures of {pictures_path}."
            )
        return pictures[:, None], labels.astype(np.int64)

    return Pictures(*part("train"), *part("t10k"))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: 0, 0, type, number of dimensions, each size as a big-endian word, then the values."""
    content = read_bytes(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _IDX_BYTES, dimensions)):
        raise BadData(
            f"{path}: does not begin like an IDX file of bytes in {dimensions} dimensions "
            f"(its first bytes are {content[:4].hex() or 'missing'})."
        )
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if len(content) - header != math.prod(shape):
        sizes = "x".join(str(size) for size in shape)
        raise BadData(
            f"{path}: announces {sizes} bytes and holds {len(content) - header}; the file is truncated or damaged."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_cifar10(folder: str | Path) -> Pictures:
    """Read cifar10-train20000.xz and cifar10-test10000.xz, or cifar10.npz (x_train, y_train, x_test, y_test)."""
    names = ["cifar10-train20000.xz", "cifar10.npz"]
    path = find_file([Path(folder)], names)
    if path.suffix == ".npz":
        return _read_npz(path)
    return Pictures(*_read_planes(path), *_read_planes(find_file([Path(folder)], ["cifar10-test10000.xz"])))


def _read_planes(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Undo the layout: n labels, then the planes R−G, G, B−G (modulo 256), each differenced along rows and columns."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    count, rest = divmod(content.size, 1 + 3 * 32 * 32)
    if rest or not count:
        raise BadData(
            f"{path}: {content.size} bytes are not a whole number of labels and 32x32 pictures (3073 bytes each)."
        )
    planes = content[count:].reshape(3, count, 32, 32).cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return planes.transpose(1, 0, 2, 3), content[:count].astype(np.int64)


def _read_npz(path: Path) -> Pictures:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in archive]
            if missing:
                raise BadData(
                    f"{path}: has no array {', '.join(missing)}; it holds {', '.join(archive.files) or 'nothing'}."
                )
            return Pictures(
                _channels_first(path, archive["x_train"]),
                archive["y_train"].astype(np.int64).ravel(),
                _channels_first(path, archive["x_test"]),
                archive["y_test"].astype(np.int64).ravel(),
            )
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise BadData(f"{path}: is not a readable .npz archive of plain arrays ({error}).") from error


def _channels_first(path: Path, x: NDArray[Any]) -> NDArray[np.uint8]:
    if x.ndim == 4 and x.shape[3] == 3 and x.shape[1] != 3:
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] != 3:
        raise BadData(
            f"{path}: pictures of shape {x.shape} and type {x.dtype} are not count x 3 x height x width bytes."
        )
    return x
