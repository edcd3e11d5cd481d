"""The waves of simulations of a plan, with results that are made up."""

from __future__ import annotations

import math
from dataclasses import replace

import tacit
from tacit.planning.candidates import Candidate
from tacit.planning.pace import Pace
from tacit.planning.search import FIRST_DECIDING_SEED, Scope, Search
from tacit.planning.work import PlanTask
from tacit.record.run import Run

EVERYONE = (0, 1)
DDP = Candidate(tacit.DDP(), EVERYONE, is_kept=True)
LOCAL = [Candidate(tacit.LocalSGD(period=tacit.Every(n)), EVERYONE) for n in (2, 4, 8)]
SCOPE = Scope(lr=0.1, seeds=(0, 1), steps=1000, target_loss=0.5, within_s=None, budget_s=60.0)


def pace(step_s: float) -> Pace:
    return Pace(step_s=step_s, bytes_per_step=1.0, computing=0.5, hooks=0.0, waiting=0.0)


def run(task: PlanTask, steps: int | None) -> Run:
    """Return a run that reaches the target at ``steps``, or never."""
    reached = steps is not None and steps <= task.steps
    history = (
        [{"step": steps, "loss": 0.4, "time_s": math.nan}] if reached else [{"step": 1, "loss": 0.9, "time_s": 0.0}]
    )
    return Run("w", task.label, 2, task.steps, task.seed, history=history)


def carry_out(search: Search, steps: dict[Candidate, int | None]) -> list[PlanTask]:
    """Carry out all tasks with these steps to the target, and return them."""
    waiting, done = [task for _, task in search.first()], []
    while waiting:
        task = waiting.pop(0)
        assert isinstance(task, PlanTask)
        done.append(task)
        waiting += [more for _, more in search.after(task, run(task, steps[task.candidate]))]
    return done


def search(paces: dict[Candidate, float], scope: Scope = SCOPE, **more: object) -> Search:
    return Search(list(paces), {one: [pace(step_s)] for one, step_s in paces.items()}, scope, **more)


def test_waves_are_the_baseline_then_the_others_then_rates_then_seeds() -> None:
    paces = {DDP: 1.0, LOCAL[0]: 0.5, LOCAL[1]: 0.4, LOCAL[2]: 0.3}
    made = search(paces)
    done = carry_out(made, {DDP: 100, LOCAL[0]: 110, LOCAL[1]: 120, LOCAL[2]: 200})
    assert [task.candidate for task in done[:4]] == [DDP, *LOCAL]
    assert [task.lr for task in done[:4]] == [0.1] * 4 and {task.seed for task in done[:16]} == {0}
    assert {task.lr for task in done[4:16]} == {0.05, 0.2, 0.4}
    repeats = [task for task in done[16:] if task.seed == 1]
    assert {task.candidate for task in repeats} == {DDP, *LOCAL} and done[16 : 16 + len(repeats)] == repeats
    assert made.score(LOCAL[1]) == 48.0


def test_the_fastest_six_get_further_seeds() -> None:
    others = [Candidate(tacit.LocalSGD(period=tacit.Every(n)), EVERYONE) for n in range(2, 10)]
    made = search({DDP: 1.0, **dict.fromkeys(others, 0.5)}, replace(SCOPE, tunes=False))
    done = carry_out(made, {DDP: 100, **{one: 90 + place for place, one in enumerate(others)}})
    assert [task.candidate for task in done if task.seed == 1] == [DDP, *others[:6]]


def deciding(done: list[PlanTask]) -> list[PlanTask]:
    return [task for task in done if task.seed >= FIRST_DECIDING_SEED]


def test_close_finalists_get_more_seeds_until_one_is_clear() -> None:
    made = search({DDP: 1.0, LOCAL[0]: 0.5, LOCAL[1]: 0.4, LOCAL[2]: 0.3}, replace(SCOPE, tunes=False))
    done = carry_out(made, {DDP: 100, LOCAL[0]: 96, LOCAL[1]: 124, LOCAL[2]: 200})  # 100, 48, 49.6 and 60 s
    last = deciding(done)
    assert last == done[-len(last) :] and {task.candidate for task in last} == {LOCAL[0], LOCAL[1]}
    for own in (LOCAL[0], LOCAL[1]):
        assert [task.seed - FIRST_DECIDING_SEED for task in last if task.candidate == own] == list(range(18))


def test_further_seeds_end_when_one_is_clear() -> None:
    made = search({DDP: 1.0, LOCAL[0]: 0.5, LOCAL[1]: 0.4}, replace(SCOPE, tunes=False))
    done = carry_out(made, {DDP: 100, LOCAL[0]: 96, LOCAL[1]: 132})  # 10 % apart: close with 2 seeds, not with 8
    assert {task.seed - FIRST_DECIDING_SEED for task in deciding(done)} == set(range(6))


def test_a_clear_winner_needs_no_more_seeds() -> None:
    made = search({DDP: 1.0, LOCAL[1]: 0.4, LOCAL[2]: 0.3})
    done = carry_out(made, {DDP: 100, LOCAL[1]: 120, LOCAL[2]: 200})
    assert not deciding(done) and {task.seed for task in done} == {0, 1} and not made.is_cut


def test_one_seed_is_one_seed() -> None:
    made = search({DDP: 1.0, LOCAL[1]: 0.4, LOCAL[2]: 0.3}, replace(SCOPE, seeds=(3,)))
    assert {task.seed for task in carry_out(made, {DDP: 100, LOCAL[1]: 120, LOCAL[2]: 160})} == {3}


def test_candidates_that_cannot_win_are_skipped() -> None:
    made = search({DDP: 1.0, LOCAL[0]: 1.3, LOCAL[1]: 0.4})
    done = carry_out(made, {DDP: 100, LOCAL[0]: 100, LOCAL[1]: 100})
    assert LOCAL[0] not in {task.candidate for task in done}
    assert made.skipped == {LOCAL[0]: "takes at least 104 s"}


def test_no_candidate_is_simulated_for_longer_than_the_baseline_takes() -> None:
    done = carry_out(search({DDP: 1.0, LOCAL[0]: 0.5}), {DDP: 100, LOCAL[0]: None})
    (first,) = [task for task in done if task.candidate == LOCAL[0]]
    assert first.steps == 221  # 1.1 times 100 s, at 0.5 s a step


def test_without_a_baseline_that_reaches_the_target_nothing_is_skipped() -> None:
    made = search({DDP: 1.0, LOCAL[0]: 5.0})
    done = carry_out(made, {DDP: None, LOCAL[0]: 700})
    assert made.skipped == {} and LOCAL[0] in {task.candidate for task in done}


def test_a_spent_budget_ends_the_search_between_waves() -> None:
    times_s = iter([0.0, *[100.0] * 10])
    made = search({DDP: 1.0, LOCAL[0]: 0.5}, now_s=lambda: next(times_s))
    done = carry_out(made, {DDP: 100, LOCAL[0]: 100})
    assert made.is_cut and len(done) == 2


def test_losses_after_a_given_time_are_compared_at_the_same_time() -> None:
    scope = Scope(lr=0.1, seeds=(0,), steps=1000, target_loss=None, within_s=50.0, budget_s=60.0, tunes=False)
    done = carry_out(search({DDP: 1.0, LOCAL[0]: 0.5}, scope), {DDP: 1, LOCAL[0]: 1})
    assert {task.candidate: task.steps for task in done} == {DDP: 50, LOCAL[0]: 100}
