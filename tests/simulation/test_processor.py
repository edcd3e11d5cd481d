"""Processor time that communication takes from the computation on the same core."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit import workloads
from tacit.record.trace import COMPUTE, EXCHANGE, RECEIVE, SEND
from tacit.simulation.computing.processor import Processor
from tacit.simulation.scripts.run import simulate_script


def test_work_without_transfers_takes_its_time() -> None:
    core = Processor()
    core.begin(0.1, 0.7)
    assert core.end_s() == 0.1 + 0.7


def test_a_transfer_takes_its_seconds_evenly() -> None:
    core = Processor()
    core.begin(0.0, 4.0)
    core.add(1.0, 3.0, 1.0)  # half of the core for 2 s
    assert core.end_s() == pytest.approx(5.0)
    core.begin(5.0, 1.0)
    assert core.end_s() == pytest.approx(6.0)


def test_work_that_ends_during_a_transfer_is_lengthened_by_its_share() -> None:
    core = Processor()
    core.add(0.0, 10.0, 5.0)
    core.begin(0.0, 2.0)
    assert core.end_s() == pytest.approx(4.0)


def test_the_core_serves_transfers_while_nothing_is_computed() -> None:
    core = Processor()
    core.add(0.0, 2.0, 2.0)
    core.begin(2.0, 1.0)
    assert core.end_s() == pytest.approx(3.0)


def test_a_transfer_takes_no_more_than_it_lasts() -> None:
    core = Processor()
    core.add(0.0, 2.0, 100.0)
    core.begin(0.0, 1.0)
    assert core.end_s() == pytest.approx(3.0)


def test_two_transfers_may_owe_time_beyond_their_end() -> None:
    core = Processor()
    core.add(0.0, 2.0, 1.5)
    core.add(0.0, 2.0, 1.5)
    core.begin(0.0, 1.0)
    assert core.end_s() == pytest.approx(4.0)  # 2 s of transfers, 1 s that they owe, 1 s of work


def test_a_transfer_that_begins_later_delays_the_end() -> None:
    core = Processor()
    core.begin(0.0, 1.0)
    assert core.end_s() == 1.0
    core.add(0.5, 0.75, 0.25)
    assert core.end_s() == pytest.approx(1.25)
    core.add(1.25, 2.0, 0.5)  # at the end of the work
    assert core.end_s() == pytest.approx(1.25)
    core.begin(2.0, 1.0)
    assert core.end_s() == pytest.approx(3.0)


def test_slow_workers_lose_the_same_seconds() -> None:
    core = Processor(lambda time_s: (0.5, math.inf))
    core.add(0.0, 1.0, 0.5)
    core.begin(0.0, 1.0)
    assert core.end_s() == pytest.approx(2.5)


CLUSTER = tacit.Cluster(
    workers=2,
    compute=tacit.Constant(mean_s=1.0),
    latency_s=0.0,
    bandwidth_bytes_per_s=1000.0,
    processor_s_per_byte=2.5e-4,
)
"""Bytes travel at 1000 a second in each direction, and 2000 of them take 0.5 s of the core: half of it."""
WITHOUT = replace(CLUSTER, processor_s_per_byte=0.0)


def simulated(strategy: tacit.Strategy[Any], cluster: tacit.Cluster, *, steps: int = 16, **options: Any) -> tacit.Run:
    workload = workloads.quadratic(dimension=500)  # 4 kB
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, **options)


def ends_s(run: tacit.Run, rank: int = 0) -> list[float]:
    return [event.time_s for event in run.trace.of(COMPUTE) if event.rank == rank]


OVERLAPPED = tacit.LocalSGD(period=tacit.Every(8), overlap_steps=6)


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_round_lengthens_the_steps_beside_it(timing_only: bool) -> None:
    run = simulated(OVERLAPPED, CLUSTER, timing_only=timing_only)
    first = next(iter(run.trace.of(EXCHANGE)))
    lasts_s = first.size_bytes / 1000
    assert first.start_s == 8.0 and first.time_s == pytest.approx(8.0 + lasts_s) and 4.0 < lasts_s < 4.1
    # Half of the core computes: two steps of two seconds; the third has the rest of the round and then the whole core.
    done = (lasts_s - 4.0) / 2
    third_s = 8.0 + lasts_s + 1.0 - done
    assert ends_s(run)[8:12] == pytest.approx([10.0, 12.0, third_s, third_s + 1.0])
    assert ends_s(run, 1) == pytest.approx(ends_s(run))


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.AllReduce(),
        tacit.LocalSGD(period=tacit.Every(4)),
        tacit.LocalSGD(period=tacit.Every(4), outer=tacit.SlowMo()),
    ],
)
def test_a_round_that_is_waited_for_lengthens_no_step(strategy: tacit.Strategy[Any]) -> None:
    run, before = simulated(strategy, CLUSTER), simulated(strategy, WITHOUT)
    assert run.trace.digest == before.trace.digest


@pytest.mark.parametrize(
    "strategy", [OVERLAPPED, tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2)]
)
def test_models_are_the_same_with_and_without(strategy: tacit.Strategy[Any]) -> None:
    run, before = simulated(strategy, CLUSTER), simulated(strategy, WITHOUT)
    assert run.parameters is not None and before.parameters is not None
    assert run.parameters.tolist() == before.parameters.tolist()
    assert [row["loss"] for row in run.history] == [row["loss"] for row in before.history]


def test_messages_take_time_at_both_ends() -> None:
    run = simulated(tacit.SwarmSGD(local_steps=4), CLUSTER, timing_only=True, steps=5)
    sent = [event for event in run.trace.of(SEND) if event.time_s == 4.0]
    received = [event for event in run.trace.of(RECEIVE) if event.rank == 0]
    assert sent and received
    assert ends_s(run)[3] == 4.0
    assert ends_s(run)[4] > 5.0


@pytest.mark.parametrize("strategy", [OVERLAPPED, tacit.SwarmSGD(local_steps=4)])
def test_messages_within_a_host_take_no_processor_time(strategy: tacit.Strategy[Any]) -> None:
    cluster, without = (replace(one, hosts=1, host_bandwidth_bytes_per_s=1000.0) for one in (CLUSTER, WITHOUT))
    run, before = (simulated(strategy, one, timing_only=True) for one in (cluster, without))
    assert run.trace.digest == before.trace.digest


def test_a_server_on_the_host_of_rank_0_takes_its_time() -> None:
    at_rank_0 = replace(CLUSTER, server="rank0", bandwidth_bytes_per_s=10_000.0)
    run = simulated(tacit.KAsync(k=1), at_rank_0, timing_only=True)
    by_rank = {
        rank: [event.time_s - event.start_s for event in run.trace.of(COMPUTE) if event.rank == rank] for rank in (0, 1)
    }
    assert max(by_rank[0]) > 1.5  # the messages of rank 1 pass its NIC and core while it computes
    assert max(by_rank[1]) == pytest.approx(1.0)  # it waits for its own messages


def test_faults_and_cancelled_steps_work_beside_transfers() -> None:
    slow = replace(CLUSTER, faults=[tacit.Slow(rank=1, factor=2.0, at_s=0.0), tacit.Pause(rank=0, at_s=2.5, for_s=1.0)])
    run = simulated(OVERLAPPED, slow, timing_only=True)
    assert ends_s(run)[:3] == pytest.approx([1.0, 2.0, 4.0])
    assert ends_s(run, 1)[:2] == pytest.approx([2.0, 4.0])
    for cancel in ("instant", "step_end"):
        run = simulated(tacit.KSync(k=1), replace(CLUSTER, cancel=cancel), steps=6)
        assert run.status == "finished"


def test_a_script_is_simulated_alike(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, tacit\n"
        "model = torch.nn.Linear(500, 1, bias=False)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(8), overlap_steps=6), steps=16)\n"
        "while not session.is_done:\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 500)).sum().backward()\n"
        "    optimizer.step()\n"
        "session.close()\n"
    )
    run = simulate_script(script, cluster=CLUSTER)
    first = next(iter(run.trace.of(EXCHANGE)))
    lasts_s = first.size_bytes / 1000
    assert first.start_s == 8.0 and 2.0 < lasts_s < 2.1
    done = (lasts_s - 2.0) / 2
    second_s = 8.0 + lasts_s + 1.0 - done
    assert ends_s(run)[8:11] == pytest.approx([10.0, second_s, second_s + 1.0])


@pytest.mark.parametrize("wrong", [-1.0, math.inf])
def test_the_processor_time_of_a_byte_is_checked(wrong: float) -> None:
    with pytest.raises(ValueError, match="processor_s_per_byte"):
        tacit.Cluster(processor_s_per_byte=wrong)


def test_the_setting_is_in_the_table_only_if_given() -> None:
    assert "processor_s_per_byte" not in WITHOUT.table()
    assert CLUSTER.table()["processor_s_per_byte"] == 2.5e-4
