"""An error in the user's loop, outside ``with``: the other workers raise an error with its type and message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

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
    (tmp_path / "train.py").write_text(SCRIPT)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "train.py")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "True"},
        )
        for rank in range(2)
    ]
    first, second = (process.communicate(timeout=100)[1] for process in processes)
    assert "KeyError: 'my own bug'" in first
    assert "session.close() was never called" not in first
    assert "PeerLost: worker 0 was lost" in second and "KeyError: 'my own bug'" in second
