"""Compressors on a GPU, or through Triton's interpreter, say what they say on the CPU, and either understands the
other.

On a machine without either the tests are skipped. Through the interpreter (a Triton and numpy up to 2.2 installed
beside torch):

    TRITON_INTERPRET=1 python -m pytest -W ignore tests/compression/test_devices.py
"""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.compression import (
    QSGD,
    BFloat16,
    BlockTopK,
    Chain,
    Compressed,
    Compressor,
    Dense,
    Lattice,
    Layerwise,
    LowRank,
    RandomK,
    Sign,
    TopK,
)
from tacit.compression.coding import indices as places
from tacit.compression.coding.bits import pack
from tacit.compression.coding.bits import unpack as unpack_numbers
from tacit.compression.kernels.backend import uses_triton
from tacit.core.message_reading import unpack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not uses_triton(torch.zeros(1, device=DEVICE)),
        reason="needs Triton and a CUDA GPU, or Triton and TRITON_INTERPRET=1",
    ),
]
SHAPES = (torch.Size((60, 70)), torch.Size((300,)), torch.Size((1500,)))
N = 6000

SAME_BYTES: list[Compressor] = [
    Dense(),
    BFloat16(),
    TopK(k=1),
    TopK(fraction=0.01),
    TopK(fraction=0.7),
    RandomK(k=50),
    BlockTopK(),
    BlockTopK(block=100, k=3),
    BlockTopK(block=64, k=20),
    Lattice(bits=8, side=0.01),
    Lattice(bits=5),
    Lattice(bits=12),
    Layerwise(TopK(fraction=0.02)),
    Layerwise(BlockTopK(block=50)),
    Chain(TopK(fraction=0.1), BFloat16()),
]
SAME_TO_ROUNDING: list[Compressor] = [Sign(), Layerwise(Sign()), Chain(TopK(fraction=0.1), Sign()), LowRank(rank=2)]
SAME_LAW: list[Compressor] = [
    QSGD(),
    QSGD(bits=4, bucket=100),
    QSGD(bits=3, bucket=20_000),
    Layerwise(QSGD()),
    Lattice(bits=8, side=0.1, stochastic=True),
]


def normal(n: int = N, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def on_device(compressor: Compressor, x: Tensor) -> Compressed:
    return compressor.compress(x.to(DEVICE), np.random.default_rng(0), {}, SHAPES)


def in_torch(monkeypatch: pytest.MonkeyPatch, compressor: Compressor, x: Tensor) -> Compressed:
    """Compress on the CPU, without the interpreter."""
    with monkeypatch.context() as plain:
        plain.setitem(os.environ, "TRITON_INTERPRET", "0")
        return compressor.compress(x.cpu(), np.random.default_rng(0), {}, SHAPES)


@pytest.mark.parametrize("compressor", SAME_BYTES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_deterministic_compressors_say_the_same_bytes(compressor: Compressor, dtype: torch.dtype, monkeypatch):
    x = normal().to(dtype)
    assert on_device(compressor, x).pack() == in_torch(monkeypatch, compressor, x).pack()


@pytest.mark.parametrize("compressor", SAME_TO_ROUNDING, ids=str)
def test_what_is_summed_agrees_to_rounding(compressor: Compressor, monkeypatch):
    mine, theirs = on_device(compressor, normal()), in_torch(monkeypatch, compressor, normal())
    assert mine.size_bytes == theirs.size_bytes
    assert torch.allclose(mine.dense().cpu(), theirs.dense(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compressor", SAME_LAW, ids=str)
def test_random_compressors_have_the_same_mean_and_spread(compressor: Compressor, monkeypatch):
    x = normal()
    mine, theirs = on_device(compressor, x), in_torch(monkeypatch, compressor, x)
    assert mine.size_bytes == theirs.size_bytes
    errors = [message.dense(x.to(message.dense(x).device)).cpu() - x for message in (unpacked(mine), theirs)]
    spread = float(errors[1].std())
    for error in errors:
        assert abs(float(error.mean())) < 6 * spread / math.sqrt(N)
    assert float(errors[0].std()) == pytest.approx(spread, rel=0.1)


def unpacked(message: Compressed) -> Compressed:
    back = unpack(message.pack())
    assert isinstance(back, Compressed)
    return back


@pytest.mark.parametrize("compressor", [*SAME_BYTES, *SAME_TO_ROUNDING, *SAME_LAW], ids=str)
def test_a_message_is_decoded_on_either_device_and_added_on_that_of_the_target(compressor: Compressor):
    x = normal()
    message = on_device(compressor, x)
    here = message.dense(x.to(DEVICE))
    assert here.device.type == DEVICE
    there = unpacked(message)
    assert torch.allclose(there.dense(x), here.cpu(), rtol=1e-5, atol=1e-6)
    assert torch.equal(there.on(here.device).dense(x.to(DEVICE)), here)
    if compressor.needs_reference:
        return
    for sent in (message, there):
        target = normal(seed=1).to(DEVICE, torch.float64)
        expected = target + 0.5 * here.double()
        sent.add_into(target, 0.5)
        assert target.device.type == DEVICE and torch.allclose(target, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 6, 7, 8, 12, 20, 33])
@pytest.mark.parametrize("count", [1, 255, 5000, 2**22 + 5])
def test_numbers_of_a_few_bits_are_packed_alike(width: int, count: int):
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 2**width, count))
    packed = pack(codes.to(DEVICE), width)
    assert torch.equal(packed.cpu(), pack(codes, width))
    assert torch.equal(unpack_numbers(packed, width, count).cpu().to(torch.int64), codes)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9])
def test_places_are_coded_alike(share: float):
    chosen = (torch.rand(100_000, generator=torch.Generator().manual_seed(1)) < share).nonzero().view(-1)
    mine, theirs = places.encode(chosen.to(DEVICE), 100_000), places.encode(chosen, 100_000)
    assert (mine.coding, mine.parameter) == (theirs.coding, theirs.parameter)
    assert torch.equal(mine.packed.cpu(), theirs.packed)
    assert torch.equal(dataclasses.replace(mine).positions.cpu(), chosen)  # without what it knows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_change_is_compressed_alike_and_moves_the_estimate_alike(dtype: torch.dtype, monkeypatch):
    x, start = normal(), normal(seed=1).to(dtype)
    estimate, own = start.clone(), start.to(DEVICE, copy=True)
    mine = TopK(fraction=0.02).compress_change(x.to(DEVICE), own, np.random.default_rng(0))
    with monkeypatch.context() as plain:
        plain.setitem(os.environ, "TRITON_INTERPRET", "0")
        theirs = TopK(fraction=0.02).compress_change(x, estimate, np.random.default_rng(0))
    assert mine.pack() == theirs.pack() and torch.equal(own.cpu(), estimate)


@pytest.mark.parametrize("compressor", [*SAME_BYTES, *SAME_LAW, Sign()], ids=str)
def test_what_is_not_finite_is_told_with_its_position(compressor: Compressor):
    x = normal()
    x[4321] = math.nan
    with pytest.raises(ValueError, match=r"x\[4321\]=nan is not finite \(1 of 6000 numbers are not\)"):
        on_device(compressor, x)
