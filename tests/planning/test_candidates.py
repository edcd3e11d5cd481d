"""Candidates of a plan: sets of workers and strategies."""

from __future__ import annotations

import tacit
from tacit.planning.candidates import candidates, strategies_for, worker_sets


def profile(workers: int, **more: object) -> tacit.Profile:
    return tacit.Profile(workers=workers, compute=tacit.Constant(mean_s=0.02), **more)


def test_slow_workers_may_be_left_out_and_one_may_work_alone() -> None:
    assert worker_sets(profile(4)) == [(0, 1, 2, 3), (0,)]
    assert worker_sets(profile(4, speed={1: 1 / 3})) == [(0, 1, 2, 3), (0, 2, 3), (0,)]
    assert worker_sets(profile(4, speed={0: 0.5, 1: 0.1})) == [(0, 1, 2, 3), (0, 2, 3), (2, 3), (2,)]
    assert worker_sets(profile(2, speed={0: 0.1})) == [(0, 1), (1,)]
    assert worker_sets(profile(1)) == [(0,)]


def test_ddp_and_the_users_own_strategy_stay() -> None:
    own = tacit.LocalSGD(period=tacit.Every(7))
    kept = [str(one.strategy) for one in candidates(profile(4), own) if one.is_kept]
    assert kept == ["DDP()", "LocalSGD(period=Every(7))"]
    assert len({(str(one.strategy), one.ranks) for one in candidates(profile(4), own)}) == len(
        candidates(profile(4), own)
    )


def test_two_workers_do_not_gossip() -> None:
    assert not any(isinstance(one, tacit.SwarmSGD) for one in strategies_for(2, {}))
    assert any(isinstance(one, tacit.SwarmSGD) for one in strategies_for(3, {}))
    assert [str(one) for one in strategies_for(1, {})] == ["DDP()"]


def test_compressors_need_a_measured_cost_once_costs_are_measured() -> None:
    def compressed(costs: dict[str, float]) -> set[str]:
        found = (getattr(one, "compressor", None) for one in strategies_for(4, costs))
        return {type(one).__name__ for one in found if one is not None}

    assert compressed({}) == {"TopK", "QSGD"}
    assert compressed({"flatten": 1e-9}) == set()
    assert compressed({"encode TopK": 1e-8}) == {"TopK"}


def test_a_profile_of_some_ranks_has_their_speeds_hosts_and_links() -> None:
    whole = tacit.Profile(
        workers=4,
        compute=[tacit.Constant(mean_s=s) for s in (1.0, 2.0, 3.0, 4.0)],
        speed={3: 0.5},
        hosts=[0, 0, 1, 1],
        links={(0, 3): tacit.Link(latency_s=0.5), (1, 2): tacit.Link(latency_s=0.25)},
        peak_memory_bytes={0: 10, 3: 40},
    )
    part = whole.of_ranks([0, 2, 3])
    assert [part.mean_step_s(rank) for rank in range(3)] == [1.0, 3.0, 8.0]
    assert (part.hosts, dict(part.links)) == ([0, 1, 1], {(0, 2): tacit.Link(latency_s=0.5)})
    assert part.peak_memory_bytes == {0: 10, 2: 40}
