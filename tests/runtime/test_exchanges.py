"""Exchanges of bytes: receives are posted before sends, and a closed connection is told by the wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from threading import Event

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tacit.runtime.exchanges import TransferThread, exchange_bytes, transfer_by_pairs

TIMEOUT = timedelta(seconds=20)


class _Work:
    def wait(self, timeout: timedelta) -> bool:
        return True


class _RecordingGroup:
    """Notes the transfers that are posted on it; posts to rank ``closed`` fail, as those of a closed connection."""

    def __init__(self, closed: int | None = None) -> None:
        self.posted: list[tuple[str, int, int]] = []
        self._closed = closed

    def _post(self, what: str, tensors: Sequence[Tensor], rank: int) -> _Work:
        if rank == self._closed:
            raise RuntimeError("Connection closed by peer")
        self.posted.append((what, rank, tensors[0].numel()))
        return _Work()

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> _Work:
        return self._post("receive", tensors, rank)

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> _Work:
        return self._post("send", tensors, rank)


def _transfer(group: _RecordingGroup) -> None:
    """Make the transfers of rank 1 of 3: 0 sends 4 bytes and 2 sends nothing; it sends 2 bytes and 5 bytes."""
    received, sent = torch.empty(4, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8)
    transfer_by_pairs(group, received, sent, [4, 0, 0], [2, 0, 5], place=1, tag=1, timeout=TIMEOUT)


def test_receives_are_posted_before_sends_and_empty_parts_do_not_travel() -> None:
    group = _RecordingGroup()
    _transfer(group)
    assert group.posted == [("receive", 0, 4), ("send", 2, 5), ("send", 0, 2)]


def test_a_thread_makes_transfers_in_order_and_their_waits_tell_what_failed() -> None:
    thread, group = TransferThread(), _RecordingGroup()
    failed = thread.begin(lambda: _transfer(_RecordingGroup(closed=2)))
    made = thread.begin(lambda: _transfer(group))
    thread.close()
    assert made.wait(TIMEOUT) and len(group.posted) == 3
    assert failed.is_completed()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        failed.wait(TIMEOUT)


def assert_set(event: Event) -> None:
    assert event.wait(20)


def test_a_wait_that_ends_early_leaves_the_transfer_in_progress() -> None:
    thread, may_end = TransferThread(), Event()
    transfer = thread.begin(lambda: assert_set(may_end))
    with pytest.raises(RuntimeError, match="in progress"):
        transfer.wait(timedelta(seconds=0))
    assert not transfer.is_completed()
    may_end.set()
    assert transfer.wait(TIMEOUT)
    thread.close()


def test_a_group_of_one_keeps_its_part() -> None:
    store = dist.HashStore()
    group = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=20))

    def all_to_all(*parts: object) -> dist.Work:
        return group.alltoall_base(*parts, dist.AllToAllOptions())  # type: ignore[no-any-return, call-overload]

    assert exchange_bytes([b"own"], 0, all_to_all, all_to_all, lambda work: work.wait()) == [b"own"]
