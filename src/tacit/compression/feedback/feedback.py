"""What every feedback is: a rule for what a rank says of its vector, and for the mean that all ranks make of what was
said.

    encode   t_i, the rank's own vector (a gradient, or a model's change in a round)  →  ``Update``, which travels to everybody
    decode   everybody's ``Update``, in rank order  →  the mean, bit for bit the same on every rank

Where the sum of all words is all that anybody needs (``SummableFeedback``), they may also travel in parts: rank j sums the j-th
range of coordinates for all,
    reply    everybody's parts of one range  →  what goes back to all: the range's sum, exact, unless the feedback can do with less
    resolve  all ranges' replies  →  the mean
which is bit for bit the one of ``decode`` where replies are exact.

**Weights.** Rank i speaks of w_i t_i, and the mean divides by Σ w_i. By default ranks with larger batches count more;
with equal batches, or with ``weights="equal"`` of the strategy, w_i = 1 and this is the papers' (1/n) Σ. A rank that
has no vector this time (its GradScaler skipped: w_i ≈ 0) says nothing and remembers everything; one whose data has
ended (w_i = 0) leaves the mean. **Sums** are taken rank by rank, in float64, by everybody alike: models stay equal to
the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacit.compression import Dense
from tacit.compression.coding.ranges import RangeSplit
from tacit.compression.coding.sparse_sum import SumVector, expected_sum_bytes
from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.core.messages import Message
from tacit.core.specs import Spec
from tacit.errors import BadMessage, require


@dataclass(frozen=True)
class Update(Message, wire="update"):
    """The update of one rank: its weight and a compressed vector, or None where it has none."""

    weight: float
    body: Compressed | None = None
    is_fresh: bool = False  # EF21+: the body replaces the estimate instead of changing it

    def about(self, message: Compressed) -> Self:
        """Return the same with another body, which does not change with the sender's tensors."""
        return replace(self, body=message if message.is_owned else message.snapshot())

    @property
    def message(self) -> Compressed:
        """The body, which must not be None."""
        if not isinstance(self.body, Compressed):
            raise BadMessage(f"a {type(self.body).__name__} came where a compressed vector was expected.")
        return self.body


@dataclass(frozen=True)
class UpdateWithStatistics(Update, wire="report"):
    """The same with a few numbers beside it, in full: what the period rule must know of a round."""

    statistics: Tensor = field(default_factory=lambda: torch.empty(0))


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

    def say(self, vector: Tensor, weight: float, warm: Memory, is_fresh: bool = False) -> Update:
        """Return ``vector`` compressed."""
        message = self.compressor.compress(vector, self.random, warm, self.shapes)
        return Update(weight, is_fresh=is_fresh).about(message)

    def encode_difference(self, vector: Tensor, estimate: Tensor, weight: float, warm: Memory) -> Update:
        """Return what ``vector`` and ``estimate`` differ by, compressed, and add it to the estimate as whoever hears it
        will.
        """
        message = self.compressor.compress_change(
            vector, estimate, self.random, warm, self.shapes, self.dtype, self.scale
        )
        return Update(weight).about(message)

    def read(self, said: Update) -> Tensor:
        """Return the vector that was said.

        The sender reads its own words too, so that both ends know the same numbers.
        """
        vector = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        self.add(vector, said)
        return vector

    def add(self, target: Tensor, said: Update, factor: float = 1.0) -> None:
        """Add ``factor`` times the vector that was said to ``target``, of its length: only what was said is looked at."""
        said.message.add_into(target, self.scale * factor)

    def of_range(self, numbers: int) -> Coder:
        """Return a coder for so many of the coordinates."""
        return replace(self, dimension=numbers, shapes=())

    def encode_in_full(self, vector: Tensor, weight: float) -> Update:
        """Return ``vector`` as it is."""
        whole = vector if self.scale == 1.0 else vector / self.scale
        return Update(weight).about(Dense().compress(whole, self.random, None, self.shapes))


class Feedback(Spec, ABC):
    """Base class of error feedback: how a rank encodes its vector, and how all ranks decode the mean.

    Derive a frozen keyword-only dataclass. Override ``begin`` (the state before the first exchange), ``encode``,
    ``decode`` and ``merged`` (the state when the number of ranks changes), or derive from the nearest method and
    override what differs.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Clipped(tacit.ErrorFeedback):
    ...     largest: float = 1.0
    ...     def encode(self, state, vector, *rest):
    ...         return super().encode(state, vector.clamp(-self.largest, self.largest), *rest)
    >>> strategy = tacit.CompressedGradient(compressor=tacit.TopK(k=1), feedback=Clipped(largest=0.5))
    >>> tacit.simulate(tacit.workloads.quadratic(dimension=3), strategy, steps=5).status
    'finished'
    """

    needs_contraction: ClassVar[bool] = True
    """Whether the compressor must be contractive: an unbiased one is then scaled by 1/(1+ω), which makes α = 1/(1+ω).
    """

    ends_in_full: ClassVar[bool] = False
    """Whether a rank whose data has ended sends one vector in full."""

    needs_determinism: ClassVar[bool] = False

    @abstractmethod
    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        """Return the memory before anything was said about vectors like ``like``."""

    @abstractmethod
    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Update:
        """Return what this rank says of its ``vector``, finite in all its numbers.

        ``rate``: γ, which multiplies the mean in the model.
        """

    @abstractmethod
    def decode(self, state: FeedbackState, said: Sequence[Update], rate: float, coder: Coder) -> Tensor:
        """Return the mean of the ranks' vectors, as far as what they ``said``, in rank order, tells it; zero where
        nobody had one.
        """

    @abstractmethod
    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Return what ``rank`` of ``size`` goes on with after ``len(states)`` ranks: all alike, and such that the mean
        over ranks stays.
        """

    def gain(self, rank: int, size: int) -> float:
        """Return what the words of ``rank`` are multiplied by in the sum."""
        return 1.0

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


class SummableFeedback(Feedback):
    """A feedback whose ranks need of each other's words only the sum."""

    def decode(self, state: FeedbackState, said: Sequence[Update], rate: float, coder: Coder) -> Tensor:
        return self.settle(state, said[state.rank], said, self.total(said, coder), rate, coder)

    def reply(self, state: FeedbackState, said: Sequence[Update], begin: int, coder: Coder) -> Compressed:
        """Return what goes back to all ranks about the range of ``coder.dimension`` coordinates from ``begin``, given
        everybody's parts of it.
        """
        return SumVector.of(self.total(said, coder), [one.message for one in said if one.body], coder.dtype)

    def reply_bytes(self, words: RangeSplit, size: int, coder: Coder) -> float | None:
        """Return the nominal size of all replies together, or None where there can be none."""
        return expected_sum_bytes(words.share, size, coder.dimension, coder.dtype.itemsize)

    def resolve(
        self,
        state: FeedbackState,
        own: Update,
        said: Sequence[Update],
        replies: Sequence[Compressed],
        rate: float,
        coder: Coder,
    ) -> Tensor:
        """Return the mean, given this rank's ``own`` words in full, everybody's parts of this rank's range, and all
        ranges' ``replies``, in order.
        """
        return self.settle(state, own, said, self.joined(replies, coder), rate, coder)

    @abstractmethod
    def settle(
        self, state: FeedbackState, own: Update, said: Sequence[Update], total: Tensor, rate: float, coder: Coder
    ) -> Tensor:
        """Return the mean, given the sum of all words; of ``said`` only weights matter, and who spoke."""

    def total(self, said: Sequence[Update], coder: Coder) -> Tensor:
        """Return the sum of what was ``said``, each times its rank's gain, in rank order; not to be written to."""
        gains = [self.gain(rank, len(said)) for rank in range(len(said))]

        def add_up(total: Tensor) -> None:
            for one, gain in zip(said, gains, strict=True):
                if one.body:
                    coder.add(total, one, gain)

        return _summed(said, (coder.scale, gains), coder, add_up)

    @staticmethod
    def joined(replies: Sequence[Compressed], coder: Coder) -> Tensor:
        """Return what the ``replies`` say, range after range; not to be written to."""

        def join(whole: Tensor) -> None:
            at = 0
            for reply in replies:
                reply.add_into(whole[at : at + reply.numbers])
                at += reply.numbers

        return _summed(replies, (), coder, join)


def _summed(messages: Sequence[Message], how: object, coder: Coder, add_up: Callable[[Tensor], None]) -> Tensor:
    """Return float64 zeros to which ``add_up`` added all ``messages``, remembered with the first of them.

    Where one process plays all ranks, they hold the same objects: the first to add does it for all.
    """
    memory, key = messages[0].__dict__, (how, coder.dimension, [id(one) for one in messages])
    if memory.get("_summed", (None,))[0] != key:
        total = torch.zeros(coder.dimension, dtype=torch.float64, device=coder.device)
        add_up(total)
        memory["_summed"] = (key, total)
    found: Tensor = memory["_summed"][1]
    return found


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
    """Return ``state`` as that of one of ``size`` ranks that all hold ``own`` and weigh what those before weighed in
    the mean.
    """
    weights = [sum(state.weights) / len(state.weights)] * size
    own = {name: value.clone() for name, value in own.items()}
    return replace(state, rank=rank, weights=weights, own=own, shared=shared)
