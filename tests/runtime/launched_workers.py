"""Workers as ``tacit launch`` starts them, forked as those of ``processes``: killed, stopped and started again."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore

from tacit.runtime.launched import publish_end, publish_gone, publish_life
from tests.runtime.processes import _result, _run_worker, context, start_fork_server

_GENERATION = "tacit/0/0/members/generation"


class Launched:
    """The seats of one run. Each life calls ``function(*arguments)``.

    Keys that workers set in ``store`` tell the test where they are: see ``reached``.
    """

    def __init__(
        self,
        seats: int,
        min_workers: int,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float = 60.0,
        is_elastic: bool = True,
    ) -> None:
        start_fork_server()
        self._is_elastic = is_elastic
        self.seats, self._min_workers, self._function, self._arguments = seats, min_workers, function, arguments
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.until_s, self._timeout_s = time.monotonic() + timeout_s, timeout_s
        self.lives = [0] * seats
        self.processes: list[Any] = [None] * seats
        self._pipes: list[Any] = [None] * seats
        self._watchers: list[threading.Thread] = []
        self.ended_s: dict[tuple[int, int], float] = {}  # by seat and life

    def __enter__(self) -> Launched:
        for seat in range(self.seats):
            self.start(seat)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        for watcher in self._watchers:
            watcher.join()

    def start(self, seat: int) -> None:
        """Start the next life of ``seat``."""
        self.lives[seat] += 1
        publish_life(self.store, seat, self.lives[seat])
        self._pipes[seat], theirs = context.Pipe(duplex=False)
        environment = {
            "RANK": str(seat),
            "LOCAL_RANK": str(seat),
            "WORLD_SIZE": str(self.seats),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        }
        if self._is_elastic:
            environment |= {"TACIT_LIFE": str(self.lives[seat]), "TACIT_MIN_WORKERS": str(self._min_workers)}
        arguments = (theirs, environment, self._function, self._arguments, self._timeout_s)
        self.processes[seat] = context.Process(target=_run_worker, args=arguments, daemon=True)
        self.processes[seat].start()
        theirs.close()
        watched = seat, self.lives[seat], self.processes[seat]
        self._watchers.append(threading.Thread(target=self._watch, args=watched, daemon=True))
        self._watchers[-1].start()

    def _watch(self, seat: int, life: int, process: Any) -> None:
        process.join()
        self.ended_s[seat, life] = time.monotonic()
        publish_end(self.store, seat, life, process.exitcode)

    def kill(self, *seats: int) -> None:
        for seat in seats:
            self.processes[seat].kill()

    def stop(self, seat: int) -> None:
        os.kill(self.processes[seat].pid, signal.SIGSTOP)

    def resume(self, seat: int) -> None:
        os.kill(self.processes[seat].pid, signal.SIGCONT)

    def give_up(self, seat: int) -> None:
        """Say that ``seat`` is not started again."""
        publish_gone(self.store, seat)

    def reached(self, key: str) -> None:
        """Wait until a worker has set ``key`` in the store: see ``tell``."""
        self.until(lambda: self.store.check([key]))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds."""
        while not condition():
            assert time.monotonic() < self.until_s, "not in time"
            time.sleep(0.005)

    def generation(self) -> int:
        """Return the number of the last generation of the first session."""
        number = 0
        while self.store.check([f"{_GENERATION}/{number + 1}"]):
            number += 1
        return number

    def members(self) -> list[int]:
        """Return the seats of the last generation."""
        return [seat for seat, _ in json.loads(self.store.get(f"{_GENERATION}/{self.generation()}"))]

    def results(self) -> list[Any]:
        """Return the result of every seat's last life, or ``Failed``."""
        return [
            _result(seat, pipe, process, self.until_s)
            for seat, (pipe, process) in enumerate(zip(self._pipes, self.processes, strict=True))
        ]


def tell(key: str) -> None:
    """Set ``key`` in the launcher's store, from a worker."""
    _connection().set(key, "1")


def is_told(key: str) -> bool:
    """Whether the test has set ``key``, in a worker."""
    return _connection().check([key])


def wait_for(key: str) -> None:
    """Wait until the test has set ``key``, in a worker."""
    while not is_told(key):
        time.sleep(0.002)


def note_step() -> None:
    """Count a step, for ``pass_steps_of_others``."""
    _connection().add("steps", 1)


def pass_steps_of_others(number: int, quiet_s: float = 1.0) -> None:
    """Wait until other workers have noted ``number`` steps more, or note none for ``quiet_s``."""
    begun = seen = _connection().add("steps", 0)
    seen_s = time.monotonic()
    while seen < begun + number and time.monotonic() < seen_s + quiet_s:
        time.sleep(0.002)
        now = _connection().add("steps", 0)
        seen, seen_s = now, time.monotonic() if now > seen else seen_s


@functools.cache
def _connection() -> TCPStore:
    return TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
