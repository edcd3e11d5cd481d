"""SIGINT to torchrun ends the workers also while they wait in calls that cannot end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = """
import os, pathlib, sys
import torch
import tacit
from tacit.core.messages import TensorMessage
from tacit.strategies import Strategy

folder = pathlib.Path(sys.argv[1])

class DifferentCalls(Strategy[None]):
    def after_step(self, worker, state):
        (folder / f"{worker.rank}").write_text(str(os.getpid()))
        if worker.rank == 0:
            worker.network.receive(TensorMessage)
        elif worker.rank == 1:
            worker.network.broadcast(torch.ones(3))
        else:
            worker.network.all_reduce_mean(torch.ones(3))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tacit.attach(model, optimizer, DifferentCalls(), steps=8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
WORKERS = 3


def wait_until(condition, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.timeout(150)
def test_sigint_to_torchrun_ends_workers_that_wait_in_different_calls(tmp_path: Path, python: Path):
    script, places = tmp_path / "script.py", tmp_path / "places"
    script.write_text(SCRIPT)
    places.mkdir()
    command = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        torchrun = subprocess.Popen(
            [*command, str(script), str(places)], stdout=output, stderr=output, start_new_session=True
        )
    workers: list[int] = []
    try:
        assert wait_until(lambda: len(list(places.iterdir())) == WORKERS, 90.0), log.read_text()
        workers = [int(place.read_text()) for place in places.iterdir()]
        torchrun.send_signal(signal.SIGINT)
        # torchrun kills workers 30 seconds after it has passed the signal on.
        assert wait_until(lambda: not any(map(is_running, workers)), 20.0), log.read_text()
        assert "forcefully exiting" not in log.read_text()
    finally:
        with suppress(ProcessLookupError):
            torchrun.kill()
        torchrun.wait()
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
