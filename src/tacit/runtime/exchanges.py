"""Exchanges of bytes: each rank of a process group sends a part to each other rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

_HOST: Final = torch.device("cpu")
_RUNNING: Final = "the transfers are in progress"

Started = TypeVar("Started")
Transfer = Callable[[Tensor, Tensor, list[int], list[int]], Started]
"""Starts an exchange, from the received and the sent elements and the number of each per rank."""


def transfer_by_pairs(
    group: Any,
    received: Tensor,
    sent: Tensor,
    sizes: Sequence[int],
    lengths: Sequence[int],
    *,
    place: int,
    tag: int,
    timeout: timedelta,
) -> None:
    """Exchange parts between all pairs of ranks of a gloo group; raise ``RuntimeError`` if a transfer fails.

    Receives are posted before sends. gloo's all-to-all posts its sends first: if the peer is ready, the data leave at
    once, and the notice that this rank is ready to receive waits behind them, and the peer's data wait for the notice.
    Two ranks then need the time of two transfers, unless both enter within one latency.

    A time-out closes the connections of the group, as gloo does.
    """
    ends_s = time.monotonic() + timeout.total_seconds()
    size, incoming, outgoing = len(sizes), torch.split(received, list(sizes)), torch.split(sent, list(lengths))
    sources = [(place - step) % size for step in range(1, size)]
    targets = [(place + step) % size for step in range(1, size)]
    works = [group.recv([incoming[source]], source, tag) for source in sources if sizes[source]]
    works += [group.send([outgoing[target]], target, tag) for target in targets if lengths[target]]
    for work in works:
        work.wait(timedelta(seconds=max(0.001, ends_s - time.monotonic())))


class BackgroundTransfer:
    """A transfer in a ``TransferThread``, with the methods of a ``torch.distributed.Work``."""

    def __init__(self, transfer: Callable[[], None]) -> None:
        self._transfer: Callable[[], None] | None = transfer
        self._done = Event()
        self._error: str | None = None  # only its text: an exception keeps the connections open

    def run(self) -> None:
        assert self._transfer is not None
        try:
            self._transfer()
        except RuntimeError as error:
            self._error = str(error)
        self._transfer = None  # releases the group
        self._done.set()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the transfer has ended; raise ``RuntimeError`` if it fails, or at the end of ``timeout``."""
        if not self._done.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError(_RUNNING)
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


class TransferThread:
    """Runs transfers one after the other in a thread.

    gloo makes no progress known before a wait, and a wait for a transfer that ends early fails the transfer: the thread
    that handles signals cannot wait for one itself. The thread begins with its group and has the priority of gloo's own
    threads: one with a lower priority on the same core can hold a lock for which gloo's thread spins.
    """

    def __init__(self) -> None:
        self._transfers: SimpleQueue[BackgroundTransfer | None] = SimpleQueue()
        Thread(target=_run_all, args=(self._transfers,), name="tacit-transfers", daemon=True).start()

    def begin(self, transfer: Callable[[], None]) -> BackgroundTransfer:
        begun = BackgroundTransfer(transfer)
        self._transfers.put(begun)
        return begun

    def close(self) -> None:
        """End the thread once its transfers have ended."""
        self._transfers.put(None)


def _run_all(transfers: SimpleQueue[BackgroundTransfer | None]) -> None:
    while (transfer := transfers.get()) is not None:
        transfer.run()


def exchange_bytes(
    sent: Sequence[bytes],
    place: int,
    all_to_all: Transfer[Started],
    transfer: Transfer[Started],
    wait: Callable[[Started], object],
    device: torch.device = _HOST,
) -> list[bytes]:
    """Send ``sent[j]`` to the j-th rank of a process group; return what each rank sent to this one, the ``place``-th.

    Lengths are exchanged first, by ``all_to_all``; they are not counted as traffic. The parts follow by ``transfer``.

    device: the device whose memory the group sends.
    """
    lengths = torch.tensor([len(part) for part in sent], dtype=torch.int64, device=device)
    lengths[place] = 0  # the own part does not travel
    incoming = torch.empty_like(lengths)
    wait(all_to_all(incoming, lengths, [], []))
    sizes = incoming.tolist()
    joined = bytearray().join(part for other, part in enumerate(sent) if other != place)
    outgoing = torch.frombuffer(joined or bytearray(1), dtype=torch.uint8)[: len(joined)].to(device)
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    wait(transfer(received, outgoing, sizes, lengths.tolist()))
    parts = [part.numpy().tobytes() for part in torch.split(received.cpu(), sizes)]
    return [*parts[:place], sent[place], *parts[place + 1 :]]
