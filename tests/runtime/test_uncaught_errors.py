"""Scripts without ``with``: an error in the loop, and a session that is never closed."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

import tacit
from tests.runtime.launched_workers import Launched
from tests.runtime.processes import Module
from tests.runtime.small_runs import batches, learn, network, sgd

SCRIPT = """
import torch, tacit

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = tacit.attach(model, optimizer, tacit.AllReduce(), steps=100)
for step in range(100):
    if step == 3 and tacit.rank() == 0:
        {}["my own bug"]
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
session.close()
"""


@pytest.mark.timeout(120)
def test_others_hear_the_error_that_ended_a_script_without_with(tmp_path: Path) -> None:
    """Rank 0 is a new interpreter, whose way to print an error and to end is the subject."""
    (tmp_path / "train.py").write_text(SCRIPT)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    common["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    with Module("train", folder=tmp_path, RANK="1", **common) as other:
        command, environment = [sys.executable, str(tmp_path / "train.py")], {**os.environ, **common, "RANK": "0"}
        failed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
        _, _, second = other.end(timeout_s=100)
    assert "KeyError: 'my own bug'" in failed.stderr
    assert "session.close() was never called" not in failed.stderr
    assert "PeerLost: worker 0 was lost" in second and "KeyError: 'my own bug'" in second


UNCLOSED = [tacit.LocalSGD(period=tacit.Every(8), overlap_steps=4), tacit.DPSGD(), tacit.SwarmSGD(), tacit.KAsync(k=1)]


def never_closed() -> list[str]:
    """Train with one strategy after the other, and end each as an interpreter does whose script has ended.

    Return what each has said, or the error that another worker's end has raised before.
    """
    said: list[str] = []
    logging.getLogger("tacit").addFilter(lambda record: said.append(record.getMessage()) or False)
    for strategy in UNCLOSED:
        model = network()
        optimizer = sgd(model, 0.01)
        tacit.attach(model, optimizer, strategy)
        try:
            learn(model, optimizer, batches(tacit.rank(), 20))
        except tacit.PeerLost as error:
            said.append(str(error))
        atexit._run_exitfuncs()
    return [text for text in said if "session.close()" in text]


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_launched_processes_end_whose_sessions_are_never_closed() -> None:
    """None waits for another one, in a call that is under way, or for messages."""
    with Launched(3, 1, never_closed) as run:
        results = run.results()
        run.until(lambda: len(run.ended_s) == 3)
    assert [len(said) for said in results] == [len(UNCLOSED)] * 3, results
