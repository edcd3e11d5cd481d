"""Workers that differ: compute times by rank, and cores that ranks share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import tacit
from tacit import workloads
from tacit.report.prediction import predictions
from tacit.report.servers import predicted_time

SECOND, THIRD = tacit.Constant(mean_s=0.25), tacit.Constant(mean_s=0.5)


def step_times_s(**cluster: Any) -> list[list[float]]:
    """Return the durations of each worker's steps."""
    described = tacit.Cluster(**{"workers": 3, "compute": tacit.Constant(mean_s=0.125), **cluster})
    run = tacit.simulate(
        workloads.quadratic(dimension=2), tacit.AllReduce(), cluster=described, steps=4, timing_only=True
    )
    events = run.trace.of("compute")
    return [[e.time_s - e.start_s for e in events if e.rank == rank] for rank in range(described.workers)]


@pytest.mark.parametrize("as_table", [False, True])
def test_each_rank_draws_from_its_own_distribution(as_table: bool):
    delays = [tacit.Recorded(times_s=[0.0625]), SECOND, THIRD]
    found = step_times_s(compute=dict(enumerate(delays)) if as_table else delays, speed={2: 2.0})
    assert [times[0] for times in found] == pytest.approx([0.0625, 0.25, 0.25])


def test_equal_delays_by_rank_give_the_run_of_one_delay():
    """Each rank has a random stream of its own, whichever way the delay is given."""
    delay = tacit.LogNormal(median_s=0.02, sigma=0.5)
    assert step_times_s(compute=delay) == step_times_s(compute=[delay] * 3)


def test_one_rank_may_have_slow_spells():
    spells = tacit.SlowSpells(compute=SECOND, factor=8.0, healthy_mean_s=0.001, spell_mean_s=1000.0)
    found = step_times_s(compute=[SECOND, spells, SECOND])
    assert found[0] == pytest.approx([0.25] * 4) and min(found[1]) > 1.0
    fast = tacit.Cluster(workers=3, compute=[SECOND, spells, SECOND], latency_s=0.0, bandwidth_bytes_per_s=float("inf"))
    run = tacit.simulate(workloads.quadratic(dimension=2), tacit.KAsync(k=1), cluster=fast, steps=5, timing_only=True)
    assert run.record["host"] != "race"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"compute": [SECOND]},
            "compute has delays of 1 ranks, but workers=3; give one delay for each of the ranks 0 to 2",
        ),
        (
            {"compute": {0: SECOND, 1: SECOND, 3: SECOND}},
            "compute has delays of 3 ranks, but workers=3; give one delay",
        ),
        ({"compute": [SECOND, 0.1, SECOND]}, "compute of rank 1 is 0.1, which is not a delay; try Constant"),
        ({"compute": 0.1}, r"compute=0.1 must be a delay; try Constant\(mean_s=0.02\), or a list with one delay"),
        ({"cores": 0}, "cores=0 must be a whole number, at least 1; leave it out"),
        ({"cores": 1.5}, "cores=1.5 must be a whole number"),
        ({"communication_cores": -1.0}, "communication_cores=-1.0 must be at least 0 and finite"),
    ],
)
def test_bad_descriptions_are_answered_with_what_to_write(given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        tacit.Cluster(workers=3, **given)


@pytest.mark.parametrize(
    ("given", "factors"),
    [
        ({"cores": 2, "hosts": 1, "communication_cores": 0.0}, [1.5, 1.5, 1.5]),
        ({"cores": 2, "hosts": 1, "communication_cores": 0.5}, [2.25, 2.25, 2.25]),
        ({"cores": 2, "hosts": [0, 0, 1], "communication_cores": 0.5}, [1.5, 1.5, 1.0]),
        ({"cores": 1}, [1.15, 1.15, 1.15]),
        ({"cores": 4, "hosts": 1}, [1.0, 1.0, 1.0]),
        ({"hosts": 1}, [1.0, 1.0, 1.0]),
    ],
)
def test_ranks_that_share_cores_are_slowed_down_in_proportion(given: dict[str, Any], factors: list[float]):
    assert [times[0] for times in step_times_s(**given)] == pytest.approx([0.125 * factor for factor in factors])


def test_a_run_records_that_cores_are_shared():
    runs = [
        tacit.simulate(workloads.quadratic(dimension=2), tacit.AllReduce(), cluster=cluster, steps=2)
        for cluster in (
            tacit.Cluster(workers=2),
            tacit.Cluster(workers=2, cores=8),
            tacit.Cluster(workers=2, hosts=1, cores=1, communication_cores=0.0),
        )
    ]
    assert [run.record.get("compute_slowdown") for run in runs] == [None, {}, {"0": 2.0, "1": 2.0}]


@pytest.mark.parametrize(("compute", "is_warned"), [([SECOND, THIRD], True), ([SECOND, SECOND], False)])
def test_learners_with_other_delays_and_other_data_are_warned_about(compute: list[tacit.Constant], is_warned: bool):
    workload, cluster = workloads.digits(model="softmax", split="sorted"), tacit.Cluster(workers=2, compute=compute)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tacit.simulate(workload, tacit.KAsync(k=1), cluster=cluster, steps=1)
    assert any(issubclass(one.category, tacit.SpeedBias) for one in caught) == is_warned


def test_theory_predicts_only_what_it_describes():
    """One law for all workers, each on its own cores."""

    def predicted(**cluster: Any) -> Any:
        described = tacit.Cluster(workers=2, **{"compute": SECOND, **cluster})
        return predicted_time(
            tacit.simulate(workloads.quadratic(dimension=2), tacit.KAsync(k=1), cluster=described, steps=2)
        )

    assert predicted() is not None
    assert predicted(compute=[SECOND, THIRD]) is None and predicted(cores=1) is None


def test_predictions_know_measured_steps_by_rank():
    times = tacit.Recorded(times_s=[0.1])
    for compute, is_measured in (([times, times], True), ({0: times, 1: SECOND}, False)):
        run = tacit.simulate(
            workloads.quadratic(dimension=2),
            tacit.AllReduce(),
            cluster=tacit.Cluster(workers=2, compute=compute),
            steps=2,
        )
        real = tacit.simulate(
            workloads.quadratic(dimension=2), tacit.AllReduce(), cluster=tacit.Cluster(workers=2), steps=2
        )
        real.record = {**real.record, "world": "processes"}
        assert [found.has_measured_steps for found in predictions([real, run])] == [is_measured]
