"""A message cut by ranges of coordinates, so that each range can be summed somewhere else.

Where n ranks gather each other's messages, everybody receives n − 1 of them. Where each rank sums one range of
coordinates for all, it receives an n-th of each; for that a message must be made of parts that stand for themselves:

    sparse         by place; those of ``BlockTopK`` between blocks, whose coding they keep
    quantized      between buckets, each with its scale
    sign           between bytes, each part with the scale
    dense, bf16    anywhere

A part decodes to the very numbers that stand in its range of the whole. ``LowRank`` (factors of whole matrices),
``Lattice`` (a check value over everything), ``Chain`` (values compressed together) and ``Layerwise`` of anything but a
selection have no such parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.compression.coding.bits import packed_bytes
from tacit.compression.coding.indices import Coding, encode, encode_blocks
from tacit.compression.compressor import Compressed, Compressor
from tacit.compression.dense import BFloat16, BFloat16Vector, Dense, DenseVector
from tacit.compression.layerwise import Layerwise, LayerwiseVector
from tacit.compression.quantized import QSGD, QuantizedVector, Sign, SignVector
from tacit.compression.sparse import BlockTopK, RandomK, SparseVector, TopK
from tacit.errors import require


class RangeSplit(NamedTuple):
    """How a compressor's messages come apart, and how large they are without their headers."""

    multiple: int  # ranges begin at multiples of this
    share: float  # of the coordinates that travel
    size_bytes: float  # nominal: as if all that may travel did


def range_bounds(numbers: int, ranges: int, multiple: int = 1) -> list[int]:
    """Return where ``ranges`` ranges of a vector of ``numbers`` begin and end, as equal as multiples of ``multiple``
    let them be.
    """
    units = -(-numbers // multiple)
    return [min(numbers, units * place // ranges * multiple) for place in range(ranges + 1)]


def split(message: Compressed, bounds: Sequence[int]) -> list[Compressed]:
    """Return one message for each range ``bounds[j]`` to ``bounds[j + 1]``."""
    require(
        bounds[0] == 0 and bounds[-1] == message.numbers and all(a <= b for a, b in pairwise(bounds)),
        f"bounds={list(bounds)} must ascend from 0 to the {message.numbers} numbers of the vector.",
    )
    parts = _cut(message, bounds)
    return [part.owned() for part in parts] if message.is_owned else parts


@singledispatch
def range_split(compressor: Compressor, dimension: int, element_bytes: int) -> RangeSplit | None:
    """Return how messages of ``dimension`` numbers of so many bytes each come apart; None where they do not.

    Register your own.
    """
    return None


@range_split.register
def _(compressor: Dense, dimension: int, element_bytes: int) -> RangeSplit:
    return RangeSplit(1, 1.0, dimension * element_bytes)


@range_split.register
def _(compressor: BFloat16, dimension: int, element_bytes: int) -> RangeSplit:
    return RangeSplit(1, 1.0, 2 * dimension)


@range_split.register
def _(compressor: Sign, dimension: int, element_bytes: int) -> RangeSplit:
    return RangeSplit(8, 1.0, dimension / 8)


@range_split.register
def _(compressor: QSGD, dimension: int, element_bytes: int) -> RangeSplit:
    size_bytes = dimension * (compressor.bits / 8 + element_bytes / compressor.bucket)
    return RangeSplit(math.lcm(compressor.bucket, 8), 1.0, size_bytes)  # between buckets and between bytes


@range_split.register(TopK)
@range_split.register(RandomK)
def _(compressor: TopK | RandomK, dimension: int, element_bytes: int) -> RangeSplit:
    share = compressor.most(dimension) / max(1, dimension)
    return RangeSplit(1, share, sparse_bytes(share, dimension, element_bytes))


@range_split.register
def _(compressor: BlockTopK, dimension: int, element_bytes: int) -> RangeSplit:
    count, block = compressor.most(dimension), min(compressor.block, max(1, dimension))
    size_bytes = count * (element_bytes + (block - 1).bit_length() / 8)
    return RangeSplit(compressor.block, count / max(1, dimension), size_bytes)


@range_split.register
def _(compressor: Layerwise, dimension: int, element_bytes: int) -> RangeSplit | None:
    if not isinstance(compressor.compressor, TopK | RandomK | BlockTopK):
        return None
    share = compressor.compressor.most(dimension) / max(1, dimension)  # roughly: what is exempt depends on the tensors
    return RangeSplit(1, share, sparse_bytes(share, dimension, element_bytes))


def sparse_bytes(share: float, dimension: int, element_bytes: int) -> float:
    """Return what a ``share`` of the numbers takes, with its places: as a bitmap, or in log₂(d/k) + 1.5 bits each
    (``places``).
    """
    if share <= 0:
        return 0.0
    bits = 0.0 if share >= 1 else min(1 / share, math.log2(1 / share) + 1.5)
    return share * dimension * (element_bytes + bits / 8)


@singledispatch
def _cut(message: Compressed, bounds: Sequence[int]) -> list[Compressed]:
    raise TypeError(f"a {type(message).__name__} cannot be cut by coordinates; gather it whole.")


@_cut.register
def _(message: DenseVector, bounds: Sequence[int]) -> list[Compressed]:
    return [DenseVector(message.values[begin:end]) for begin, end in pairwise(bounds)]


@_cut.register
def _(message: BFloat16Vector, bounds: Sequence[int]) -> list[Compressed]:
    return [BFloat16Vector(message.values[begin:end], message.dtype) for begin, end in pairwise(bounds)]


@_cut.register
def _(message: QuantizedVector, bounds: Sequence[int]) -> list[Compressed]:
    bits, bucket, parts = message.bits, message.bucket, []
    for begin, end in pairwise(bounds):
        require(
            begin == end or (begin % bucket == 0 and begin * bits % 8 == 0),
            f"a range that begins at {begin} cuts through a bucket of {bucket} or a byte; ranges begin at multiples of {math.lcm(bucket, 8)}.",
        )
        codes = message.codes[begin * bits // 8 : begin * bits // 8 + packed_bytes(end - begin, bits)]
        scales = message.scales[begin // bucket : -(-end // bucket)] if end > begin else message.scales[:0]
        parts.append(QuantizedVector(end - begin, bits, bucket, codes, scales))
    return list(parts)


@_cut.register
def _(message: SparseVector, bounds: Sequence[int]) -> list[Compressed]:
    values = message.values
    if not isinstance(values, Tensor):
        raise TypeError(f"the values of this {type(message).__name__} were compressed together; gather it whole.")
    positions, block = message.positions(), message.parameter
    edges = torch.tensor(bounds, device=positions.device)
    cuts = torch.searchsorted(positions, edges).tolist()
    keeps_blocks = message.coding == Coding.BLOCKS and all(bound % block == 0 for bound in bounds[:-1])
    parts = []
    for (begin, end), (first, last) in zip(pairwise(bounds), pairwise(cuts), strict=True):
        within = positions[first:last] - begin
        places = encode_blocks(within % block, end - begin, block) if keeps_blocks else encode(within, end - begin)
        own = SparseVector(
            places.length, places.count, int(places.coding), places.parameter, places.packed, values[first:last]
        )
        own.__dict__["_where"] = places  # with the positions it knows
        parts.append(own)
    return list(parts)


@_cut.register
def _(message: SignVector, bounds: Sequence[int]) -> list[Compressed]:
    parts = []
    for begin, end in pairwise(bounds):
        require(begin == end or begin % 8 == 0, f"a range that begins at {begin} cuts through a byte of eight signs.")
        signs = message.signs[begin // 8 : begin // 8 + packed_bytes(end - begin, 1)]
        parts.append(SignVector(end - begin, message.scale, signs))
    return list(parts)


@_cut.register
def _(message: LayerwiseVector, bounds: Sequence[int]) -> list[Compressed]:
    if message.parts:
        raise TypeError(
            f"a {type(message).__name__} of whole tensors' messages cannot be cut by coordinates; gather it whole."
        )
    return _cut(DenseVector(message.values), bounds)  # every tensor was exempt
