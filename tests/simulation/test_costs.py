"""Costs of work in hooks: virtual time passes, and results stay the same."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import tacit
from tacit import workloads
from tacit.cluster.costs import cost_s
from tacit.record.files import toml_text
from tacit.record.trace import COMPUTE, EXCHANGE, HOOK
from tacit.registry import parse
from tacit.registry.tables import cluster_of
from tacit.simulation.scripts.run import simulate_script

STEP_S, NUMBERS = 0.5, 1000
QUADRATIC = workloads.quadratic(dimension=NUMBERS)


def run_with(strategy: tacit.Strategy, workers: int = 3, steps: int = 6, **rest: object) -> tacit.Run:
    cluster = tacit.Cluster(workers=workers, compute=tacit.Constant(mean_s=STEP_S), **rest)  # type: ignore[arg-type]
    return tacit.simulate(QUADRATIC, strategy, cluster=cluster, steps=steps)


def test_a_cost_is_found_by_its_full_name_then_by_its_work() -> None:
    costs = {"encode": 2.0, "encode TopK": (3.0, 5.0), "decode": (1.0,)}
    assert cost_s(costs, "encode TopK", 10) == 35.0
    assert cost_s(costs, "encode QSGD", 10) == 20.0
    assert cost_s(costs, "decode TopK", 10) == 10.0
    assert cost_s(costs, "divide", 10) == 0.0


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"encod": 1e-9}, "unknown work.*encode"),
        ({"divide TopK": 1e-9}, 'write "encode" or "encode TopK"'),
        ({"encode": -1.0}, "at least 0"),
        ({"encode": (1e-9, 1e-3, 1.0)}, "or a pair"),
        ({"": 1e-9}, "unknown work"),
    ],
)
def test_wrong_costs_are_refused(costs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacit.Cluster(costs=costs)


def test_costs_survive_notation_and_toml() -> None:
    cluster = tacit.Cluster(workers=2, costs={"encode TopK": (3e-8, 1e-4), "update": 1e-9})
    assert parse(str(cluster), "cluster") == cluster
    assert cluster_of(tomllib.loads(toml_text(cluster.table()))) == cluster
    assert "costs" not in tacit.Cluster().table()


def test_flattening_and_dividing_lengthen_each_step_of_an_all_reduce() -> None:
    free = run_with(tacit.AllReduce())
    run = run_with(tacit.AllReduce(), costs={"flatten": 1e-4, "divide": (1e-5, 0.02)})
    per_step_s = 1e-4 * NUMBERS + 1e-5 * NUMBERS + 0.02
    assert run.summary()["time_s"] == pytest.approx(free.summary()["time_s"] + 6 * per_step_s)
    torch.testing.assert_close(run.parameters, free.parameters, rtol=0, atol=0)
    events = [event for event in run.trace if event.rank == 1][:4]
    assert [(event.kind, event.label) for event in events] == [
        (COMPUTE, ""),
        (HOOK, "flatten"),
        (EXCHANGE, "all-reduce"),
        (HOOK, "divide"),
    ]
    assert all(later.start_s == pytest.approx(event.time_s) for event, later in pairwise(events))
    assert events[1].value == NUMBERS
    assert run.summary()["hooks"] == pytest.approx(6 * per_step_s / run.summary()["time_s"])
    assert free.summary()["hooks"] == 0.0 and not free.trace.of(HOOK)


@pytest.mark.parametrize("aggregate", ["gather", "scatter"])
def test_encoding_and_decoding_have_the_cost_of_their_compressor(aggregate: str) -> None:
    compressor = tacit.TopK(k=5) if aggregate == "gather" else tacit.QSGD(bits=8)
    feedback = tacit.EF21() if aggregate == "gather" else tacit.NoFeedback()
    strategy = tacit.CompressedGradient(compressor=compressor, feedback=feedback, aggregate=aggregate)
    name = type(compressor).__name__
    costs = {f"encode {name}": 1e-4, "encode": 9.0, "decode": 1e-5}
    free, run = run_with(strategy), run_with(strategy, costs=costs)
    decoded = 3 if aggregate == "gather" else 2  # the messages of three ranks; or a range of each, then the replies
    per_step_s = (1e-4 + decoded * 1e-5) * NUMBERS
    assert run.summary()["time_s"] == pytest.approx(free.summary()["time_s"] + 6 * per_step_s)
    torch.testing.assert_close(run.parameters, free.parameters, rtol=0, atol=0)
    assert {event.label for event in run.trace.of(HOOK)} == {f"encode {name}", f"decode {name}"}


def test_an_overlapped_round_pays_for_its_copy_and_its_division() -> None:
    strategy = tacit.LocalSGD(period=tacit.Every(3), overlap_steps=1)
    run = run_with(strategy, costs={"flatten": 1e-4, "divide": 1e-4})
    labels = [event.label for event in run.trace.of(HOOK) if event.rank == 0]
    assert labels == ["flatten", "divide"] * (len(labels) // 2) and labels


def test_a_servers_update_takes_time_also_in_timing_only_runs() -> None:
    cluster = {"workers": 2, "compute": tacit.Constant(mean_s=STEP_S), "latency_s": 0.0}
    cluster["bandwidth_bytes_per_s"] = float("inf")  # the shorter path of timing-only runs would apply
    times_s = []
    for costs in ({}, {"update": 1e-4}):
        run = tacit.simulate(
            QUADRATIC, tacit.KSync(k=2), cluster=tacit.Cluster(**cluster, costs=costs), steps=5, timing_only=True
        )
        times_s.append(run.summary()["time_s"])
    assert times_s[1] == pytest.approx(times_s[0] + 5 * 1e-4 * NUMBERS)
    assert {event.rank for event in run.trace.of(HOOK)} == {-1}


class SlowHook(tacit.Strategy[None]):
    """Rank 0 works in its hook for a while; rank 1 sends it a message meanwhile, which it handles."""

    handles = (tacit.core.messages.TensorMessage,)

    def after_step(self, worker, state):
        if worker.step == 1 and worker.rank == 0:
            worker.spend("encode", 1000)
        if worker.step == 1 and worker.rank == 1:
            worker.network.send(0, tacit.core.messages.TensorMessage(torch.ones(1)))

    def on_message(self, worker, state, source, message):
        worker.spend("encode", 1000)  # a handler takes no time
        worker.note("handled", 1.0)


def test_a_handler_waits_until_the_work_of_a_hook_is_done() -> None:
    run = run_with(SlowHook(), workers=2, steps=2, costs={"encode": 1e-3})
    [hook], [handled] = run.trace.of(HOOK), [event for event in run.trace if event.label == "handled"]
    assert (hook.start_s, hook.time_s) == (STEP_S, STEP_S + 1.0)
    assert handled.time_s == hook.time_s


def test_a_worker_that_crashes_during_its_work_stops() -> None:
    with pytest.raises(tacit.PeerLost, match="worker 1"):
        run_with(tacit.AllReduce(), costs={"flatten": 1e-3}, faults=[tacit.Crash(rank=1, at_s=STEP_S + 0.5)])


SCRIPT = """
import torch, tacit
model = torch.nn.Linear(999, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tacit.attach(model, optimizer, tacit.AllReduce(), steps=3) as session:
    while not session.is_done:
        optimizer.zero_grad()
        model(torch.ones(4, 999)).square().mean().backward()
        optimizer.step()
"""


def test_costs_apply_to_scripts(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    times_s = []
    for costs in ({}, {"flatten": 1e-4, "divide": 1e-5}):
        cluster = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=STEP_S), costs=costs)
        run = simulate_script(path, cluster=cluster)
        times_s.append(run.summary()["time_s"])
    assert times_s[1] == pytest.approx(times_s[0] + 3 * 1.1e-4 * NUMBERS)
    assert [event.label for event in run.trace.of(HOOK) if event.rank == 0] == ["flatten", "divide"] * 3
