"""The same strategy on real processes and in the simulator: the same model from the same seeds and, where that matters,
the same order of events.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import tacit
from tacit import workloads
from tacit.runtime.train import train
from tacit.strategies import Strategy, may_send
from tests.runtime.processes import together
from tests.strategy_table import TABLE

SEED = 2


def play(rows: list[Strategy], workload: workloads.Workload, settings: dict) -> list[dict]:
    """Train with each strategy in turn; return what the simulator would be asked for."""
    results = []
    for strategy in rows:
        run = train(workload, strategy, **settings)
        results.append(
            {
                "parameters": run.parameters,
                "rounds": run.summary()["rounds"],
                "bytes": run.summary()["bytes_sent"],
                "steps": run.summary()["steps"],
                "losses": [row["loss"] for row in run.history],
                "periods": [row["period"] for row in run.history],
                "status": run.status,
            }
        )
    return results


@pytest.mark.parametrize(
    ("workload", "workers", "arguments", "tolerance", "every"),
    [
        (
            workloads.quadratic(dimension=7, heterogeneity=0.5),
            2,
            {"steps": 16},
            1e-12,
            1,
        ),  # float64: two numbers have one sum
        (
            workloads.digits(crop_padding=1, flip=True),
            3,
            {"steps": 13, "lr": 0.2, "momentum": 0.9},
            2e-5,
            2,
        ),  # float32: gloo adds in another order
    ],
    ids=str,
)
def test_real_processes_reach_the_simulators_parameters(workload, workers, arguments, tolerance, every):
    """All rows of the table on the quadratic, every second one on digits."""
    strategies = [row.strategy for row in TABLE if not row.is_asynchronous][::every]
    settings = {"seed": SEED, "evaluate_every": 10, **arguments}
    real = together(workers, play, strategies, workload, settings, timeout_s=180)
    for index, strategy in enumerate(strategies):
        run = tacit.simulate(workload, strategy, cluster=tacit.Cluster(workers=workers), **settings)
        # Adam divides by moments near zero, which blows rounding errors up a hundredfold where there are any.
        amplified = 100 if "OuterAdam" in str(strategy) and tolerance > 1e-9 else 1
        close = {"rtol": amplified * tolerance, "atol": amplified * tolerance}
        for rank in range(workers):
            result = real[rank][index]
            torch.testing.assert_close(
                result["parameters"], run.parameters, **close, msg=lambda text, s=strategy: f"{s}: {text}"
            )
        first = real[0][index]
        assert (first["steps"], first["rounds"], first["bytes"]) == (
            arguments["steps"],
            run.summary()["rounds"],
            run.summary()["bytes_sent"],
        )
        assert first["losses"] == pytest.approx([row["loss"] for row in run.history], rel=1e-3)
        assert first["status"] == "finished"


def periods(rows: list[Strategy], workload: workloads.Workload, settings: dict) -> list[list[float]]:
    runs = [train(workload, strategy, **settings) for strategy in rows]
    return [[event.value for event in run.trace if event.label == "period"] for run in runs]


def test_periods_from_rates_and_from_measured_times_on_processes():
    """No round takes more than a million steps, or less than a millionth of one: the two paces are known beforehand."""
    rate = tacit.LocalSGD(period=tacit.RatePeriod(initial=2, power=2, maximum=9))
    longest, shortest = (tacit.PacePeriod(communication=share, maximum=3) for share in (1e-6, 1 - 1e-6))
    quantized = tacit.QSGD(bits=8)
    strategies = [
        rate,
        tacit.LocalSGD(period=longest),
        tacit.LocalSGD(period=longest, compressor=quantized),
        tacit.LocalSGD(period=longest, overlap_steps=2),
        tacit.LocalSGD(period=shortest),
    ]
    settings = {"seed": SEED, "steps": 20, "schedule": tacit.StepDecay(by=0.5)}
    workload = workloads.quadratic(dimension=7)
    found, others = together(2, periods, strategies, workload, settings)
    simulated = tacit.simulate(workload, rate, cluster=tacit.Cluster(workers=2), **settings)
    assert found[0] == [event.value for event in simulated.trace if event.label == "period"]
    assert found[1] == found[2] == [1] * 4 + [3] * 6
    assert found[3][-1] == 3
    assert found[4] == [1] * 20
    assert others == [[]] * 5  # rank 0 alone notes them


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_unequal_shards_weigh_the_same_in_both_worlds(weights):
    """Shards of 2, 2 and 4 samples, full gradients."""
    draws = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, generator=draws, dtype=torch.float64) for shape in ((8, 3), (8,)))
    workload = workloads.least_squares((x, y), split="contiguous", batch_size=None)
    strategies = [
        tacit.AllReduce(weights=weights),
        tacit.CompressedGradient(compressor=tacit.TopK(k=1), weights=weights),
        tacit.LocalSGD(period=tacit.AdaCommPeriod(initial=4), weights=weights),
        tacit.LocalSGD(period=tacit.Every(3), compressor=tacit.TopK(k=1), weights=weights),
    ]
    settings = {"seed": SEED, "steps": 20}
    cluster = tacit.Cluster(workers=3)
    runs = [tacit.simulate(workload, strategy, cluster=cluster, **settings) for strategy in strategies]
    for results in together(3, play, strategies, workload, settings):
        for run, result in zip(runs, results, strict=True):
            torch.testing.assert_close(result["parameters"], run.parameters, rtol=0, atol=1e-13)
            assert result["rounds"] == run.summary()["rounds"]


def record(rows: list[Strategy], workload: workloads.Workload, settings: dict) -> list[tacit.Run]:
    return [train(workload, strategy, **settings) for strategy in rows]


@pytest.mark.parametrize(
    ("workload", "workers", "arguments", "tolerance", "every"),
    [
        (workloads.quadratic(dimension=7, heterogeneity=0.5), 3, {"steps": 16}, 1e-12, 1),
        (workloads.digits(), 2, {"steps": 13, "lr": 0.2, "momentum": 0.9, "schedule": tacit.Cosine()}, 2e-5, 2),
    ],
    ids=str,
)
def test_processes_that_send_messages_and_their_replay_reach_the_same_parameters(
    workload, workers, arguments, tolerance, every
):
    """All rows of the table on the quadratic, every second one on digits."""
    has_messages = [row for row in TABLE if may_send(row.strategy)]
    rows = [row.strategy for row in has_messages if row.fewest_workers <= workers][::every]
    settings = {"seed": SEED, "evaluate_every": 10, **arguments}
    for strategy, run in zip(rows, together(workers, record, rows, workload, settings)[0], strict=True):
        again = tacit.simulate(workload, strategy, **settings, replay=run)
        torch.testing.assert_close(
            again.parameters,
            run.parameters,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, s=strategy: f"{s}: {text}",
        )
        sent = [(event.rank, event.peer, event.label) for event in run.trace.of("send") if event.rank >= 0]
        repeated = [(event.rank, event.peer, event.label) for event in again.trace.of("send") if event.rank >= 0]
        surplus = Counter(repeated) - Counter(sent)
        assert not surplus, f"{strategy} sends in its replay what it never sent: {surplus}"


def test_a_replay_that_leaves_its_record_says_where():
    workload, strategy = workloads.quadratic(dimension=7), tacit.SwarmSGD(local_steps=2)
    settings = {"steps": 20, "seed": SEED}
    [run] = together(2, record, [strategy], workload, settings)[0]
    with pytest.raises(
        tacit.ReplayDiverged, match="diverged from its record: worker . .* where the real run has"
    ) as caught:
        tacit.simulate(workload, tacit.SwarmSGD(local_steps=3), **settings, replay=run)
    assert caught.value.run is not None
    with pytest.raises(ValueError, match="leave cluster=… out"):
        tacit.simulate(workload, strategy, **settings, replay=run, cluster=tacit.Cluster(workers=2))
    with pytest.raises(ValueError, match="sends no messages"):
        tacit.simulate(workload, tacit.AllReduce(), **settings, replay=run)
    with pytest.raises(ValueError, match="was not made on real processes"):
        tacit.simulate(workload, strategy, **settings, replay=tacit.simulate(workload, strategy, **settings))
