"""Labelled pictures in memory: bytes stay bytes until they are taken."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.workloads.data.files import remembered
from tacit.workloads.data.image_files import Pictures, read_cifar10, read_mnist
from tacit.workloads.data.samples import TensorSamples, scale_of, standardize

_DIGITS_HELD_OUT_SEED = 1797  # the held-out fifth is part of the data set, so it does not depend on the run's seed


class BytePictures:
    """Pictures ``[count, channels, height, width]`` of bytes and labels; a batch is standardised when it is taken."""

    def __init__(self, x: Tensor, y: Tensor, mean: Tensor, deviation: Tensor) -> None:
        self.x, self.y = x.contiguous(), y.contiguous()
        self.mean, self.deviation = mean, deviation

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self._standardized(self.x.index_select(0, indices)), self.y.index_select(0, indices)

    def span(self, start: int, stop: int) -> tuple[Tensor, ...]:
        return self._standardized(self.x[start:stop]), self.y[start:stop]

    def to(self, device: torch.device) -> BytePictures:
        return BytePictures(*(part.to(device) for part in (self.x, self.y, self.mean, self.deviation)))

    def _standardized(self, x: Tensor) -> Tensor:
        return x.to(self.mean.dtype).sub_(self.mean).div_(self.deviation)


LabelledPictures = TensorSamples | BytePictures


def standardized_channels(parts: Sequence[tuple[Tensor, Tensor]]) -> list[LabelledPictures]:
    """Return pictures with labels, their channels standardised by the mean and deviation of those of the first part."""
    mean, deviation = scale_of(parts[0][0].to(torch.float32), (0, 2, 3))
    return [
        BytePictures(x, y, mean, deviation)
        if x.dtype == torch.uint8
        else TensorSamples((x.to(torch.float32) - mean) / deviation, y)
        for x, y in parts
    ]


@cache
def load_digits() -> tuple[TensorSamples, TensorSamples]:
    """Return scikit-learn's digits, standardised by feature: four fifths to train with, one fifth held out."""
    features, labels = _digits_of_sklearn()
    x, y = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))
    order = np.random.RandomState(_DIGITS_HELD_OUT_SEED).permutation(len(x))
    fifth = len(x) // 5
    held_out, kept = (torch.from_numpy(np.sort(part)) for part in (order[:fifth], order[fifth:]))
    train_x, test_x = standardize(x[kept], (x[held_out],), (0,))
    return (
        TensorSamples(train_x.view(-1, 1, 8, 8), y[kept]),
        TensorSamples(test_x.view(-1, 1, 8, 8), y[held_out]),
    )


def _digits_of_sklearn() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return features and labels. They are read from the package's file: its import takes a second of each process."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return features, labels


@remembered
def load_mnist(folder: str | Path) -> list[LabelledPictures]:
    """Return MNIST's training and test pictures."""
    return _standardized(read_mnist(folder))


@remembered
def load_cifar10(folder: str | Path) -> list[LabelledPictures]:
    """Return CIFAR-10's training and test pictures."""
    return _standardized(read_cifar10(folder))


def _standardized(read: Pictures) -> list[LabelledPictures]:
    x, y, test_x, test_y = (torch.tensor(part) for part in read)
    return standardized_channels([(x, y), (test_x, test_y)])
