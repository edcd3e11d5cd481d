"""The launcher's main loop: one machine's workers from their start to the end of the run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from tacit.runtime.launched import CHECKPOINTS, LIFE, MIN_WORKERS, SERVER_SEAT
from tacit.runtime.launcher.guardian import Guardian
from tacit.runtime.launcher.machines import Machine
from tacit.runtime.launcher.processes import Output, WorkerProcess
from tacit.runtime.launcher.reports import ERROR_FILE, FailedWorker, failed_worker
from tacit.runtime.launcher.seats import Seat, Seats, State
from tacit.runtime.messaging.secret import SECRET, SECRET_FILE

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_NOTICE_S: Final = 2.0
"""How long workers have to find out themselves that the run is over, and to name the right cause, before SIGTERM."""
_GRACE_S: Final = 30.0
"""How long workers may take to end after a signal: they end at a step, and write a checkpoint."""
_GROUP_S: Final = 5.0
"""How long other processes in the group of a worker that has failed may take to end."""
_SERVER_S: Final = 10.0
"""How long a server in a process of its own may take to end after all workers."""
_UPDATES: Final = 100
"""Updates between the checkpoints from which a server is started again, unless the user chooses."""
_STOPPED_S: Final = 10.0
"""How long a process that is stopped may stay so once another worker has finished."""
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every worker runs. words: what follows ``python`` on the command line.

    server: the same for the server in a process of its own; None: there is none.
    """

    words: Sequence[str]
    server: Sequence[str] | None = None
    output: Output = field(default_factory=Output)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended on this machine.

    failed: the last life of each of its seats that did not finish, in the order in which they ended. unattached: seats
    that ended with exit code 0 and have never called ``tacit.attach``.
    """

    failed: list[FailedWorker]
    restarts: int
    has_succeeded: bool
    signal: int | None  # that asked the launcher to end
    unattached: list[int] = field(default_factory=list)


class Launcher:
    """Workers of this machine. say: takes each event as a sentence, for the user."""

    def __init__(self, job: Job, machine: Machine, secret: str, say: Callable[[str], None]) -> None:
        self._job, self._machine, self._secret, self._say = job, machine, secret, say
        settings = machine.settings
        self._seats = Seats(
            machine.seats,
            settings.total_workers,
            settings.min_workers,
            settings.max_restarts,
            has_server=job.server is not None,
        )
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()  # what the main loop has to do
        self._running: dict[int, WorkerProcess] = {}
        self._failed: dict[int, FailedWorker] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._failed_groups: list[WorkerProcess] = []  # whose children may still run
        self._overdue: set[WorkerProcess] = set()  # which the launcher has killed
        self._stopped: set[WorkerProcess] = set()  # which are about to be killed
        self._gone: set[int] = set()  # seats of which the store says that they will not be started again
        self._server_ends = False  # all workers have ended, and the server is about to
        self._told_attempt = -1  # the last attempt whose workers were told to end
        self._signal: int | None = None
        self._scratch = Path()

    def run(self) -> Outcome:
        """Run until all workers of this machine have ended for good, and no other machine needs the store."""
        self._scratch = Path(tempfile.mkdtemp(prefix="tacit-launch-"))  # of mode 0700
        unattached = set[int]()
        self._guardian = Guardian()
        try:
            with _handled(self._signals_queued):
                self._machine.watch(self._see, self._lose_machine)
                self._loop()
                unattached = self._machine.unattached()
        finally:
            for process in (*self._running.values(), *self._failed_groups):
                process.kill()
            self._machine.close()
            self._guardian.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return Outcome(
            failed=list(self._failed.values()),
            restarts=sum(seat.restarts for seat in self._seats.own),
            has_succeeded=self._seats.have_succeeded(unattached),
            signal=self._signal,
            unattached=[seat.number for seat in self._seats.own if self._has_left(seat, unattached)],
        )

    def _has_left(self, seat: Seat, unattached: set[int]) -> bool:
        return seat.number in unattached and seat.state is State.FINISHED

    def _loop(self) -> None:
        while not (self._seats.is_over and self._may_leave):
            for seat in self._seats.due(time.monotonic()):
                self._start(seat)
            with suppress(Empty):
                self._events.get(timeout=self._pause_s())()
            for due_s, action in list(self._timers):
                if due_s <= time.monotonic():
                    self._timers.remove((due_s, action))
                    action()
            self._say_what_is_gone()
            self._end_what_is_over()
            self._end_server()
            self._end_stopped()

    @property
    def _may_leave(self) -> bool:
        """Whether no other machine needs the store that this one hosts."""
        others = (seat.state for seat in self._seats.all if seat not in self._seats.own)
        return self._machine.number != 0 or all(state in (State.FINISHED, State.LOST) for state in others)

    def _pause_s(self) -> float:
        dues = [due_s for due_s, _ in self._timers]
        if (next_s := self._seats.next_due_s()) is not None:
            dues.append(next_s)
        if any(seat.state is State.FINISHED for seat in self._seats.all):
            dues.append(time.monotonic() + 1.0)  # others may be stopped
        return max(0.0, min(min(dues, default=float("inf")) - time.monotonic(), _LONGEST_PAUSE_S))

    # Starting.

    def _start(self, seat: Seat) -> None:
        self._seats.started(seat, time.monotonic())
        self._machine.say_started(seat)
        variables = {**os.environ, **self._job.variables, **self._variables(seat)}
        variables.pop(SECRET_FILE, None)
        words = self._job.words if seat is not self._seats.server or self._job.server is None else self._job.server
        process = WorkerProcess(
            seat.number, seat.life, self._name(seat), words, variables, self._job.output, self._process_ended
        )
        self._guardian.add(process.pid)
        self._running[seat.number] = process

    def _variables(self, seat: Seat) -> dict[str, str]:
        """Return the variables that torchrun sets too, and those of tacit."""
        machine, settings, server = self._machine, self._machine.settings, self._seats.server
        of_server = {} if server is None else {SERVER_SEAT: str(server.number)}
        if seat is server:
            of_server[CHECKPOINTS] = f"{self._scratch / 'server'}:{_UPDATES}"
        return {
            **of_server,
            "RANK": str(seat.number),
            "WORLD_SIZE": str(settings.total_workers),
            "LOCAL_RANK": str(seat.number - machine.seats[0]),
            "LOCAL_WORLD_SIZE": str(len(machine.seats)),
            "GROUP_RANK": str(machine.number),
            "MASTER_ADDR": machine.host,
            "MASTER_PORT": str(machine.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(self._seats.attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
            "TORCHELASTIC_RUN_ID": settings.name,
            ERROR_FILE: str(self._errors(seat.number, seat.life)),
            LIFE: str(seat.life),
            MIN_WORKERS: str(settings.min_workers),
            SECRET: self._secret,
        }

    def _name(self, seat: Seat) -> str:
        return "server" if seat is self._seats.server else f"worker {seat.number}"

    def _errors(self, seat: int, life: int) -> Path:
        """Return the file for a life's error."""
        return self._scratch / f"{seat}-{life}.json"

    # What other threads and signals bring.

    def _process_ended(self, process: WorkerProcess, exit_code: int) -> None:
        self._machine.say_ended(process.seat, process.life, exit_code)  # at once: the others wait for it
        self._events.put(partial(self._take_end, process, exit_code))

    def _signals_queued(self, number: int, frame: FrameType | None) -> None:
        self._events.put(partial(self._take_signal, number))

    def _see(self, seat: int, state: State) -> None:
        self._events.put(partial(self._seats.observe, seat, state))

    def _lose_machine(self, text: str) -> None:
        self._events.put(partial(self._take_lost_machine, text))

    # What the main loop does then.

    def _take_end(self, process: WorkerProcess, exit_code: int) -> None:
        seat = self._seats.seat(process.seat)
        process.flush()
        self._guardian.remove(process.pid)
        del self._running[process.seat]
        lived_s = time.monotonic() - seat.started_s
        self._seats.ended(seat, exit_code, time.monotonic())
        if exit_code == 0:
            self._failed.pop(seat.number, None)
            return
        process.send_to_group(signal.SIGTERM)
        self._failed_groups.append(process)
        self._timers.append((time.monotonic() + _GROUP_S, partial(self._kill_group, process)))
        errors, log = self._errors(process.seat, process.life), self._job.output.file_of(process.name)
        reason = "it did not end when asked to, so the launcher killed it" if process in self._overdue else ""
        is_server = seat is self._seats.server
        failed = failed_worker(process.seat, process.life, exit_code, errors, log, reason, is_server=is_server)
        self._failed.pop(seat.number, None)
        self._failed[seat.number] = failed  # in the order in which they ended
        what_next = ""
        if seat.state is State.WAITING:
            limit = self._machine.settings.max_restarts
            what_next = f"; restart {seat.life} of {limit} in {max(0.0, seat.due_s - time.monotonic()):.1f} s"
        self._say(f"{failed.text}; it had run for {lived_s:.1f} s{what_next}")

    def _take_signal(self, number: int) -> None:
        if self._signal is not None:  # asked again: end at once
            for process in list(self._running.values()):
                self._kill(process)
            return
        self._signal = number
        self._seats.stop()
        self._end_all(number)

    def _take_lost_machine(self, text: str) -> None:
        self._say(text)
        if self._machine.is_cut_off:
            self._seats.stop()
            self._end_all(signal.SIGTERM)

    def _say_what_is_gone(self) -> None:
        for seat in self._seats.own:
            if seat.state in (State.FINISHED, State.LOST) and seat.number not in self._gone:
                self._gone.add(seat.number)
                self._machine.say_gone(seat.number)

    def _end_what_is_over(self) -> None:
        """End the workers that are left of an attempt that is over."""
        seats = self._seats
        if seats.is_ending and self._running and self._told_attempt != seats.attempt:
            self._told_attempt = seats.attempt
            has_no_server = seats.server is not None and seats.server.state is State.LOST
            few = "no worker is left" if seats.min_workers == 1 else f"fewer than {seats.min_workers} workers are left"
            why = "the server is lost" if has_no_server else few
            self._say(f"{why}; the others end")
            self._timers.append((time.monotonic() + _NOTICE_S, partial(self._end_all, signal.SIGTERM)))

    def _end_server(self) -> None:
        """End the server that is left when all workers have ended."""
        is_on = any(seat.state in (State.RUNNING, State.WAITING) for seat in self._seats.all)
        if self._seats.server is not None and not is_on and not self._server_ends:
            self._server_ends = True
            self._timers.append((time.monotonic() + _SERVER_S, partial(self._end_all, signal.SIGTERM)))

    def _end_stopped(self) -> None:
        """Kill workers that are stopped, once others have finished without them."""
        if not any(seat.state is State.FINISHED for seat in self._seats.all):
            return
        stopped = {process for process in self._running.values() if process.is_stopped}
        for process in stopped - self._stopped:
            self._timers.append((time.monotonic() + _STOPPED_S, partial(self._kill_stopped, process)))
        self._stopped |= stopped

    def _kill_stopped(self, process: WorkerProcess) -> None:
        self._stopped.discard(process)
        if process.is_stopped:
            self._kill(process)

    def _end_all(self, number: int) -> None:
        """Send a signal to the workers that run now, and kill those that have not ended in time."""
        for process in self._running.values():
            process.send(number)
            self._timers.append((time.monotonic() + _GRACE_S, partial(self._kill, process)))

    def _kill(self, process: WorkerProcess) -> None:
        if process in self._running.values():
            self._overdue.add(process)
            process.kill()

    def _kill_group(self, process: WorkerProcess) -> None:
        self._failed_groups.remove(process)
        process.kill()


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals with ``handler``; outside the main thread, where Python handles none, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, handler) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, previous in before.items():
            signal.signal(one, previous)
