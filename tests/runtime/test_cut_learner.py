"""A learner that is cut off waits until its own time-out; the server has gone on without it, and so do the others."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

import tacit
from tests.runtime.elastic import Launch
from tests.runtime.processes import Failed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def train(tell: Any) -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with tacit.attach(model, optimizer, tacit.KAsync(k=1), steps=400) as session:
        tell(("attached", session.updates))
        while not session.is_done:
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            time.sleep(0.01)
            optimizer.step()
            if session.step == 10 and os.environ["RANK"] == "2" and os.environ["TACIT_LIFE"] == "1":
                raise tacit.TimedOut("receive(ServedModel)", [0], 20.0)
        return session.updates


def test_a_learner_that_times_out_ends_alone_and_comes_back():
    with Launch(3, train) as launch:
        results = launch.end()
        lives = [len(lives) for lives in launch.lives]
        first, second = launch.lives[2]
    assert lives == [1, 1, 2]
    assert isinstance(first.result, Failed) and first.result.name == "TimedOut"
    assert second.heard[0][1] > 0 and results == [400, 400, 400]
