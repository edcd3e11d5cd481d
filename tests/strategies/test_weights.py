"""How much each rank counts where shards are unequal: by its samples, or all alike as in the papers' f = (1/n) Σ f_i."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import workloads
from tacit.registry import parse

RANKS, RATE, STEPS = 4, 0.05, 120
DRAWS = np.random.default_rng(5)
X, Y = DRAWS.normal(size=(11, 3)), DRAWS.normal(size=11)
SHARDS = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 11)]  # the remainder goes to the last worker
WEIGHTS = {"equal": [0.25] * 4, "size": [2 / 11, 2 / 11, 2 / 11, 5 / 11]}
WORKLOAD = workloads.least_squares((X, Y), split="contiguous", batch_size=None)


def gradient(w: np.ndarray, shard: slice) -> np.ndarray:
    """∇f_i of f_i = ½ mean (aᵀw − y)² over the shard."""
    x, y = X[shard], Y[shard]
    return x.T @ (x @ w - y) / len(y)


def top_1(vector: np.ndarray) -> np.ndarray:
    kept = np.zeros_like(vector)
    kept[np.argmax(np.abs(vector))] = vector[np.argmax(np.abs(vector))]
    return kept


def ef21(weights: list[float], steps: int) -> np.ndarray:
    """EF21 as the paper prints it, for f = Σ w_i f_i: g_i⁰ = C(∇f_i(x⁰)), x ← x − γ Σ w_i g_i, g_i ← g_i + C(∇f_i(x) −
    g_i).

    With w_i = 1/n this is the paper's f. Otherwise rank i compresses w_i ∇f_i, as the library does; Top-1 does not mind
    the scale.
    """
    w = np.zeros(3)
    estimates = [top_1(gradient(w, shard)) for shard in SHARDS]
    for _ in range(steps):
        w = w - RATE * sum(weight * estimate for weight, estimate in zip(weights, estimates, strict=True))
        estimates = [e + top_1(gradient(w, shard) - e) for e, shard in zip(estimates, SHARDS, strict=True)]
    return w


def simulate(strategy: tacit.Strategy, steps: int = STEPS, **settings) -> torch.Tensor:
    return tacit.simulate(
        WORKLOAD, strategy, cluster=tacit.Cluster(workers=RANKS), steps=steps, lr=RATE, **settings
    ).parameters


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("aggregate", ["gather", "scatter"])
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_ef21_with_unequal_shards_is_the_papers_loop(weights: str, aggregate: str):
    strategy = tacit.CompressedGradient(compressor=tacit.TopK(k=1), weights=weights, aggregate=aggregate)
    np.testing.assert_allclose(simulate(strategy).numpy(), ef21(WEIGHTS[weights], STEPS), rtol=0, atol=1e-13)
    assert np.abs(ef21(WEIGHTS["size"], STEPS) - ef21(WEIGHTS["equal"], STEPS)).max() > 0.01


@pytest.mark.parametrize("weights", ["size", "equal"])
@pytest.mark.parametrize(
    "make",
    [
        tacit.AllReduce,
        lambda weights: tacit.LocalSGD(period=tacit.Every(1), weights=weights),
        lambda weights: tacit.LocalSGD(period=tacit.Every(1), compressor=tacit.Dense(), weights=weights),
        lambda weights: tacit.CompressedGradient(compressor=tacit.Dense(), feedback=tacit.EF21Plus(), weights=weights),
        lambda weights: tacit.CompressedGradient(
            compressor=tacit.Dense(), feedback=tacit.ErrorFeedback(), weights=weights
        ),
    ],
    ids=["AllReduce", "LocalSGD", "compressed LocalSGD", "EF21Plus", "ErrorFeedback"],
)
def test_without_loss_every_strategy_descends_the_f_it_was_asked_for(make, weights: str):
    """Steps of gradient descent on f = Σ w_i f_i."""
    w = np.zeros(3)
    for _ in range(20):
        w = w - RATE * sum(p * gradient(w, shard) for p, shard in zip(WEIGHTS[weights], SHARDS, strict=True))
    np.testing.assert_allclose(simulate(make(weights=weights), 20).numpy(), w, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [tacit.AllReduce, tacit.CompressedGradient, tacit.LocalSGD])
def test_the_default_is_by_size_and_others_are_refused(make):
    assert make() == make(weights="size") and make(weights="equal") != make()
    assert parse(str(make(weights="equal"))) == make(weights="equal")
    with pytest.raises(ValueError, match=r"weights='equl' is unknown; did you mean 'equal'\?"):
        make(weights="equl")
