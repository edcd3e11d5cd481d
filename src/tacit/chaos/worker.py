"""One worker of a run with faults, started by ``tacit launch``: it trains a small network and records every step.

The record of a life is a file of JSON lines: the process, then each step with its time and, where this worker has
exchanged something in it, a checksum of the model. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tacit.registry.notation import parse
from tacit.runtime.attach import attach

_FEATURES: Final = 32
_CLASSES: Final = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all workers of a run do. step_s: the least time of a step; checkpoint_every: 0 for no checkpoints."""

    strategy: str
    steps: int
    seed: int
    step_s: float
    records: str
    checkpoints: str
    checkpoint_every: int
    hidden: int = 128
    lr: float = 0.05
    batch: int = 16
    namespace: str | None = None  # prefix of the network namespaces, one per seat

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Record:
    """Writes one line per event; a line is in the file when the call returns, even if the process is killed then."""

    def __init__(self, folder: Path, seat: int, life: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"seat-{seat}-life-{life}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.add(event="started", seat=seat, life=life, process=os.getpid())

    def add(self, **values: Any) -> None:
        os.write(self._file, (json.dumps({"time_s": time.monotonic(), **values}) + "\n").encode())


def network(hidden: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, _CLASSES))


class Samples:
    """Points around ten centres, which overlap; each worker draws its own, and all evaluate the same."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(12345)
        self._centres = torch.randn(_CLASSES, _FEATURES, generator=draw)
        self._draw = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, _CLASSES, (size,), generator=self._draw)
        return self._centres[labels] + 2.0 * torch.randn(size, _FEATURES, generator=self._draw), labels


def evaluate(model: nn.Module) -> float:
    """Return the loss on samples that no worker trains on."""
    inputs, labels = Samples(777).batch(4000)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), labels))


def checksum(model: nn.Module) -> int:
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return zlib.crc32(flat.numpy().tobytes())


def train(job: Job, record: Record, seat: int, life: int) -> None:
    model = network(job.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    samples = Samples(job.seed + 1000 * seat + 100_000 * life)
    folder = Path(job.checkpoints)
    strategy = parse(job.strategy, "strategies")
    session = attach(model, optimizer, strategy, steps=job.steps, seed=job.seed, rescue_folder=folder)
    backend, sent, members = session._backend, 0, list[int]()
    record.add(event="attached", step=session.step, updates=session.updates)
    written = session.updates
    while not session.is_done:
        begun_s = time.monotonic()
        inputs, labels = samples.batch(job.batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        session.observe(loss)
        if (left_s := begun_s + job.step_s - time.monotonic()) > 0:
            time.sleep(left_s)
        optimizer.step()
        totals = backend.totals
        now_sent = 0 if totals is None else totals.sent_bytes
        row: dict[str, Any] = {"step": session.step, "updates": session.updates}
        if now_sent != sent:
            row["model"], sent = checksum(model), now_sent
        if [*backend.live_ranks] != members:
            row["members"] = members = [*backend.live_ranks]
        record.add(**row)
        if job.checkpoint_every and session.updates >= written + job.checkpoint_every and not session.is_done:
            written = session.updates
            record.add(event="checkpoint", written=str(session.checkpoint(folder)))
    session.close()
    record.add(event="done", step=session.step, updates=session.updates, model=checksum(model), loss=evaluate(model))


def main() -> None:
    """Run the job in the file that the command line names."""
    faulthandler.register(signal.SIGUSR1)  # a run that hangs is asked where it waits
    torch.set_num_threads(1)
    job, seat = Job(**json.loads(Path(sys.argv[1]).read_text())), int(os.environ["RANK"])
    life = int(os.environ.get("TACIT_LIFE", "1"))
    if job.namespace is not None:
        from tacit.chaos.hosts import enter

        enter(job.namespace, seat)
    record = Record(Path(job.records), seat, life)
    try:
        train(job, record, seat, life)
    except BaseException as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        record.add(event="error", kind=type(error).__name__, text=f"{error}"[:500], notes=notes[:500])
        raise


if __name__ == "__main__":
    main()
