"""What every feedback is: a rule for what a rank says of its vector, and for the mean that all ranks make of what was said.

    encode   t_i, the rank's own vector (a gradient, or a model's change in a round)  →  ``Said``, which travels to everybody
    decode   everybody's ``Said``, in rank order  →  the mean, bit for bit the same on every rank

**Weights.** Ranks with larger batches count more: rank i speaks of w_i t_i, and the mean divides by Σ w_i. With equal batches w_i = 1 and this is the
papers' (1/n) Σ. A rank that has no vector this time (its GradScaler skipped: w_i ≈ 0) says nothing and remembers everything; one whose data has ended
(w_i = 0) leaves the mean. **Sums** are taken rank by rank, in float64, by everybody alike: models stay equal to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression import Dense
from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.errors import BadMessage, require
from tacit.messages import Message, unpack
from tacit.specs import Spec

NOTHING: Final = 2.0**-30
"""A weight below this: the rank has nothing to say. (A GradScaler that skips weighs 2⁻⁶⁰, ended data 0.)"""


@dataclass(frozen=True)
class Said(Message):
    """What one rank says: its weight and a compressed vector, packed; an empty ``body`` says nothing."""

    weight: float
    body: bytes = b""
    is_fresh: bool = False  # EF21+: the body replaces the estimate instead of changing it

    @cached_property
    def message(self) -> Compressed:
        """The body unpacked."""
        message = unpack(self.body)
        if not isinstance(message, Compressed):
            raise BadMessage(f"a {message.kind} came where a compressed vector was expected.")
        return message

    @cached_property
    def vector(self) -> Tensor:
        """The body decoded, once for all who hold this object; not to be written to."""
        return self.message.dense()


@dataclass
class FeedbackState:
    """What one rank remembers: tensors and numbers, checkpointable."""

    rank: int
    weights: list[float]  # by rank: behind what each last said
    own: dict[str, Tensor] = field(default_factory=dict)  # differs from rank to rank
    shared: dict[str, Tensor] = field(default_factory=dict)  # equal on all ranks
    warm: Memory = field(default_factory=dict)  # the compressor's own memory
    master: Memory = field(default_factory=dict)  # the master's compressor's
    master_bytes: int = 0  # what a master would have broadcast in the latest exchange


@dataclass(frozen=True)
class Coder:
    """A compressor in the hands of one rank."""

    compressor: Compressor
    random: np.random.Generator  # this rank's own
    shared_random: np.random.Generator  # the same draws on every rank
    dimension: int
    dtype: torch.dtype  # of the model, and of what is compressed
    device: torch.device
    shapes: Sequence[torch.Size] = ()
    scale: float = 1.0  # what a decoded vector is multiplied by: 1/(1+ω) makes an unbiased compressor contractive

    def say(self, vector: Tensor, weight: float, warm: Memory, is_fresh: bool = False) -> Said:
        """Return ``vector`` compressed."""
        message = self.compressor.compress(vector, self.random, warm, self.shapes)
        return Said(weight, message.pack(), is_fresh)

    def read(self, said: Said) -> Tensor:
        """Return the vector that was said. The sender reads its own words too, so that both ends know the same numbers."""
        said.message.of_length(self.dimension)
        vector = said.vector.to(self.device, torch.float64)
        return vector if self.scale == 1.0 else vector * self.scale

    def say_in_full(self, vector: Tensor, weight: float) -> Said:
        """Return ``vector`` as it is."""
        whole = vector if self.scale == 1.0 else vector / self.scale
        return Said(weight, Dense().compress(whole, self.random, None, self.shapes).pack())


class Feedback(Spec, ABC):
    """What is compressed and what is remembered. Subclasses are frozen keyword-only dataclasses."""

    needs_contraction: ClassVar[bool] = True
    """Whether the compressor must be contractive: an unbiased one is then scaled by 1/(1+ω), which makes α = 1/(1+ω)."""

    needs_determinism: ClassVar[bool] = False

    @abstractmethod
    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        """Return the memory before anything was said about vectors like ``like``."""

    @abstractmethod
    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Said:
        """Return what this rank says of its ``vector``, finite in all its numbers. ``rate``: γ, which multiplies the mean in the model."""

    @abstractmethod
    def decode(self, state: FeedbackState, said: Sequence[Said], rate: float, coder: Coder) -> Tensor:
        """Return the mean of the ranks' vectors, as far as what they ``said``, in rank order, tells it; zero where nobody had one."""

    @abstractmethod
    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Return what ``rank`` of ``size`` goes on with after ``len(states)`` ranks: all alike, and such that the mean over ranks stays."""

    def check(self, compressor: Compressor) -> None:
        """Refuse a compressor that this feedback cannot use, whatever is compressed."""
        name = type(self).__name__
        require(
            not compressor.needs_reference,
            f"{compressor} decodes against a vector near the one sent, and {name} has none.",
        )
        require(
            not self.needs_determinism or compressor.is_deterministic,
            f"{name} keeps its guarantee only with a deterministic compressor, and {compressor} draws; use EF21(), or TopK(…).",
        )

    def scale(self, compressor: Compressor, dimension: int) -> float:
        """Return what decoded vectors are multiplied by (``Coder.scale``)."""
        if not self.needs_contraction or compressor.contraction(dimension) is not None:
            return 1.0
        variance = compressor.variance(dimension)
        if variance is None:
            raise ValueError(
                f"{type(self).__name__} needs a contractive or an unbiased compressor; "
                f"for {dimension} numbers {compressor} is neither."
            )
        return 1.0 / (1.0 + variance)


def zeros(like: Tensor, *lead: int) -> Tensor:
    """Return float64 zeros: what is summed over a whole run must not drift as float32 would."""
    return torch.zeros(*lead, *like.shape, dtype=torch.float64, device=like.device)


def mean_of(states: Sequence[FeedbackState], name: str) -> Tensor:
    """Return the mean of what ranks hold of their own; what lost ranks held is lost."""
    return torch.stack([state.own[name] for state in states]).mean(0)


def check_init(init: str) -> None:
    require(
        init in ("compressed", "full"),
        f'init={init!r} must be "compressed" (the first message is C(∇f)) or "full" (it is ∇f, counted).',
    )


def alike(
    state: FeedbackState, rank: int, size: int, own: dict[str, Tensor], shared: dict[str, Tensor]
) -> FeedbackState:
    """Return ``state`` as that of one of ``size`` ranks that all hold ``own`` and weigh what those before weighed in the mean."""
    weights = [sum(state.weights) / len(state.weights)] * size
    own = {name: value.clone() for name, value in own.items()}
    return replace(state, rank=rank, weights=weights, own=own, shared=shared)
