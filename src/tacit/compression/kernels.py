"""The inner loops of compressors: functions of tensors alone, so that a device can have its own.

On the CPU they walk the vector in pieces that stay in the cache, because each of their many passes over memory would cost as much as the copy
they are measured against. On other devices the whole vector is one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import report_not_finite, wide

_PIECE: Final = 2**16
"""Numbers in a piece: with its scratch it fits into a core's second-level cache."""
_SAMPLE: Final = 2**16
_FEW: Final = 8
"""Up to so many of a block are found one after the other, each by a pass; more by sorting."""


def spans(x: Tensor, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the pieces in which to walk ``x``, each but the last a multiple of ``multiple`` long."""
    n = x.numel()
    piece = max(1, _PIECE // multiple) * multiple if x.is_cpu else max(1, n)
    for begin in range(0, n, piece):
        yield begin, min(n, begin + piece)


def largest(x: Tensor, k: int) -> Tensor:
    """Return the ascending positions of the ``k`` numbers largest in magnitude, ties to the lower position, zeros left out."""
    n = x.numel()
    positions = _candidates(x, k) if x.is_cpu and n >= 4 * _SAMPLE and 16 * k <= n else None
    magnitudes = (x if positions is None else x[positions]).abs()
    if positions is None and n and not magnitudes.max() < math.inf:
        report_not_finite(x)
    kept = _kept(magnitudes, k)
    return kept if positions is None else positions[kept]


def _kept(magnitudes: Tensor, k: int) -> Tensor:
    """Return the positions of the ``k`` largest, found by the value of the last of them."""
    if k >= magnitudes.numel():
        return magnitudes.nonzero().view(-1)
    last = torch.topk(magnitudes, k, sorted=False).values.min() if k else magnitudes.new_full((), math.inf)
    above = magnitudes > last
    if last == 0:
        return above.nonzero().view(-1)
    ties = (magnitudes == last).nonzero().view(-1)
    above[ties[: k - int(above.sum())]] = True
    return above.nonzero().view(-1)


def _candidates(x: Tensor, k: int) -> Tensor | None:
    """Return ascending positions among which the ``k`` largest certainly are, or None where no sample tells.

    The threshold is a quantile of a strided sample, a few standard deviations on the safe side; if too few pass it all the same, the next is
    lower.
    """
    n = x.numel()
    sample = x[:: max(1, n // _SAMPLE)].abs()
    rank = k / n * sample.numel()
    rank += 4 * math.sqrt(rank) + 4
    while rank < sample.numel() / 4:
        threshold = torch.topk(sample, int(rank), sorted=False).values.min()
        found = _above(x, threshold)
        if found.numel() >= k or threshold == 0:
            return found
        rank *= 8
    return None


def _above(x: Tensor, threshold: Tensor) -> Tensor:
    """Return the positions of numbers not below ``threshold`` in magnitude, and not zero."""
    compare = torch.ge if threshold > 0 else torch.gt
    magnitudes, mask = torch.empty(_PIECE, dtype=x.dtype), torch.empty(_PIECE, dtype=torch.bool)
    found = []
    for begin, end in spans(x):
        size = end - begin
        torch.abs(x[begin:end], out=magnitudes[:size])
        if not magnitudes[:size].max() < math.inf:
            report_not_finite(x)
        compare(magnitudes[:size], threshold, out=mask[:size])
        found.append(np.flatnonzero(mask[:size].numpy()) + begin)
    return torch.from_numpy(np.concatenate(found))


def largest_of_blocks(x: Tensor, block: int, k: int) -> Tensor:
    """Return, block by block, the ascending offsets of the ``k`` numbers largest in magnitude, ties to the lower one."""
    found, scratch = [], torch.empty(0, dtype=wide(x.dtype), device=x.device)
    for begin, end in spans(x, block):
        rows = -(-(end - begin) // block)
        if scratch.numel() != rows * block or end - begin < rows * block:
            scratch = torch.full((rows * block,), -1.0, dtype=wide(x.dtype), device=x.device)  # padding is chosen last
        magnitudes = torch.abs(x[begin:end].to(scratch.dtype), out=scratch[: end - begin])
        if not magnitudes.max() < math.inf:
            report_not_finite(x)
        found.append(_largest_of_rows(scratch.view(rows, block), k))
    if not found:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    offsets = torch.cat(found).view(-1)
    last = x.numel() - (x.numel() - 1) // block * block
    return offsets if last >= k else offsets[: offsets.numel() - k + last]


def _largest_of_rows(magnitudes: Tensor, k: int) -> Tensor:
    """Return the ascending columns of the ``k`` largest of each row; ``magnitudes`` is overwritten."""
    if k > _FEW or not magnitudes.is_cpu:
        order = magnitudes.sort(dim=1, descending=True, stable=True).indices
        return order[:, :k].sort(dim=1).values
    table = magnitudes.numpy()  # its argmax is vectorised, torch's is not
    rows = np.arange(len(table))
    columns = np.empty((len(table), k), dtype=np.int64)
    for choice in range(k):
        columns[:, choice] = table.argmax(axis=1)
        if choice + 1 < k:
            table[rows, columns[:, choice]] = -2.0
    if k > 1:
        columns.sort(axis=1)
    return torch.from_numpy(columns)


def quantize(x: Tensor, levels: int, bucket: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return ``x`` rounded at random, without bias, to multiples of (largest magnitude of its bucket) / ``levels``: int8 codes and the magnitudes.

    The coin has 16 bits, so the bias is at most 2⁻¹⁷ of a level.
    """
    n, dtype = x.numel(), wide(x.dtype)
    codes = torch.empty(n, dtype=torch.int8, device=x.device)
    scales = torch.empty(-(-n // bucket), dtype=dtype, device=x.device)
    coins = np.random.SFC64(int(random.integers(2**63)))
    for begin, end in spans(x, bucket):
        rows = -(-(end - begin) // bucket)
        scaled = torch.zeros(rows * bucket, dtype=dtype, device=x.device)
        scaled[: end - begin] = x[begin:end]
        table = scaled.view(rows, bucket)
        largest = table.abs().amax(dim=1)  # a tenth of the time of an infinity norm
        scales[begin // bucket : begin // bucket + rows] = largest
        table /= largest.where(largest > 0, 1.0).unsqueeze(1)  # not times the inverse: that overflows for subnormals
        noise = np.asarray(coins.random_raw(-(-scaled.numel() // 4))).view(np.int16)[: scaled.numel()]
        scaled.mul_(levels).add_(torch.from_numpy(noise).to(x.device, dtype), alpha=2**-16).add_(0.5 + 2**-17)
        codes[begin:end] = scaled.floor_()[: end - begin]
    if not bool(scales.isfinite().all()):
        report_not_finite(x)
    return codes, scales


def dequantize(codes: Tensor, scales: Tensor, levels: int, bucket: int) -> Tensor:
    """Return the vector that ``quantize`` wrote as int8 ``codes``, in the dtype of ``scales``."""
    n, dtype = codes.numel(), wide(scales.dtype)
    x = torch.empty(n, dtype=scales.dtype, device=codes.device)
    for begin, end in spans(codes, bucket):
        rows = -(-(end - begin) // bucket)
        table = torch.zeros(rows * bucket, dtype=dtype, device=codes.device)
        table[: end - begin] = codes[begin:end]
        table.div_(levels).view(rows, bucket).mul_(scales[begin // bucket : begin // bucket + rows].unsqueeze(1))
        x[begin:end] = table[: end - begin]
    return x


def peak(x: Tensor) -> float:
    """Return the largest magnitude, having made sure that all numbers are finite."""
    if not x.numel():
        return 0.0
    low, high = (float(value) for value in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        report_not_finite(x)
    return max(-low, high)


def mean_magnitude(x: Tensor) -> float:
    """Return the mean of |x|, summed in pieces so that rounding does not grow with the length."""
    total = sum(float(x[begin:end].abs().sum(dtype=wide(x.dtype))) for begin, end in spans(x))
    if not math.isfinite(total):
        report_not_finite(x)
        total = float(x.to(torch.float64).abs().mean()) * x.numel()
    return total / max(1, x.numel())
