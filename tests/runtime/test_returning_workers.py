"""Servers and gossip on real processes go on without lost workers, and with those that come back."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import tacit
from tests.runtime.elastic import Launch
from tests.runtime.processes import Failed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
WORKERS = 4
SERVERS = [
    tacit.KAsync(k=1),
    tacit.KSync(k=WORKERS),
    tacit.KBatchSync(k=3),
    tacit.KAsync(k=2, shards=2),
]
GOSSIP = [tacit.SwarmSGD(local_steps=2), tacit.PullSwarm(local_steps=2), tacit.AsynchronousDPSGD()]


def train(tell: Any, strategy: tacit.Strategy, steps: int, pause_s: float = 0.01, every: int = 0) -> dict[str, Any]:
    """Train until the session is done; tell each fifth step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=40.0)
    draw, begun = torch.Generator().manual_seed(tacit.rank()), session.step
    tell(("attached", session.step, session.updates))
    while not session.is_done:
        x = torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        time.sleep(pause_s)
        optimizer.step()
        if session.step % 5 == 0:
            tell(("step", session.step, session.updates))
        if every and session.step % every == 0 and not session.is_done:
            with session.reported_model():
                pass
    run = session.close()
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"model": trained, "updates": session.updates, "begun": begun, "step": session.step, "status": run.status}


def equal_models(results: list[Any]) -> None:
    for result in results:
        assert not isinstance(result, Failed), str(result)
        assert torch.equal(result["model"], results[0]["model"]), [r["model"][:3] for r in results]


@pytest.mark.parametrize("strategy", [*SERVERS, *GOSSIP[:2]], ids=str)
def test_a_killed_worker_comes_back_and_ends_with_the_common_model(strategy: tacit.Strategy):
    with Launch(WORKERS, train, strategy, 300) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.present[3].kill()
        launch.until_heard([3], 1)  # its next life has attached
        results = launch.end()
        assert [life.number for life in launch.present] == [1, 1, 1, 2]
    equal_models(results)
