"""Every compressor of ours passes the public kit, and the kit finds compressors that lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    DenseVector,
    Lattice,
    Layerwise,
    LowRank,
    Memory,
    RandomK,
    Sign,
    TopK,
)
from tacit.compression.compressor import require_finite
from tacit.registry import FAMILIES
from tacit.testing.compressors import Case, check_compressor, check_wire

COMPRESSORS: list[Compressor] = [
    Dense(),
    BFloat16(),
    TopK(k=1),
    TopK(k=10**6),
    TopK(fraction=0.1),
    RandomK(k=2),
    RandomK(fraction=0.3),
    RandomK(fraction=0.3, scaled=True),
    RandomK(fraction=0.8, scaled=True),
    BlockTopK(),
    BlockTopK(block=10, k=3),
    BlockTopK(block=32, k=20),
    QSGD(),
    QSGD(bits=2, bucket=16),
    QSGD(bits=5, bucket=7),
    QSGD(bits=4, bucket=10**6),
    Sign(),
    LowRank(),
    LowRank(rank=1),
    Lattice(),
    Lattice(bits=5),
    Lattice(bits=16),
    Lattice(bits=10, stochastic=True),
    Chain(TopK(fraction=0.1), QSGD(bits=8)),
    Layerwise(TopK(fraction=0.015)),
    Layerwise(TopK(k=3), exempt_below=10),
    Layerwise(RandomK(fraction=0.07, scaled=True), exempt_below=100),
    Layerwise(QSGD(bits=4), exempt_below=0),
    Layerwise(Sign()),
    Layerwise(LowRank()),
    Layerwise(Lattice()),
    Layerwise(BFloat16()),
    Layerwise(Chain(TopK(fraction=0.1), Sign())),
    Chain(BlockTopK(block=16), BFloat16()),
    Chain(RandomK(fraction=0.5, scaled=True), QSGD(bits=4)),
]


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_every_compressor_keeps_its_promises(compressor: Compressor):
    check_compressor(compressor, dimensions=(0, 1, 64, 301))


def test_every_registered_compressor_is_tried():
    assert {type(compressor).__name__ for compressor in COMPRESSORS} == {
        named.name for named in FAMILIES["compressors"]
    }


@dataclass(frozen=True)
class Liar(Dense):
    """Sends something else than it is given."""

    factor: float = 1.0
    alpha: float = 1.0

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> DenseVector:
        super().compress(x, random)
        return DenseVector(x * self.factor)

    def contraction(self, dimension: int) -> float:
        return self.alpha

    def variance(self, dimension: int) -> Any:
        return None


def test_the_kit_finds_a_bias():
    with pytest.raises(AssertionError, match="the compressor is biased"):
        check_compressor(Liar(factor=1.001, alpha=0.9))


def test_the_kit_finds_a_contraction_that_is_not():
    with pytest.raises(AssertionError, match="loses 0.25 of ‖x‖² on average over 1 draws; the bound is 0.2"):
        check_compressor(Liar(factor=0.5, alpha=0.8))


def test_the_kit_finds_hidden_randomness():
    @dataclass(frozen=True)
    class Moody(Liar):
        def compress(self, x: Tensor, random: np.random.Generator, *rest: Any) -> DenseVector:
            return DenseVector(x * float(random.random()))

    with pytest.raises(AssertionError, match="the first message differs in a repetition"):
        check_compressor(Moody())


def test_the_kit_finds_numbers_let_through():
    @dataclass(frozen=True)
    class Careless(Dense):
        def compress(self, x: Tensor, random: np.random.Generator, *rest: Any) -> DenseVector:
            return DenseVector(x)

    with pytest.raises(AssertionError, match="accepts a torch.float32 vector that holds nan"):
        check_compressor(Careless())


def test_the_kit_finds_a_changed_argument():
    @dataclass(frozen=True)
    class Rude(Dense):
        def compress(self, x: Tensor, random: np.random.Generator, *rest: Any) -> DenseVector:
            return DenseVector(x.mul_(2))

    with pytest.raises(AssertionError, match=r"compress\(\) changed its argument"):
        check_wire(Rude(), Case("ones", torch.ones(4), ()))


@dataclass(frozen=True, kw_only=True)
class FirstK(Compressor):
    """The first k numbers."""

    k: int = 1
    looks: bool = True

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> Compressed:
        if self.looks:
            require_finite(x)
        return TopK(k=x.numel() or 1).compress(torch.cat([x[: self.k], torch.zeros_like(x[self.k :])]), random)

    def contraction(self, dimension: int) -> None:
        return None


def test_a_compressor_of_ones_own_takes_a_few_lines_and_the_kit_tries_it():
    check_compressor(FirstK(k=3))
    check_compressor(Layerwise(FirstK(k=3), exempt_below=10))
    with pytest.raises(AssertionError, match="accepts a torch.float32 vector that holds nan"):
        check_compressor(FirstK(k=3, looks=False))  # it looks at three numbers only


def test_the_kit_finds_a_message_that_adds_something_else():
    @dataclass(frozen=True)
    class Twice(DenseVector):
        def add_into(self, target: Tensor, scale: float = 1.0) -> None:
            super().add_into(target, 2 * scale)

    @dataclass(frozen=True)
    class Doubled(Dense):
        def compress(self, x: Tensor, random: np.random.Generator, *rest: Any) -> DenseVector:
            return Twice(x)

    with pytest.raises(AssertionError, match=r"add_into\(\) does not add dense\(\)"):
        check_wire(Doubled(), Case("ones", torch.ones(4), ()))
