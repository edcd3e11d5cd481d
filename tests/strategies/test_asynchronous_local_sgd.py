"""Asynchronous local SGD: learners push changes of their model; stale gradients can be dropped."""

from __future__ import annotations

import math

import pytest
import torch

import tacit
from tacit import workloads
from tests.strategies.server_runs import notes

QUIET = workloads.quadratic(dimension=6, noise=0.0)


def final(strategy: tacit.Strategy, workers: int, steps: int, **named: object) -> torch.Tensor:
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.01))
    return tacit.simulate(QUIET, strategy, cluster=cluster, steps=steps, lr=0.1, **named).parameters


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_learner_trains_as_without_a_server(optimizer):
    """The server takes its changes as they are, and its optimizer's state is its own."""
    local = tacit.KBatchAsync(k=1, local_steps=3)
    torch.testing.assert_close(
        final(local, 1, 5, optimizer=optimizer), final(tacit.AllReduce(), 1, 15, optimizer=optimizer)
    )


def test_the_server_averages_k_changes():
    """Equal learners that begin together at one model: the update of K = P is a round of LocalSGD."""
    cluster = tacit.Cluster(workers=3, compute=tacit.Constant(mean_s=0.01))
    made = [
        tacit.simulate(QUIET, strategy, cluster=cluster, steps=steps, lr=0.1).parameters
        for strategy, steps in ((tacit.KBatchAsync(k=3, local_steps=4), 1), (tacit.LocalSGD(period=tacit.Every(4)), 4))
    ]
    torch.testing.assert_close(*made)


def test_a_push_of_many_steps_costs_as_much_as_one_gradient():
    sizes = []
    for local_steps in (1, 8):
        cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.01))
        run = tacit.simulate(QUIET, tacit.KBatchAsync(k=2, local_steps=local_steps), cluster=cluster, steps=10)
        sizes.append(run.summary()["bytes_sent"])
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_outer_sgd_with_rate_1_takes_the_change():
    local, outer = (tacit.KBatchAsync(k=2, local_steps=3, outer=outer) for outer in (None, tacit.OuterSGD(lr=1.0)))
    torch.testing.assert_close(final(local, 4, 20), final(outer, 4, 20))


def test_stale_changes_weigh_less_by_the_rate():
    """FedBuff's 1/√(1 + staleness), with 4 learners of which each update uses one."""
    plain, scaled = (
        tacit.KBatchAsync(k=1, local_steps=2, rate=rate) for rate in (None, tacit.InverseStaleness(power=0.5))
    )
    cluster = tacit.Cluster(workers=4, compute=tacit.Exponential(mean_s=0.01))
    start = torch.ones(6)
    changes = [
        tacit.simulate(QUIET, strategy, cluster=cluster, steps=2, lr=0.1, start=start).parameters - start
        for strategy in (plain, scaled)
    ]
    first = tacit.simulate(QUIET, plain, cluster=cluster, steps=1, lr=0.1, start=start).parameters - start
    torch.testing.assert_close(changes[1] - first, (changes[0] - first) / math.sqrt(2))  # the second is 1 update old


def test_drop_staleness_uses_no_older_gradient():
    cluster = tacit.Cluster(workers=4, compute=tacit.Exponential(mean_s=0.01), speed={3: 0.1})
    runs = [
        tacit.simulate(workloads.quadratic(dimension=3, heterogeneity=0.0), strategy, cluster=cluster, steps=80)
        for strategy in (tacit.KAsync(k=1), tacit.KAsync(k=1, drop_staleness=3))
    ]
    most = [max(note.value for note in notes(run, "staleness")) for run in runs]
    assert most[0] >= 3 > most[1]
    assert notes(runs[1], "late") and not notes(runs[0], "late")


# Delayed Nesterov.


def steps_of(outer: tacit.Outer, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    return [outer.step(state, delta, 0.1) for delta in deltas]


@pytest.mark.parametrize("activation", [0.0, 0.3, 1.0])
def test_delayed_nesterov_of_one_update_is_nesterov(activation):
    deltas = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0])]
    delayed = tacit.DelayedNesterov(delay=1, lr=0.7, momentum=0.9, activation=activation)
    for mine, known in zip(
        steps_of(delayed, deltas), steps_of(tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True), deltas), strict=True
    ):
        torch.testing.assert_close(mine, known)


def test_n_delayed_updates_are_one_of_nesterov_with_their_mean():
    drawn = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # rounds, N, numbers
    taken = steps_of(tacit.DelayedNesterov(delay=4, lr=0.7, momentum=0.9), list(drawn.view(12, 5)))
    once = steps_of(tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True), list(drawn.mean(1)))
    torch.testing.assert_close(torch.stack(taken).view(3, 4, 5).sum(1), torch.stack(once))


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: tacit.KBatchAsync(k=1, local_steps=0), "local_steps=0 must be a whole number, at least 1"),
        (lambda: tacit.KBatchAsync(k=1, outer=0.5), "outer=0.5 must be like OuterSGD"),
        (lambda: tacit.KBatchAsync(k=1, local_steps=2, rate=tacit.StalenessRate(c=1.0)), "is for gradients"),
        (lambda: tacit.AdaSync(tacit.KBatchAsync(k=1, local_steps=2)), "must be a server strategy with a k"),
        (lambda: tacit.KAsync(k=1, drop_staleness=0), "drop_staleness=0 must be at least 1"),
        (lambda: tacit.KAsync(k=1, drop_staleness=2, shards=2), "excludes maximum_staleness, shards and compressor"),
        (lambda: tacit.DelayedNesterov(delay=4, activation=0.5), r"activation=0.5 must be from 0 to 1/delay=0.25"),
        (lambda: tacit.InverseStaleness(power=0.0), "power=0.0 must be positive"),
    ],
)
def test_what_does_not_fit_is_refused(make, wrong):
    with pytest.raises(ValueError, match=wrong):
        make()
