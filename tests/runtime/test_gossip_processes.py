"""Gossip on real processes: data that ends early, a neighbour that is lost, and going on from a checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.session import checkpoints
from tacit.strategies import Strategy
from tests.runtime.processes import Failed, outcomes, together

ROUNDS = [
    tacit.DPSGD(topology=tacit.Ring()),
    tacit.SGP(topology=tacit.OnePeer()),
    tacit.CHOCO(topology=tacit.Ring(), compressor=tacit.TopK(k=9), gamma=0.4),
]
ALL = [*ROUNDS, tacit.AsynchronousDPSGD(topology=tacit.Ring())]
COUNTS = [13, 5, 10, 7]


def learner(
    strategy: Strategy, steps: int | None, rescue_folder: str | None = None
) -> tuple[nn.Module, torch.optim.Optimizer, tacit.Session]:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    nn.utils.vector_to_parameters(torch.linspace(-1, 1, 41), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    session = tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=20, rescue_folder=rescue_folder)
    return model, optimizer, session


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    x = torch.from_numpy(np.random.default_rng([tacit.rank(), step]).standard_normal((16, 6))).float()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, :1])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def uneven(steps: int | None) -> list[dict]:
    results = []
    for strategy in ALL:
        model, optimizer, session = learner(strategy, steps)
        for step in range(COUNTS[tacit.rank()]):
            learn(model, optimizer, step)
        run = session.close()
        sent = Counter(event.rank for event in run.trace if event.kind == "send" and event.label == "gossip")
        results.append({"end": run.parameters, "sent": sent})
    return results


@pytest.mark.parametrize(("steps", "further"), [(13, (0, 0, 0)), (None, (2, 2, 2))])
def test_nodes_whose_data_ends_early_go_on_passing_models_along(steps: int | None, further: tuple[int, ...]):
    """Of unknown length, all stop as many rounds after the last data as news take to everybody: two here, on both
    graphs.
    """
    results = together(4, uneven, steps)
    for place, rounds in enumerate(further):
        degree = 1 if place == 1 else 2
        assert results[0][place]["sent"] == dict.fromkeys(range(4), (13 + rounds) * degree), ROUNDS[place]
    for place, strategy in enumerate(ALL):
        for other in results[1:]:
            assert torch.equal(other[place]["end"], results[0][place]["end"]), strategy


def one_dies(strategy: Strategy, folder: str) -> str:
    model, optimizer, session = learner(strategy, 40, folder)
    for step in range(40):
        if tacit.rank() == 2 and step == 11:
            os._exit(3)
        learn(model, optimizer, step)
    session.close()
    return "finished"


@pytest.mark.parametrize("strategy", ROUNDS, ids=str)
def test_a_lost_neighbour_is_named_by_all_and_the_others_leave_a_checkpoint(strategy: Strategy, tmp_path: Path):
    """Those that do not wait for the lost one wait for one that has ended for it."""
    results = outcomes(4, one_dies, strategy, str(tmp_path))
    survivors = [result for rank, result in enumerate(results) if rank != 2]
    assert all(isinstance(result, Failed) and result.name == "PeerLost" for result in survivors), survivors
    assert all(result.text.startswith("worker 2 was lost at ") for result in survivors), survivors
    assert all("The state of the remaining workers is in" in result.text for result in survivors), survivors
    assert len(checkpoints.read(tmp_path, 0, 4)) == 3


def in_two_parts(folder: str | None, strategies: list[Strategy]) -> list[dict]:
    results = []
    for place, strategy in enumerate(strategies):
        model, optimizer, session = learner(strategy, 30)
        home = None if folder is None else Path(folder) / str(place)
        begun = session.resume(home) if home is not None and home.exists() else 0
        losses = []
        for step in range(begun, 30):
            if home is not None and not begun and step == 15:
                session.checkpoint(home)
            losses.append(learn(model, optimizer, step))
        run = session.close()
        results.append({"begun": begun, "end": run.parameters, "losses": losses})
    return results


def test_a_run_goes_on_from_its_checkpoint_also_with_fewer_nodes(tmp_path: Path):
    """With as many nodes bit for bit, where the strategy is synchronous; with fewer, from the mean."""
    whole = together(4, in_two_parts, str(tmp_path), ALL)
    again = together(4, in_two_parts, str(tmp_path), ALL)
    fewer = together(3, in_two_parts, str(tmp_path), ALL)
    for place, strategy in enumerate(ALL):
        assert again[0][place]["begun"] == fewer[0][place]["begun"] == 15
        if strategy in ROUNDS:
            assert torch.equal(again[0][place]["end"], whole[0][place]["end"]), strategy
        for results in (again, fewer):
            assert all(torch.equal(other[place]["end"], results[0][place]["end"]) for other in results), strategy
            assert np.mean(results[0][place]["losses"][-5:]) < np.mean(whole[0][place]["losses"][:5]), strategy
