"""Compressed messages on real processes: scattered parts, buffers with compressed rounds, ranks that leave."""

from __future__ import annotations

import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.runtime.train import train
from tacit.testing.toys import Handing
from tests.runtime.processes import together

QUADRATIC = workloads.quadratic(dimension=3)


def hand() -> tuple[int, int, list[tuple[int, str, int]]]:
    run = train(QUADRATIC, Handing(), steps=2, seed=0, evaluate_every=1000)
    summary = run.summary()
    own = [(e.rank, e.label, e.size_bytes) for e in run.trace.of("exchange") if e.label == "all-to-all"]
    return summary["rounds"], summary["bytes_sent"], own


def test_an_all_to_all_costs_the_same_in_both_worlds():
    real = together(3, hand)
    run = tacit.simulate(QUADRATIC, Handing(), cluster=tacit.Cluster(workers=3), steps=2, seed=0)
    rounds, sent, own = real[0]
    assert (rounds, sent) == (run.summary()["rounds"], run.summary()["bytes_sent"])
    simulated = [(e.rank, e.label, e.size_bytes) for e in run.trace.of("exchange") if e.label == "all-to-all"]
    assert sorted(own) == sorted(simulated)


def batches() -> dict:
    torch.manual_seed(tacit.rank())
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = tacit.LocalSGD(period=tacit.Every(2), compressor=tacit.TopK(k=4))
    session = tacit.attach(model, optimizer, strategy)
    for _ in range(4 if tacit.rank() == 0 else 8):  # rank 0 runs out of data and owes something
        optimizer.zero_grad()
        model(torch.randn(8, 3) + tacit.rank()).square().mean().backward()
        optimizer.step()
    before = model[1].running_mean.clone()
    session.close()
    state = session.state_dict()["state"]
    return {
        "before": before,
        "mean": model[1].running_mean.clone(),
        "end": nn.utils.parameters_to_vector(model.parameters()),
        "error": state["feedback"]["own"]["error"],
        "labels": [e.label for e in session.run.trace.of("exchange") if e.rank == 0],
    }


def test_buffers_are_averaged_after_compressed_rounds_and_debts_are_paid():
    first, second = together(2, batches)
    assert torch.equal(first["end"], second["end"])
    assert torch.equal(first["mean"], second["mean"])
    assert not torch.equal(first["before"], second["before"])
    assert first["labels"][:4] == ["all-gather", "all-reduce"] * 2
    assert float(second["error"].norm()) > 0 and float(first["error"].norm()) < float(second["error"].norm())
