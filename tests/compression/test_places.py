"""Bits and places: packed exactly, in the smallest coding, and checked when they come back."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.compression.coding.bits import pack, packed_bytes, unpack
from tacit.compression.coding.indices import CodedIndices, Coding, encode, encode_blocks
from tacit.errors import BadMessage


@given(width=st.integers(0, 40), data=st.data())
@settings(deadline=None)
def test_numbers_of_any_width_come_back(width: int, data: st.DataObject):
    numbers = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40))
    codes = torch.tensor(numbers, dtype=torch.int64)
    packed = pack(codes, width)
    assert packed.dtype == torch.uint8 and packed.numel() == packed_bytes(len(numbers), width)
    assert unpack(packed, width, len(numbers)).tolist() == numbers


def test_the_first_number_lies_in_the_lowest_bits():
    assert pack(torch.tensor([1, 0, 3]), 3).tolist() == [0b11_000_001, 0]
    assert pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 0, 1]), 1).tolist() == [1, 1]


@st.composite
def selections(draw: st.DrawFn) -> tuple[list[int], int]:
    length = draw(st.one_of(st.integers(0, 50), st.integers(51, 20_000)))
    shape = draw(st.sampled_from(["any", "clustered", "even"]))
    if shape == "any" or length < 10:
        return sorted(draw(st.sets(st.integers(0, length - 1), max_size=60))) if length else [], length
    if shape == "clustered":
        begin = draw(st.integers(0, length - 1))
        return list(range(begin, min(length, begin + draw(st.integers(1, 300))))), length
    return list(range(draw(st.integers(0, 9)), length, draw(st.integers(1, 200)))), length


@given(selections())
@settings(deadline=None)
def test_places_come_back_and_no_coding_is_smaller(drawn: tuple[list[int], int]):
    chosen, length = drawn
    places = encode(torch.tensor(chosen, dtype=torch.int64), length)
    assert dataclasses.replace(places).positions.tolist() == chosen  # without what it knows
    size = places.packed.numel()
    assert size <= packed_bytes(len(chosen), max(0, length - 1).bit_length())
    assert size <= packed_bytes(length, 1)
    for r in range(20):
        assert size <= _delta_bytes(chosen, r)


def _delta_bytes(chosen: list[int], r: int) -> int:
    """Return the bytes of the gaps with r low bits, counted number by number, as if that were the coding."""
    gaps = [here - before - 1 for before, here in zip([-1, *chosen], chosen, strict=False)]
    return packed_bytes(len(gaps), r) + math.ceil(sum((gap >> r) + 1 for gap in gaps) / 8)


@pytest.mark.parametrize(
    ("chosen", "length", "coding"),
    [
        (range(100), 100, Coding.ALL),
        (range(0, 100, 2), 100, Coding.BITMAP),
        ([999_999], 1_000_000, Coding.RAW),
        (range(0, 1_000_000, 97), 1_000_000, Coding.DELTA),
        ([], 7, Coding.RAW),
    ],
)
def test_each_coding_is_chosen_where_it_is_smallest(chosen: range, length: int, coding: Coding):
    assert encode(torch.tensor(list(chosen), dtype=torch.int64), length).coding == coding


def test_a_hundredth_costs_about_eight_bits_a_place():
    """The entropy of a random choice of 1 % is 8.08 bits a place; 20 bits is what its position takes."""
    chosen = (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) < 0.01).nonzero().view(-1)
    assert 8 * encode(chosen, 1_000_000).packed.numel() / chosen.numel() < 8.2


@given(st.integers(1, 20), st.integers(0, 90), st.data())
@settings(deadline=None)
def test_places_within_blocks_come_back(block: int, length: int, data: st.DataObject):
    k = data.draw(st.integers(1, block))
    expected, within = [], []
    for begin in range(0, length, block):
        size = min(block, length - begin)
        chosen = sorted(data.draw(st.permutations(range(size)))[: min(k, size)])
        within += chosen
        expected += [begin + place for place in chosen]
    assert encode_blocks(torch.tensor(within, dtype=torch.int64), length, block).positions.tolist() == expected


@given(selections(), st.data())
@settings(deadline=None, max_examples=300)
def test_corrupted_places_are_refused_or_in_range(drawn: tuple[list[int], int], data: st.DataObject):
    chosen, length = drawn
    places = encode(torch.tensor(chosen, dtype=torch.int64), length)
    packed = places.packed.clone()
    if packed.numel():
        packed[data.draw(st.integers(0, packed.numel() - 1))] ^= data.draw(st.integers(1, 255))
    field = data.draw(st.sampled_from(["length", "count", "coding", "parameter"]))
    change = {field: data.draw(st.integers(-3, 60) | st.integers(-(2**63), 2**63 - 1))}
    try:
        found = dataclasses.replace(places, packed=packed, **change)
        if found.coding == Coding.ALL or found.length > 10**6:
            return
        positions = found.positions
    except (ValueError, BadMessage):
        return
    assert positions.numel() == found.count
    assert not positions.numel() or (int(positions[0]) >= 0 and int(positions[-1]) < found.length)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (lambda: CodedIndices(10, 2, Coding.RAW, 0, pack(torch.tensor([7, 3]), 4)), "do not ascend"),
        (lambda: CodedIndices(10, 2, Coding.RAW, 0, pack(torch.tensor([3, 3]), 4)), "do not ascend"),
        (lambda: CodedIndices(10, 1, Coding.RAW, 0, pack(torch.tensor([12]), 4)), "reach past the 10 numbers"),
        (
            lambda: CodedIndices(10, 2, Coding.BITMAP, 0, pack(torch.ones(10), 1)),
            "10 indices came where 2 are announced",
        ),
        (
            lambda: CodedIndices(10, 1, Coding.DELTA, 0, torch.tensor([0, 8], dtype=torch.uint8)),
            "reach past the 10 numbers",
        ),
        (lambda: CodedIndices(6, 2, Coding.BLOCKS, 3, pack(torch.tensor([3, 0]), 2)), "past the end of its block of 3"),
        (lambda: CodedIndices(6, 1, Coding.BLOCKS, 3, pack(torch.tensor([0]), 2)), "not equally many in 2 blocks"),
    ],
)
def test_lies_about_places_are_told(places, message: str):
    with pytest.raises(BadMessage, match=message):
        list(places().positions)
