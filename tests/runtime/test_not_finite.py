"""A gradient or model with NaN is refused by the worker it comes from, whether or not losses are observed."""

from __future__ import annotations

import math

import tacit
from tacit.strategies import Strategy
from tests.runtime.processes import together
from tests.runtime.test_failure_causes import attached, learn

BEFORE_THE_STEP = [tacit.AllReduce(), tacit.CompressedGradient(compressor=tacit.TopK(k=3)), tacit.KAsync(k=1)]
AFTER_THE_STEP = [
    tacit.LocalSGD(period=tacit.Every(2)),
    tacit.SwarmSGD(local_steps=2),
    tacit.DPSGD(topology=tacit.Ring()),
]


def poisoned(strategies: list[Strategy]) -> list[tuple[str, str, bool]]:
    """Rank 2's gradient is NaN in its ninth step; return each run's error, and whether the others' model is finite."""
    results = []
    for strategy in strategies:
        model, optimizer, session = attached(strategy, steps=100_000)
        step = 0
        try:
            with session:
                while not session.is_done:
                    if step == 8 and tacit.rank() == 2:
                        model.weight.register_hook(lambda gradient: gradient * math.nan)
                    learn(model, optimizer, step)
                    step += 1
        except tacit.TacitError as error:
            is_finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
            results.append((type(error).__name__, str(error), is_finite))
    return results


def test_nan_is_named_at_its_origin_and_reaches_no_other_model():
    strategies = [*BEFORE_THE_STEP, *AFTER_THE_STEP]
    by_rank = together(4, poisoned, strategies)
    for place, strategy in enumerate(strategies):
        what = "gradient" if strategy in BEFORE_THE_STEP else "model"
        kind, text, _ = by_rank[2][place]
        assert kind == "NotFinite" and f"the {what} of weight of worker 2 is nan in step" in text, (strategy, text)
        for rank in (0, 1, 3):
            kind, text, is_finite = by_rank[rank][place]
            assert kind == "PeerLost" and "worker 2 was lost" in text and "NotFinite" in text, (strategy, rank, text)
            assert is_finite, (strategy, rank)
