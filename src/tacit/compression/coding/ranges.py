"""Messages split by ranges of coordinates, so that each range can be summed by another rank.

Where n ranks gather messages, every rank receives n − 1 of them. Where each rank sums one range of coordinates, it
receives an n-th of each message. For that a message must split into parts that are messages themselves:

    sparse         at any coordinate; those of ``BlockTopK`` between blocks, so that they keep their coding
    quantized      between buckets, each with its scale
    sign           between bytes, each part with the scale
    dense, bf16    at any coordinate

A part decodes to exactly the numbers of its range. ``LowRank`` (factors of whole matrices), ``Lattice`` (one check
value for the vector), ``Chain`` (values compressed together) and ``Layerwise`` of anything but a selector do not split.
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
    """How a compressor's messages split, and how large they are without their headers."""

    multiple: int  # ranges begin at multiples of this
    share: float  # of the coordinates that are sent
    size_bytes: float  # nominal: as if every coordinate that may be sent is sent


def range_bounds(numbers: int, ranges: int, multiple: int = 1) -> list[int]:
    """Return the bounds of ``ranges`` ranges in ``numbers`` numbers: multiples of ``multiple``, nearly equal."""
    units = -(-numbers // multiple)
    return [min(numbers, units * place // ranges * multiple) for place in range(ranges + 1)]


def split(message: Compressed, bounds: Sequence[int]) -> list[Compressed]:
    """Return one message for each range ``bounds[j]`` to ``bounds[j + 1]``."""
    if bounds[0] != 0 or bounds[-1] != message.numbers or list(bounds) != sorted(bounds):
        raise ValueError(f"bounds={list(bounds)} must ascend from 0 to the {message.numbers} numbers of the vector.")
    parts = _cut(message, bounds)
    return [part.owned() for part in parts] if message.is_owned else parts


@singledispatch
def range_split(compressor: Compressor, dimension: int, element_bytes: int) -> RangeSplit | None:
    """Return how messages of ``dimension`` numbers of ``element_bytes`` each split; None where they do not.

    Register a function for your own compressor.
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
    share = compressor.compressor.most(dimension) / max(
        1, dimension
    )  # approximate: the exempt tensors are not known here
    return RangeSplit(1, share, sparse_bytes(share, dimension, element_bytes))


def sparse_bytes(share: float, dimension: int, element_bytes: int) -> float:
    """Return the bytes of a ``share`` of the numbers with their indices: a bitmap, or log₂(d/k) + 1.5 bits each."""
    if share <= 0:
        return 0.0
    bits = 0.0 if share >= 1 else min(1 / share, math.log2(1 / share) + 1.5)
    return share * dimension * (element_bytes + bits / 8)


@singledispatch
def _cut(message: Compressed, bounds: Sequence[int]) -> list[Compressed]:
    raise TypeError(f"a {type(message).__name__} does not split by coordinates; gather it.")


@_cut.register
def _(message: DenseVector, bounds: Sequence[int]) -> list[Compressed]:
    return [DenseVector(message.values[begin:end]) for begin, end in pairwise(bounds)]


@_cut.register
def _(message: BFloat16Vector, bounds: Sequence[int]) -> list[Compressed]:
    return [BFloat16Vector(message.values[begin:end], message.dtype) for begin, end in pairwise(bounds)]


@_cut.register
def _(message: QuantizedVector, bounds: Sequence[int]) -> list[Compressed]:
    bits, bucket = message.bits, message.bucket
    ranges = [(begin, end) for begin, end in pairwise(bounds) if begin < end]
    for begin, _ in ranges:
        if begin % bucket or begin * bits % 8:
            raise ValueError(
                f"a range that begins at {begin} splits a bucket of {bucket} or a byte; "
                f"ranges must begin at multiples of {math.lcm(bucket, 8)}."
            )
    codes = message.codes.split_with_sizes([packed_bytes(end - begin, bits) for begin, end in ranges])
    scales = message.scales.split_with_sizes([-(-(end - begin) // bucket) for begin, end in ranges])
    some = iter(
        [QuantizedVector(e - b, bits, bucket, *own) for (b, e), *own in zip(ranges, codes, scales, strict=True)]
    )
    nothing = QuantizedVector(0, bits, bucket, message.codes[:0], message.scales[:0])  # where ranks outnumber buckets
    return [next(some) if begin < end else nothing for begin, end in pairwise(bounds)]


@_cut.register
def _(message: SparseVector, bounds: Sequence[int]) -> list[Compressed]:
    values = message.values
    if not isinstance(values, Tensor):
        raise TypeError(f"the values of this {type(message).__name__} were compressed together; gather it.")
    positions, block = message.positions(), message.parameter
    edges = torch.tensor(bounds, device=positions.device)
    cuts = torch.searchsorted(positions, edges).tolist()
    keeps_blocks = message.coding == Coding.BLOCKS and all(bound % block == 0 for bound in bounds[:-1])
    parts = []
    for (begin, end), (first, last) in zip(pairwise(bounds), pairwise(cuts), strict=True):
        within = positions[first:last] - begin
        size = end - begin
        indices = encode_blocks(within % block, size, block, within) if keeps_blocks else encode(within, size)
        parts.append(SparseVector.of(indices, values[first:last]))
    return list(parts)


@_cut.register
def _(message: SignVector, bounds: Sequence[int]) -> list[Compressed]:
    parts = []
    for begin, end in pairwise(bounds):
        require(begin == end or begin % 8 == 0, f"a range that begins at {begin} splits a byte of eight signs.")
        signs = message.signs[begin // 8 : begin // 8 + packed_bytes(end - begin, 1)]
        parts.append(SignVector(end - begin, message.scale, signs))
    return list(parts)


@_cut.register
def _(message: LayerwiseVector, bounds: Sequence[int]) -> list[Compressed]:
    if message.parts:
        raise TypeError(
            f"a {type(message).__name__} with a message per tensor does not split by coordinates; gather it."
        )
    return _cut(DenseVector(message.values), bounds)  # every tensor is exempt
