"""LBFGS in a loop of its own style (pytorch/examples, time_sequence_prediction): its state does not survive a change of
the model by others.
"""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import tacit

LOOP = """
torch.set_default_dtype(torch.float64)
model = network()
times = torch.linspace(0, 6, 40).reshape(10, 4) + draws.initial_seed() % 100
targets = torch.sin(times).sum(1, keepdim=True)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)


def closure():
    optimizer.zero_grad()
    loss = (model(torch.sin(times)) - targets).square().mean()
    loss.backward()
    return loss


with tacit.attach(model, optimizer, {strategy}, steps=12{policy}) as session:
    losses = [float(optimizer.step(closure).detach()) for _ in range(12)]
with torch.no_grad():
    losses.append((model(torch.sin(times)) - targets).square().mean().item())
tell(losses=losses, model=flat(model))
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["", ', optimizer_state="average"'])
@pytest.mark.parametrize(
    "strategy", ["LocalSGD(period=Every(1))", "LocalSGD(period=Every(3))", "SwarmSGD(local_steps=1)"]
)
def test_lbfgs_converges_with_strategies_that_average_models(play, strategy, policy):
    outcome = play(LOOP.format(strategy=strategy, policy=policy))
    for told in outcome.everybody:
        assert max(told["losses"]) < 10 * told["losses"][0], told["losses"]
        assert told["losses"][-1] < 0.2 * told["losses"][0], told["losses"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.eye(4)) - 1.0).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_the_reset_is_said_once_and_does_not_happen_where_the_model_is_not_changed(caplog):
    caplog.set_level(logging.WARNING, "tacit")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))):  # one worker: rounds change nothing
        for _ in range(4):
            step(model, optimizer)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "LBFGS" in said[0] and 'optimizer_state="keep"' in said[0], said
    assert optimizer.state[next(model.parameters())]["n_iter"] > 4
