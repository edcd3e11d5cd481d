"""A small launcher for tests: forked processes that come back as new lives, and faults that a plan names.

It speaks as ``tacit launch`` does (``runtime/launched.py``), and a new life starts in a moment instead of seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from tacit.runtime.launched import publish_end, publish_gone, publish_life
from tests.runtime.processes import Failed, _run_worker, context, start_fork_server


@dataclass
class Life:
    """One process of a seat. heard: what it has told the test, oldest first; result: what it returned, or its error."""

    seat: int
    number: int
    process: Any
    results: Connection
    tidings: Connection
    heard: list[Any] = field(default_factory=list)
    result: Any = None
    ended_s: float | None = None

    def take(self) -> None:
        """Take what has arrived."""
        with contextlib.suppress(EOFError, OSError):
            while self.tidings.poll():
                self.heard.append(self.tidings.recv())

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)


class Launch:
    """A run of ``function(tell, *arguments)`` in each of ``size`` seats; ``tell`` sends tidings to the test.

    server: folder for the checkpoints of a server in a process of its own, whose seat is ``size``; None: there is none.
    """

    def __init__(
        self,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        restarts: int = 3,
        limit_s: float = 100,
        server: Path | None = None,
    ) -> None:
        start_fork_server()
        self._function, self._arguments, self._restarts = function, arguments, restarts
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._until_s, self.size = time.monotonic() + limit_s, size
        self._server = server
        self.lives: list[list[Life]] = [[] for _ in range(size + (server is not None))]
        self.finished: set[int] = set()
        for seat in range(len(self.lives)):
            self._start(seat)

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        for life in self._running():
            with contextlib.suppress(ProcessLookupError):
                life.kill()
            life.process.join()

    def _start(self, seat: int) -> None:
        number = len(self.lives[seat]) + 1
        publish_life(self._store, seat, number)
        (results, its_results), (tidings, its_tidings) = (context.Pipe(duplex=False) for _ in range(2))
        environment = {
            "RANK": str(seat),
            "LOCAL_RANK": str(seat),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TACIT_LIFE": str(number),
            "TACIT_MIN_WORKERS": "1",
            "OMP_NUM_THREADS": "1",
        }
        if self._server is not None:
            environment["TACIT_SERVER_SEAT"] = str(self.size)
        if seat == self.size:
            environment |= {"RANK": "0", "TACIT_SERVE": "1", "TACIT_SERVE_CHECKPOINTS": f"{self._server}:20"}
        left_s = max(10.0, self._until_s - time.monotonic())
        process = context.Process(
            target=_live,
            args=(its_results, its_tidings, environment, self._function, self._arguments, left_s),
            daemon=True,
        )
        process.start()
        its_results.close()
        its_tidings.close()
        self.lives[seat].append(Life(seat, number, process, results, tidings))

    def _running(self) -> Iterator[Life]:
        return (lives[-1] for lives in self.lives if lives[-1].ended_s is None)

    @property
    def present(self) -> list[Life]:
        """The latest life of each seat."""
        return [lives[-1] for lives in self.lives]

    def watch(self) -> None:
        """See who has ended, say so, and start what comes back; take tidings."""
        running = list(self._running())
        wait([life.process.sentinel for life in running], timeout=0.005)
        for life in running:
            life.take()
            if life.process.is_alive():
                continue
            life.process.join()
            life.take()
            life.ended_s = time.monotonic()
            life.result = _result(life)
            publish_end(self._store, life.seat, life.number, life.process.exitcode)
            if life.process.exitcode == 0 and getattr(life.result, "name", "SystemExit") == "SystemExit":
                self.finished.add(life.seat)
            if life.seat in self.finished or life.number > self._restarts or self.finished:
                publish_gone(self._store, life.seat)
            else:
                self._start(life.seat)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Watch until ``condition``; fail with the state of all lives if it does not come."""
        while not condition():
            assert time.monotonic() < self._until_s, f"{what} did not come: {self.story()}"
            self.watch()

    def say(self, key: str) -> None:
        """Set ``key`` in the store: see ``launched_workers.is_told``."""
        self._store.set(key, "1")

    def beats(self, seat: int) -> int:
        """Return how often the lives of ``seat`` have beaten; one that joins begins when others can send to it."""
        return int(self._store.add(f"tacit/0/0/beat/{seat}", 0))

    def kill(self, *seats: int) -> None:
        """Kill the latest lives of ``seats`` at once, and watch until their next lives run."""
        lives = [self.present[seat] for seat in seats]
        for life in lives:
            life.kill()
        self.until(lambda: all(self.present[life.seat].number > life.number for life in lives), f"new lives of {seats}")

    def until_heard(self, seats: Sequence[int], count: int) -> None:
        """Watch until the latest lives of ``seats`` have told something ``count`` times."""
        self.until(lambda: all(len(self.present[seat].heard) >= count for seat in seats), f"{count} tidings of {seats}")

    def end(self) -> list[Any]:
        """Watch until nobody runs; return the result of the last life of each worker's seat."""
        self.until(lambda: not any(True for _ in self._running()), "the end")
        return [life.result for life in self.present[: self.size]]

    def story(self) -> str:
        return "; ".join(
            f"{life.seat}.{life.number} {'runs' if life.ended_s is None else 'ended'}, told {life.heard[-1:]}, "
            f"{str(life.result)[-600:]}"
            for lives in self.lives
            for life in lives
        )


def _live(
    results: Connection, tidings: Connection, environment: dict[str, str], function: Any, arguments: Any, left_s: float
) -> None:
    _run_worker(results, environment, function, (tidings.send, *arguments), left_s)


def _result(life: Life) -> Any:
    try:
        return torch.load(io.BytesIO(life.results.recv_bytes()), weights_only=False)
    except EOFError:
        return Failed(life.seat, "Died", f"exit code {life.process.exitcode}", "")
