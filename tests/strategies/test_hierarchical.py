"""Hierarchical: groups of ranks, what travels inside and across them, and what cannot be combined."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import workloads
from tacit.record.trace import EXCHANGE, NOTE

QUADRATIC = workloads.quadratic(dimension=7, heterogeneity=0.5)
EVERY = tacit.LocalSGD(period=tacit.Every(4))


def run(strategy: tacit.Strategy, workers: int = 4, steps: int = 12, **cluster: object) -> tacit.Run:
    return tacit.simulate(QUADRATIC, strategy, cluster=tacit.Cluster(workers=workers, **cluster), steps=steps, seed=1)


def sent_bytes(of: tacit.Run, label: str) -> dict[int, int]:
    """Return what each rank sent in collectives with this label."""
    found: dict[int, int] = {}
    for event in of.trace:
        if event.kind == EXCHANGE and event.label == label:
            found[event.rank] = found.get(event.rank, 0) + event.size_bytes
    return found


@pytest.mark.parametrize("workers", [4, 5], ids=["equal groups", "unequal groups"])
@pytest.mark.parametrize("inner", [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(3))], ids=str)
def test_rounds_after_every_step_are_synchronous_sgd(inner, workers):
    """The mean of groups with their weights is the mean of all ranks."""
    strategy = tacit.Hierarchical(inner=inner, outer=tacit.LocalSGD(period=tacit.Every(1)), groups=2)
    torch.testing.assert_close(run(strategy, workers).parameters, run(tacit.AllReduce(), workers).parameters)


def test_equal_weights_count_groups_of_unequal_sizes_alike():
    """At step 4 the groups' models are averaged; what is evaluated before that round is the mean that it makes."""
    outer = tacit.LocalSGD(period=tacit.Every(4), weights="equal")
    by_group, by_rank = (
        tacit.simulate(
            workloads.quadratic(dimension=7, heterogeneity=0.5, noise=0.0),
            tacit.Hierarchical(outer=one, groups=[[0, 1, 2], [3]]),
            cluster=tacit.Cluster(workers=4),
            steps=4,
            evaluate_every=2,
        )
        for one in (outer, EVERY)
    )
    losses = [[row["loss"] for row in run.history] for run in (by_group, by_rank)]
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1] and losses[0][2] != losses[1][2]


def test_only_leaders_exchange_across_groups():
    """7 numbers, the period, the flag and the weight: ten, in 3 rounds; a ring of two sends each rank's half twice."""
    found = run(tacit.Hierarchical(outer=EVERY, groups=[[1, 0], [2, 3]]))
    assert sent_bytes(found, "all-reduce of (1, 2)") == {1: 3 * 10 * 8, 2: 3 * 10 * 8}
    across = {(event.label, event.rank) for event in found.trace if event.kind == EXCHANGE}
    inside = {label for label, _ in across} - {"all-reduce of (1, 2)"}
    assert inside == {f"{kind} of {group}" for kind in ("all-reduce", "broadcast") for group in ((1, 0), (2, 3))}


def test_more_ranks_in_a_group_send_no_more_across():
    few, many = (run(tacit.Hierarchical(outer=EVERY, groups=2), workers) for workers in (4, 8))
    assert sum(sent_bytes(few, "all-reduce of (0, 2)").values()) == sum(
        sent_bytes(many, "all-reduce of (0, 4)").values()
    )


def test_groups_are_hosts_where_none_are_given():
    given, found = (
        run(tacit.Hierarchical(outer=EVERY, groups=groups), hosts=[0, 1, 0, 1]) for groups in (None, [[0, 2], [1, 3]])
    )
    assert given.trace.digest == found.trace.digest


def test_the_period_that_is_noted_is_the_one_across_groups():
    found = run(tacit.Hierarchical(outer=EVERY, groups=2))
    assert {event.value for event in found.trace if event.kind == NOTE and event.label == "period"} == {4}


def test_a_compressed_round_across_groups_sends_fewer_bytes():
    """One of a thousand numbers, with its index and headers, in place of them all."""
    sent = {}
    for label, compressor in (("all-gather of (0, 2)", tacit.TopK(k=1)), ("all-reduce of (0, 2)", None)):
        outer = tacit.LocalSGD(period=tacit.Every(4), compressor=compressor)
        strategy, cluster = tacit.Hierarchical(outer=outer, groups=2), tacit.Cluster(workers=4)
        found = tacit.simulate(workloads.quadratic(dimension=1000), strategy, cluster=cluster, steps=8)
        sent[label] = sum(sent_bytes(found, label).values())
    compressed, dense = sent.values()
    assert 0 < 20 * compressed < dense


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 1}, "groups=1 must be at least 2; inside one group"),
        ({"groups": [[0, 1], [1, 2]]}, "must hold each rank from 0 to 3 once"),
        ({"groups": [[0, 1], []]}, "at least 2 groups with a rank each"),
        ({"groups": "hosts"}, "must be a number of groups or lists of ranks"),
        ({"inner": tacit.SwarmSGD()}, "must be one of AllReduce, CompressedGradient, LocalSGD"),
        ({"inner": tacit.LocalSGD(outer=tacit.SlowMo())}, "must average plainly"),
        ({"inner": tacit.LocalSGD(period=tacit.VariancePeriod())}, "must average plainly"),
        ({"outer": tacit.AllReduce()}, "must be LocalSGD"),
        ({"outer": tacit.LocalSGD(overlap_steps=2)}, "must have overlap_steps=0 and fragments=1"),
        ({"outer": tacit.LocalSGD(fragments=2)}, "must have overlap_steps=0 and fragments=1"),
    ],
)
def test_what_cannot_be_combined_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tacit.Hierarchical(**arguments)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (9, "groups=9 must be at most workers=4"),
        ([[0, 1], [2]], "holds 3 ranks, but workers=4"),
        (None, "here workers=4 on 4 hosts"),
    ],
)
def test_groups_that_do_not_fit_the_workers_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        run(tacit.Hierarchical(groups=groups))
