"""Groups of ranks on real processes: buffers and moments, and the bytes that the simulator counts."""

from __future__ import annotations

import torch
from torch import nn

import tacit
from tacit.runtime.train import train
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, close, flat, learn

STRATEGY = tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(3)), groups=2)


def buffers(norm: nn.BatchNorm1d) -> torch.Tensor:
    return torch.cat([buffer.clone() for buffer in norm.buffers() if buffer.is_floating_point()])


def run_in_groups(strategy: tacit.Strategy) -> dict[str, object]:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found: dict[str, object] = {}
    try:
        tacit.attach(model, optimizer, tacit.Hierarchical(), steps=1).close()
    except ValueError as error:
        found["refused"] = str(error)
    with tacit.attach(model, optimizer, strategy, steps=6, optimizer_state="average", timeout_s=20) as session:
        learn(model, optimizer, batches(tacit.rank(), 2))
        found["between"] = buffers(norm)[:3]
        learn(model, optimizer, batches(tacit.rank(), 1, first=2))
        found["moments"] = torch.cat([optimizer.state[p]["exp_avg"].reshape(-1) for p in model.parameters()])
        found["buffers"] = buffers(norm)
        learn(model, optimizer, batches(tacit.rank(), 3, first=3))
    return {**found, "end": flat(model), "bytes": session.run.summary()["bytes_sent"]}


def test_rounds_across_groups_average_models_buffers_and_moments():
    results = together(4, run_in_groups, STRATEGY)
    first = results[0]
    assert "here workers=4 on 1 host" in first["refused"]
    assert not torch.allclose(first["between"], results[1]["between"])
    for other in results[1:]:
        for name in ("moments", "buffers", "end"):
            close(other[name], first[name])


def train_in_groups(strategy: tacit.Strategy, settings: dict) -> tuple[torch.Tensor, int, int]:
    run = train(tacit.workloads.quadratic(dimension=7), strategy, **settings)
    summary = run.summary()
    return run.parameters, summary["bytes_sent"], summary["rounds"]


def test_four_processes_send_what_the_simulator_counts():
    outer = tacit.LocalSGD(period=tacit.Every(4), outer=tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True))
    strategy, settings = (
        tacit.Hierarchical(outer=outer, groups=[[3, 1], [0, 2]]),
        {"steps": 10, "seed": 2, "evaluate_every": 10},
    )
    run = tacit.simulate(tacit.workloads.quadratic(dimension=7), strategy, cluster=tacit.Cluster(workers=4), **settings)
    real = together(4, train_in_groups, strategy, settings)
    for parameters, _, _ in real:
        torch.testing.assert_close(parameters, run.parameters)
    assert real[0][1:] == (run.summary()["bytes_sent"], run.summary()["rounds"])  # rank 0 has the whole trace
