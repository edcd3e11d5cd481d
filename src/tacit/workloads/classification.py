"""Image classification: scikit-learn's digits, MNIST, CIFAR-10, and images in arrays."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tacit.core.randomness import Streams
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.workloads.array_problem import ACCURACY, ArrayProblem, LossModule, build_model
from tacit.workloads.data.augmentation import augmentation_of
from tacit.workloads.data.pictures import (
    LabelledPictures,
    load_cifar10,
    load_digits,
    load_mnist,
    standardized_channels,
)
from tacit.workloads.data.samples import Arrays, label_array
from tacit.workloads.data.sampling import check_batch_size
from tacit.workloads.data.splits import check_split, split_samples
from tacit.workloads.models import check_model, picture_model
from tacit.workloads.workload import Workload

_DIGITS_MODELS = ("softmax", "mlp", "cnn")


class PictureWorkload(Workload):
    """A built-in model trained by cross-entropy on labelled pictures; each description below has these fields."""

    model: str
    split: str
    batch_size: int | None
    alpha: float
    hidden: int
    crop_padding: int
    flip: bool

    def __post_init__(self) -> None:
        check_model(self.model, self.hidden)
        check_split(self.split, self.alpha)
        check_batch_size(self.batch_size)
        augmentation_of(self.crop_padding, self.flip, self.batch_size)

    @abstractmethod
    def load(self) -> Sequence[LabelledPictures]:
        """Return the training pictures and, where there are some, held-out ones, both standardised."""

    def open(self, workers: int, streams: Streams) -> ArrayProblem:
        training, *others = self.load()
        held_out = others[0] if others else None
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
            augmentation=augmentation_of(self.crop_padding, self.flip, self.batch_size),
        )


@dataclass(frozen=True, kw_only=True)
class Digits(PictureWorkload):
    """scikit-learn's 1,797 digits of 8x8 pixels; see ``digits``."""

    model: str = field(default="mlp", metadata=ALWAYS_SPELLED)
    split: str = "shuffled"
    batch_size: int | None = 32
    alpha: float = 0.5
    hidden: int = 64
    crop_padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        check_model(self.model, self.hidden, _DIGITS_MODELS)
        super().__post_init__()

    @property
    def name(self) -> str:
        return "digits"

    def load(self) -> Sequence[LabelledPictures]:
        return load_digits()


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
    crop_padding: int = 0
    flip: bool = False

    @property
    def name(self) -> str:
        return "mnist"

    def load(self) -> Sequence[LabelledPictures]:
        return load_mnist(self.folder)


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
    crop_padding: int = 0
    flip: bool = False

    @property
    def name(self) -> str:
        return "cifar10"

    def load(self) -> Sequence[LabelledPictures]:
        return load_cifar10(self.folder)


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
    crop_padding: int = 0
    flip: bool = False

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

    def load(self) -> Sequence[LabelledPictures]:
        parts = (self.pictures,) if self.test is None else (self.pictures, self.test)
        return standardized_channels([(_with_channels(part.x), part.y.to("cpu", torch.int64)) for part in parts])


def digits(
    *,
    model: str = "mlp",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
    crop_padding: int = 0,
    flip: bool = False,
) -> Digits:
    """scikit-learn's embedded digits: real data without a download, 8x8 pixels, ten classes.

    model: "softmax" (linear), "mlp" (one hidden layer of ``hidden``) or "cnn" (two convolutions). 359 of the 1,797
    digits are held out, always the same ones; every feature is standardised by its mean and deviation over the others.
    crop_padding, flip: as in ``cifar10``; a flipped digit is mostly no digit.
    """
    return Digits(
        model=model,
        split=split,
        batch_size=batch_size,
        alpha=alpha,
        hidden=hidden,
        crop_padding=crop_padding,
        flip=flip,
    )


def mnist(
    folder: str | os.PathLike[str],
    *,
    model: str = "mlp",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
    crop_padding: int = 0,
    flip: bool = False,
) -> Mnist:
    """MNIST from its four IDX files (plain, .gz or .xz) in ``folder`` or ``folder/mnist``.

    model, crop_padding, flip: as in ``cifar10``.
    """
    return Mnist(
        os.fspath(folder),
        model=model,
        split=split,
        batch_size=batch_size,
        alpha=alpha,
        hidden=hidden,
        crop_padding=crop_padding,
        flip=flip,
    )


def cifar10(
    folder: str | os.PathLike[str],
    *,
    model: str = "cnn",
    split: str = "shuffled",
    batch_size: int | None = 32,
    alpha: float = 0.5,
    hidden: int = 64,
    crop_padding: int = 0,
    flip: bool = False,
) -> Cifar10:
    """CIFAR-10 from ``folder``: cifar10-train20000.xz and cifar10-test10000.xz, or cifar10.npz.

    model: as in ``digits``, or "resnet" (ResNet-20 with GroupNorm). cifar10.npz holds the arrays x_train, y_train,
    x_test and y_test. Channels are standardised by their mean and deviation over the training pictures.
    crop_padding: pixels of zeros added on each side of a standardised training picture; a crop of its own size is then
    drawn for each mini-batch. 4 is usual for 32x32 pixels (He et al., arXiv 1512.03385); 0: no crop.
    flip: reflect each training picture left to right with probability 1/2. Evaluations use the pictures as they are.
    """
    return Cifar10(
        os.fspath(folder),
        model=model,
        split=split,
        batch_size=batch_size,
        alpha=alpha,
        hidden=hidden,
        crop_padding=crop_padding,
        flip=flip,
    )


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
    crop_padding: int = 0,
    flip: bool = False,
) -> Images:
    """Labelled pictures: x is count x height x width, or count x channels x height x width; y their classes from 0.

    model, crop_padding, flip: as in ``cifar10``. Channels are standardised by their mean and deviation over the
    training pictures. Pictures of type uint8 stay bytes in memory.
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
        crop_padding=crop_padding,
        flip=flip,
    )


def _with_channels(x: Tensor) -> Tensor:
    return x.cpu() if x.dim() == 4 else x.cpu()[:, None]
