"""Exchanges of bytes: each rank of a process group sends a part to each other rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Thread
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

_HOST: Final = torch.device("cpu")
_RUNNING: Final = "the transfers are in progress"

Started = TypeVar("Started")
Transfer = Callable[[Tensor, Tensor, list[int], list[int]], Started]
"""Starts an exchange, from the received and the sent elements and the number of each per rank."""


class PeerTransfers:
    """Transfers between the ranks of a gloo group, with the methods of a ``torch.distributed.Work``.

    Receives are posted before sends. gloo's all-to-all posts its sends first: if the peer is ready, the data leave at
    once, and the notice that this rank is ready to receive waits behind them, and the peer's data wait for the notice.
    Two ranks then need the time of two transfers, unless both enter within one latency.

    A time-out closes the connections of the group, as gloo does.
    """

    def __init__(
        self,
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
        self._error: str | None = None  # only its text: an exception keeps the connections open
        size, incoming, outgoing = len(sizes), torch.split(received, list(sizes)), torch.split(sent, list(lengths))
        sources = [(place - step) % size for step in range(1, size)]
        targets = [(place + step) % size for step in range(1, size)]
        works: list[Any] = []
        try:
            works += [group.recv([incoming[source]], source, tag) for source in sources if sizes[source]]
            works += [group.send([outgoing[target]], target, tag) for target in targets if lengths[target]]
        except RuntimeError as error:  # a connection is closed
            self._error = str(error)
        self._thread = Thread(target=self._finish, args=(works, timeout), name="tacit-exchange", daemon=True)
        self._thread.start()

    def _finish(self, works: list[Any], timeout: timedelta) -> None:
        """Wait for all transfers: gloo makes no progress known before a wait, and a wait that ends early fails."""
        ends_s = time.monotonic() + timeout.total_seconds()
        try:
            for work in works if self._error is None else ():
                work.wait(timedelta(seconds=max(0.001, ends_s - time.monotonic())))
        except RuntimeError as error:
            self._error = self._error or str(error)
        finally:
            works.clear()  # the thread's arguments are released when it ends, which is later

    def is_completed(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all transfers have ended; raise ``RuntimeError`` if one fails, or at the end of ``timeout``."""
        self._thread.join(None if timeout is None else timeout.total_seconds())
        if self._thread.is_alive():
            raise RuntimeError(_RUNNING)
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


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
