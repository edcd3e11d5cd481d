"""Processor time that rounds take from the computation beside them.

A loop computes while rounds of the model's size are under way. What it lacks compared with the same loop without a
round is the time that the round took from its core: threads of the library that ran there, interrupts, cold caches.
Processor time of the process does not show this: interrupts are not in it. On a rank with cores to spare it is 0.

Steps that sleep or wait for a device lose less than the loop: in proportion to the processor time in them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import torch
from torch import Tensor

from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.core.worker import Worker
from tacit.profiles.measurement import BEGINS
from tacit.profiles.probe.exchanges import wait_for_all
from tacit.profiles.warnings import median_error_s
from tacit.record.trace import NOTE, Trace

LOST: Final = "beside lost"
BYTES, SHARE = "beside bytes", "beside share"
ROUNDS: Final = 8
FEWEST_ROUNDS: Final = 3
_LONGER: Final = 1.25
"""How much longer the loop runs than a round that is waited for: a round beside it takes longer."""
_LEAST_S: Final = 2e-3
_MATRIX: Final = 128
_CLEARLY: Final = 3.0
"""Standard errors by which the loop must lack passes; otherwise rounds count as taking nothing."""


def affordable_rounds(round_s: float, affordable_s: float) -> int:
    """Return how many rounds beside a loop take ``affordable_s`` at most; 0 if these are too few."""
    found = min(ROUNDS, int(affordable_s / (2 * _loop_s(round_s) + round_s)) - 1)
    return found if found >= FEWEST_ROUNDS else 0


def measure_beside(worker: Worker, round_s: float, rounds: int = ROUNDS) -> None:
    """Compute beside rounds of the model's size, and note on each rank what they took from the loop.

    round_s: the time of a round that is waited for. One more round is not noted.
    """
    like, matrix = worker.parameters, torch.ones(_MATRIX, _MATRIX)
    vector, loop_s = torch.zeros_like(like), _loop_s(round_s)
    worker.note(BEGINS, float(rounds))
    sent = ring_all_reduce_bytes(like.numel() + 1, like.element_size(), worker.size)[worker.rank]
    worker.note(BYTES, 2.0 * sent)  # it receives as much
    for number in range(rounds + 1):
        wait_for_all(worker)
        alone = _passes(matrix, loop_s)
        wait_for_all(worker)
        pending = worker.network.start_all_reduce_mean(vector, extra_state=False)
        beside = _passes(matrix, loop_s)
        pending.wait()
        if number:
            worker.note(f"{LOST} {number}", beside.seconds - beside.count * alone.seconds / alone.count)


@dataclass(frozen=True)
class _Passes:
    count: int
    seconds: float


def _passes(matrix: Tensor, loop_s: float) -> _Passes:
    """Multiply matrices for this time."""
    count, began_s = 0, time.perf_counter()
    while (passed_s := time.perf_counter() - began_s) < loop_s:
        torch.mm(matrix, matrix)
        count += 1
    return _Passes(max(1, count), passed_s)


def _loop_s(round_s: float) -> float:
    return max(_LEAST_S, _LONGER * round_s)


class ProcessorShare:
    """The share of steps in which this process computes on a core."""

    def __init__(self) -> None:
        self._processor_s = self._seconds = 0.0
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Begin to count."""
        self._began = (time.process_time(), time.perf_counter())

    def end(self) -> None:
        """Count the time since ``begin``."""
        if self._began is not None:
            self._processor_s += time.process_time() - self._began[0]
            self._seconds += time.perf_counter() - self._began[1]
            self._began = None

    def note(self, worker: Worker) -> None:
        """Note the share; threads that compute side by side count as one."""
        if self._seconds:
            worker.note(SHARE, min(1.0, self._processor_s / self._seconds))


def processor_s_per_byte(traces: Iterable[Trace]) -> float:
    """Return the processor time of a byte that these runs noted; 0 if none did, or if it is lost in the noise."""
    lost_s, sizes, shares = list[float](), list[float](), list[float]()
    found = defaultdict(list, {LOST: lost_s, BYTES: sizes, SHARE: shares})
    for trace in traces:
        for event in trace.of(NOTE):
            name = LOST if event.label.startswith(LOST) else event.label
            if name in (LOST, BYTES, SHARE):
                found[name].append(event.value)
    if not (lost_s and sizes and shares):
        return 0.0
    usual_s = median(lost_s)
    if usual_s <= _CLEARLY * median_error_s(lost_s):
        return 0.0
    return usual_s * fmean(shares) / fmean(sizes)
