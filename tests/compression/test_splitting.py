"""Messages cut by ranges of coordinates, and sums of them on their way back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw

from tacit.compression import (
    QSGD,
    BFloat16,
    BlockTopK,
    Chain,
    Compressor,
    Dense,
    LowRank,
    RandomK,
    Sign,
    SparseVector,
    TopK,
)
from tacit.compression.coding.ranges import range_bounds, range_split, split
from tacit.compression.coding.sparse_sum import SumVector, expected_sum_bytes
from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.errors import BadMessage

CUT = [
    TopK(fraction=0.1),
    TopK(k=3),
    RandomK(fraction=0.2),
    RandomK(k=5, scaled=True),
    BlockTopK(block=16, k=2),
    QSGD(bits=8, bucket=64),
    QSGD(bits=3, bucket=10),
    Sign(),
    Dense(),
    BFloat16(),
]


def drawn(numbers: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(numbers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(
    compressor=draw.sampled_from(CUT),
    numbers=draw.integers(0, 700),
    ranges=draw.integers(1, 12),
    seed=draw.integers(0, 99),
    dtype=draw.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(deadline=None, max_examples=150)
def test_parts_decode_to_the_numbers_of_their_ranges(
    compressor: Compressor, numbers: int, ranges: int, seed: int, dtype: torch.dtype
):
    message = compressor.compress(drawn(numbers, seed, dtype), np.random.default_rng(seed))
    bounds = range_bounds(numbers, ranges, range_split(compressor, numbers, dtype.itemsize).multiple)
    parts = [unpack(part.pack()) for part in split(message, bounds)]
    assert [part.numbers for part in parts] == [end - begin for begin, end in pairwise(bounds)]
    whole = message.dense()
    for part, (begin, end) in zip(parts, pairwise(bounds), strict=True):
        assert torch.equal(part.dense(), whole[begin:end])


@pytest.mark.parametrize("compressor", CUT, ids=str)
def test_nominal_sizes_are_those_of_long_vectors(compressor: Compressor):
    message = compressor.compress(drawn(50_000, 0), np.random.default_rng(0))
    found = range_split(compressor, 50_000, 4)
    assert message.size_bytes - 120 <= found.size_bytes * 1.05
    assert found.size_bytes <= message.size_bytes * 1.05
    bounds = range_bounds(50_000, 8, found.multiple)
    assert sum(part.size_bytes for part in split(message, bounds)) <= message.size_bytes * 1.05 + 8 * 120


def test_what_cannot_be_cut_says_so():
    x, random = drawn(400, 0), np.random.default_rng(0)
    for compressor in (Chain(TopK(k=20), QSGD()), LowRank(rank=2)):
        assert range_split(compressor, 400, 4) is None
        with pytest.raises(TypeError, match="gather it"):
            split(compressor.compress(x, random, {}, [torch.Size([20, 20])]), [0, 200, 400])
    with pytest.raises(ValueError, match="splits a bucket of 64"):
        split(QSGD(bucket=64).compress(x, random), [0, 65, 400])
    with pytest.raises(ValueError, match="must ascend from 0 to the 400"):
        split(Dense().compress(x, random), [0, 500, 400])


@given(ranks=draw.integers(1, 9), numbers=draw.integers(0, 300), k=draw.integers(1, 40), seed=draw.integers(0, 99))
@settings(deadline=None, max_examples=80)
def test_merged_sparse_sums_are_exact_and_never_larger_than_what_went_in(ranks: int, numbers: int, k: int, seed: int):
    """At most min(n·k, d) numbers; where several spoke eight bytes, which are no more than the two times four that
    came.
    """
    words = [TopK(k=k).compress(drawn(numbers, seed + rank), np.random.default_rng(0)) for rank in range(ranks)]
    total = torch.zeros(numbers, dtype=torch.float64)
    for message in words:
        total += message.dense().double()
    back = unpack(SumVector.of(total, words, torch.float32).pack())
    assert torch.equal(back.dense(), total)
    entries = [part.values for part in (back.narrow, back.wide) if part is not None]
    assert sum(values.numel() for values in entries) <= min(ranks * k, numbers)
    assert sum(v.numel() * v.element_size() for v in entries) <= 4 * sum(message.count for message in words)


def test_the_expected_size_of_a_sum_is_that_of_independent_places():
    words = [RandomK(fraction=0.05).compress(drawn(20_000, rank), np.random.default_rng(rank)) for rank in range(12)]
    total = torch.stack([message.dense().double() for message in words]).sum(0)
    true_bytes = SumVector.of(total, words, torch.float32).size_bytes
    assert expected_sum_bytes(0.05, 12, 20_000, 4) == pytest.approx(true_bytes, rel=0.03)


def test_hostile_sums_are_refused():
    def packed(narrow: Message) -> bytes:
        message = SumVector(10, None, None)
        message.__dict__["narrow"] = narrow  # as no sum of ours would hold it
        return message.pack()

    def sparse(numbers: int) -> SparseVector:
        return TopK(k=3).compress(drawn(numbers, 0), np.random.default_rng(0))

    message = unpack(packed(sparse(11)))
    with pytest.raises(BadMessage, match="of 11 numbers came where 10"):
        message.dense()
    for narrow, reason in (
        (
            Chain(TopK(k=3), QSGD()).compress(drawn(10, 0), np.random.default_rng(0)),
            "must be a SparseVector of numbers",
        ),
        (Dense().compress(drawn(10, 0), np.random.default_rng(0)), "a DenseVector came as the narrow of a SumVector"),
    ):
        with pytest.raises(BadMessage, match=reason):
            unpack(packed(narrow))
    with pytest.raises(BadMessage, match="bytes came where the header announces"):
        unpack(packed(sparse(10))[:-1])
    with pytest.raises(ValueError, match="narrow is a int and must be a SparseVector of numbers"):
        SumVector(10, 3, None)
