"""Coded indices: which coordinates of a long vector a message holds, in few bits.

The smallest of five codings is chosen for each message; every size is known before anything is packed:

    ALL     nothing: the message holds every coordinate
    BITMAP  one bit per coordinate of the vector
    RAW     each index in ⌈log₂ d⌉ bits
    DELTA   the gap before each index, Rice-coded: its low r bits packed, then the rest in unary; log₂(d/k) + 1.5 bits
    BLOCKS  each index within its block of B coordinates, in ⌈log₂ B⌉ bits, for equally many indices in every block
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from tacit.compression.coding.bits import pack, packed_bytes, unpack
from tacit.compression.compressor import require_count, require_tensor
from tacit.compression.kernels.gaps import Gaps
from tacit.errors import BadMessage, require

_WIDEST: Final = 40
"""Bits of the longest vector's coordinates; ``bits`` packs no more."""


class Coding(IntEnum):
    """How indices are packed; the numbers are part of the wire format."""

    ALL = 0
    BITMAP = 1
    RAW = 2
    DELTA = 3
    BLOCKS = 4


@dataclass(frozen=True)
class CodedIndices:
    """Strictly ascending coordinates, ``count`` of them, in a vector of ``length`` numbers."""

    length: int
    count: int
    coding: int
    parameter: int  # DELTA: r; BLOCKS: B; else 0
    packed: Tensor  # uint8
    known_positions: InitVar[Tensor | None] = None  # the coordinates, where the encoder has them: nothing to check

    def __post_init__(self, known_positions: Tensor | None) -> None:
        if known_positions is not None:
            self.__dict__["positions"] = known_positions
            return
        require_count("length", self.length)
        require_count("count", self.count, self.length)
        require_count("coding", self.coding, Coding.BLOCKS)
        require_count("parameter", self.parameter)
        require_tensor("packed indices", self.packed, (torch.uint8,))
        size = self.packed.numel()
        match self.coding:
            case Coding.ALL:
                fits = self.count == self.length and size == 0
            case Coding.BITMAP:
                fits = size == packed_bytes(self.length, 1)
            case Coding.RAW:
                fits = size == packed_bytes(self.count, width_of(self.length))
            case Coding.DELTA:
                low = packed_bytes(self.count, self.parameter)
                fits = self.parameter <= width_of(self.length) and size >= low + packed_bytes(self.count, 1)
            case _:
                fits = self.parameter > 0 and size == packed_bytes(self.count, width_of(self.parameter))
                fits = fits and (self.count == 0) == (self.length == 0)
        require(fits, f"{size} bytes do not hold {self.count} indices of {self.length} in coding {self.coding}.")

    @cached_property
    def positions(self) -> Tensor:
        """The coordinates as int64; raises ``BadMessage`` where they do not ascend or reach past the end."""
        match self.coding:
            case Coding.ALL:
                return torch.arange(self.length, device=self.packed.device)
            case Coding.BITMAP:
                found = unpack(self.packed, 1, self.length).nonzero().view(-1)
            case Coding.RAW:
                found = unpack(self.packed, width_of(self.length), self.count).to(torch.int64)
            case Coding.DELTA:
                found = self._from_gaps()
            case _:
                found = self._from_blocks()
        if found.numel() != self.count:
            raise BadMessage(f"{found.numel()} indices came where {self.count} are announced.")
        if self.count and (int(found[-1]) >= self.length or bool((found[1:] <= found[:-1]).any())):
            raise BadMessage(f"indices do not ascend, or reach past the {self.length} numbers of the vector.")
        return found

    def _from_gaps(self) -> Tensor:
        r, low_bytes = self.parameter, packed_bytes(self.count, self.parameter)
        unary = self.packed[low_bytes:]
        ends = unpack(unary, 1, 8 * unary.numel()).nonzero().view(-1)
        if ends.numel() != self.count or (self.count and packed_bytes(int(ends[-1]) + 1, 1) != unary.numel()):
            raise BadMessage(f"the gaps of {ends.numel()} indices came where {self.count} are announced.")
        quotients = torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1
        if self.count and int(quotients.sum()) > self.length >> r:  # also keeps the shift and the sum within 64 bits
            raise BadMessage(f"gaps reach past the {self.length} numbers of the vector.")
        gaps = (quotients << r) + unpack(self.packed[:low_bytes], r, self.count)
        return (gaps + 1).cumsum(0) - 1

    def _from_blocks(self) -> Tensor:
        block, blocks = self.parameter, -(-self.length // self.parameter)
        last = self.length - block * (blocks - 1)
        each, rest = divmod(self.count, max(1, blocks))
        if rest or each > last:  # the last block is shorter than its share: all of it is selected
            each, rest = divmod(self.count - last, max(1, blocks - 1))
        if blocks and (rest or each > block or self.count != each * (blocks - 1) + min(each, last)):
            raise BadMessage(f"{self.count} indices are not equally many in {blocks} blocks.")
        within = unpack(self.packed, width_of(block), self.count).to(torch.int64)
        if self.count and int(within.max()) >= block:
            raise BadMessage(f"an index is past the end of its block of {block}.")
        return within + torch.arange(self.count, device=within.device).div(max(1, each), rounding_mode="floor") * block


def encode(positions: Tensor, length: int) -> CodedIndices:
    """Return ascending ``positions`` (int64) within ``length`` numbers in the smallest coding."""
    count, width = positions.numel(), width_of(length)
    raw_bytes = packed_bytes(count, width)

    def coded(coding: Coding, parameter: int, packed: Tensor) -> CodedIndices:
        return CodedIndices(length, count, coding, parameter, packed, positions)

    if count == length:
        return coded(Coding.ALL, 0, torch.empty(0, dtype=torch.uint8, device=positions.device))
    if raw_bytes <= packed_bytes(count, 1):  # one index or so: no coding is smaller
        return coded(Coding.RAW, 0, pack(positions, width))
    gaps, r = _rice(positions, length)
    sizes = {Coding.RAW: raw_bytes, Coding.BITMAP: packed_bytes(length, 1), Coding.DELTA: gaps.size_bytes(r)}
    smallest = min(sizes, key=sizes.__getitem__)
    if smallest == Coding.RAW:
        return coded(Coding.RAW, 0, pack(positions, width))
    if smallest == Coding.BITMAP:
        flags = torch.zeros(length, dtype=torch.bool, device=positions.device)
        flags[positions] = True
        return coded(Coding.BITMAP, 0, pack(flags, 1))
    return coded(Coding.DELTA, r, gaps.coded(r))


def encode_blocks(within: Tensor, length: int, block: int, positions: Tensor | None = None) -> CodedIndices:
    """Return indices given as offsets ``within`` their blocks, equally many in every block except the last."""
    return CodedIndices(length, within.numel(), Coding.BLOCKS, block, pack(within, width_of(block)), positions)


def _rice(positions: Tensor, length: int) -> tuple[Gaps, int]:
    """Return the gaps and the Rice parameter r that takes the fewest bytes, the smallest of such.

    The bits k (r + 1) + Σ ⌊gap / 2^r⌋ are convex in r, so a descent from a good guess, log₂(ln 2 · mean gap), ends at
    their minimum. Bytes are rounded up twice, so neighbours within 14 bits of it are tried too.
    """
    count = positions.numel()
    guess = best = max(0, math.floor(math.log2(max(1.0, 0.69 * (length - count) / max(1, count)))))
    gaps = Gaps(positions, length, guess)
    seen: dict[int, int] = {}

    def bits(r: int) -> int:
        if r not in seen:
            seen[r] = count * r + gaps.unary_bits(r)
        return seen[r]

    for direction in (1, -1):
        r = guess
        while 0 <= r + direction <= _WIDEST and bits(r + direction) <= bits(best) + 14:
            r += direction
            best = min(best, r, key=bits)
    return gaps, min(sorted(seen), key=gaps.size_bytes)


def width_of(length: int) -> int:
    """Return the number of bits of a coordinate of a vector of ``length`` numbers."""
    return max(0, length - 1).bit_length()
