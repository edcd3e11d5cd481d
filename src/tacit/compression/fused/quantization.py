"""QSGD: stochastic rounding to a few levels per bucket (algorithms §5.5).

With s = 2^(bits − 1) − 1 levels on each side and M the bucket's norm, a number x becomes the integer l = floor(s·x/M + u), u uniform in [0, 1),
and is read as l·M/s: unbiased, and off by less than M/s. M is the *largest magnitude* of the bucket, not the 2-norm of the paper's theorem: it is
never larger, so neither is that bound, and the integers use their whole range.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.fused.backend import on_device_of, require_flat, spans, uses_triton

WIDEST_BUCKET: Final = 2**14
"""A program of the kernel holds a bucket in registers; wider ones take the torch path."""


def qsgd_encode(x: Tensor, bits: int, bucket: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ``x`` as integers (uint8 holding two's complement: ``codes.view(torch.int8)`` has the signs) and the buckets' norms.

    ``seed`` decides the rounding, in its own way on each device. A NaN or an infinity makes its bucket's norm not finite: look there.
    """
    require_flat(x, "x")
    levels = _levels(bits)
    if bucket < 1:
        raise ValueError(f"bucket={bucket} must be at least 1 number.")
    if uses_triton(x) and bucket <= WIDEST_BUCKET:
        from tacit.compression.fused import triton_quantization

        with on_device_of(x):
            return triton_quantization.encode(x, levels, bucket, seed)
    return encode_reference(x, levels, bucket, seed)


def qsgd_decode(codes: Tensor, norms: Tensor, bits: int, bucket: int) -> Tensor:
    """Return the vector that ``qsgd_encode`` rounded, in the dtype of ``norms``."""
    levels = _levels(bits)
    if codes.dtype != torch.uint8 or codes.dim() != 1 or norms.numel() != -(-codes.numel() // bucket):
        raise ValueError(
            f"{codes.dtype} codes of shape {tuple(codes.shape)} and {norms.numel()} norms do not fit bucket={bucket}; "
            "they must be flat uint8 with one norm for each bucket."
        )
    if codes.numel() and uses_triton(norms):
        from tacit.compression.fused import triton_quantization

        with on_device_of(codes):
            return triton_quantization.decode(codes, norms, levels, bucket)
    return decode_reference(codes, norms, levels, bucket)


def _levels(bits: int) -> int:
    if not 2 <= bits <= 8:
        raise ValueError(f"bits={bits} must be between 2 and 8: one for the sign, and a code is a byte at most.")
    return (1 << (bits - 1)) - 1


def encode_reference(x: Tensor, levels: int, bucket: int, seed: int) -> tuple[Tensor, Tensor]:
    """Do what the kernel does, in torch, with numpy's SFC64.

    The coin has 16 bits, four to a draw, so the bias is at most 2⁻¹⁷ of a level: what rounding does to s·x/M anyway.
    """
    n, device = x.numel(), x.device
    coins = np.random.SFC64(seed)
    codes = torch.empty(n, dtype=torch.int8, device=device)
    norms = torch.empty(-(-n // bucket), dtype=x.dtype, device=device)
    room = torch.empty((2, 0), dtype=x.dtype, device=device)
    for begin, end in spans(x, bucket):
        size, rows = end - begin, -(-(end - begin) // bucket)
        if room.shape[1] < rows * bucket:
            room = torch.empty((2, rows * bucket), dtype=x.dtype, device=device)
        scaled, magnitudes = room[:, : rows * bucket]
        scaled[:size] = x[begin:end]
        scaled[size:] = 0
        norm = torch.abs(scaled, out=magnitudes).view(rows, bucket).amax(1)
        norms[begin // bucket : begin // bucket + rows] = norm
        # Not times the inverse: that overflows for subnormals.
        scaled.view(rows, bucket).div_(norm.where(norm > 0, 1.0).unsqueeze(1))
        draws = np.asarray(coins.random_raw(-(-size // 4))).view(np.int16)[:size]
        magnitudes[:size] = torch.from_numpy(draws).to(device)
        scaled = scaled[:size].mul_(levels).add_(magnitudes[:size], alpha=2**-16).add_(0.5 + 2**-17)
        codes[begin:end] = scaled.floor_().clamp_(-levels, levels)
    return codes.view(torch.uint8), norms


def decode_reference(codes: Tensor, norms: Tensor, levels: int, bucket: int) -> Tensor:
    """Do what the kernel does, in torch."""
    x = torch.empty(codes.numel(), dtype=norms.dtype, device=codes.device)
    units = norms * (1 / levels)
    for begin, end in spans(codes, bucket):
        x[begin:end] = codes[begin:end].view(torch.int8)
        whole = (end - begin) // bucket
        first, last = begin // bucket, begin + whole * bucket
        x[begin:last].view(whole, bucket).mul_(units[first : first + whole].unsqueeze(1))
        if last < end:
            x[last:end].mul_(units[-1])
    return x
