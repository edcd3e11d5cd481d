"""Nominal sizes of messages: what timing-only simulations send instead of encoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.compression.compressor import Compressor
from tacit.compression.nominal import NominalVector

SHAPES = tuple(map(torch.Size, ([64, 80], [64], [40, 64], [40], [10, 40], [10])))
NUMBERS = sum(shape.numel() for shape in SHAPES)
EXACT = (
    tacit.Dense(),
    tacit.BFloat16(),
    tacit.QSGD(bits=8),
    tacit.QSGD(bits=3, bucket=100),
    tacit.Sign(),
    tacit.Lattice(bits=8),
    tacit.Lattice(bits=5, stochastic=True),
    tacit.LowRank(rank=2),
    tacit.BlockTopK(block=128, k=2),
    tacit.TopK(fraction=1.0),
    tacit.TopK(k=1),
    tacit.Chain(tacit.BlockTopK(block=64), tacit.QSGD(bits=4)),
    tacit.Layerwise(tacit.QSGD(bits=8)),
    tacit.Layerwise(tacit.LowRank(rank=1), exempt_below=100),
)
TYPICAL = (
    tacit.TopK(fraction=0.01),
    tacit.TopK(k=20),
    tacit.TopK(fraction=0.4),
    tacit.RandomK(fraction=0.1),
    tacit.Chain(tacit.TopK(fraction=0.05), tacit.Sign()),
    tacit.Layerwise(tacit.TopK(fraction=0.02)),
    tacit.Layerwise(tacit.BlockTopK(block=128)),
)


def mean_size(compressor: Compressor, dtype: torch.dtype, shapes: tuple[torch.Size, ...]) -> float:
    random = np.random.default_rng(1)
    vectors = [torch.from_numpy(random.standard_normal(NUMBERS)).to(dtype) for _ in range(12)]
    return float(np.mean([compressor.compress(x, random, {}, shapes).size_bytes for x in vectors]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shapes", [SHAPES, ()], ids=["shapes", "flat"])
@pytest.mark.parametrize("compressor", EXACT, ids=str)
def test_a_size_that_does_not_depend_on_the_numbers_is_exact(compressor, shapes, dtype):
    assert compressor.nominal_size_bytes(NUMBERS, dtype, shapes) == mean_size(compressor, dtype, shapes)


@pytest.mark.parametrize("shapes", [SHAPES, ()], ids=["shapes", "flat"])
@pytest.mark.parametrize("compressor", TYPICAL, ids=str)
def test_any_other_size_is_near_the_mean_over_random_vectors(compressor, shapes):
    mean = mean_size(compressor, torch.float32, shapes)
    assert compressor.nominal_size_bytes(NUMBERS, torch.float32, shapes) == pytest.approx(mean, rel=0.02)


def test_every_built_in_compressor_knows_its_size_without_encoding():
    kinds = {type(one) for one in (*EXACT, *TYPICAL)}
    built_in = {kind for name in tacit.__all__ if isinstance(kind := getattr(tacit, name), type)}
    assert {kind for kind in built_in if issubclass(kind, Compressor)} - {Compressor} <= kinds


@dataclass(frozen=True, kw_only=True)
class Positive(Compressor):
    """A compressor of a user: how much it sends depends on the numbers."""

    def compress(self, x, random, memory=None, shapes=()):
        CALLS.append(x)
        return tacit.TopK(fraction=1.0).compress(x.clamp(min=0), random)

    def contraction(self, dimension):
        return None

    def variance(self, dimension):
        return 1.0


CALLS: list[torch.Tensor] = []


def test_a_compressor_without_the_method_encodes_one_random_vector():
    CALLS.clear()
    strategy = tacit.CompressedGradient(compressor=Positive(), feedback=tacit.NoFeedback())
    cluster = tacit.Cluster(workers=3)
    run = tacit.simulate(workloads.quadratic(dimension=1000), strategy, cluster=cluster, steps=5, timing_only=True)
    assert len(CALLS) == 1 and len(CALLS[0]) == 1000
    sent = run.trace.of("exchange")[0].size_bytes / 2
    assert 3500 < sent < 4700  # half of the numbers, in float64, and a bitmap


def test_a_message_of_nominal_size_has_that_size_inside_another():
    compressor = tacit.QSGD(bits=4)
    real = compressor.compress(torch.ones(1000), np.random.default_rng(0))
    nominal = NominalVector.of(compressor, 1000)
    assert (nominal.size_bytes, nominal.inner_bytes) == (real.size_bytes, real.inner_bytes)


STRATEGIES = (
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()),
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=4), feedback=tacit.NoFeedback(), aggregate="scatter"),
    tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21()),
    tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.05), feedback=tacit.EF21(init="full")),
    tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.05), feedback=tacit.EF21Plus(init="full")),
    tacit.CompressedGradient(compressor=tacit.RandomK(fraction=0.1), feedback=tacit.EF21(), aggregate="scatter"),
    tacit.CompressedGradient(
        compressor=tacit.RandomK(fraction=0.1), feedback=tacit.EF21Bidirectional(master=tacit.RandomK(fraction=0.1))
    ),
    tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(fraction=0.05)),
    tacit.SwarmSGD(local_steps=2, compressor=tacit.Lattice(bits=8)),
    tacit.SwarmSGD(local_steps=2, compressor=tacit.Lattice(bits=8), two_stage=True),
    tacit.CHOCO(compressor=tacit.TopK(fraction=0.05)),
    tacit.KAsync(k=2, compressor=tacit.TopK(fraction=0.05), model_compressor=tacit.QSGD(bits=8)),
)


def bytes_sent(strategy: tacit.Strategy, timing_only: bool) -> float:
    workload = workloads.quadratic(dimension=4000, condition=2.0, noise=1.0)
    cluster = tacit.Cluster(workers=4)
    options = {"cluster": cluster, "steps": 6, "timing_only": timing_only, "lr": 1e-3}
    return sum(event.size_bytes for event in tacit.simulate(workload, strategy, **options).trace)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_timing_only_run_sends_about_as_many_bytes_as_a_real_one(strategy):
    assert bytes_sent(strategy, True) == pytest.approx(bytes_sent(strategy, False), rel=0.05)


@pytest.mark.parametrize("aggregate", ["gather", "scatter"])
def test_encoding_costs_as_much_time_as_in_a_real_run(aggregate: str):
    strategy = tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback(), aggregate=aggregate)
    costs = {"encode QSGD": 1e-6, "decode QSGD": 2e-6, "flatten": 1e-7}
    cluster = tacit.Cluster(workers=3, compute=tacit.Constant(mean_s=0.01), costs=costs)
    runs = [
        tacit.simulate(workloads.quadratic(dimension=5000), strategy, cluster=cluster, steps=4, timing_only=is_timing)
        for is_timing in (False, True)
    ]
    hooks = [[(e.rank, e.label, e.value) for e in run.trace.of("hook")] for run in runs]
    assert hooks[0] == hooks[1] and len(hooks[0]) > 0
    real_s, timing_s = (run.history[-1]["time_s"] for run in runs)
    assert timing_s == pytest.approx(real_s, rel=1e-3)
