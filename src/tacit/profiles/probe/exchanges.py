"""Exchanges of a probe that belong to no strategy: small sizes, rounds back to back, shifts of all ranks, and pairs.

All of them use the network of the session, so that they take the same groups as rounds of the run. Their times are
noted in the trace, or are those of its events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from tacit.core.messages import TensorMessage
from tacit.core.worker import Worker

SMALL_BYTES: Final = (1_000, 64_000)
REPETITIONS: Final = 3
PAIR_RANKS: Final = 8
"""Ranks among which pairs are measured: their number grows with the square."""
_PAIR_S, _LONGEST_PAIR_S = 0.05, 0.25
"""Seconds of a transfer between a pair: wanted, and at most where the model takes longer."""
_PASSES, _TRANSFERS = 2, 2
"""Pairs are measured in several passes, since a busy host delays transfers that follow each other. Of the transfers of
a pass only the last counts: the others use up burst allowances.
"""
_PINGS: Final = 5
_BYTE: Final = torch.uint8


def mean_of(worker: Worker, size_bytes: float) -> float:
    """Take part in an all-reduce of so many bytes; return its seconds on this rank."""
    like = worker.parameters
    vector = like.new_zeros(max(1, int(size_bytes) // like.element_size()))
    began_s = time.perf_counter()
    worker.network.all_reduce_mean(vector, extra_state=False)
    return time.perf_counter() - began_s


def estimated_round_s(worker: Worker, model_bytes: int) -> float:
    """Take part in small all-reduces and all-gathers; return what an all-reduce of the model would take."""
    seconds, measured_bytes = 0.0, 0
    for size_bytes in SMALL_BYTES:
        if size_bytes <= max(model_bytes, SMALL_BYTES[0]):
            message = TensorMessage(torch.zeros(size_bytes, dtype=_BYTE))
            for _ in range(REPETITIONS):
                worker.network.all_gather(message)
            seconds = min(mean_of(worker, size_bytes) for _ in range(REPETITIONS))
            measured_bytes = size_bytes
    return seconds * max(1.0, model_bytes / measured_bytes)


def wait_for_all(worker: Worker) -> None:
    """Wait until every rank is here."""
    worker.network.all_gather(TensorMessage(torch.zeros(1, dtype=_BYTE)))


def measure_pairs(worker: Worker, size_bytes: int) -> None:
    """Measure shifts of all ranks at once, then pairs one by one, and note latencies and rates on the sender."""
    ranks = min(worker.size, PAIR_RANKS)
    payload = torch.zeros(size_bytes, dtype=_BYTE)
    for shift in range(1, worker.size) if worker.size <= PAIR_RANKS else ():
        wait_for_all(worker)
        worker.note(f"shift {shift} rate", size_bytes / max(_shift_s(worker, shift, payload), 1e-9))
    for number in range(_PASSES):
        for source, target in _pairs(ranks):
            wait_for_all(worker)
            if worker.rank in (source, target):
                _measure_pair(worker, (source, target), payload, number)


def pair_bytes(worker: Worker, model_bytes: int, round_s: float, affordable_s: float) -> int:
    """Return the bytes to send between pairs so that all of them together take ``affordable_s`` at most; 0: none."""
    ranks = min(worker.size, PAIR_RANKS)
    transfers = _PASSES * _TRANSFERS * ranks * (ranks - 1) + worker.size
    rate = 2 * (worker.size - 1) / worker.size * model_bytes / max(round_s, 1e-6)
    wanted = min(max(_PAIR_S * rate, model_bytes), _LONGEST_PAIR_S * rate)
    found = int(min(wanted, rate * affordable_s / transfers))
    if found < wanted / 2:  # so little may fit into a burst allowance, whose rate says nothing
        return 0
    return found if found >= SMALL_BYTES[-1] / 4 else 0


def _shift_s(worker: Worker, shift: int, payload: Tensor) -> float:
    """Send ``payload`` to the rank that is ``shift`` higher while all others do the same."""
    nothing = TensorMessage(payload[:1])
    messages = [nothing] * worker.size
    messages[(worker.rank + shift) % worker.size] = TensorMessage(payload)
    began_s = time.perf_counter()
    worker.network.all_to_all(messages)
    return time.perf_counter() - began_s


def _pairs(ranks: int) -> Iterator[tuple[int, int]]:
    for source in range(ranks):
        for target in range(source + 1, ranks):
            yield source, target


def _measure_pair(worker: Worker, pair: tuple[int, int], payload: Tensor, number: int) -> None:
    """Measure both directions of one pair. The sender waits for an answer, so that its own clock is enough."""
    for source, target in (pair, pair[::-1]):
        round_trips_s = [_sent_s(worker, pair, source, target, payload[:1]) for _ in range(_PINGS)]
        latency_s = min(round_trips_s) / 2
        seconds = [_sent_s(worker, pair, source, target, payload) for _ in range(_TRANSFERS)][-1]
        if worker.rank == source:
            worker.note(f"pair {target} latency {number}", latency_s)
            worker.note(f"pair {target} rate {number}", payload.numel() / max(seconds - 2 * latency_s, 1e-9))


def _sent_s(worker: Worker, pair: tuple[int, int], source: int, target: int, payload: Tensor) -> float:
    began_s = time.perf_counter()
    worker.network.broadcast(payload, source, group=pair)
    worker.network.broadcast(payload[:1], target, group=pair)
    return time.perf_counter() - began_s
