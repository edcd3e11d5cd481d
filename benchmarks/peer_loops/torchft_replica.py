"""A run with faults by torchft's LocalSGD: one replica, or the lighthouse. ``benchmarks.chaos`` starts both.

    python -m benchmarks.peer_loops.torchft_replica JOB.json
    python -m benchmarks.peer_loops.torchft_replica lighthouse       prints its address; ends with its standard input

A replica trains what the workers of ``tacit chaos`` train, and records it in the same way. Its step is that of the last
round to which torchft has committed, plus those taken since.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD

JOIN_S, HEARTBEAT_S = 1.0, 5.0
"""How long the lighthouse waits for replicas that beat and have not asked; and without a beat (torchft's default)."""
CALL_S, QUORUM_S = 5.0, 60.0
HOST = "127.0.0.1"


def small_training() -> ModuleType:
    """Return the module with the task and its record from its file: this environment has no tacit."""
    path = Path(__file__).resolve().parents[2] / "src" / "tacit" / "chaos" / "small_training.py"
    found = importlib.util.spec_from_file_location("small_training", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def train(job: dict[str, Any], training: ModuleType, record: Any, seat: int, life: int) -> None:
    model = training.network(job["hidden"])
    optimizer = torch.optim.SGD(model.parameters(), lr=job["lr"])
    samples = training.Samples(job["seed"] + 1000 * seat + 100_000 * life)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=CALL_S)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=CALL_S),
        quorum_timeout=timedelta(seconds=QUORUM_S),
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=job["lighthouse"],
        replica_id=f"replica{seat}",
        hostname=HOST,
        init_sync=False,
    )
    is_first, period = life == 1, job["period"]
    if is_first:
        wait_for_all(Path(job["records"]), job["workers"])
        record.add(event="attached", step=0, updates=0)
    has_model, local, step = is_first, 0, 0
    with LocalSGD(manager, model, optimizer, sync_every=period):
        while step < job["steps"]:
            begun_s = time.monotonic()
            inputs, labels = samples.batch(job["batch"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            if (left_s := begun_s + job["step_s"] - time.monotonic()) > 0:
                time.sleep(left_s)
            rounds = manager.current_step()
            optimizer.step()
            local = (local + 1) % period
            is_committed = manager.current_step() > rounds
            step = manager.current_step() * period + local
            if not has_model and is_committed:  # a replica that returns trains on a model of its own until then
                has_model = True
                record.add(event="attached", step=step, updates=step)
            if has_model:
                row = {"step": step, "updates": step}
                record.add(**row, **({"model": training.checksum(model)} if is_committed else {}))
    loss, model_sum = training.evaluate(model), training.checksum(model)
    record.add(event="done", step=step, updates=step, model=model_sum, loss=loss)


def wait_for_all(records: Path, workers: int) -> None:
    """Wait until the first life of every seat has started, so that no replica trains alone at first."""
    while len([*records.glob("seat-*-life-1.jsonl")]) < workers:
        time.sleep(0.02)


def replica(path: Path) -> None:
    torch.set_num_threads(1)
    job, training = json.loads(path.read_text()), small_training()
    seat, life = int(os.environ["RANK"]), int(os.environ.get("TACIT_LIFE", "1"))
    record, code = training.Record(Path(job["records"]), seat, life), 1
    try:
        train(job, training, record, seat, life)
        code = 0
    except BaseException as error:  # noqa: BLE001 - recorded for the benchmark
        record.add(event="error", kind=type(error).__name__, text=f"{error}"[:500], notes="")
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # its threads do not end by themselves


def lighthouse() -> None:
    milliseconds = {"join_timeout_ms": int(1e3 * JOIN_S), "heartbeat_timeout_ms": int(1e3 * HEARTBEAT_S)}
    server = LighthouseServer(bind=f"{HOST}:0", min_replicas=1, quorum_tick_ms=100, **milliseconds)
    print(f"http://{HOST}:{server.address().rpartition(':')[2]}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse()
    else:
        replica(Path(sys.argv[1]))
