"""``tacit serve``: the server of a script's run in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacit.runtime.server.host import ServerResult
from tests.cli.command_line import Command
from tests.runtime.processes import Module, run_script, together, unused_port

LONGEST_S = 100
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
UNPACK = """
import sys
import tacit.runtime.backend
from tacit.core.message_reading import unpack

print(type(unpack(bytes.fromhex(sys.argv[1]))).__name__)
"""


@pytest.mark.timeout(2 * LONGEST_S)
def test_a_server_in_its_own_process_serves_the_script_of_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    port = unused_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    serve = ("serve", str(script), "--master", f"127.0.0.1:{port}", "--workers", "2")
    with (
        Module("train", folder=tmp_path, RANK="0", **shared) as first,
        Module("train", folder=tmp_path, RANK="1", **shared) as second,
        Module("tacit", *serve, folder=tmp_path, **shared) as server,
    ):
        for process in (first, second, server):
            code, output, errors = process.end(LONGEST_S)
            assert code == 0, errors
            if process is not server:
                assert "finished after 30 updates, wrong by less than 0.1: True" in output


def test_what_a_server_leaves_behind_is_known_to_workers_from_the_start(tmp_path: Path) -> None:
    """It may come before a worker asks for it, and a kind that is not known is dropped."""
    packed = ServerResult(torch.ones(2), 0, 0).pack().hex()
    script = tmp_path / "train.py"
    script.write_text(UNPACK)
    assert together(1, run_script, str(script), packed) == ["ServerResult\n"]


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
