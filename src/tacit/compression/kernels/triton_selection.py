# mypy: ignore-errors

"""Triton kernels for exact selection; ``selection`` describes the method.

``_sample`` finds the threshold. ``_mark`` writes a bit for each number that passes it and counts them tile by tile.
``_compact`` copies these candidates in order, to the offsets that running sums of the counts give. ``_refine`` runs
four times, and each run determines 8 more bits (the last one 7) of the k-th largest key by a histogram. ``_count``
counts the numbers above and equal in each tile, and ``_write`` writes them in order. The last three read the candidates
or, where these are too few or too many, the whole vector; the device decides, so the CPU does not wait.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tacit.compression.kernels.selection import SAMPLE, capacity

TILE, WARPS = 8192, 8
GROUP = tl.constexpr(16)  # numbers whose bits share a word
BINS = tl.constexpr(256)
SAMPLE_ROWS = tl.constexpr(256)
SAMPLE_COLUMNS = tl.constexpr(128)
SAMPLE_SHIFT = tl.constexpr(16)  # 31 bits of key into 2^15 bins, less than 1 % of a value wide
# Offsets in the state vector.
FLOOR = tl.constexpr(0)  # the threshold's key
PREFIX = tl.constexpr(1)  # leading bits of the k-th largest key, finally all of them
WANTED = tl.constexpr(2)  # how many of the k have this prefix, finally how many ties to take
TICKETS = tl.constexpr(3)  # number of finished programs of each launch
HISTOGRAMS = tl.constexpr(16)
SAMPLE_HISTOGRAM = tl.constexpr(16 + 4 * 256)


def select(x: Tensor, estimate: Tensor | None, k: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the result of ``select_in_torch`` in float32; ``rank`` 0 means no sample."""
    n, device = x.numel(), x.device
    most = capacity(n, k) if rank else 0
    tiles = triton.cdiv(n, TILE)
    state = torch.zeros(SAMPLE_HISTOGRAM.value + (1 << 15 if rank else 0), dtype=torch.int32, device=device)
    passed_values = torch.empty(max(1, most), dtype=torch.float32, device=device)
    passed_places = torch.empty(max(1, most), dtype=torch.int32, device=device)
    source = (x, x if estimate is None else estimate)
    flags = {"IS_DIFFERENCE": estimate is not None}
    if rank:
        marks = torch.empty(tiles * TILE // GROUP.value, dtype=torch.int16, device=device)
        lengths = torch.empty(tiles, dtype=torch.int32, device=device)
        _sample[(SAMPLE // 512,)](*source, state, n, rank, BLOCK=512, **flags)
        _mark[(tiles,)](*source, state, marks, lengths, n, TILE=TILE, **flags, num_warps=WARPS)
        shares = lengths.cumsum(0)
        passed = (passed_values, passed_places)
        _compact[(tiles,)](*source, marks, lengths, shares, *passed, most, k, TILE=TILE, **flags)
        found = shares[-1:]
    else:
        found = torch.zeros(1, dtype=torch.int64, device=device)
    source = (*source, passed_values, found, state)
    programs = min(triton.cdiv(n, 2048), 528)  # four for each of an H200's multiprocessors
    for level, (shift, bits) in enumerate(((23, 8), (15, 8), (7, 8), (0, 7))):
        _refine[(programs,)](*source, n, most, k, LEVEL=level, SHIFT=shift, BITS=bits, BLOCK=2048, **flags)
    totals = torch.empty(tiles, dtype=torch.int64, device=device)
    _count[(tiles,)](*source, totals, n, most, k, TILE=TILE, BLOCK=2048, **flags)
    ends = totals.cumsum(0)
    positions = torch.empty(k, dtype=torch.int64, device=device)
    values = torch.empty(k, dtype=torch.float32, device=device)
    _write[(tiles,)](
        *source, passed_places, totals, ends, positions, values, n, most, k, TILE=TILE, BLOCK=2048, **flags
    )
    return positions, values


def select_of_blocks(x: Tensor, block: int, k: int) -> Tensor:
    """Return the result of ``select_of_blocks_in_torch``."""
    blocks, width = triton.cdiv(x.numel(), block), triton.next_power_of_2(block)
    rows = max(1, 4096 // width)
    offsets = torch.empty(blocks * k, dtype=torch.int64, device=x.device)
    _of_blocks[(triton.cdiv(blocks, rows),)](x, offsets, x.numel(), blocks, BLOCK=block, WIDTH=width, ROWS=rows, K=k)
    return offsets


@triton.jit
def _of_blocks(x, offsets, n, blocks, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    at = rows * BLOCK + columns
    is_inside = (columns < BLOCK) & (at < n) & (rows < blocks)
    key = _key(tl.load(x + at, mask=is_inside, other=0.0))
    key = tl.where(is_inside, key, tl.where(columns < BLOCK, -1, -3))  # padding is chosen last, and in order
    if K == 1:
        first = tl.min(tl.where(key == tl.max(key, 1)[:, None], columns, WIDTH), 1)[:, None]
        tl.store(offsets + rows, first.to(tl.int64), mask=rows < blocks)
    else:
        is_chosen = (key < -3).to(tl.int32)
        for _ in tl.static_range(K):
            first = tl.min(tl.where(key == tl.max(key, 1)[:, None], columns, WIDTH), 1)[:, None]
            is_chosen = tl.where(columns == first, 1, is_chosen)
            key = tl.where(columns == first, -2, key)
        place = rows * K + tl.cumsum(is_chosen, 1) - is_chosen
        tl.store(offsets + place, (columns + 0 * rows).to(tl.int64), mask=(is_chosen == 1) & (rows < blocks))


@triton.jit
def _entries(x, estimate, at, mask, IS_DIFFERENCE: tl.constexpr):
    value = tl.load(x + at, mask=mask, other=0.0)
    if IS_DIFFERENCE:
        value = value - tl.load(estimate + at, mask=mask, other=0.0)  # in the wider dtype of the two
    return value.to(tl.float32)


@triton.jit
def _key(value):
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _find(counts, bins, wanted):
    """Return the highest bin that, with those above it, holds ``wanted``, and how many are above it.

    What is in bin 0 plays no part.
    """
    at_least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
    place = tl.max(tl.where(at_least >= wanted, bins, 0), 0)
    return place, tl.sum(tl.where(bins > place, counts, 0), 0)


@triton.jit
def _is_last(ticket):
    """Return whether all other programs are done; their sums are then visible to loads past the first-level cache."""
    tl.debug_barrier()
    return tl.atomic_add(ticket, 1, sem="acq_rel") == tl.num_programs(0) - 1


@triton.jit(do_not_specialize=["rank"])
def _sample(x, estimate, state, n, rank, IS_DIFFERENCE: tl.constexpr, BLOCK: tl.constexpr):
    number = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.uint32)
    at = tl.umulhi(number * 0x9E3779B1, tl.zeros([BLOCK], tl.uint32) + n.to(tl.uint32)).to(tl.int32)
    key = _key(_entries(x, estimate, at, at < n, IS_DIFFERENCE))
    histogram = state + SAMPLE_HISTOGRAM
    tl.atomic_add(histogram + (key >> SAMPLE_SHIFT), 1, sem="relaxed")
    if _is_last(state + TICKETS):
        rows = tl.arange(0, SAMPLE_ROWS)
        columns = tl.arange(0, SAMPLE_COLUMNS)
        table = tl.load(histogram + rows[:, None] * SAMPLE_COLUMNS + columns[None, :], cache_modifier=".cg")
        row, above = _find(tl.sum(table, 1), rows, rank)
        line = tl.load(histogram + row * SAMPLE_COLUMNS + columns, cache_modifier=".cg")
        column, _ = _find(line, columns, rank - above)
        tl.store(state + FLOOR, (row * SAMPLE_COLUMNS + column) << SAMPLE_SHIFT)


@triton.jit
def _ones(word):
    """Return how many of 16 bits are set."""
    word = word - ((word >> 1) & 0x5555)
    word = (word & 0x3333) + ((word >> 2) & 0x3333)
    word = (word + (word >> 4)) & 0x0F0F
    return (word + (word >> 8)) & 0x1F


@triton.jit
def _mark(x, estimate, state, marks, lengths, n, IS_DIFFERENCE: tl.constexpr, TILE: tl.constexpr):
    tile = tl.program_id(0)
    words = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
    bits = tl.arange(0, GROUP)[None, :]
    at = words[:, None] * GROUP + bits
    key = _key(_entries(x, estimate, at, at < n, IS_DIFFERENCE))
    has_passed = (key >= tl.load(state + FLOOR)) & (at < n)
    mark = tl.sum(tl.where(has_passed, 1 << bits, 0), 1)
    tl.store(marks + words, mark.to(tl.int16))
    tl.store(lengths + tile, tl.sum(_ones(mark), 0))


@triton.jit
def _is_narrowed(found, most, k):
    return (found >= k) & (found <= most)


@triton.jit(do_not_specialize=["most", "k"])
def _compact(
    x,
    estimate,
    marks,
    lengths,
    shares,
    passed_values,
    passed_places,
    most,
    k,
    IS_DIFFERENCE: tl.constexpr,
    TILE: tl.constexpr,
):
    tile = tl.program_id(0)
    if _is_narrowed(tl.load(shares + tl.num_programs(0) - 1).to(tl.int32), most, k):
        words = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        mark = tl.load(marks + words).to(tl.int32) & 0xFFFF
        count = _ones(mark)
        place = (tl.load(shares + tile).to(tl.int32) - tl.load(lengths + tile)) + tl.cumsum(count, 0) - count
        while tl.max(mark, 0) > 0:
            is_left = mark > 0
            at = words * GROUP + _ones(((mark & -mark) - 1) & 0xFFFF)
            tl.store(passed_values + place, _entries(x, estimate, at, is_left, IS_DIFFERENCE), mask=is_left)
            tl.store(passed_places + place, at, mask=is_left)
            place += 1
            mark = mark & (mark - 1)


@triton.jit
def _read(x, estimate, passed_values, at, mask, is_narrowed, IS_DIFFERENCE: tl.constexpr):
    """Return candidates, or numbers of the vector."""
    if is_narrowed:
        value = tl.load(passed_values + at, mask=mask, other=0.0)
    else:
        value = _entries(x, estimate, at, mask, IS_DIFFERENCE)
    return value


@triton.jit(do_not_specialize=["most", "k"])
def _refine(
    x,
    estimate,
    passed_values,
    found,
    state,
    n,
    most,
    k,
    IS_DIFFERENCE: tl.constexpr,
    LEVEL: tl.constexpr,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    passed = tl.load(found).to(tl.int32)
    is_narrowed = _is_narrowed(passed, most, k)
    length = tl.where(is_narrowed, passed, n)
    prefix = tl.load(state + PREFIX)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for begin in range(tl.program_id(0) * BLOCK, length, tl.num_programs(0) * BLOCK):
        at = begin + tl.arange(0, BLOCK)
        is_inside = at < length
        key = _key(_read(x, estimate, passed_values, at, is_inside, is_narrowed, IS_DIFFERENCE))
        if LEVEL > 0:
            is_inside = is_inside & ((key >> (SHIFT + BITS)) == prefix)
        counts += tl.histogram(tl.where(is_inside, (key >> SHIFT) & ((1 << BITS) - 1), 0), BINS)
    histogram = state + HISTOGRAMS + LEVEL * BINS
    tl.atomic_add(histogram + bins, counts, mask=counts > 0, sem="relaxed")
    if _is_last(state + TICKETS + 1 + LEVEL):
        wanted = tl.load(state + WANTED) if LEVEL > 0 else k
        digit, above = _find(tl.load(histogram + bins, cache_modifier=".cg"), bins, wanted)
        tl.store(state + PREFIX, (prefix << BITS) | digit)
        tl.store(state + WANTED, wanted - above)


@triton.jit(do_not_specialize=["most", "k"])
def _count(
    x,
    estimate,
    passed_values,
    found,
    state,
    totals,
    n,
    most,
    k,
    IS_DIFFERENCE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0)
    passed = tl.load(found).to(tl.int32)
    is_narrowed = _is_narrowed(passed, most, k)
    end = tl.minimum((tile + 1) * TILE, tl.where(is_narrowed, passed, n))
    last = tl.load(state + PREFIX)
    above = tl.zeros([BLOCK], tl.int32)
    equal = tl.zeros([BLOCK], tl.int32)
    for begin in range(tile * TILE, end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        is_inside = at < end
        key = _key(_read(x, estimate, passed_values, at, is_inside, is_narrowed, IS_DIFFERENCE))
        above += ((key > last) & is_inside).to(tl.int32)
        equal += ((key == last) & is_inside).to(tl.int32)
    tl.store(totals + tile, (tl.sum(above, 0).to(tl.int64) << 32) | tl.sum(equal, 0).to(tl.int64))


@triton.jit(do_not_specialize=["most", "k"])
def _write(
    x,
    estimate,
    passed_values,
    found,
    state,
    passed_places,
    totals,
    ends,
    positions,
    values,
    n,
    most,
    k,
    IS_DIFFERENCE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0)
    passed = tl.load(found).to(tl.int32)
    is_narrowed = _is_narrowed(passed, most, k)
    end = tl.minimum((tile + 1) * TILE, tl.where(is_narrowed, passed, n))
    last = tl.load(state + PREFIX)
    ties = tl.load(state + WANTED)
    is_finite = tl.load(state + HISTOGRAMS + 255) == 0  # the highest exponent is that of infinity and NaN
    before = tl.load(ends + tile) - tl.load(totals + tile)
    above = (before >> 32).to(tl.int32)
    equal = (before & 0xFFFFFFFF).to(tl.int32)
    for begin in range(tile * TILE, end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        is_inside = at < end
        value = _read(x, estimate, passed_values, at, is_inside, is_narrowed, IS_DIFFERENCE)
        position = at
        if is_narrowed:
            position = tl.load(passed_places + at, mask=is_inside, other=0)
        key = _key(value)
        is_above = ((key > last) & is_inside).to(tl.int32)
        is_equal = ((key == last) & is_inside).to(tl.int32)
        tie = equal + tl.cumsum(is_equal, 0) - is_equal
        place = above + tl.cumsum(is_above, 0) - is_above + tl.minimum(tie, ties)
        is_chosen = (is_above == 1) | ((is_equal == 1) & (tie < ties))
        tl.store(positions + place, position.to(tl.int64), mask=is_chosen)
        tl.store(values + place, value, mask=is_chosen)
        if IS_DIFFERENCE:
            is_due = is_chosen & is_finite
            old = tl.load(estimate + position, mask=is_due, other=0.0)
            tl.store(estimate + position, old + value, mask=is_due)
        above += tl.sum(is_above, 0)
        equal += tl.sum(is_equal, 0)
