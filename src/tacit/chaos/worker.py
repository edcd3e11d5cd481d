"""One worker of a run with faults, started by ``tacit launch``: it trains a small network and records every step."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.chaos.small_training import Record, Samples, checksum, evaluate, network
from tacit.registry.notation import parse
from tacit.runtime.attach import attach


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
    timeout_s: float | None = None  # of attach
    namespace: str | None = None  # prefix of the network namespaces, one per seat

    def words(self, path: Path) -> list[str]:
        """Write the job to ``path``; return what follows ``python`` in the command line of a worker."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))
        return ["-m", __name__, str(path)]


def train(job: Job, record: Record, seat: int, life: int) -> None:
    model = network(job.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    samples = Samples(job.seed + 1000 * seat + 100_000 * life)
    folder = Path(job.checkpoints)
    strategy = parse(job.strategy, "strategies")
    session = attach(
        model, optimizer, strategy, steps=job.steps, seed=job.seed, rescue_folder=folder, timeout_s=job.timeout_s
    )
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
