"""Drawn plans of faults: a few for each strategy; ``make fuzz-plans`` runs more. Seeds that failed stay here."""

from __future__ import annotations

import pytest

from fuzz.drawn_plans import STRATEGIES
from fuzz.plans import tried

pytestmark = pytest.mark.filterwarnings("ignore::tacit.SpeedBias")
FAILED = {
    "a worker that has not joined crashes while others exchange": ("DCGD-scatter", 1),
    "a shard keeps a push of an earlier life": ("KAsync-shards", 5),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_whatever_happens_a_run_ends_as_it_must(name):
    for seed in range(2):
        kind, wrong = tried(name, seed)
        assert not wrong, f"python -m fuzz.plans --strategy {name} --first {seed} --plans 1: {kind}, {wrong}"


@pytest.mark.parametrize(("name", "seed"), FAILED.values(), ids=FAILED)
def test_plans_that_failed_hold_now(name, seed):
    assert not tried(name, seed)[1]
