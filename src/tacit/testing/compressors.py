"""Checks for compressors: ``check_compressor(mine)`` tests its guarantees on random and on adversarial vectors.

    from tacit.testing import check_compressor

    def test_my_compressor():
        check_compressor(Mine())

A violation raises an ``AssertionError`` that names the guarantee, the vector and the size of the violation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.core.message_reading import unpack
from tacit.errors import BadMessage

DIMENSIONS: Final = (0, 1, 2, 13, 64, 3000)
_CONTRACTION_DRAWS: Final = 40
_UNSEEN: Final = 14.0
"""An event of probability 14/n is missing from n draws with probability 10⁻⁶."""
_BIAS_DRAWS: Final = 1000
_BIAS_DIRECTIONS: Final = 8
_FAR_T: Final = 6.0
"""A t value that chance exceeds in one of 10⁸ directions."""


class Case(NamedTuple):
    """A vector to test a compressor with, and its name."""

    name: str
    x: Tensor
    shapes: tuple[torch.Size, ...]

    def __str__(self) -> str:
        return f"{self.name} of {self.x.numel()} {self.x.dtype}" + (", layer by layer" if self.shapes else "")


def check_compressor(compressor: Compressor, dimensions: Sequence[int] = DIMENSIONS, seed: int = 0) -> None:
    """Check the wire format, the constants, the use of the random stream, and the errors for NaN and infinity."""
    for case in cases(dimensions, seed):
        check_wire(compressor, case, seed)
        check_repeats(compressor, case, seed)
        if not compressor.needs_reference and case.x.dtype in (torch.float32, torch.float64):
            check_contraction(compressor, case, seed)
    for dimension in (d for d in dimensions if 0 < d <= 64):
        if compressor.is_unbiased and not compressor.needs_reference:
            check_unbiased(compressor, dimension, seed)
    for wrong in (math.nan, math.inf, -math.inf):
        check_refuses(compressor, wrong)


check = check_compressor  # its name in tacit.compression.kit, until version 0.3


def cases(dimensions: Sequence[int] = DIMENSIONS, seed: int = 0) -> Iterator[Case]:
    """Yield ordinary and adversarial vectors."""
    random = torch.Generator().manual_seed(seed)
    for d in dimensions:
        normal = torch.randn(d, generator=random)
        last = torch.zeros(d)
        last[-1:] = -3.0
        yield Case("normal", normal, ())
        yield Case("heavy-tailed", normal.sign() * normal.abs().pow(6), ())
        yield Case("zeros", torch.zeros(d), ())
        yield Case("equal magnitudes", normal.sign(), ())
        yield Case("one number", last, ())
        yield Case("tiny numbers", normal * 1e-30, ())
        yield Case("huge numbers", normal * 1e17, ())
        yield Case("mostly zeros", normal * (torch.rand(d, generator=random) < 0.05), ())
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            yield Case("normal", normal.to(dtype), ())
        yield Case("normal", normal, _shapes(d))
        yield Case("zeros", torch.zeros(d), _shapes(d))
        yield Case("normal", torch.randn(2 * d, generator=random)[::2], ())  # not contiguous


def check_wire(compressor: Compressor, case: Case, seed: int = 0) -> None:
    """Check that the message packs to ``size_bytes`` and unpacks to an equal message, with an equal vector."""
    before = case.x.clone()
    message = _compress(compressor, case, seed)
    who = f"{compressor}: {case}"
    assert torch.equal(case.x, before), f"{who}: compress() changed its argument."
    assert message.numbers == case.x.numel(), f"{who}: the message has {message.numbers} numbers."
    packed = message.pack()
    assert len(packed) == message.size_bytes, f"{who}: packs to {len(packed)} bytes, size_bytes={message.size_bytes}."
    back = unpack(packed)
    assert isinstance(back, Compressed) and back.pack() == packed, f"{who}: the message changed on the wire."
    decoded = _dense(message, case)
    assert torch.equal(decoded, _dense(back, case)), f"{who}: the vector changed on the wire."
    assert torch.equal(case.x, before), f"{who}: dense() changed its reference."
    assert decoded.dtype == case.x.dtype and decoded.shape == case.x.shape, (
        f"{who}: decodes to {decoded.dtype} of shape {tuple(decoded.shape)}."
    )
    assert bool(decoded.isfinite().all()), f"{who}: decodes to numbers that are not finite."
    if not compressor.needs_reference:
        target = torch.ones(case.x.numel(), dtype=torch.float64)
        back.add_into(target, 0.5)
        assert torch.equal(target, 1 + 0.5 * decoded.double()), f"{who}: add_into() does not add dense()."
    try:
        message.of_length(case.x.numel() + 1)
    except BadMessage:
        return
    raise AssertionError(f"{who}: of_length() accepts a wrong length.")


def check_repeats(compressor: Compressor, case: Case, seed: int = 0) -> None:
    """Check that equal streams and memories give equal messages, and any streams for deterministic compressors."""
    memories: list[Memory] = [{}, {}]
    streams = (seed, seed + 1 if compressor.is_deterministic else seed)
    for call in ("first", "second"):
        packed = [
            _compress(compressor, case, stream, memory).pack() for stream, memory in zip(streams, memories, strict=True)
        ]
        assert packed[0] == packed[1], f"{compressor}: {case}: the {call} message differs in a repetition."
    for name, tensor in memories[0].items():
        assert isinstance(tensor, Tensor), f"{compressor}: memory[{name!r}] is not a tensor."


def check_contraction(compressor: Compressor, case: Case, seed: int = 0) -> None:
    """Check E‖C(x) − x‖² ≤ (1 − α)‖x‖², and ≤ ω‖x‖² where there is an ω, the mean taken over draws."""
    alpha, omega = compressor.contraction(case.x.numel()), compressor.variance(case.x.numel())
    assert alpha is None or 0 < alpha <= 1, f"{compressor}: contraction({case.x.numel()})={alpha} is not in (0, 1]."
    bound = min(math.inf if alpha is None else 1 - alpha, math.inf if omega is None else omega)
    x = case.x.to(torch.float64)
    norm = float(x.square().sum())
    if norm == 0 or bound == math.inf:
        return
    draws = 1 if compressor.is_deterministic else _CONTRACTION_DRAWS
    losses = np.array(
        [
            float((_compress(compressor, case, seed + draw).dense().to(torch.float64) - x).square().sum()) / norm
            for draw in range(draws)
        ]
    )
    slack = 1e-6
    if draws > 1:  # the spread of the mean, also where no draw selects the one large number
        peak = float(x.square().max()) / norm
        slack += _FAR_T * float(losses.std(ddof=1)) / math.sqrt(draws) + _UNSEEN / draws * peak
    assert losses.mean() <= bound + slack, (
        f"{compressor}: {case}: loses {losses.mean():.6g} of ‖x‖² on average over {draws} draws; "
        f"the bound is {bound:.6g}."
    )


def check_unbiased(compressor: Compressor, dimension: int, seed: int = 0) -> None:
    """Check E C(x) = x: along random directions, the mean of many draws is within chance of x."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(dimension, generator=random, dtype=torch.float64)
    directions = torch.randn(_BIAS_DIRECTIONS, dimension, generator=random, dtype=torch.float64)
    stream = np.random.default_rng(seed)
    errors = torch.stack([directions @ (compressor.compress(x, stream).dense() - x) for _ in range(_BIAS_DRAWS)])
    mean, deviation = errors.mean(0), errors.std(0) / math.sqrt(_BIAS_DRAWS)
    t = mean.abs() / (deviation + 1e-9 * x.norm())
    assert bool((t < _FAR_T).all()), (
        f"{compressor}: the mean of {_BIAS_DRAWS} draws of a vector of {dimension} has t={float(t.max()):.3g}; "
        f"the compressor is biased."
    )


def check_refuses(compressor: Compressor, wrong: float) -> None:
    """Check that a vector with a number that is not finite raises ``ValueError`` with its position."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.ones(70, dtype=dtype)
        x[41] = wrong
        try:
            compressor.compress(x, np.random.default_rng(0))
        except ValueError as error:
            assert "41" in str(error), (
                f"{compressor}: the error about x[41]={wrong} does not name the position: {error}"
            )
        else:
            raise AssertionError(
                f"{compressor}: accepts a {dtype} vector that holds {wrong}; call require_finite(x) first."
            )


def _compress(compressor: Compressor, case: Case, seed: int, memory: Memory | None = None) -> Compressed:
    message = compressor.compress(case.x, np.random.default_rng(seed), memory, case.shapes)
    assert dataclasses.is_dataclass(message) and isinstance(message, Compressed), (
        f"{compressor}: compress() returned no message."
    )
    return message


def _dense(message: Compressed, case: Case) -> Tensor:
    """Decode against the vector itself; every reference within the radius gives the same."""
    return message.dense(case.x)


def _shapes(dimension: int) -> tuple[torch.Size, ...]:
    """Return shapes of ``dimension`` numbers: the largest square matrix, and a vector."""
    side = math.isqrt(dimension)
    return (torch.Size((side, side)), torch.Size((dimension - side * side,)))
