"""The machines of a run: which seats each one has, and what its launcher says to the others in the store.

Beside the keys of ``launched``, launchers write:

    tacit/launch/run            the settings of the run, with a proof that their writer knows the secret
    tacit/launch/taken          the number of seats that machines have taken; each takes a block, in order of arrival
    tacit/launch/machines       the number of machines
    tacit/launch/block/NUMBER   the seats of a machine: the first one, and how many
    tacit/launch/beat/NUMBER    a number that the machine's launcher increases every second
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hmac import compare_digest
from threading import Event, Thread
from typing import Final

from torch._C._distributed_c10d import Store

from tacit.errors import TacitError, require
from tacit.record.versions import tacit_version
from tacit.runtime.launched import LIFE, LaunchedLives, has_attached, publish_end, publish_gone, publish_life
from tacit.runtime.launcher.seats import Seat, State
from tacit.runtime.launcher.store import LOOPBACK, connected_store, hosted_store, is_loopback
from tacit.runtime.messaging.secret import derive

LOST_MACHINE: Final = 255
"""Exit code of the workers of a machine that is lost: how they ended is not known."""
_PREFIX: Final = "tacit/launch"
_BEAT_S: Final = 1.0
_MISSED_BEATS: Final = 15
"""Looks, ``_BEAT_S`` apart, with the same number after which a machine counts as lost."""
_LOOK_S: Final = 0.2
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run, the same on all machines; the first one chooses them."""

    total_workers: int
    min_workers: int
    max_restarts: int
    name: str
    version: str

    @classmethod
    def new(cls, total_workers: int, min_workers: int | None = None, max_restarts: int | None = None) -> RunSettings:
        """Return the settings of a new run.

        max_restarts: None: 0. min_workers: None: all workers, or 1 if workers are started again.
        """
        restarts = max_restarts or 0
        fewest = min_workers if min_workers is not None else 1 if restarts else total_workers
        require(restarts >= 0, f"--max-restarts {restarts} must be at least 0.")
        require(
            1 <= fewest <= total_workers,
            f"--min-workers {fewest} must be from 1 to {total_workers}, the number of workers.",
        )
        return cls(
            total_workers=total_workers,
            min_workers=fewest,
            max_restarts=restarts,
            name=secrets.token_hex(4),
            version=tacit_version(),
        )


class Machine:
    """This machine among those of a run. number: in the order of arrival; number 0 hosts the store."""

    def __init__(
        self, store: Store, address: tuple[str, int], settings: RunSettings, number: int, seats: range
    ) -> None:
        self.store, self.settings, self.number, self.seats = store, settings, number, seats
        self.host, self.port = address
        self._stop = Event()
        self._thread: Thread | None = None
        self._said_gone: set[int] = set()
        self.is_cut_off = False  # the store is gone, or the others have given this machine up

    @classmethod
    def first(
        cls, workers: int, settings: RunSettings, secret: bytes, *, host: str = LOOPBACK, port: int = 0
    ) -> Machine:
        """Host the store, on ``host``, and take the first seats."""
        store = hosted_store(host, port)
        text = json.dumps(asdict(settings))
        store.set(f"{_PREFIX}/run", json.dumps({"settings": text, "proof": _proof(secret, text)}))
        machine = cls(store, (store.host, store.port), settings, 0, range(workers))
        machine._take_seats(workers)
        return machine

    @classmethod
    def joining(cls, host: str, port: int, workers: int, secret: bytes) -> Machine:
        """Take the next seats of the run whose store is at ``host`` and ``port``."""
        store = connected_store(host, port, _PATIENCE_S)
        settings = _settings(store, secret, f"{host}:{port}")
        machine = cls(store, (host, port), settings, -1, range(0))
        machine._take_seats(workers)
        return machine

    def _take_seats(self, workers: int) -> None:
        end, total = self.store.add(f"{_PREFIX}/taken", workers), self.settings.total_workers
        if end > total:
            self.store.add(f"{_PREFIX}/taken", -workers)
            raise TacitError(
                f"--workers {workers} would take seats {end - workers} to {end - 1}, and the run has {total} in all "
                f"(0 to {total - 1}); start the first machine with a larger --total-workers, or this one with fewer."
            )
        self.number = self.store.add(f"{_PREFIX}/machines", 1) - 1
        self.seats = range(end - workers, end)
        self.store.set(f"{_PREFIX}/block/{self.number}", json.dumps([end - workers, workers]))

    @property
    def is_alone(self) -> bool:
        """Whether this is the only machine of the run."""
        return len(self.seats) == self.settings.total_workers

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach the store."""
        return is_loopback(self.host)

    def missing(self) -> int:
        """Return how many seats no machine has taken yet."""
        return self.settings.total_workers - self.store.add(f"{_PREFIX}/taken", 0)

    def unattached(self) -> set[int]:
        """Return the seats that have never called ``tacit.attach``; empty where that is not known."""
        seats = range(self.settings.total_workers)
        lives = LaunchedLives(self.store, {LIFE: "1", "WORLD_SIZE": str(len(seats))})
        if len(seats) == 1:  # it attaches without the store
            return set()
        try:
            return {seat for seat in seats if not has_attached(self.store, seat, lives.current_life(seat))}
        except RuntimeError:  # the store is gone
            return set()

    # What this machine says.

    def say_started(self, seat: Seat) -> None:
        publish_life(self.store, seat.number, seat.life)

    def say_ended(self, seat: int, life: int, exit_code: int) -> None:
        self._try(partial(publish_end, self.store, seat, life, exit_code))

    def say_gone(self, seat: int) -> None:
        self._said_gone.add(seat)
        self._try(partial(publish_gone, self.store, seat))

    def _try(self, call: Callable[[], object]) -> None:
        """Call the store, unless it is gone; the thread that watches it says so."""
        if not self.is_cut_off:
            with suppress(RuntimeError):
                call()

    # What the other machines say.

    def watch(self, seen: Callable[[int, State], None], lost: Callable[[str], None]) -> None:
        """Call ``seen`` from a thread when a seat of another machine changes, and ``lost`` when a machine is lost."""
        if not self.is_alone:
            self._thread = Thread(target=self._watch, args=(seen, lost), name="tacit-machines", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_BEAT_S)  # it may wait for a store that does not answer

    def _watch(self, seen: Callable[[int, State], None], lost: Callable[[str], None]) -> None:
        others = _Others(self.store, self)
        beat_due_s = time.monotonic()
        try:
            while not self._stop.wait(_LOOK_S):
                for number, state in others.changes():
                    seen(number, state)
                if time.monotonic() >= beat_due_s:
                    beat_due_s = time.monotonic() + _BEAT_S
                    self.store.add(f"{_PREFIX}/beat/{self.number}", 1)
                    if others.are_gone(set(self.seats) - self._said_gone):
                        self.is_cut_off = True
                        lost("the other machines could not reach this one for a while, and go on without it")
                        return
                    for text in others.lost_machines():
                        lost(text)
        except RuntimeError:
            self.is_cut_off = True
            if not self._stop.is_set():
                lost(
                    f"the store at {self.host}:{self.port} cannot be reached any more: the launcher of the first "
                    f"machine has ended, or the network is cut"
                )


class _Others:
    """What a launcher knows of the other machines."""

    def __init__(self, store: Store, machine: Machine) -> None:
        self._store, self._machine = store, machine
        self._lives = LaunchedLives(store, {LIFE: "1", "WORLD_SIZE": str(machine.settings.total_workers)})
        self._seats = [n for n in range(machine.settings.total_workers) if n not in machine.seats]
        self._states = dict.fromkeys(self._seats, State.RUNNING)
        self._beats: dict[int, tuple[int, int]] = {}  # by machine: its number, and how many looks ago it was new
        self._lost: set[int] = set()

    def changes(self) -> list[tuple[int, State]]:
        found = {number: self._state(number) for number in self._seats}
        changed = [(number, state) for number, state in found.items() if self._states[number] is not state]
        self._states = found
        return changed

    def are_gone(self, seats: set[int]) -> bool:
        """Whether somebody else has said that one of this machine's own ``seats`` is gone."""
        return any(self._lives.is_gone(seat) for seat in seats)

    def _state(self, seat: int) -> State:
        if self._states[seat] in (State.FINISHED, State.LOST):
            return self._states[seat]
        ended = self._lives.dead(seat, self._lives.current_life(seat))
        if self._lives.is_gone(seat):
            return State.FINISHED if ended is not None and ended.exit_code == 0 else State.LOST
        return State.RUNNING if ended is None else State.WAITING

    def lost_machines(self) -> list[str]:
        """Return a sentence for each machine that has just been found lost, and publish the end of its workers."""
        texts = []
        for number in range(self._store.add(f"{_PREFIX}/machines", 0)):
            if number == self._machine.number or number in self._lost:
                continue
            beat = self._store.add(f"{_PREFIX}/beat/{number}", 0)
            known, looks = self._beats.get(number, (-1, 0))
            self._beats[number] = beat, looks + 1 if beat == known else 0
            first, count = json.loads(self._store.get(f"{_PREFIX}/block/{number}"))
            left = [seat for seat in range(first, first + count) if not self._lives.is_gone(seat)]
            if left and self._beats[number][1] >= _MISSED_BEATS:
                self._lost.add(number)
                for seat in left:
                    publish_end(self._store, seat, self._lives.current_life(seat), LOST_MACHINE)
                    publish_gone(self._store, seat)
                workers = f"worker {first}" if count == 1 else f"workers {first} to {first + count - 1}"
                texts.append(f"machine {number} ({workers}) has not answered for {_MISSED_BEATS * _BEAT_S:g} s")
        return texts


def _proof(secret: bytes, text: str) -> str:
    return derive(secret, "run settings", text).hex()


def _settings(store: Store, secret: bytes, where: str) -> RunSettings:
    """Return the settings of the run that another machine's launcher hosts; raise if it has another secret."""
    if not store.check([f"{_PREFIX}/run"]):
        raise TacitError(f"--join {where} is no store of tacit launch; use the address and port that it prints.")
    found = json.loads(store.get(f"{_PREFIX}/run"))
    if not compare_digest(_proof(secret, found["settings"]), found["proof"]):
        raise TacitError(
            f"the run at {where} has another secret; copy the secret file of its first machine to this one, and set "
            f"TACIT_SECRET_FILE to it."
        )
    settings = RunSettings(**json.loads(found["settings"]))
    if settings.version != tacit_version():
        raise TacitError(
            f"the run at {where} has tacit {settings.version}, and this machine {tacit_version()}; "
            f"install the same version on all machines."
        )
    return settings
