"""A worker that was started again with other settings is refused with the first difference; nobody else is disturbed."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest
import torch

import tacit
from tacit.runtime import backend
from tests.runtime.elastic import Launch
from tests.runtime.processes import Failed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
ROUNDS, MESSAGES = tacit.LocalSGD(period=tacit.Every(4)), tacit.SwarmSGD(local_steps=2)
REFUSED = [
    ("kind", "strategy is {other} on rank 2, {own} on rank 0"),
    ("version", "tacit is 0.0.1 on rank 2"),
    ("seed", "seed is 1 on rank 2, 0 on rank 0"),
    ("shape", r"parameters, weight is \(1, 5\)"),
    ("dtype", "float64 .* on rank 2"),
]
"""What each life of worker 2 after its first one has different, and what it is told."""


def train(tell: Any, own: tacit.Strategy, other: tacit.Strategy, interface: str | None) -> dict[str, Any]:
    """Train; tell when attached. Each life after the first one of worker 2 differs in something, up to the last one."""
    number = int(os.environ["TACIT_LIFE"]) - 2
    what = REFUSED[number][0] if tacit.rank() == 2 and 0 <= number < len(REFUSED) else ""
    if what == "version":
        backend.tacit_version = lambda: "0.0.1"
    features = 5 if what == "shape" else 4
    model = torch.nn.Linear(features, 1)
    if what == "dtype":
        model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    begun_s = time.monotonic()
    try:
        session = tacit.attach(
            model,
            optimizer,
            other if what == "kind" else own,
            steps=400,
            seed=int(what == "seed"),
            interface=interface,
        )
    except tacit.TacitError as error:
        tell((time.monotonic() - begun_s, type(error).__name__, str(error)))
        raise
    tell(("attached", session.step))
    while not session.is_done:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        time.sleep(0.01)
        optimizer.step()
        if session.step == 20:
            tell(("trains", session.step))
    session.close()
    return {"weight": model.weight.detach().clone(), "step": session.step}


@pytest.mark.parametrize(
    ("own", "other", "interface"),
    [(ROUNDS, MESSAGES, None), (MESSAGES, ROUNDS, "lo")],  # "lo": as between machines
    ids=["rounds", "messages"],
)
def test_a_joiner_that_differs_is_told_the_first_difference(
    own: tacit.Strategy, other: tacit.Strategy, interface: str | None
):
    with Launch(3, train, own, other, interface, restarts=len(REFUSED) + 1) as launch:
        launch.until_heard(range(3), 2)
        launch.kill(2)
        results = launch.end()
        lives, others = launch.lives[2], launch.lives[:2]
    for life, (what, expected) in zip(lives[1:], REFUSED, strict=False):
        [(took_s, name, text)] = life.heard
        expected = expected.format(own=re.escape(str(own)), other=re.escape(str(other)))
        assert name == "Disagreement" and re.search(expected, text), (what, text)
        assert text.endswith("all ranks must run the same script with the same arguments.")
        assert took_s < 20, "at once; attach waits for 300 s"
    assert [len(lives), *map(len, others)] == [len(REFUSED) + 2, 1, 1]
    assert lives[-1].heard[0][1] > 0, "the last life has joined the run"
    for result in results:
        assert not isinstance(result, Failed) and result["step"] == 400
        assert torch.equal(result["weight"], results[0]["weight"])


def attach_only(tell: Any) -> None:
    strategy = (ROUNDS, tacit.KAsync(k=1))[tacit.rank()]
    model = torch.nn.Linear(4, 1)
    tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)


def test_different_kinds_of_strategies_are_told_before_processes_wait_for_each_other():
    with Launch(2, attach_only, restarts=0, limit_s=60) as launch:  # attach waits for 300 s
        for failed in launch.end():
            assert failed.name == "Disagreement"
            assert "strategy is KAsync(k=1) on rank 1, LocalSGD(period=Every(4)) on rank 0" in failed.text
