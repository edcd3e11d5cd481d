"""Language modelling by characters on any text file."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.randomness import Streams
from tacit.errors import BadData, require
from tacit.workloads.array_problem import ArrayProblem, LossModule, Metric, build_model
from tacit.workloads.data.files import read_bytes, remembered
from tacit.workloads.data.samples import WindowSamples
from tacit.workloads.data.splits import split_samples
from tacit.workloads.gpt import CharacterGPT, next_character_loss
from tacit.workloads.workload import Workload

_EVALUATED_WINDOWS = 256
_TEXT_SPLITS = ("contiguous", "shuffled")


@dataclass(frozen=True)
class Text(Workload):
    """A character GPT on a text file; see ``text``."""

    path: str
    _: KW_ONLY
    layers: int = 2
    heads: int = 2
    width: int = 64
    context: int = 64
    split: str = "contiguous"
    batch_size: int = 16

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} must be at least 1.")
        require(
            self.width % self.heads == 0,
            f"width={self.width} must be a multiple of heads={self.heads}; each head gets an equal part.",
        )
        require(
            self.split in _TEXT_SPLITS,
            f'split={self.split!r} does not divide a text, which has no labels; use "contiguous" or "shuffled".',
        )
        require(self.batch_size >= 1, f"batch_size={self.batch_size} must be at least 1.")

    @property
    def name(self) -> str:
        return "text"

    def open(self, workers: int, streams: Streams) -> ArrayProblem:
        codes, characters = read_characters(Path(self.path))
        cut = len(codes) * 9 // 10
        training, validation = codes[:cut], codes[cut:]
        if min(len(training), len(validation)) <= self.context:
            raise BadData(
                f"{self.path}: its last tenth has {len(validation)} characters and validation needs more than "
                f"context={self.context}; use a longer text or a shorter context."
            )
        model = build_model(
            lambda: CharacterGPT(
                characters, layers=self.layers, heads=self.heads, width=self.width, context=self.context
            ),
            streams,
        )
        starts = len(training) - self.context
        return ArrayProblem(
            LossModule(model, next_character_loss),
            WindowSamples(training, torch.arange(starts), self.context),
            split_samples(starts, workers, self.split, streams.numpy("split")),
            batch_size=self.batch_size,
            streams=streams,
            held_out=_spread_windows(validation, self.context),
            metric=Metric("validation loss", lambda logits, codes: float(next_character_loss(logits, codes))),
            evaluated=_spread_windows(training, self.context),
        )


@remembered
def read_characters(path: str | Path) -> tuple[Tensor, int]:
    """Return the text of ``path`` as codes 0, 1, … in the order of its characters, and how many of them differ."""
    content = read_bytes(Path(path))
    try:
        written = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(f"{path}, line {line}: byte 0x{content[error.start]:02x} is not text (UTF-8).") from None
    points: NDArray[np.uint32] = np.frombuffer(written.encode("utf-32-le"), np.uint32)
    different, codes = np.unique(points, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), len(different)


def text(
    path: str | os.PathLike[str],
    *,
    layers: int = 2,
    heads: int = 2,
    width: int = 64,
    context: int = 64,
    split: str = "contiguous",
    batch_size: int = 16,
) -> Text:
    """A small GPT that predicts the next character of a text file (plain, .gz, .bz2 or .xz, UTF-8).

    The first nine tenths train, the last tenth validates. A sample is a window of ``context`` characters and the one
    after each; split="contiguous" gives every worker the windows that start in its own stretch of text. Loss and
    validation loss are estimates, in nats per character, on at most 256 windows spread evenly over either part, the
    same in every evaluation.
    """
    return Text(
        os.fspath(path),
        layers=layers,
        heads=heads,
        width=width,
        context=context,
        split=split,
        batch_size=batch_size,
    )


def _spread_windows(codes: Tensor, context: int) -> WindowSamples:
    last = len(codes) - context - 1
    starts = np.unique(np.linspace(0, last, _EVALUATED_WINDOWS).astype(np.int64))
    return WindowSamples(codes, torch.from_numpy(starts), context)
