"""Simulations that follow each other do not keep each other's models, and leave the objects of others frozen."""

from __future__ import annotations

import gc

import pytest
import torch

import tacit
from tacit import workloads

pytestmark = pytest.mark.slow

DIMENSION = 12_345
STRATEGIES = (tacit.AllReduce(), tacit.KAsync(k=1), tacit.SwarmSGD(local_steps=4))


def models() -> int:
    """Return how many models exist."""
    return sum(type(one) is torch.Tensor and one.numel() >= DIMENSION for one in gc.get_objects())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_models_of_earlier_simulations_are_collected(strategy: tacit.Strategy) -> None:
    workload, cluster, counts = workloads.quadratic(dimension=DIMENSION), tacit.Cluster(workers=4), []
    gc.collect()
    gc.freeze()  # what exists is no model of these runs, and need not be counted
    for _ in range(30):
        tacit.simulate(workload, strategy, cluster=cluster, steps=4, timing_only=True)
        counts.append(models())
    assert max(counts[10:]) <= 1.5 * max(counts[:10]), "a few may wait for their collection, but not more and more"


def test_what_others_have_frozen_stays_frozen() -> None:
    """Also after the first run, which saw that there are frozen objects."""
    marker: list[object] = []
    gc.freeze()
    for _ in range(2):
        tacit.simulate(workloads.quadratic(dimension=3), tacit.AllReduce(), steps=2)
        assert not any(one is marker for one in gc.get_objects())
