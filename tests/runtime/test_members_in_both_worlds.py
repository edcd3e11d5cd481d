"""One plan of faults on real processes and in the simulator: the same members take part, and the same ones finish."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import tacit
from tacit import workloads
from tests.runtime.elastic import Launch
from tests.runtime.test_returning_workers import WORKERS, check_equal, train

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
FAULTS = [
    tacit.Crash(rank=2, at_s=8.5, for_s=5.0),
    tacit.Crash(rank=3, at_s=20.5, for_s=5.0),
    tacit.Crash(rank=3, at_s=40.5),
]


def simulated(strategy: tacit.Strategy[Any]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return who computes after the last fault, and the members after each of their changes."""
    members: dict[int, tuple[int, ...]] = {}
    kind = type(strategy)

    def regrouped(self: Any, worker: Any, state: Any, ranks: Any) -> None:
        kind.regrouped(self, worker, state, ranks)
        members[worker.world.members.generation] = tuple(ranks)

    values = {field.name: getattr(strategy, field.name) for field in fields(strategy) if field.init}
    watched = type(kind.__name__, (kind,), {"regrouped": regrouped})(**values)
    has_members = isinstance(strategy, tacit.LocalSGD)
    place = {"compute": tacit.Constant(mean_s=1.0), "latency_s": 0.01, "min_workers": 1 if has_members else None}
    cluster = tacit.Cluster(workers=WORKERS, faults=FAULTS, **place)
    steps = 60 * WORKERS if strategy.has_server else 60
    run = tacit.simulate(workloads.quadratic(dimension=5), watched, cluster=cluster, steps=steps, lr=0.05, seed=1)
    assert run.status == "finished"
    last = sorted({event.rank for event in run.trace.of("compute") if event.start_s > FAULTS[-1].at_s})
    return last, [members[generation] for generation in sorted(members)]


def real(strategy: tacit.Strategy[Any], steps: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return who finishes on real processes, and the changes that worker 0 has seen."""
    with Launch(WORKERS, train, strategy, steps, 0.15, restarts=1) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(2)
        launch.until_heard([2], 2)  # its next life trains
        launch.kill(3)
        launch.until_heard([3], 2)
        last = launch.present[3]
        last.kill()
        launch.until(lambda: last.ended_s is not None, "the end of the last life of worker 3")
        launch.say("hurry")
        *results, lost = launch.end()
    assert lost.name == "Died"
    check_equal(results)
    seats = [seat for seat, result in enumerate(results) if result["status"] == "finished"]
    assert all(result["members"] == seats for result in results)
    return seats, results[0]["changes"]


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [(tacit.LocalSGD(period=tacit.Every(4)), 100), (tacit.KAsync(k=1), 300), (tacit.SwarmSGD(local_steps=2), 100)],
    ids=str,
)
def test_a_plan_ends_with_the_same_members_in_both_worlds(strategy: tacit.Strategy[Any], steps: int):
    """Worker 2 is killed and comes back; worker 3 too, and is then killed for good."""
    last, changes = simulated(strategy)
    assert last == [0, 1, 2]
    if changes:
        assert changes == [(0, 1, 3), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2)]
    assert real(strategy, steps) == (last, changes)
