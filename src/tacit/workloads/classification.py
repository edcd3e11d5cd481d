"""Image classification: scikit-learn's digits, MNIST, CIFAR-10, and images in arrays."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tacit.core.randomness import Streams
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.workloads.array_problem import ACCURACY, ArrayProblem, LossModule, build_model
from tacit.workloads.data.files import remembered
from tacit.workloads.data.image_files import Pictures, read_cifar10, read_mnist
from tacit.workloads.data.samples import Arrays, TensorSamples, label_array, standardize
from tacit.workloads.data.sampling import check_batch_size
from tacit.workloads.data.splits import check_split, split_samples
from tacit.workloads.models import check_model, picture_model
from tacit.workloads.workload import Workload

_DIGITS_MODELS = ("softmax", "mlp", "cnn")
_DIGITS_HELD_OUT_SEED = 1797  # the held-out fifth is part of the data set, so it does not depend on the run's seed


class PictureWorkload(Workload):
    """A built-in model trained by cross-entropy on labelled pictures; each description below has these fields."""

    model: str
    split: str
    batch_size: int | None
    alpha: float
    hidden: int

    def __post_init__(self) -> None:
        check_model(self.model, self.hidden)
        check_split(self.split, self.alpha)
        check_batch_size(self.batch_size)

    @abstractmethod
    def load(self) -> tuple[TensorSamples, TensorSamples | None]:
        """Return standardised training samples and, where there are some, held-out ones."""

    def open(self, workers: int, streams: Streams) -> ArrayProblem:
        training, held_out = self.load()
        labels = training.y if held_out is None else torch.cat((training.y, held_out.y))
        channels, height, width = training.x.shape[1:]
        shape, classes = (channels, height, width), int(labels.max()) + 1
        model = build_model(lambda: picture_model(self.model, shape, classes, self.hidden), streams)
        return ArrayProblem(
            LossModule(model, cross_entropy),
            training,
            split_samples(
                len(training), workers, self.split, streams.numpy("split"), label_array(training.y), self.alpha
            ),
            batch_size=self.batch_size,
            streams=streams,
            held_out=held_out,
            metric=ACCURACY,
        )


@dataclass(frozen=True, kw_only=True)
class Digits(PictureWorkload):
    """scikit-learn's 1,797 digits of 8x8 pixels; see ``digits``."""

    model: str = field(default="mlp", metadata=ALWAYS_SPELLED)
    split: str = "shuffled"
    batch_size: int | None = 32
    alpha: float = 0.5
    hidden: int = 64

    def __post_init__(self) -> None:
        check_model(self.model, self.hidden, _DIGITS_MODELS)
        super().__post_init__()

    @property
    def name(self) -> str:
        return "digits"

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        return _load_digits()


@dataclass(frozen=True)
class Mnist(PictureWorkload):
    """MNIST's 60,000 digits of 28x28 pixels; see ``mnist``."""

    folder: str
    _: KW_ONLY
    model: str = "mlp"
    split: str = "shuffled"
    batch_size: int | None = 32
    alpha: float = 0.5
    hidden: int = 64

    @property
    def name(self) -> str:
        return "mnist"

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        return _load_mnist(self.folder)


@dataclass(frozen=True)
class Cifar10(PictureWorkload):
    """CIFAR-10's colour pictures of 32x32 pixels; see ``cifar10``."""

    folder: str
    _: KW_ONLY
    model: str = "cnn"
    split: str = "shuffled"
    batch_size: int | None = 32
    alpha: float = 0.5
    hidden: int = 64

    @property
    def name(self) -> str:
        return "cifar10"

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        return _load_cifar10(self.folder)


@dataclass(frozen=True)
class Images(PictureWorkload):
    """Labelled pictures in arrays; see ``images``."""

    pictures: Arrays
    _: KW_ONLY
    test: Arrays | None = None
    model: str = "cnn"
    split: str = "shuffled"
    batch_size: int | None = 32
    alpha: float = 0.5
    hidden: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in (self.pictures, *(() if self.test is None else (self.test,))):
            shape, labels = tuple(part.x.shape), part.y
            require(
                len(shape) in (3, 4),
                f"x of shape {shape} must be count x height x width or count x channels x height x width.",
            )
            require(
                not labels.is_floating_point() and labels.dim() == 1 and int(labels.min()) >= 0,
                "y must hold one whole number from 0 for each picture, its class.",
            )
            require(
                shape[1:] == tuple(self.pictures.x.shape[1:]),
                f"test pictures have shape {shape[1:]} and the training pictures {tuple(self.pictures.x.shape[1:])}.",
            )

    @property
    def name(self) -> str:
        return "images"

    def load(self) -> tuple[TensorSamples, TensorSamples | None]:
        x, y = _with_channels(self.pictures.x), self.pictures.y.to("cpu", torch.int64)
        if self.test is None:
            return TensorSamples(standardize(x, (), (0, 2, 3))[0], y), None
        train_x, test_x = standardize(x, (_with_channels(self.test.x),), (0, 2, 3))
        return TensorSamples(train_x, y), TensorSamples(test_x, self.test.y.to("cpu", torch.int64))


def digits(
    *,
    model: str = "mlp",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
) -> Digits:
    """scikit-learn's embedded digits: real data without a download, 8x8 pixels, ten classes.

    model: "softmax" (linear), "mlp" (one hidden layer of ``hidden``) or "cnn" (two convolutions). 359 of the 1,797
    digits are held out, always the same ones; every feature is standardised by its mean and deviation over the others.
    """
    return Digits(model=model, split=split, batch_size=batch_size, alpha=alpha, hidden=hidden)


def mnist(
    folder: str | os.PathLike[str],
    *,
    model: str = "mlp",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
) -> Mnist:
    """MNIST from its four IDX files (plain, .gz or .xz) in ``folder`` or ``folder/mnist``; model as in ``cifar10``."""
    return Mnist(os.fspath(folder), model=model, split=split, batch_size=batch_size, alpha=alpha, hidden=hidden)


def cifar10(
    folder: str | os.PathLike[str],
    *,
    model: str = "cnn",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
) -> Cifar10:
    """CIFAR-10 from ``folder``: cifar10-train20000.xz and cifar10-test10000.xz, or cifar10.npz.

    model: as in ``digits``, or "resnet" (ResNet-20 with GroupNorm). cifar10.npz holds the arrays x_train, y_train,
    x_test and y_test. Channels are standardised by their mean and deviation over the training pictures.
    """
    return Cifar10(os.fspath(folder), model=model, split=split, batch_size=batch_size, alpha=alpha, hidden=hidden)


def images(
    x: object,
    y: object,
    *,
    test: object = None,
    model: str = "cnn",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
) -> Images:
    """Labelled pictures: x is count x height x width, or count x channels x height x width; y their classes from 0.

    model: as in ``cifar10``. Channels are standardised by their mean and deviation over the training pictures.
    test: a pair (x, y) on which accuracy is measured; without it, accuracy is that on the training pictures.
    """
    return Images(
        Arrays.of((x, y), "(x, y)"),
        test=None if test is None else Arrays.of(test, "test"),
        model=model,
        split=split,
        batch_size=batch_size,
        alpha=alpha,
        hidden=hidden,
    )


@cache
def _load_digits() -> tuple[TensorSamples, TensorSamples]:
    from sklearn.datasets import load_digits  # takes a second to import

    features, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))
    order = np.random.RandomState(_DIGITS_HELD_OUT_SEED).permutation(len(x))
    fifth = len(x) // 5
    held_out, kept = (torch.from_numpy(np.sort(part)) for part in (order[:fifth], order[fifth:]))
    train_x, test_x = standardize(x[kept], (x[held_out],), (0,))
    return (
        TensorSamples(train_x.view(-1, 1, 8, 8), y[kept]),
        TensorSamples(test_x.view(-1, 1, 8, 8), y[held_out]),
    )


@remembered
def _load_mnist(folder: str | Path) -> tuple[TensorSamples, TensorSamples]:
    return _standardized(read_mnist(folder))


@remembered
def _load_cifar10(folder: str | Path) -> tuple[TensorSamples, TensorSamples]:
    return _standardized(read_cifar10(folder))


def _standardized(pictures: Pictures) -> tuple[TensorSamples, TensorSamples]:
    x, test_x = (torch.tensor(part, dtype=torch.float32) for part in (pictures.x, pictures.test_x))
    x, test_x = standardize(x, (test_x,), (0, 2, 3))
    return TensorSamples(x, torch.from_numpy(pictures.y)), TensorSamples(test_x, torch.from_numpy(pictures.test_y))


def _with_channels(x: Tensor) -> Tensor:
    x = x.to("cpu", torch.float32)
    return x[:, None] if x.dim() == 3 else x
