"""An error in the user's loop, outside ``with``: the other workers raise an error with its type and message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.runtime.processes import Module

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
