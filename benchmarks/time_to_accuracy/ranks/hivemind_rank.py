"""hivemind's averager: all ranks form one group every few steps, and wait until their models are averaged.

Each rank has three more processes: the distributed hash table, libp2p's daemon and the averager. Their processor time
counts. Groups are found within half a second; the default of hivemind, 5 s, is meant for peers across the internet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager

from benchmarks.time_to_accuracy.ranks.common import AccuracyRank, Loop, Order, Training, serve

MATCHMAKING_S = 0.5
REQUEST_S = 0.3
TIMEOUT_S = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def averaged(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    dht = _joined(me)
    parameters = list(training.module.parameters())
    averager = DecentralizedAverager(
        [parameter.detach().clone() for parameter in parameters],
        dht,
        start=True,
        prefix=f"run{me.runs}",
        target_group_size=me.size,
        min_group_size=me.size,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=REQUEST_S,
    )
    period, step = int(order.value or 1), 0

    @torch.no_grad()
    def after() -> None:
        nonlocal step
        step += 1
        if step % period:
            return
        with averager.get_tensors() as tensors:
            for tensor, parameter in zip(tensors, parameters, strict=True):
                tensor.copy_(parameter)
        assert averager.step(timeout=TIMEOUT_S) is not None, "no group was found"
        with averager.get_tensors() as tensors:
            for tensor, parameter in zip(tensors, parameters, strict=True):
                parameter.copy_(tensor)

    try:
        yield Loop(training.module, training.optimizer, after=after, processor_s=_processor_s)
        me.meet()
    finally:
        averager.shutdown()
        dht.shutdown()


def _joined(me: AccuracyRank) -> hivemind.DHT:
    """Start this rank's node of the distributed hash table; the others join by rank 0's."""
    listen = [f"/ip4/{os.environ['OWN_ADDRESS']}/tcp/{me.free_port(me.rank)}"]
    options = {"host_maddrs": listen, "announce_maddrs": listen, "nat_port_map": False, "auto_nat": False}
    key = f"dht of run {me.runs}"
    if me.rank == 0:
        dht = hivemind.DHT(start=True, use_relay=False, **options)
        me.barrier.set(key, "\n".join(str(address) for address in dht.get_visible_maddrs()))
        return dht
    known = me.barrier.get(key).decode().splitlines()
    return hivemind.DHT(initial_peers=known, start=True, use_relay=False, **options)


def _processor_s() -> float:
    """Return the processor seconds of this process and of all that it has started."""
    total, left = time.process_time(), _children(os.getpid())
    while left:
        process = left.pop()
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        left += _children(process)
    return total


def _children(process: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(number) for number in file.read_text().split()]
        except OSError:
            continue
    return found


if __name__ == "__main__":
    serve({"hivemind averager": averaged}, AccuracyRank)  # type: ignore[dict-item]
