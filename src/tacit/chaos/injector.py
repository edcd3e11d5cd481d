"""Applies the faults of a plan to the processes of a run, at their times."""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

from tacit.chaos.disk import SmallDisk
from tacit.chaos.hosts import Hosts
from tacit.chaos.plan import ChaosFault, ChaosPlan
from tacit.chaos.records import latest_updates, process_of

_CYCLE_S: Final = 0.1
"""Period in which a slow worker computes and is stopped."""
_WAIT_S: Final = 0.1
"""Time until the injector looks again whether a fault can happen that has to wait."""


class Injector:
    """Applies one plan. records: the folder in which workers write their processes.

    A fault waits while a worker that it hits has not come back, and while it would leave fewer than ``min_workers``: on
    a busy machine a killed worker comes back later than the plan says. After update ``last`` it waits no longer, and
    does not happen: it would hit the end of the run.
    """

    def __init__(
        self, plan: ChaosPlan, records: Path, hosts: Hosts | None, disk: SmallDisk | None, *, last: int | None = None
    ) -> None:
        self._records, self._hosts, self._disk, self._last = records, hosts, disk, last
        self._plan, self._begun_s = plan, 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._stopped: set[int] = set()  # processes
        self._killed: set[int] = set()  # processes, which may end a moment later
        self._cut: set[int] = set()  # seats
        self._away_until_s: dict[int, float] = {}  # by seat: a stop or a cut
        self._waiting: list[ChaosFault] = []
        self.done: list[dict[str, Any]] = []

    def start(self) -> None:
        """Begin: times of the plan count from now."""
        self._begun_s = time.monotonic()
        for fault in self._plan.faults:
            self._at(self._begun_s + fault.at_s, partial(self._apply, fault))

    def poll(self) -> float:
        """Apply what is due; return the seconds until something is due again."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        return 1.0 if not self._due else max(0.0, self._due[0][0] - time.monotonic())

    def end(self) -> None:
        """Undo what lasts: stopped processes continue, and so do packets. Note which faults have waited in vain."""
        self._due.clear()
        for fault in self._waiting:
            self._note(fault, [], list(fault.seats))
        self._waiting.clear()
        for process in list(self._stopped):
            self._send(process, signal.SIGCONT)
        for seat in list(self._cut):
            self._mend(seat)
        if self._disk is not None:
            self._disk.free()

    def _at(self, at_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), action))

    def _apply(self, fault: ChaosFault) -> None:
        now_s = time.monotonic()
        found = {seat: process_of(self._records, seat) for seat in range(self._plan.workers)}
        running = {seat: one for seat, one in found.items() if one is not None and one not in self._killed}
        there = {seat: running[seat] for seat in fault.seats if seat in running}
        if len(there) < len(fault.seats) or self._leaves_too_few(fault, running, now_s):
            if fault not in self._waiting:
                self._waiting.append(fault)
            self._at(now_s + _WAIT_S, partial(self._apply, fault))
            return
        if fault in self._waiting:
            self._waiting.remove(fault)
            if self._last is not None and latest_updates(self._records) > self._last:
                self._note(fault, [], list(fault.seats))
                return
        self._note(fault, list(there), [])
        until_s = now_s + (fault.for_s or 0.0)
        if fault.takes_away:
            self._away_until_s |= dict.fromkeys(there, until_s)
        if fault.kind == "fill" and self._disk is not None:
            self._disk.fill()
            self._at(until_s, self._disk.free)
        for seat, process in there.items():
            match fault.kind:
                case "kill":
                    self._send(process, signal.SIGKILL)
                    self._killed.add(process)
                case "stop":
                    self._send(process, signal.SIGSTOP)
                    self._at(until_s, partial(self._send, process, signal.SIGCONT))
                case "slow":
                    self._slow(process, fault.factor or 1.0, until_s)
                case "cut" if self._hosts is not None:
                    self._cut.add(seat)
                    self._hosts.cut(seat)
                    self._at(until_s, partial(self._mend, seat))

    def _leaves_too_few(self, fault: ChaosFault, running: Collection[int], now_s: float) -> bool:
        """Whether fewer workers than the run needs would be there after ``fault``, of those that are ``running``."""
        away = {seat for seat, until_s in self._away_until_s.items() if until_s > now_s}
        return fault.takes_away and len({*running} - away - {*fault.seats}) < self._plan.min_workers

    def _note(self, fault: ChaosFault, hit: list[int], missed: list[int]) -> None:
        now_s = time.monotonic()
        self.done.append(
            {
                "fault": str(fault),
                "kind": fault.kind,
                "seats": hit,
                "missed": missed,
                "at_s": now_s,
                "late_s": now_s - self._begun_s - fault.at_s,
                "until_s": now_s + (fault.for_s or 0.0),
            }
        )

    def _slow(self, process: int, factor: float, until_s: float) -> None:
        """Stop ``process`` for a part of a cycle, and begin the next one after it."""
        now_s = time.monotonic()
        if now_s >= until_s or not self._send(process, signal.SIGSTOP):
            return
        self._at(now_s + _CYCLE_S * (1 - 1 / factor), partial(self._send, process, signal.SIGCONT))
        self._at(now_s + _CYCLE_S, partial(self._slow, process, factor, until_s))

    def _send(self, process: int, number: int) -> bool:
        """Send a signal; return whether the process is there."""
        try:
            os.kill(process, number)
        except ProcessLookupError:
            self._stopped.discard(process)
            return False
        if number == signal.SIGSTOP:
            self._stopped.add(process)
        else:
            self._stopped.discard(process)
        return True

    def _mend(self, seat: int) -> None:
        assert self._hosts is not None
        self._cut.discard(seat)
        self._hosts.mend(seat)
