"""LocalSGD by fragments: when and what each part of the model exchanges, and how the mean goes into it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import tacit
from tacit import workloads
from tacit.core.worker import ObservedLosses
from tacit.record.trace import EXCHANGE
from tacit.testing import ScriptedNetwork, ScriptedWorker

NESTEROV = tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)


def run(strategy: tacit.Strategy, steps: int = 48, dimension: int = 1200) -> tacit.Run:
    workload = workloads.quadratic(dimension=dimension, heterogeneity=0.5)
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.01))
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=1)


def rounds_of(found: tacit.Run) -> list[tuple[float, int]]:
    """Return the start and the bytes of each round of rank 0."""
    events = [event for event in found.trace if event.kind == EXCHANGE and event.rank == 0]
    return [(event.start_s, event.size_bytes) for event in events]


def peak_bytes(found: tacit.Run, window_s: float, until_s: float) -> int:
    """Return the most that rank 0 sends in rounds that start within ``window_s`` of each other."""
    rounds = [(at_s, sent) for at_s, sent in rounds_of(found) if at_s < until_s]
    return max(sum(sent for at_s, sent in rounds if 0 <= at_s - from_s < window_s) for from_s, _ in rounds)


@pytest.mark.parametrize("fragments", [2, 4])
def test_the_peak_bandwidth_falls_as_the_number_of_fragments_grows(fragments):
    """Over windows of two steps. The rounds at the end of the run, which follow each other, are left out."""
    periods = (tacit.LocalSGD(period=tacit.Every(12), fragments=count) for count in (1, fragments))
    whole, parts = (peak_bytes(run(strategy, steps=47), 0.02, until_s=0.465) for strategy in periods)
    assert parts == pytest.approx(whole / fragments, rel=0.01)


def test_all_fragments_together_send_the_bytes_of_whole_rounds():
    """But for the period and the weight of each round."""
    whole, parts = (run(tacit.LocalSGD(period=tacit.Every(12), fragments=fragments)) for fragments in (1, 4))
    assert parts.summary()["bytes_sent"] == pytest.approx(whole.summary()["bytes_sent"], rel=0.2)


def test_each_fragment_is_averaged_at_its_own_offset():
    """Of seven parameters, 2, 2 and 3 of them after steps 2, 4 and 6 of every six."""
    network = ScriptedNetwork(size=2, answers=[lambda given: given] * 6)
    worker = ScriptedWorker(network, parameters=torch.arange(7.0), steps=12)
    strategy = tacit.LocalSGD(period=tacit.Every(6), fragments=3)
    state, calls = strategy.init(worker), []
    for worker.step in range(1, 13):
        assert strategy.hook_free_steps(worker, state) == 0 or worker.step % 2 == 1
        strategy.after_step(worker, state)
        calls.append(len(network.calls))
    assert [step for step, (a, b) in enumerate(pairwise([0, *calls]), 1) if b > a] == [2, 4, 6, 8, 10, 12]
    assert [call.given.numel() - 1 for call in network.calls] == [2, 2, 3] * 2  # and the period
    assert network.calls[1].given[:2].tolist() == [2.0, 3.0]


def test_the_mean_is_mixed_into_the_local_fragment_when_its_round_ends():
    """x ← a x + (1 − a) r', with the model that the worker has two steps after the round's start."""
    network = ScriptedNetwork(size=2, answers=[torch.tensor([10.0, 20.0, 2.0])] * 3)
    worker = ScriptedWorker(network, parameters=torch.zeros(4))
    strategy = tacit.LocalSGD(period=tacit.Every(2), fragments=2, overlap_steps=2, mix=0.25)
    state = strategy.init(worker)
    worker.step = 1
    strategy.after_step(worker, state)
    worker.parameters += 4.0
    for worker.step in (2, 3):
        strategy.after_step(worker, state)
    assert worker.parameters.tolist() == [0.25 * 4 + 0.75 * 10, 0.25 * 4 + 0.75 * 20, 4.0, 4.0]


def test_a_round_without_data_since_its_start_ends_with_the_common_model():
    network = ScriptedNetwork(size=2, answers=[torch.tensor([10.0, 2.0])])
    worker = ScriptedWorker(network, parameters=torch.zeros(1))
    strategy = tacit.LocalSGD(period=tacit.Every(2), overlap_steps=1, mix=0.25)
    state = strategy.init(worker)
    worker.step = 2
    strategy.after_step(worker, state)
    worker.observed = ObservedLosses(0, 0.0, None, None)
    strategy.finish(worker, state)
    assert worker.parameters.tolist() == [10.0]


def test_the_outer_optimizer_of_a_fragment_is_that_of_its_part():
    """One worker whose gradient is constant: a fragment and a model of the same numbers take the same outer steps."""
    fragments = tacit.LocalSGD(period=tacit.Every(4), fragments=2, outer=NESTEROV)
    whole = tacit.LocalSGD(period=tacit.Every(4), outer=NESTEROV)
    models = []
    for strategy, length in ((fragments, 4), (whole, 2)):
        worker = ScriptedWorker(ScriptedNetwork(size=2, answers=[lambda given: given] * 9), torch.zeros(length))
        state = strategy.init(worker)
        for worker.step in range(1, 13):
            worker.parameters -= 1.0
            strategy.after_step(worker, state)
        models.append(worker.parameters)
    assert models[0][2:].tolist() == models[1].tolist()


def test_the_reported_model_joins_the_common_models_of_fragments():
    worker = ScriptedWorker(ScriptedNetwork(size=2), parameters=torch.arange(5.0))
    strategy = tacit.LocalSGD(fragments=2, outer=NESTEROV)
    state = strategy.init(worker)
    worker.parameters += 1.0
    assert strategy.reported(worker, state).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fragments": 0}, "fragments=0 must be at least 1"),
        ({"fragments": 2, "compressor": tacit.TopK(k=1)}, "fragments=2 must be 1 with a compressor"),
        ({"fragments": 2, "period": tacit.VariancePeriod()}, "reads losses, variances or times"),
        ({"fragments": 2, "warmup_steps": 3}, "must be 1 with warmup_steps=3"),
        ({"mix": 0.5}, "mix=0.5 needs overlap_steps above 0"),
        ({"mix": 1.0, "overlap_steps": 1}, "mix=1.0 must be at least 0 and below 1"),
    ],
)
def test_what_fragments_and_mix_cannot_be_combined_with_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tacit.LocalSGD(**arguments)


def test_more_fragments_than_parameters_are_refused():
    with pytest.raises(ValueError, match="fragments=8 must be at most 7, the number of parameters"):
        run(tacit.LocalSGD(fragments=8), dimension=7)
