"""The report's table of exchanges agrees with the trace."""

from __future__ import annotations

import pytest

import tacit
from tacit import workloads
from tacit.record.trace import SEND
from tacit.report import Comparison, render
from tacit.report.exchanges import exchanges_of


def test_exchanges_are_counted_on_both_sides():
    cluster = tacit.Cluster(workers=4)
    strategies = [
        tacit.AllReduce(),
        tacit.SwarmSGD(local_steps=2, compressor=tacit.Lattice(bits=8)),
        tacit.SwarmSGD(blocking=True),
    ]
    runs = [tacit.simulate(workloads.digits(), strategy, cluster=cluster, steps=20) for strategy in strategies]
    comparison = Comparison.of(runs)
    gossip, blocking = exchanges_of(comparison)
    assert (gossip.label, blocking.label) == (str(strategies[1]), str(strategies[2]))
    sent = [event for event in runs[1].trace if event.kind == SEND]
    done = sum(event.label == "swdone" for event in sent)
    assert gossip.cells[0].startswith(f"{2 * done / 4:.1f} (")
    assert gossip.cells[1] == f"{sum(event.size_bytes for event in sent) / done / 1000:.3g} kB"
    assert blocking.cells[0] == "5.0 (5–5)"
    worst = runs[1].history[-1]
    assert worst["worst_loss"] >= worst["loss"] - 0.05 and gossip.cells[-1].startswith(
        f"loss {worst['worst_loss']:.4g}"[:9]
    )
    assert "worst_loss" not in runs[0].history[-1]
    page = render(comparison)
    assert "<h2>Exchanges</h2>" in page and gossip.cells[1] in page
    assert "<h2>Exchanges</h2>" not in render(Comparison.of(runs[:1]))


def test_the_worst_node_is_worse_than_the_mean_where_data_differ():
    run = tacit.simulate(
        workloads.digits(split="sorted"), tacit.SwarmSGD(local_steps=8), cluster=tacit.Cluster(workers=4), steps=40
    )
    assert run.summary()["worst_loss"] > 1.2 * run.summary()["loss"]
    assert run.summary()["worst_metric"] < run.summary()["metric"] == pytest.approx(run.history[-1]["metric"])
