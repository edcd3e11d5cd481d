"""What a report says of servers: taken from traces alone, and only where there is one."""

from __future__ import annotations

import math

import pytest

import tacit
from tacit import theory, workloads
from tacit.report import Comparison, render
from tacit.report.servers import k_figure, pace_figure, predicted_time, served, staleness_figure

SHIFTED = tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=1.0)


def simulated(strategy: tacit.strategies.Strategy, steps: int = 120, **rest) -> tacit.Run:
    cluster = tacit.Cluster(
        workers=6, compute=SHIFTED, speed={2: 0.5}, latency_s=0.0, bandwidth_bytes_per_s=math.inf, **rest
    )
    return tacit.simulate(
        workloads.quadratic(dimension=2, noise=0.01),
        strategy,
        cluster=cluster,
        steps=steps,
        lr=0.3,
        engine="loop",
        timing_only=not isinstance(strategy, tacit.AdaSync),
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    strategies = (tacit.KSync(k=2), tacit.KAsync(k=2), tacit.AdaSync(tacit.KBatchAsync(k=1), every=10))
    return Comparison.of([simulated(tacit.AllReduce()), *map(simulated, strategies)])


def test_only_servers_are_spoken_of(comparison):
    assert [one.label for one in served(comparison)] == [entry.label for entry in comparison.entries[1:]]
    page = render(comparison)
    assert "<h2>Servers</h2>" in page and "K over time" in page
    assert "<h2>Servers</h2>" not in render(Comparison.of([simulated(tacit.AllReduce())]))


def test_the_heat_map_has_every_learners_shares(comparison):
    one = served(comparison)[1]
    map_of_shares = staleness_figure(one)["data"][0]
    assert len(map_of_shares["z"]) == 6 and all(sum(row) == pytest.approx(1, abs=1e-3) for row in map_of_shares["z"])
    slow, fast = (sum(age * share for age, share in enumerate(map_of_shares["z"][rank])) for rank in (2, 3))
    assert slow > fast  # the learner at half speed has the older gradients


def test_idle_and_cancelled_stand_in_the_table(comparison):
    sync, stale, _ = (dict(zip(range(8), one.line, strict=True)) for one in served(comparison))
    assert (sync[3], sync[5]) == ("0.00", "100\u00a0%") and float(stale[3]) > 0
    assert sync[7] != "0\u00a0%" == stale[7] and stale[6] != "0\u00a0%"


def test_theory_stands_beside_the_simulation_where_it_knows_the_run(comparison):
    sync, stale, adaptive = served(comparison)
    expected = theory.update_time("k-sync", k=2, workers=6, compute=SHIFTED, speed={2: 0.5})
    assert sync.predicted == (expected, expected)
    assert float(sync.update_times_s[-1]) / 120 == pytest.approx(expected, rel=0.1)
    assert stale.predicted is not None and stale.predicted.lower_s < stale.predicted.upper_s
    assert adaptive.predicted is None
    assert predicted_time(simulated(tacit.KAsync(k=2, maximum_staleness=1), steps=5)) is None
    figure = pace_figure(comparison, [sync, stale, adaptive])
    assert [trace["line"].get("dash") for trace in figure["data"]] == [None, "dash", None, "dash", "dash", None]


def test_k_is_drawn_where_it_changes(comparison):
    found = served(comparison)
    assert k_figure(comparison, found[:2]) is None
    (line,) = k_figure(comparison, found)["data"]
    assert line["y"][0] == 1 < max(line["y"]) <= 6 and line["line"]["shape"] == "hv"
