"""``tacit serve``: the server of a script's run in its own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tacit.runtime.server.host import ServerResult
from tests.cli.command_line import Command

LONGEST_S = 100  # most of it is importing torch
SCRIPT = """
import tacit
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = tacit.attach(model, optimizer, tacit.KAsync(k=2), steps=30, server="process")
data = torch.Generator().manual_seed(tacit.rank())
while not session.is_done:
    x = torch.randn(8, 4, generator=data)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
run = session.close()
error = float((model.weight - 1).abs().max())
print(f"{run.status} after {run.steps} updates, wrong by less than 0.1: {error < 0.1}")
"""


@pytest.mark.timeout(2 * LONGEST_S)
def test_a_server_in_its_own_process_serves_the_script_of_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    serve = (sys.executable, "-m", "tacit", "serve", str(script), "--master", f"127.0.0.1:{port}", "--workers", "2")
    commands = [
        ((sys.executable, str(script)), {"RANK": "0"}),
        ((sys.executable, str(script)), {"RANK": "1"}),
        (serve, {}),
    ]
    started = [
        subprocess.Popen(
            line,
            env={**os.environ, **shared, **own},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for line, own in commands
    ]
    try:
        for process in started:
            output, errors = process.communicate(timeout=LONGEST_S)
            assert process.returncode == 0, errors
            if process is not started[-1]:
                assert "finished after 30 updates, wrong by less than 0.1: True" in output
    finally:
        for process in started:
            process.kill()


def test_what_a_server_leaves_behind_is_known_to_workers_from_the_start() -> None:
    """It may come before a worker asks for it, and a kind that is not known is dropped."""
    packed = ServerResult(torch.ones(2), b"", b"", torch.tensor([1])).pack().hex()
    imports = "import sys, tacit.runtime.backend; from tacit.core.message_reading import unpack"
    line = f"{imports}; print(type(unpack(bytes.fromhex(sys.argv[1]))).__name__)"
    done = subprocess.run([sys.executable, "-c", line, packed], capture_output=True, text=True, timeout=LONGEST_S)
    assert (done.stdout.strip(), done.stderr) == ("ServerResult", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "nowhere.py does not exist; give the folder of a run, or the script that the workers run."),
        (("train.py", "--master", "nonsense", "--workers", "2"), "nonsense"),
    ],
)
def test_what_cannot_be_served_is_refused(tacit: Command, arguments: tuple[str, ...], message: str) -> None:
    Path("train.py").write_text(SCRIPT)
    answer = tacit("serve", *arguments)
    assert (answer.exit_code, message in answer.errors) == (2, True), answer.errors
