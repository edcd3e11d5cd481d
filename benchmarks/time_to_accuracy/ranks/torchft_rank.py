"""torchft's LocalSGD and DiLoCo: a lighthouse on rank 0's host, a manager and a store in every process, which is a
replica group of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from benchmarks.time_to_accuracy.ranks.common import AccuracyRank, Loop, Order, Training, serve

_kept: list[object] = []  # servers of earlier runs: others may still ask them


@contextmanager
def managed(me: AccuracyRank, training: Training) -> Iterator[Manager]:
    """Start the servers of one run, on ports of its own."""
    lighthouse = me.free_port(0)
    address = os.environ["OWN_ADDRESS"]
    if me.rank == 0:
        _kept.append(LighthouseServer(bind=f"0.0.0.0:{lighthouse}", min_replicas=me.size, join_timeout_ms=100))
    store = TCPStore(address, me.free_port(1 + me.rank), is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=training.module.load_state_dict,
        state_dict=training.module.state_dict,
        min_replica_size=me.size,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        replica_id=f"run{me.runs}replica{me.rank}",
        store_addr=address,
        store_port=store.port,
        hostname=address,
        lighthouse_addr=f"http://{me.master}:{lighthouse}",
        init_sync=False,
    )
    _kept.append(store)
    try:
        yield manager
        me.meet()
    finally:
        manager.shutdown(wait=False)


@contextmanager
def local(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    period = int(order.value or 1)
    with (
        managed(me, training) as manager,
        LocalSGD(manager, training.module, training.optimizer, sync_every=period),
    ):
        yield Loop(training.module, training.optimizer)


@contextmanager
def diloco(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    """DiLoCo with its paper's outer optimizer; the whole model is one fragment, sent as one bucket."""
    outer = torch.optim.SGD(training.module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    period = int(order.value or 1)
    with (
        managed(me, training) as manager,
        DiLoCo(manager, [training.module], training.optimizer, outer, sync_every=period, use_bucketization=True),
    ):
        yield Loop(training.module, training.optimizer)


if __name__ == "__main__":
    serve({"torchft LocalSGD": local, "torchft DiLoCo": diloco}, AccuracyRank)  # type: ignore[dict-item]
