"""Workers that are seeded alike and read the same data do the same work: rank 0 warns, in both worlds."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import tacit
from tacit.simulation.scripts.run import simulate_script
from tests.runtime.processes import together

SCRIPT = """
import torch, tacit

torch.manual_seed(SEED)
model = torch.nn.Linear(4, 3)
if ZEROS:
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(SEED)
with tacit.attach(model, optimizer, tacit.strategy("LocalSGD(period=Every(2))")) as session:
    for _ in range(8):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.observe(loss)
        optimizer.step()
"""
WARNING = "all 2 workers observed the same losses in their first two steps"


def script(folder: Path, seed: str, zeros: bool = False) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("SEED", seed).replace("ZEROS", str(zeros)))
    return path


def warnings_of(path: str) -> list[str]:
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger("tacit").addHandler(Keep())
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__"})
    return messages


def test_the_same_batches_on_all_workers_are_noticed_in_the_simulator(tmp_path, caplog):
    simulate_script(script(tmp_path, "0"), cluster=tacit.Cluster(workers=2))
    [message] = [message for message in caplog.messages if WARNING in message]
    assert "DistributedSampler(data, num_replicas=tacit.size(), rank=tacit.rank())" in message


@pytest.mark.parametrize("zeros", [False, True], ids=["drawn", "zeros"])
def test_different_batches_are_not_warned_of(zeros, tmp_path, caplog):
    """With a model of zeros even different batches have equal losses in the first step."""
    simulate_script(script(tmp_path, "tacit.rank()", zeros), cluster=tacit.Cluster(workers=2))
    assert not [message for message in caplog.messages if WARNING in message]


@pytest.mark.timeout(120)
def test_the_same_batches_on_all_workers_are_noticed_on_real_processes(tmp_path):
    first, second = together(2, warnings_of, str(script(tmp_path, "0")))
    assert len([message for message in first if WARNING in message]) == 1 and not second
    first, second = together(2, warnings_of, str(script(tmp_path, "tacit.rank()")))
    assert not first and not second
