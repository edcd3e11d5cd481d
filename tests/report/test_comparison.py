"""The numbers of the table, checked by hand on tiny runs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import tacit
from tacit.report import Comparison, Entry, default_target_loss, verdict
from tacit.report.columns import cells, columns_of
from tacit.report.comparison import Measured
from tacit.report.figures import colours
from tacit.report.verdict import remarks
from tests.report.synthetic_runs import four_strategies, tiny_run


def compared(target: float | None = 1.0, **changed: Any) -> Comparison:
    """Return a baseline that needs 4 s and 8 s, and a rival that needs 1 s and 4 s, to loss 1."""
    slow = Entry("slow", [tiny_run([(0, 9.0), (2, 5.0), (4, 1.0)]), tiny_run([(0, 9.0), (4, 5.0), (8, 1.0)], seed=1)])
    fast = Entry("fast", [tiny_run([(0, 9.0), (1, 1.0)]), tiny_run([(0, 9.0), (4, 0.5)], seed=1)], note="lr=0.1")
    usual = {"entries": [slow, fast], "workload": "w", "cluster": "c", "baseline": "slow", "target_loss": target}
    return Comparison(**usual | changed)


def test_time_bytes_and_rounds_to_the_target() -> None:
    slow, fast = compared().rows
    assert slow.time_to_target_s.values == (4, 8)
    assert slow.time_to_target_s.mean == 6
    assert fast.bytes_to_target.values == (100, 100)
    assert slow.rounds_to_target.mean == 2
    assert fast.loss.values == (1.0, 0.5)
    assert (slow.time_s.mean, slow.bytes_sent.mean, slow.rounds.mean, slow.idle.mean) == (6, 200, 2, 0)


def test_speed_ups_are_means_of_ratios_of_the_same_seed() -> None:
    slow, fast = compared().rows
    assert fast.speed_up.values == (4.0, 2.0)
    assert fast.speed_up.mean == 3.0  # the ratio of the means would be 2.4
    assert slow.speed_up.values == (1.0, 1.0)
    assert fast.bytes_saving.mean == 2.0


def test_pairs_follow_the_seed_and_not_the_order() -> None:
    comparison = compared()
    swapped = Entry("fast", list(reversed(comparison.entries[1].runs)))
    rows = compared(entries=[comparison.entries[0], swapped]).rows
    assert rows[1].speed_up.values == (2.0, 4.0)


def test_a_seed_that_does_not_arrive_leaves_no_mean() -> None:
    slow, fast = compared(target=0.7).rows
    assert slow.time_to_target_s.values == (None, None)
    assert fast.time_to_target_s.values == (None, 4)
    assert fast.time_to_target_s.mean is None
    assert fast.speed_up.values == (None, None)
    time = columns_of(compared(target=0.7))[0]
    assert [cell.text for cell in cells(compared(target=0.7), time)] == ["not reached", "1 of 2 seeds"]


def test_a_target_met_at_the_start_gives_no_speed_up() -> None:
    assert [row.speed_up.values for row in compared(target=10.0).rows] == [(None, None)] * 2


def test_the_best_of_a_column_is_marked() -> None:
    comparison = compared()
    marked = {c.key: [cell.is_best for cell in cells(comparison, c)] for c in columns_of(comparison)}
    assert marked["time_to_target_s"] == marked["speed_up"] == marked["loss"] == [False, True]
    assert marked["idle"] == [False, False]  # equal: nothing to mark


def test_numbers_that_a_script_logged_under_names_of_its_own_are_columns() -> None:
    comparison = compared()
    for run in comparison.entries[0].runs:
        run.history = [{**row, "accuracy": 0.5} for row in run.history[:-1]] + [{**run.history[-1], "accuracy": 0.75}]
    [column] = [column for column in columns_of(compared(entries=comparison.entries)) if column.title == "accuracy"]
    assert [cell.text for cell in cells(compared(entries=comparison.entries), column)] == ["0.7500", "–"]


def test_without_a_baseline_there_is_no_speed_up() -> None:
    comparison = compared(baseline=None)
    assert "speed_up" not in [column.key for column in columns_of(comparison)]
    assert comparison.rows[1].speed_up.mean is None


def test_runs_that_did_not_finish_say_so() -> None:
    run = tiny_run([(0, 9.0), (1, 2.0)], seed=3)
    run.status = "interrupted"
    assert Comparison([Entry("a", [run])], "w", "c").rows[0].statuses == ("seed 3 interrupted",)


def entry(label: str, *lowest: float, start: float = 2.0) -> Entry:
    return Entry(label, [tiny_run([(0, start), (1, low), (2, low * 1.1)], seed=i) for i, low in enumerate(lowest)])


def test_where_nobody_learned_there_is_no_race() -> None:
    comparison = Comparison([entry("a", 50.0), entry("b", 2.0)], "w", "c", baseline="a")
    assert comparison.target is None
    assert verdict(comparison).startswith("No strategy brought the loss below where it started; try a smaller")


def test_the_default_target_is_reached_by_every_seed_of_all_that_learned() -> None:
    target = default_target_loss([entry("a", 0.05, 0.051), entry("b", 0.1, 0.12)])
    assert target == 0.123  # round, and 2.5 % to 5 % above the worst seed's 0.12


@pytest.mark.parametrize("stalled", [1.9, 2.0, 1e9])
def test_a_strategy_that_stalled_or_diverged_does_not_set_the_target(stalled: float) -> None:
    assert default_target_loss([entry("a", 0.05), entry("b", stalled)]) == pytest.approx(0.052)


def test_the_baseline_always_counts_in_the_target() -> None:
    target = default_target_loss([entry("a", 0.05), entry("b", 1.5)], "b")
    assert target is not None and 1.5 < target < 1.6


def test_the_default_target_stays_below_the_start_when_losses_move_little() -> None:
    target = default_target_loss([entry("a", 2.25, start=2.3), entry("b", 2.26, start=2.3)])
    assert target is not None and 2.26 < target < 2.263


def test_negative_and_missing_losses_have_a_target_too() -> None:
    target = default_target_loss([entry("a", -3.0), entry("b", -2.0)])
    assert target is not None and -2.2 < target <= -2.2 * 0.95
    assert default_target_loss([entry("a", 0.1)]) is None
    nothing = [Entry(name, [tiny_run([(0, None), (1, math.nan)])]) for name in "ab"]
    assert default_target_loss(nothing) is None


def test_json_is_finite_and_complete() -> None:
    broken = Entry("broken", [tiny_run([(0, 9.0), (1, math.inf), (2, math.nan)])])
    comparison = compared(entries=[*compared().entries, broken])
    read = json.loads(json.dumps(comparison.as_json(), allow_nan=False))
    assert read["target_loss"] == 1.0
    slow, fast, third = read["strategies"]
    assert fast["speed_up"] == {"mean": 3.0, "low": 2.0, "high": 4.0, "per_seed": [4.0, 2.0]}
    assert third["loss"] == {"mean": None, "low": None, "high": None, "per_seed": [None]}
    assert slow["loss_curves"]["step"] == {"x": [0, 1, 2], "mean": [9, 5, 1], "low": [9, 5, 1], "high": [9, 5, 1]}
    assert [seed["seed"] for seed in slow["seeds"]] == [0, 1]
    assert json.dumps(four_strategies(steps=40).as_json(), allow_nan=False)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="baseline='slo' must be the label of an entry; did you mean 'slow'"):
        compared(baseline="slo")
    with pytest.raises(ValueError, match=r"runs=\[\] of 'x' is empty"):
        Entry("x", [])
    with pytest.raises(ValueError, match=r"seeds=\[0, 0\] of 'x' repeat"):
        Entry("x", [tiny_run([(0, 1.0)]), tiny_run([(0, 1.0)])])
    with pytest.raises(ValueError, match="repeat; give each entry its own label"):
        Comparison([entry("a", 1.0), entry("a", 1.0)], "w", "c")
    with pytest.raises(ValueError, match=r"entries=\[\] is empty"):
        Comparison([], "w", "c")


def test_no_seeds_no_mean() -> None:
    assert Measured(()).mean is None


def families() -> Comparison:
    """Return a comparison of rounds, a server and gossip, on one cluster."""
    workload, cluster = tacit.workloads.quadratic(dimension=5), tacit.Cluster(workers=4)
    strategies = [tacit.AllReduce(), tacit.KAsync(k=2), tacit.SwarmSGD(local_steps=4), tacit.DPSGD()]
    return Comparison.of([tacit.simulate(workload, s, cluster=cluster, steps=40, lr=0.02) for s in strategies])


def test_gradients_are_counted_alike_and_differences_are_said() -> None:
    comparison = families()
    assert [row.gradients.mean for row in comparison.rows] == [160, 80, 160, 160]  # steps are updates of two gradients
    assert "gradients" in [column.key for column in columns_of(comparison)]
    assert all(0 < (row.gradients_to_target.mean or 0) <= 160 for row in comparison.rows if row.time_to_target_s.known)
    assert comparison.as_json()["strategies"][1]["gradients"]["mean"] == 80
    said = " ".join(remarks(comparison))
    assert "Not at equal numbers of gradients: KAsync(k=2) used 80, AllReduce() 160" in said
    equal = Comparison.of([run for entry in comparison.entries for run in entry.runs if "KAsync" not in entry.label])
    assert "gradients" not in " ".join(remarks(equal))


def test_strategies_without_rounds_have_no_number_of_rounds() -> None:
    comparison = families()
    assert [row.rounds.mean for row in comparison.rows] == [40, None, None, None]
    assert [row.rounds_to_target.mean is None for row in comparison.rows[1:]] == [True] * 3
    for column in columns_of(comparison):
        if column.key in ("rounds", "rounds_to_target"):
            shown = cells(comparison, column)
            assert [cell.text for cell in shown[1:]] == ["–"] * 3
            assert not any(cell.is_best for cell in shown[1:])
    alone = Comparison.of(comparison.entries[1].runs)
    assert "messages, and ended at loss" in verdict(alone) and "rounds" not in verdict(alone)
    assert comparison.entries[1].curve("round", "loss") is None


def failed(label: str, reason: str, *points: tuple[float, float | None], seed: int = 0) -> Entry:
    run = tiny_run(list(points), seed=seed)
    run.status = f"failed: {reason}; look there"
    return Entry(label, [run])


def test_a_failed_run_says_that_it_failed_and_which() -> None:
    alone = Comparison([failed("KAsync(k=2)", "worker 1 was lost", (0, 9.0), (3, 5.0))], "w", "c")
    assert verdict(alone) == "KAsync(k=2) failed: worker 1 was lost (after 3.00 s and 1 steps; sent 100 B in 1 rounds)."
    script = Comparison([failed("", "no such file\n  train.py, line 1", (0, None))], "train.py", "c")
    assert verdict(script) == "The run of train.py failed: no such file (before the first step)."
    both = [failed("a", "x", (0, 9.0), (1, 5.0)), failed("b", "y", (0, 9.0), (1, 5.0))]
    assert verdict(Comparison(both, "w", "c", "a")) == "All strategies failed: a failed: x; b failed: y."
    rest = Comparison(
        [*compared().entries, failed("c", "worker 1 was lost", (0, 9.0), (0.1, 0.1))], "w", "c", "slow", 1.0
    )
    assert verdict(rest).startswith(
        "fast was 3.0× as fast as slow to loss 1"
    )  # not the one that failed, though it got there first
    assert remarks(rest)[0] == "c failed: worker 1 was lost."


def test_twelve_strategies_have_twelve_colours() -> None:
    for baseline in ("S0", None):
        many = Comparison([Entry(f"S{i}", [tiny_run([(0, 9.0), (1, 1.0)])]) for i in range(12)], "w", "c", baseline)
        assert len({colour for colour, _ in colours(many).values()}) == 12


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (tacit.Lattice(bits=8), "Lattice(bits=8)"),
        (tacit.QSGD(bits=8), "QSGD(bits=8)"),
        (tacit.LowRank(rank=2), "LowRank(rank=2)"),
        (tacit.TopK(fraction=0.01), "TopK(fraction=0.01)"),
        (tacit.TopK(), "TopK(fraction=0.01)"),
        (tacit.TopK(k=3), "TopK(k=3)"),
        (tacit.RandomK(), "RandomK(fraction=0.01)"),
        (tacit.EF21Momentum(eta=0.1), "EF21Momentum(eta=0.1)"),
        (tacit.SlowMo(momentum=0.5), "SlowMo(momentum=0.5)"),
    ],
    ids=str,
)
def test_labels_show_what_matters_though_it_is_the_default(spec: object, text: str) -> None:
    assert str(spec) == text
