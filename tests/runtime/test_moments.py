"""Moments and fragments on real processes, beside the simulator: equal models and equal bytes."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import workloads
from tacit.runtime.train import train
from tests.runtime.processes import together

QUADRATIC = workloads.quadratic(dimension=7, heterogeneity=0.5)
EACH = {"exp_avg": 2, "exp_avg_sq": 3}
EVERY = tacit.Every(4)
SETTINGS = {"optimizer": "adam", "lr": 0.05, "steps": 14, "seed": 2, "evaluate_every": 14}
RUNS = [
    (tacit.AllReduce(), {"optimizer_state": "average", "moments_every": EACH}),
    (tacit.LocalSGD(period=EVERY), {"optimizer_state": "average"}),
    (tacit.LocalSGD(period=EVERY), {"optimizer_state": "reset"}),
    (tacit.LocalSGD(period=EVERY, overlap_steps=2), {"optimizer_state": "average", "moments_every": EACH}),
    (tacit.LocalSGD(period=EVERY, fragments=3), {"optimizer_state": "average", "moments_every": EACH}),
    (tacit.LocalSGD(period=EVERY, fragments=2, overlap_steps=1, mix=0.5), {"optimizer_state": "reset"}),
    (tacit.LocalSGD(period=EVERY, compressor=tacit.TopK(k=2)), {"optimizer_state": "average", "moments_every": 2}),
    (
        tacit.Hierarchical(outer=tacit.LocalSGD(period=EVERY), groups=2),
        {"optimizer_state": "average", "moments_every": EACH},
    ),
]


def train_all() -> list[tuple[torch.Tensor, int]]:
    runs = [train(QUADRATIC, strategy, **SETTINGS, **policy) for strategy, policy in RUNS]
    return [(run.parameters, run.summary()["bytes_sent"]) for run in runs]


def test_real_processes_average_the_moments_that_the_simulator_averages():
    real = together(2, train_all)
    for index, (strategy, policy) in enumerate(RUNS):
        run = tacit.simulate(QUADRATIC, strategy, cluster=tacit.Cluster(workers=2), **SETTINGS, **policy)
        for ranks in real:
            torch.testing.assert_close(ranks[index][0], run.parameters, msg=lambda text, of=strategy: f"{of}: {text}")
        assert real[0][index][1] == run.summary()["bytes_sent"], f"{strategy}, {policy}"  # rank 0 has the whole trace


def test_the_count_of_rounds_continues_from_a_checkpoint():
    """One process: after three rounds the next one is the fourth, in which the moments are due."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    session = tacit.attach(model, optimizer, tacit.AllReduce(), steps=9, optimizer_state="average", moments_every=2)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    stored = session.state_dict()
    assert stored["extra_rounds"] == 3
    session.load_state_dict({**stored, "extra_rounds": 7})
    assert session.state_dict()["extra_rounds"] == 7
    session.close()


def test_moments_on_periods_of_their_own_need_averages():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match='moments_every=3 needs optimizer_state="average"'):
        tacit.attach(model, torch.optim.Adam(model.parameters()), tacit.AllReduce(), moments_every=3)
