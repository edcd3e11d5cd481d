"""The end of a run: a worker that comes back too late, or is lost in the last exchanges, holds up no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tacit
from tests.runtime.elastic import Launch
from tests.runtime.launched_workers import wait_for
from tests.runtime.processes import Failed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
WORKERS = 4
FAMILIES = pytest.mark.parametrize(
    ("strategy", "server"),
    [
        (tacit.KAsync(k=1), "rank0"),
        (tacit.KAsync(k=1), "process"),
        (tacit.LocalSGD(period=tacit.Every(4)), "rank0"),
        (tacit.SwarmSGD(), "rank0"),
    ],
    ids=str,
)


def train(tell: Any, strategy: tacit.Strategy, server: str, dies_in_step: int | None) -> list[Tensor]:
    """Train to the end; worker 2 dies in a step, or (None) while the others are in the exchanges after the last one.

    Its next life attaches when the others have finished.
    """
    rank, life = tacit.rank(), int(os.environ["TACIT_LIFE"])
    if life == 2:
        wait_for("the end")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def calibration() -> Iterator[Tensor]:
        """Yield batches. Called in ``close``, between two exchanges."""
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield torch.eye(4)

    options = {"buffers": "recalibrate", "calibration": calibration, "server": server, "timeout_s": 40.0}
    session = tacit.attach(model, optimizer, strategy, steps=100, **options)
    while not session.is_done:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if rank == 2 and session.step == dies_in_step:
            os.kill(os.getpid(), signal.SIGKILL)
        if session.step == dies_in_step:
            wait_for("go")
    assert session.close().status == "finished"
    return [*model.state_dict().values()]


def check_others(results: list[Any]) -> None:
    for rank in (0, 1, 3):
        assert not isinstance(results[rank], Failed), str(results[rank])
        assert all(map(torch.equal, results[rank], results[0]))


@FAMILIES
def test_a_worker_that_comes_back_after_the_last_update_ends_without_an_error(
    strategy: tacit.Strategy, server: str, tmp_path: Path
):
    place = tmp_path if server == "process" else None
    with Launch(WORKERS, train, strategy, server, 1, server=place) as launch:
        launch.until(lambda: launch.present[2].number == 2, "the next life of worker 2")
        launch.say("go")
        launch.until(lambda: launch.finished >= {0, 1, 3}, "the end of the others")
        launch.say("the end")
        results = launch.end()
    check_others(results)
    assert results[2].name == "RunIsOver" and results[2].text == "0", str(results[2])


@FAMILIES
def test_the_last_exchanges_go_on_without_a_worker_that_dies_between_them(
    strategy: tacit.Strategy, server: str, tmp_path: Path
):
    place = tmp_path if server == "process" else None
    with Launch(WORKERS, train, strategy, server, None, restarts=0, server=place) as launch:
        results = launch.end()
    check_others(results)
    assert results[2].name == "Died"
