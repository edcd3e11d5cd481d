"""Encoding of models for SwarmSGD: uncompressed, or as lattice points.

A node keeps the lattice points Q(X) that it has sent (``points``), so that it can send the same points again with more
bits. The lattice side of a request follows the distances measured so far. That of a response is exact, because the
responder knows the vector that its response is decoded against.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from torch import Tensor

from tacit.compression import Lattice
from tacit.compression.compressor import Memory
from tacit.compression.lattice import LatticeVector
from tacit.core.worker import Worker, is_timing_only
from tacit.errors import BadMessage
from tacit.strategies.swarm.messages import SwarmMessage
from tacit.strategies.vector_checks import received_model

_MOST_BITS: Final = 16
_MARGIN: Final = 1.01
"""Factor by which a lattice reaches farther than a known distance, so that its own rounding does not matter."""

_FARTHEST: Final = 2.0**96
"""Largest distance that is recorded: a wild message may claim more than any lattice reaches."""


class Encoded(NamedTuple):
    """An encoded model: the parts of the message, and the values that the receiver decodes from them."""

    body: Tensor | LatticeVector
    outdated: LatticeVector | None
    points: Tensor


class ModelCodec(NamedTuple):
    """Encoder of a node's models: uncompressed, or lattice points in one stage or two."""

    lattice: Lattice | None
    two_stage: bool
    worker: Worker
    memory: Memory  # the distance that the lattice has measured

    def encode(self, model: Tensor, outdated: Tensor, reference: Tensor | None = None) -> Encoded:
        """Encode ``model``. ``reference`` is the vector that it is decoded against, if the sender knows it.

        In two stages the node also sends its ``outdated`` model, which is nearer to the receiver's; the receiver
        decodes ``model`` against it.
        """
        if self.lattice is None:
            points = model.clone()
            return Encoded(points, None, points)
        if not self.two_stage:
            vector, points = self._encode_vector(model, reference)
            return Encoded(vector, None, points)
        first, stage = self._encode_vector(outdated, reference)
        vector, points = self._encode_vector(model, stage)
        return Encoded(vector, first, points)

    def encode_again(self, points: Tensor, bits: int, side: float) -> Encoded:
        """Encode the same lattice points with twice the bits; uncompressed from 16 bits on."""
        if self.lattice is None or bits >= _MOST_BITS:
            return Encoded(points, None, points)
        finer = replace(self.lattice, bits=min(_MOST_BITS, 2 * bits), side=side, stochastic=False)
        return Encoded(finer.compress(points, self.worker.random), None, points)

    def observe(self, distance: float) -> None:
        """Record the distance between two models."""
        if self.lattice is not None:
            self.lattice.observe(self.memory, min(distance, _FARTHEST))

    def _encode_vector(self, x: Tensor, reference: Tensor | None) -> tuple[LatticeVector, Tensor]:
        """Return x as a lattice vector, and its points.

        If ``reference`` is known and the lattice has no fixed side, the vector can be decoded against ``reference``.
        """
        assert self.lattice is not None
        if is_timing_only(self.worker):  # contents have no effect
            return self.lattice.nominal_vector(x.numel(), x.dtype), x
        radius = None if reference is None else _MARGIN * distance(x, reference)
        return self.lattice.compress_with_points(x, self.worker.random, self.memory, radius)


def decode(message: SwarmMessage, reference: Tensor) -> Tensor:
    """Return the model in ``message``, decoded against ``reference``.

    Raise ``LatticeOverflow`` if the reference is too far from the model.
    """
    if isinstance(message.body, Tensor):
        return received_model(message.body, reference)
    if _lattice_vector(message.body).is_nominal:
        return reference
    if message.outdated is not None:
        reference = _lattice_vector(message.outdated).of_length(reference.numel()).dense(reference)
    return received_model(_lattice_vector(message.body).of_length(reference.numel()).dense(reference), reference)


def bits_and_side(body: Tensor | LatticeVector) -> tuple[int, float]:
    """Return the bits and the side of the lattice of ``body``."""
    vector = _lattice_vector(body)
    return vector.bits, vector.side


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference over all coordinates."""
    return float((one - other).abs_().max())


def _lattice_vector(body: object) -> LatticeVector:
    if not isinstance(body, LatticeVector):
        raise BadMessage(f"received a {type(body).__name__}; expected a lattice vector.")
    return body
