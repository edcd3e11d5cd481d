"""The table every strategy must pass. A new strategy joins with one row."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as draw

import tacit
from tacit import workloads
from tacit.registry import FAMILIES
from tacit.strategies import Strategy, may_send
from tacit.testing import CHECKS, Row, strategies
from tacit.testing.strategies import QUADRATIC
from tests.strategy_table import TABLE

each = pytest.mark.parametrize("row", TABLE, ids=str)


def simulate(
    strategy: Strategy, workload: workloads.Workload = QUADRATIC, steps: int = 20, seed: int = 2, **rest
) -> tacit.Run:
    cluster = tacit.Cluster(workers=rest.pop("workers", 5), faults=rest.pop("faults", ()))
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, seed=seed, **rest)


def test_every_registered_strategy_has_a_row():
    assert {type(row.strategy).__name__ for row in TABLE} >= {named.name for named in FAMILIES["strategies"]}
    feedbacks = {type(row.strategy.feedback).__name__ for row in TABLE if hasattr(row.strategy, "feedback")}
    assert feedbacks >= {named.name for named in FAMILIES["feedbacks"]} - {
        "EF21Weighted"
    }  # needs a weight for each worker
    periods = {type(row.strategy.period).__name__ for row in TABLE if hasattr(row.strategy, "period")}
    assert periods >= {named.name for named in FAMILIES["periods"]}


LONG = (strategies.check_determinism, strategies.check_learning, strategies.check_checkpoint)


@pytest.mark.slow
@each
def test_it_passes_the_public_checks(row: Row):
    """One test for all checks of a row, because they share a run."""
    for check in CHECKS:
        if check not in LONG:
            check(row)
    sends = bool(strategies._default_run(row).trace.of("send"))
    assert may_send(row.strategy) == sends, "real processes open a message endpoint only for those that send"


@each
@pytest.mark.slow
def test_it_learns_resumes_and_is_deterministic(row: Row):
    for check in LONG:
        check(row)


@pytest.mark.parametrize("row", [row for row in TABLE if row.depends_on_data], ids=str)
def test_timing_only_runs_of_strategies_that_depend_on_data(row: Row):
    averaging = row.strategy.outer if isinstance(row.strategy, tacit.Hierarchical) else row.strategy
    rule = getattr(averaging, "period", tacit.Every(1))
    needs_loss = rule.needs_loss or isinstance(row.strategy, tacit.AdaSync)
    if not (needs_loss or rule.needs_variance):  # only the sizes of messages follow from gradients
        whole, timed = (simulate(row.strategy, timing_only=timing).summary() for timing in (False, True))
        assert whole["rounds"] == timed["rounds"]
        assert timed["bytes_sent"] == pytest.approx(whole["bytes_sent"], rel=0.5)  # nominal sizes, of a tiny model
    elif needs_loss:
        with pytest.raises(tacit.MisplacedCall, match="needs the loss"):
            simulate(row.strategy, timing_only=True)
    else:  # without models there is no variance: the period stays what it was
        run = simulate(row.strategy, timing_only=True)
        assert max(e.value for e in run.trace.of("note")) == max(rule.initial, averaging.overlap_steps)


delays = draw.sampled_from(
    [
        tacit.Constant(mean_s=0.02),
        tacit.Exponential(mean_s=0.02),
        tacit.Pareto(minimum_s=0.01, shape=1.5),
        tacit.SlowSpells(),
    ]
)
times = draw.floats(0.0, 1.0)


@draw.composite
def clusters(choose: draw.DrawFn) -> tacit.Cluster:
    workers = choose(draw.integers(1, 6))
    ranks = draw.integers(0, workers - 1)
    fault = draw.one_of(
        draw.builds(tacit.Crash, rank=ranks, at_s=times),
        draw.builds(tacit.Pause, rank=ranks, at_s=times, for_s=draw.floats(0.01, 0.5)),
        draw.builds(tacit.Slow, rank=ranks, factor=draw.floats(0.5, 8.0), at_s=times),
        draw.builds(tacit.Partition, ranks=draw.lists(ranks, min_size=1), at_s=times, for_s=draw.floats(0.01, 0.5)),
        draw.builds(tacit.MessageLoss, probability=draw.floats(0.0, 0.3)),
    )
    return tacit.Cluster(
        workers=workers,
        compute=choose(delays),
        speed=choose(draw.dictionaries(ranks, draw.floats(0.2, 3.0), max_size=2)),
        latency_s=choose(draw.sampled_from([0.0, 1e-3])),
        bandwidth_bytes_per_s=choose(draw.sampled_from([1e4, 1e9, float("inf")])),
        faults=choose(draw.lists(fault, max_size=3)),
    )


@pytest.mark.slow
@given(cluster=clusters(), row=draw.sampled_from(TABLE), seed=draw.integers(0, 2**40), steps=draw.integers(1, 30))
@settings(deadline=None, max_examples=40)
@pytest.mark.filterwarnings("ignore::tacit.SpeedBias")  # speeds are drawn, and the quadratics differ
def test_whatever_happens_a_run_ends_and_can_be_replayed(cluster: tacit.Cluster, row: Row, seed: int, steps: int):
    """Any cluster, any faults: the run finishes or raises an error of ours, in the same way on both hosts."""
    assume(cluster.workers >= row.fewest_workers)
    outcomes = []
    for host in ("greenlet", "thread"):
        try:
            run = tacit.simulate(QUADRATIC, row.strategy, cluster=cluster, steps=steps, seed=seed, host=host)
        except tacit.RunError as error:
            assert error.run is not None
            run = error.run
        except ValueError as error:  # a mini-batch of this workload may have a negative loss
            assert "must bound the loss from below" in str(error)
            return
        outcomes.append((run.status, run.digest))
        trace = list(run.trace)
        assert all(event.start_s <= event.time_s for event in trace)
        for rank in range(cluster.workers):  # a worker computes one step at a time
            steps_of = [(e.start_s, e.time_s) for e in trace if e.rank == rank and e.kind == "compute"]
            assert all(end <= start + 1e-12 for (_, end), (start, _) in itertools.pairwise(steps_of))
    assert outcomes[0] == outcomes[1]
