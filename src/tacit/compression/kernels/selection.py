"""Exact selection of the k largest magnitudes, of the whole vector or of every block, and the step of EF21 around it.

The order is that of the bits of |x| read as an integer, which is the order of the magnitudes, with −0 = 0 < … < ∞ <
NaN; ties go to the lower position, and zeros are left out. So the result depends only on the input, on every device. A
sample of 2¹⁶ numbers gives a threshold that all of the k largest are expected to pass. The numbers that pass are copied
in order (one pass over memory), and among these few the k-th largest is found exactly. Where the sample was misleading
(fewer than k passed, or too many, such as many equal numbers) the exact search runs over the whole vector.

Infinities and NaN are larger than any number, so checking the selected values is enough to find them.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compression.compressor import report_not_finite
from tacit.compression.kernels.backend import INTEGERS, PIECE, PendingNumbers, keys, on_device_of, spans, uses_triton
from tacit.errors import require

SAMPLE: Final = 2**16
WORTH_SAMPLING: Final = 2**18
"""Shortest vector for which a sample is drawn."""
GOLDEN: Final = 0x9E3779B1
"""2³² over the golden ratio: its multiples modulo 2³² are spread evenly and match no stride of the data."""
WIDEST_BLOCK: Final = 2**13
"""A program of the kernel holds a block in registers; wider blocks use torch."""

_SAMPLE_ON_CPU: Final = 2**14
"""Each number of the sample is a cache miss, and a few candidates more cost little."""
_FEW: Final = 8
"""Largest k for which a block's numbers are found one by one, each in a pass; for more the block is sorted."""


class Selection:
    """Selected coordinates; ``nonzero`` checks them, and is best called after another wait for the GPU."""

    def __init__(self, found: tuple[Tensor, Tensor], x: Tensor, estimate: Tensor | None) -> None:
        self.positions, self.values = found
        """Ascending (int64), and the numbers there; zeros among them where there are too few others."""
        self._x, self._estimate = x, estimate
        extremes = torch.aminmax(self.values.abs()) if self.values.numel() else (torch.ones(()), torch.ones(()))
        self._extremes = PendingNumbers(torch.stack(extremes))

    def nonzero(self) -> tuple[Tensor, Tensor]:
        """Return positions and values without zeros, the same tensors if there are none; raise for NaN and infinity."""
        least, most = self._extremes.read()
        if not most < math.inf:
            estimate, dtype = self._estimate, self.values.dtype
            report_not_finite(self._x if estimate is None else (self._x - estimate).to(dtype))
        if least > 0:
            return self.positions, self.values
        is_kept = self.values != 0
        return self.positions[is_kept], self.values[is_kept]


def largest(x: Tensor, k: int) -> Selection:
    """Return the ``k`` numbers largest in magnitude, ties to the lower position, zeros left out."""
    x = x.contiguous()
    if k and uses_triton(x):
        from tacit.compression.kernels import triton_selection

        with on_device_of(x):
            return Selection(triton_selection.select(x, None, k, sample_rank(x.numel(), k)), x, None)
    return Selection(select_in_torch(x, None, k, x.dtype), x, None)


def step(x: Tensor, estimate: Tensor, k: int, dtype: torch.dtype) -> Selection:
    """Return c = TopK(x − g), rounded to ``dtype``, and set g ← g + c for the ``estimate`` g: the step of EF21.

    The difference is computed in the wider of the two dtypes and never stored as a whole. If a number is not finite,
    the estimate is unchanged.
    """
    require(
        estimate.shape == x.shape and estimate.device == x.device and estimate.is_contiguous(),
        f"the estimate has shape {tuple(estimate.shape)} on {estimate.device}, x {tuple(x.shape)} on {x.device}; "
        f"they must agree, and the estimate must be contiguous.",
    )
    x, floats = x.contiguous(), (torch.float32, torch.float64)
    if k and dtype == torch.float32 and uses_triton(x, *floats) and estimate.dtype in floats:
        from tacit.compression.kernels import triton_selection

        with on_device_of(x):
            return Selection(triton_selection.select(x, estimate, k, sample_rank(x.numel(), k)), x, estimate)
    return Selection(select_in_torch(x, estimate, k, dtype), x, estimate)


def sample_rank(n: int, k: int, size: int = SAMPLE) -> int:
    """Return the threshold's rank in the sorted sample, six standard deviations below the k-th's; 0: do not sample."""
    if n < WORTH_SAMPLING or 10 * k > n:
        return 0
    expected = size * k / n
    return int(expected + 6 * math.sqrt(expected) + 16)


def capacity(n: int, k: int) -> int:
    """Return how many numbers may pass the threshold before a search of the whole vector is faster."""
    return 2 * k + n // 64


def select_in_torch(x: Tensor, estimate: Tensor | None, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest, zeros included, and update the estimate."""
    rank = sample_rank(x.numel(), k, _SAMPLE_ON_CPU) if k and x.is_cpu else 0
    candidates = _candidates(x, estimate, k, rank, dtype) if rank else None
    if candidates is None:
        entries = x if estimate is None else (x - estimate).to(dtype)
        positions = largest_keys(keys(entries), k)
        values = entries.index_select(0, positions)
    else:
        entries = _entries_at(x, estimate, candidates, dtype)
        kept = largest_keys(keys(entries), k)
        positions, values = candidates.index_select(0, kept), entries.index_select(0, kept)
    if estimate is not None and bool(values.isfinite().all()):
        estimate.index_add_(0, positions, values.to(estimate.dtype))
    return positions, values


def _entries_at(x: Tensor, estimate: Tensor | None, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x, or x − estimate, at ``positions``."""
    entries = x.index_select(0, positions)  # a quarter of the time of x[positions]
    return entries if estimate is None else (entries - estimate.index_select(0, positions)).to(dtype)


def largest_keys(found: Tensor, k: int) -> Tensor:
    """Return the ascending positions of the ``k`` largest of the keys ``found``, ties to the lower position."""
    if k == 0 or k >= found.numel():
        return torch.arange(min(k, found.numel()), device=found.device)
    if found.is_cpu:
        return torch.from_numpy(_largest_on_cpu(found.numpy(), k))
    last = torch.topk(found, k, sorted=False).values.min()
    is_chosen = found > last
    ties = (found == last).nonzero().view(-1)
    is_chosen[ties[: k - int(is_chosen.sum())]] = True
    return is_chosen.nonzero().view(-1)


def _largest_on_cpu(found: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the result of ``largest_keys``: numpy's partition takes a tenth of the time of torch's topk."""
    last = _kth_largest(found, k)
    is_chosen = found > last
    ties = np.flatnonzero(found == last)
    is_chosen[ties[: k - np.count_nonzero(is_chosen)]] = True
    return np.flatnonzero(is_chosen)


def _kth_largest(found: NDArray[Any], k: int) -> int:
    return int(np.partition(found, len(found) - k)[len(found) - k])


def _candidates(x: Tensor, estimate: Tensor | None, k: int, rank: int, dtype: torch.dtype) -> Tensor | None:
    """Return ascending positions that include the ``k`` largest, or all that are not zero; None where they are many."""
    n = x.numel()
    sample = ((torch.arange(_SAMPLE_ON_CPU) * GOLDEN) & 0xFFFFFFFF) * n >> 32
    found_keys = keys(_entries_at(x, estimate, sample, dtype)).numpy()
    threshold = _kth_largest(found_keys, rank)
    is_sparse = threshold == 0
    found, total, most = [], 0, capacity(n, k)
    wide = x.dtype if estimate is None else torch.promote_types(x.dtype, estimate.dtype)
    entries, mask = torch.empty(PIECE, dtype=wide), np.empty(PIECE, dtype=np.bool_)
    magnitudes = entries.view(INTEGERS[wide.itemsize]).numpy()
    # What rounds to the threshold is not below the number before the threshold, so nothing is rounded here.
    before = torch.tensor([max(0, threshold - 1)], dtype=INTEGERS[dtype.itemsize]).view(dtype).to(wide)
    least = max(1, int(before.view(INTEGERS[wide.itemsize])))
    for begin, end in spans(x):
        size = end - begin
        if estimate is None:
            torch.abs(x[begin:end], out=entries[:size])
        else:
            entries[:size].copy_(x[begin:end]).sub_(estimate[begin:end]).abs_()
        np.greater_equal(magnitudes[:size], least, out=mask[:size])  # these two: four times as fast as torch's
        passed = np.flatnonzero(mask[:size])
        found.append(passed + begin)
        total += len(passed)
        if total > most:
            return None
    return torch.from_numpy(np.concatenate(found)) if total >= k or is_sparse else None


def largest_of_blocks(x: Tensor, block: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``k`` largest magnitudes of every block, ties to the lower: offsets in blocks, positions, and values.

    Of a last block with fewer than ``k`` numbers all are selected. Zeros are included, because the coding needs equally
    many of every block. Infinities and NaN are selected first, so that the caller finds them among the values.
    """
    x = x.contiguous()
    if uses_triton(x) and k <= _FEW and block <= WIDEST_BLOCK:
        from tacit.compression.kernels import triton_selection

        with on_device_of(x):
            offsets = triton_selection.select_of_blocks(x, block, k)
    else:
        offsets = select_of_blocks_in_torch(x, block, k)
    last = x.numel() - (x.numel() - 1) // block * block if x.numel() else 0
    if last < k:
        offsets = offsets[: offsets.numel() - k + last]
    positions = torch.arange(offsets.numel(), device=x.device)
    if k > 1:
        positions.div_(k, rounding_mode="floor")
    positions.mul_(block).add_(offsets)
    return offsets, positions, x.index_select(0, positions)


def select_of_blocks_in_torch(x: Tensor, block: int, k: int) -> Tensor:
    """Return ``k`` offsets of every block; offsets past the end of the last block come last."""
    whole = x.numel() // block * block
    is_quick = x.is_cpu and k <= _FEW
    found = [_few_of_blocks(x[:whole], block, k) if is_quick else _many_of_rows(keys(x[:whole]).view(-1, block), k)]
    if whole < x.numel():
        rest = keys(x[whole:])
        padding = rest.new_full((block - rest.numel(),), -1)  # below every key
        found.append(_many_of_rows(torch.cat([rest, padding]).view(1, block), k))
    return torch.cat(found) if len(found) > 1 else found[0]


def _many_of_rows(found: Tensor, k: int) -> Tensor:
    """Return the ascending columns of the ``k`` largest keys of each row."""
    order = found.sort(dim=1, descending=True, stable=True).indices
    return order[:, :k].sort(dim=1).values.view(-1)


def _few_of_blocks(x: Tensor, block: int, k: int) -> Tensor:
    """Return the ascending offsets of the ``k`` largest of each complete block, on the CPU."""
    source = x.view(INTEGERS[x.element_size()]).numpy()  # numpy's argmax is vectorised, torch's is not
    columns = np.empty((x.numel() // block, k), dtype=np.int64)
    room = np.empty(max(1, PIECE // block) * block, dtype=source.dtype)
    for begin, end in spans(x, block):
        table = np.bitwise_and(source[begin:end], np.iinfo(source.dtype).max, out=room[: end - begin]).reshape(
            -1, block
        )
        chosen, rows = columns[begin // block : end // block], np.arange(len(table))
        for choice in range(k):
            chosen[:, choice] = table.argmax(axis=1)
            if choice + 1 < k:
                table[rows, chosen[:, choice]] = -1
        if k > 1:
            chosen.sort(axis=1)
    return torch.from_numpy(columns).view(-1)
