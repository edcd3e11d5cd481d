"""Loops that give ``optimizer.step`` a closure, as Lightning always does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit

LOOP = """
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
evaluations = []


def closure():
    optimizer.zero_grad()
    loss = model(batch()).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    session.observe(loss)
    evaluations.append(loss.item())
    return loss


with tacit.attach(model, optimizer, {strategy}, steps=9) as session:
    losses = []
    while not session.is_done:
        losses.append({step})
tell(model=flat(model), losses=[loss.item() for loss in losses], evaluations=evaluations)
"""
PLAIN = "(loss := closure(), optimizer.step())[0]"
STRATEGIES = [
    "AllReduce()",
    "CompressedGradient(compressor=TopK(k=5), feedback=EF21())",
    "LocalSGD(period=Every(4))",
    "KSync(k=2)",
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("step", ["optimizer.step(closure)", "optimizer.step(closure=closure)"])
def test_a_step_with_a_closure_is_the_step_without(play, strategy, step):
    outcome = play(LOOP.format(strategy=strategy, step=step))
    plain = play(LOOP.format(strategy=strategy, step=PLAIN))
    for told, expected in zip(outcome.everybody, plain.everybody, strict=True):
        assert torch.equal(told["model"], expected["model"])
        assert told["losses"] == told["evaluations"] == expected["evaluations"]  # evaluated once a step, and returned


def test_kasync_takes_closures(play):
    outcome = play(LOOP.format(strategy="KAsync(k=2)", step="optimizer.step(closure)"))
    for told in outcome.everybody:
        assert told["losses"] == told["evaluations"]


class TwoEvaluations(torch.optim.SGD):
    """In the manner of SAM: steps up, evaluates again, steps down from where it was."""

    is_sharpness_aware = True

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                if self.is_sharpness_aware:
                    parameter.add_(parameter.grad, alpha=0.1)
        loss = closure()
        if not self.is_sharpness_aware:
            closure()
        super().step()
        return loss


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer):
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("is_sharpness_aware", [True, False])
def test_an_optimizer_that_evaluates_twice_is_refused_where_gradients_are_communicated(is_sharpness_aware):
    model = nn.Linear(4, 1)
    optimizer = TwoEvaluations(model.parameters(), lr=0.1)
    optimizer.is_sharpness_aware = is_sharpness_aware
    closure = closure_of(model, optimizer)
    closure()
    with tacit.attach(model, optimizer, tacit.LocalSGD()):
        optimizer.step(closure)
    tacit.attach(model, optimizer, tacit.AllReduce())
    with pytest.raises(tacit.MisplacedCall, match="TwoEvaluations evaluates its closure several times"):
        optimizer.step(closure)


def test_lbfgs_is_refused_at_attach_where_gradients_are_communicated():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    for strategy in (tacit.AllReduce(), tacit.KAsync(k=1)):
        with pytest.raises(ValueError, match="LBFGS computes several gradients in one step"):
            tacit.attach(model, optimizer, strategy)


def test_a_closure_that_computes_gradients_after_they_were_communicated_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model)
    tacit.attach(model, [first, second], tacit.AllReduce())
    first.step(closure_of(model, first))
    second.step(lambda: None)  # in the manner of Lightning's manual optimization: computes nothing
    first.step(closure_of(model, first))
    with pytest.raises(
        tacit.MisplacedCall, match="gradients of SGD were computed after those of this step were communicated"
    ):
        second.step(closure_of(model, second))
