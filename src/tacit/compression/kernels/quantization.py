"""QSGD: random rounding to a few levels per bucket (Alistarh et al., arXiv 1610.02132).

With L levels on each side and M the bucket's scale, a number x becomes the integer l = ⌊L·x/M + u⌋, u uniform in (0,
1), and is decoded as l/L·M: unbiased, error below M/L. M is the *largest magnitude* of the bucket, not the 2-norm
of the paper's theorem: it is never larger, so neither is that bound, and the integers use their whole range. On the CPU
u has 16 bits, so the bias is at most 2⁻¹⁷ of a level, as much as the rounding error of L·x/M. There it comes from a
generator in a separate pass, or from a hash of seed and position, which ``torch.compile`` merges into one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

from tacit.compression.compressor import wide
from tacit.compression.kernels.backend import PIECE, Coins, on_device_of, spans, uses_triton

WIDEST_BUCKET: Final = 2**14
"""A program of the kernel holds a bucket in registers; wider buckets use torch."""


def quantize(x: Tensor, levels: int, bucket: int, seed: int, is_compiled: bool = False) -> tuple[Tensor, Tensor]:
    """Return ``x`` as integers from −levels to ``levels`` (int8), and the largest magnitude of every bucket.

    The magnitudes are float32 or float64; that of a bucket with NaN or infinity is not finite. ``seed`` determines the
    rounding, differently on each kind of device and with ``torch.compile`` (``is_compiled``), which Triton's kernel
    ignores.
    """
    x = x.contiguous()
    if uses_triton(x) and bucket <= WIDEST_BUCKET:
        from tacit.compression.kernels import triton_quantization

        with on_device_of(x):
            return triton_quantization.encode(x, levels, bucket, seed)
    return (_quantize_compiled if is_compiled else quantize_in_torch)(x, levels, bucket, seed)


def dequantize(codes: Tensor, scales: Tensor, levels: int, bucket: int) -> Tensor:
    """Return the vector that ``quantize`` rounded to int8 ``codes``, in the dtype of ``scales``."""
    if codes.numel() and uses_triton(scales):
        from tacit.compression.kernels import triton_quantization

        with on_device_of(codes):
            return triton_quantization.decode(codes, scales, levels, bucket)
    return dequantize_in_torch(codes, scales, levels, bucket)


def quantize_in_torch(x: Tensor, levels: int, bucket: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the result of the kernel, with other random numbers."""
    n, dtype, coins = x.numel(), wide(x.dtype), Coins(seed, x.device)
    codes = torch.empty(n, dtype=torch.int8, device=x.device)
    scales = torch.empty(-(-n // bucket), dtype=dtype, device=x.device)
    room = torch.empty((2, 0), dtype=dtype, device=x.device)
    for begin, end in spans(x, bucket):
        size, rows = end - begin, -(-(end - begin) // bucket)
        if room.shape[1] < rows * bucket:
            room = torch.empty((2, rows * bucket), dtype=dtype, device=x.device)
        scaled, scratch = room[:, : rows * bucket]
        scaled[:size] = x[begin:end]
        scaled[size:] = 0
        scale = torch.abs(scaled, out=scratch).view(rows, bucket).amax(1)  # a tenth of the time of an infinity norm
        scales[begin // bucket : begin // bucket + rows] = scale
        # Not times the inverse: that overflows for subnormals.
        scaled.view(rows, bucket).div_(scale.where(scale > 0, 1.0).unsqueeze(1))
        coins.add_to(scaled[:size].mul_(levels), scratch[:size])
        codes[begin:end] = scaled[:size].floor_()
    return codes, scales


def quantize_rows(rows: Tensor, levels: int, bucket: int, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the integers and the magnitudes of each row, those of ``quantize_in_torch`` with its seed, as matrices.

    The rows are short and on the CPU (``are_short``).
    """
    count, n = rows.shape
    scaled = torch.zeros(count, -(-n // bucket) * bucket, dtype=wide(rows.dtype))
    scaled[:, :n] = rows
    buckets = scaled.view(count, -1, bucket)
    scales = buckets.abs().amax(2)
    buckets.div_(scales.where(scales > 0, 1.0).unsqueeze(2))
    numbers = scaled[:, :n].mul_(levels)
    scratch = torch.empty(n, dtype=scaled.dtype)
    for row, seed in zip(numbers.unbind(), seeds, strict=True):
        Coins(seed, rows.device).add_to(row, scratch)
    return numbers.floor_().to(torch.int8), scales


def are_short(rows: Tensor, bucket: int) -> bool:
    """Return whether ``quantize`` rounds each row of a matrix in one piece, in torch on the CPU."""
    n = rows.shape[1]
    return rows.is_cpu and 0 < n <= max(1, PIECE // bucket) * bucket and not uses_triton(rows)


def _quantize_compiled(x: Tensor, levels: int, bucket: int, seed: int) -> tuple[Tensor, Tensor]:
    whole = x.numel() // bucket * bucket
    found = []
    if whole:
        halves = torch.tensor([seed & 0x7FFFFFFF, seed >> 31 & 0x7FFFFFFF], dtype=torch.int32, device=x.device)
        codes, scales = _compiled()(x[:whole].view(-1, bucket), levels, halves)
        found.append((codes.view(-1), scales))
    if whole < x.numel() or not whole:
        found.append(quantize_in_torch(x[whole:], levels, bucket, seed))
    if len(found) == 1:
        return found[0]
    return torch.cat([codes for codes, _ in found]), torch.cat([scales for _, scales in found])


@cache
def _compiled() -> Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]:
    return torch.compile(quantize_by_hash, dynamic=True)


def quantize_by_hash(table: Tensor, levels: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of the kernel for the buckets in the rows of ``table``; a hash of ``seed`` gives the coins."""
    table = table.to(wide(table.dtype))
    scale = table.abs().amax(1)
    position = torch.arange(table.numel(), dtype=torch.int32, device=table.device).view(table.shape)
    word = _mixed(_mixed(position * -1640531527 + seed[0]) + seed[1])
    coin = (word & 0xFFFF).to(table.dtype) * 2**-16 + 2**-17
    scaled = table / scale.where(scale > 0, 1.0).unsqueeze(1) * levels + coin
    return scaled.floor().to(torch.int8), scale


def dequantize_rows(codes: Tensor, scales: Tensor, levels: int, bucket: int) -> Tensor:
    """Return the vector of each row, as ``dequantize`` returns it."""
    count, n = codes.shape
    filled = torch.nn.functional.pad(codes, (0, -n % bucket))  # so that every row begins a bucket
    return dequantize(filled.view(-1), scales.reshape(-1), levels, bucket).view(count, -1)[:, :n]


def _mixed(word: Tensor) -> Tensor:
    """Return int32 in which every bit depends on every bit of ``word``: the finalizer of MurmurHash3."""
    word = (word ^ (word >> 16 & 0xFFFF)) * -2048144789
    word = (word ^ (word >> 13 & 0x7FFFF)) * -1028477387
    return word ^ (word >> 16 & 0xFFFF)


def dequantize_in_torch(codes: Tensor, scales: Tensor, levels: int, bucket: int) -> Tensor:
    """Return the result of the kernel, to the bit."""
    x = torch.empty(codes.numel(), dtype=scales.dtype, device=codes.device)
    most = scales.new_full(
        (), levels, dtype=wide(scales.dtype)
    )  # a Python number would become a multiplication by its inverse on a GPU
    for begin, end in spans(codes, bucket):
        shares = codes[begin:end].to(wide(scales.dtype)).div_(most)  # so that ±levels is ±scale exactly
        whole = (end - begin) // bucket
        first, last = begin // bucket, whole * bucket
        shares[:last].view(whole, bucket).mul_(scales[first : first + whole].unsqueeze(1))
        if last < end - begin:
            shares[last:].mul_(scales[-1])
        x[begin:end] = shares
    return x
