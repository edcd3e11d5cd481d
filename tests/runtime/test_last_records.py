"""The records of workers of a run that ends early: collected by the lowest rank that is not lost."""

from __future__ import annotations

import time

import pytest
import torch

import tacit
from tacit.errors import Interrupted, PeerLost
from tacit.runtime.backend import ProcessBackend
from tacit.session.recording.last_records import collect_records, publish_record
from tests.runtime.processes import together

LARGE = 9 << 20  # more than the store takes as one value


def collected(size_bytes: int, lost: int | None) -> list[tuple[int, int]]:
    """Publish a record and collect those of others; return the first byte and the size of each that was found.

    lost: the rank that ends without a record; None: the run is interrupted.
    """
    error = Interrupted("asked to end") if lost is None else PeerLost(lost, 1.0, "a round", ranks=[lost])
    backend = ProcessBackend(tacit.AllReduce(), device=torch.device("cpu"))
    record = bytes([backend.rank]) * size_bytes
    if backend.rank != lost:
        publish_record(backend, record, error)
    found = collect_records(backend, record, error, time.monotonic())
    backend.close(error)
    return [(one[0], len(one)) for one in found]


@pytest.mark.processes
def test_rank_0_collects_records_of_any_size() -> None:
    first, second = together(2, collected, LARGE, None)
    assert first == [(0, LARGE), (1, LARGE)]
    assert second == [(1, LARGE)]


@pytest.mark.processes
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_worker_is_not_waited_for_and_the_lowest_rank_that_is_left_collects(lost: int) -> None:
    found = together(3, collected, 10, lost)
    left = [rank for rank in range(3) if rank != lost]
    assert found[left[0]] == [(rank, 10) for rank in left]
    assert found[left[1]] == [(left[1], 10)]
