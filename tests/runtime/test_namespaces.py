"""Two hosts for real: network namespaces, which share neither loopback nor name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore

import tacit
from tacit.core.messages import TensorMessage
from tacit.core.worker import Worker
from tacit.record.trace import EXCHANGE
from tacit.strategies import Strategy
from tests.runtime import namespaces
from tests.runtime.namespaces import Host
from tests.runtime.processes import together

pytestmark = pytest.mark.skipif(namespaces.refused() is not None, reason=str(namespaces.refused()))

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
PORT = 29500


def on_its_host(hosts: list[Host], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function`` on the host of this rank, the master being found by its name."""
    hosts[int(os.environ["RANK"])].enter()
    os.environ.update(MASTER_ADDR=hosts[0].name, MASTER_PORT=str(PORT), TORCHELASTIC_USE_AGENT_STORE="False")
    return function(*arguments)


def test_torchrun_on_two_hosts_trains_one_model(python: Path):
    """The walk-through of docs/how-to/several-machines.md, with two workers on one host and one on the other."""
    with namespaces.hosts(2) as hosts:
        launch = (
            str(python),
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{hosts[0].name}:{PORT}",
            "--rdzv-id",
            "digits",
        )
        script = (str(EXAMPLE), "--steps", "80")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        runs = [
            subprocess.Popen(
                host.command(*launch, "--nproc-per-node", workers, *script),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host, workers in zip(hosts, "21", strict=True)
        ]
        outputs = [run.communicate(timeout=90)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n\n".join(outputs)
    assert "3 workers, 10 rounds: accuracy 0.9" in outputs[0] + outputs[1]


@dataclass(frozen=True, kw_only=True)
class HandOn(Strategy[None]):
    """In every step hand a number to the next rank and add what the previous one handed on."""

    def after_step(self, worker: Worker, state: None) -> None:
        worker.network.send((worker.rank + 1) % worker.size, TensorMessage(torch.tensor([10.0 + worker.rank])))
        source, message = worker.network.receive(TensorMessage)
        worker.parameters.copy_(message.tensor.expand_as(worker.parameters) + 100.0 * source)


def test_messages_reach_a_master_that_finds_itself_at_loopback():
    """Its /etc/hosts says 127.0.1.1 for its own name: it must not tell the others that address."""
    with namespaces.hosts(3) as hosts:
        assert together(3, on_its_host, hosts, _hand_on) == [212.0, 10.0, 111.0]


def _hand_on() -> float:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, HandOn(), steps=1):
        model(torch.ones(1)).backward()
        optimizer.step()
    return float(model.weight)


@pytest.mark.parametrize("strategy", [tacit.LocalSGD(period=tacit.Every(4)), tacit.AllReduce()], ids=str)
def test_the_traces_bytes_are_what_the_kernel_counted(strategy):
    """The trace counts what gloo hands to the kernel; the kernel counts that, 66 bytes of headers on each packet, and
    packets that only acknowledge.

    How many packets there are depends on how busy the machine is: segments are joined, or not. So headers are taken off
    by the kernel's own count of packets. The rest is traffic of gloo and the store: 0.02 % of 36 MB. A busy
    machine drops segments even on an unshaped link, and what TCP then sends again is no part of the run's traffic: a
    run with more than a little of it is repeated.
    """
    lost_bytes = 0
    for _ in range(6):
        with namespaces.hosts(2) as hosts:
            results = together(2, on_its_host, hosts, _train, strategy)
        assert all(2**25 < recorded <= counted.payload_bytes for recorded, counted in results)
        if all(counted.payload_bytes <= 1.005 * recorded for recorded, counted in results):
            return
        lost_bytes += sum(counted.sent_again_bytes for _, counted in results)
    if lost_bytes:
        pytest.skip("the link lost many segments in each of six runs: this machine is too busy to count bytes")
    recorded, counted = results[0]
    assert counted.payload_bytes <= 1.005 * recorded


def _train(strategy: Strategy, steps: int = 32) -> tuple[int, namespaces.Traffic]:
    """Return the bytes this rank sent from its first step to its last: by the trace, and by the kernel."""
    torch.manual_seed(0)
    rank, host = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    barrier = TCPStore(host, PORT + 1, 2, is_master=rank == 0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = steps if isinstance(strategy, tacit.LocalSGD) else steps // 4
    with tacit.attach(model, optimizer, strategy, steps=steps, interface=namespaces.INTERFACE) as session:
        before = namespaces.traffic()
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(2, 64)).square().mean().backward()
            optimizer.step()
        barrier.set(str(rank), "done")  # who has the mean has received all that went into it
        barrier.wait([str(1 - rank)])
        counted = namespaces.traffic() - before
    columns = session.run.trace.columns()
    sent = (columns["rank"] == rank) & (columns["kind"] == EXCHANGE)
    return int(columns["size_bytes"][sent].sum()), counted
