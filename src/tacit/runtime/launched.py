"""What the launcher says in the store about the lives of all seats.

A seat is a rank; a life is one process of a seat, counted from 1. ``tacit launch`` writes, without a session's prefix:

    tacit/launch/life/SEAT         the seat's current life, set before its process starts
    tacit/launch/dead/SEAT/LIFE    {"exit_code": int}, set when that process has ended (negative: the signal)
    tacit/launch/gone/SEAT         set when the seat will not be started again

and each process, when it attaches:

    tacit/launch/claim/SEAT/LIFE   a name of the process

Anybody who reaches the store can write there too. A false entry can end a run, and can do nothing else; one that does
not parse counts as absent.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store

from tacit.errors import TacitError, require

LIFE: Final = "TACIT_LIFE"
"""Environment variable of a process that ``tacit launch`` started: the life of its seat."""
MIN_WORKERS: Final = "TACIT_MIN_WORKERS"
"""Environment variable: the number of living seats below which the run ends."""
SERVER_SEAT: Final = "TACIT_SERVER_SEAT"
"""Environment variable: the seat of the server, where ``tacit launch`` starts it in a process of its own."""
CHECKPOINTS: Final = "TACIT_SERVE_CHECKPOINTS"
"""Environment variable: where such a server writes checkpoints, and after how many updates each: ``FOLDER:100``."""
_PREFIX: Final = "tacit/launch"
_PROCESS: Final = secrets.token_hex(8)
"""A name that two processes never share, not even a parent and a child that a script forks: see ``_own_name``."""


@dataclass(frozen=True)
class Ended:
    """How the process of a life ended. exit_code: 0 if it finished; negative: the signal that ended it."""

    exit_code: int

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        return None if self.exit_code >= 0 else signal_name(-self.exit_code)


class LaunchedLives:
    """One process's view of all seats' lives.

    store: the launcher's, prefixes are ignored; None if there is none. Calls raise ``RuntimeError`` once it is gone.
    Without ``tacit launch`` every seat has one life, of which nothing is known.
    """

    def __init__(self, store: Store | None, variables: Mapping[str, str] = os.environ) -> None:
        self.is_elastic = store is not None and LIFE in variables  # whether tacit launch started this process
        self._store = _without_prefixes(store)
        self._ended: dict[tuple[int, int], Ended] = {}  # what has ended stays so
        self._gone: set[int] = set()
        self.seat, self.size = _seat(variables)
        self.life = _number(variables, LIFE, 1) if LIFE in variables else 1
        self.min_workers = _number(variables, MIN_WORKERS, self.size)  # living seats below which the run ends
        require(
            1 <= self.min_workers <= self.size,
            f"{MIN_WORKERS}={self.min_workers} must be from 1 to {self.size}, the number of seats; "
            f"tacit launch --min-workers sets it.",
        )

    def current_life(self, seat: int) -> int:
        """Return the life of ``seat`` that was started last."""
        if not self.is_elastic:
            return 1
        life = self._read(f"life/{seat}", int)
        return 1 if life is None else life

    def dead(self, seat: int, life: int) -> Ended | None:
        """Return how the process of ``life`` of ``seat`` ended; None while it is not known to have ended."""
        if self.is_elastic and (seat, life) not in self._ended:
            exit_code = self._read(f"dead/{seat}/{life}", lambda text: int(json.loads(text)["exit_code"]))
            if exit_code is None:
                return None
            self._ended[seat, life] = Ended(exit_code)
        return self._ended.get((seat, life))

    def is_gone(self, seat: int) -> bool:
        """Whether ``seat`` has ended and will not be started again."""
        if self.is_elastic and seat not in self._gone and self._read(f"gone/{seat}", int) is not None:
            self._gone.add(seat)
        return seat in self._gone

    def claim(self) -> None:
        """Raise ``TacitError`` if another process has this seat and life; do nothing if this process has claimed it."""
        if not self.is_elastic or self._store is None:
            return
        name = _own_name()
        holder = self._store.compare_set(_claim(self.seat, self.life), "", name).decode()
        if holder != name:
            raise TacitError(
                f"another process already has RANK={self.seat} with {LIFE}={self.life}; start every process with "
                f"tacit launch, which gives each its own, and do not call tacit.attach in a process that it forked."
            )

    def _read(self, key: str, number: Callable[[str], int]) -> int | None:
        """Return the number in an entry; None if there is none."""
        store, name = self._store, f"{_PREFIX}/{key}"
        # Not store.get alone, which waits for the key and blocks the store for other threads meanwhile.
        if store is None or not store.check([name]):
            return None
        try:
            return number(store.get(name).decode())
        except (ValueError, TypeError, KeyError):  # somebody else wrote it
            return None


# What the launcher writes.


def publish_life(store: Store, seat: int, life: int) -> None:
    """Say that ``life`` of ``seat`` is about to start."""
    store.set(f"{_PREFIX}/life/{seat}", str(life))


def publish_end(store: Store, seat: int, life: int, exit_code: int) -> None:
    """Say that the process of ``life`` of ``seat`` has ended."""
    store.set(f"{_PREFIX}/dead/{seat}/{life}", json.dumps({"exit_code": exit_code}))


def publish_gone(store: Store, seat: int) -> None:
    """Say that ``seat`` will not be started again."""
    store.set(f"{_PREFIX}/gone/{seat}", "1")


# What the launcher reads.


def has_attached(store: Store, seat: int, lives: int) -> bool:
    """Whether one of the first ``lives`` of ``seat`` has attached."""
    return any(store.check([_claim(seat, life)]) for life in range(1, lives + 1))


def _claim(seat: int, life: int) -> str:
    return f"{_PREFIX}/claim/{seat}/{life}"


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _without_prefixes(store: Store | None) -> Store | None:
    """Return the store beneath: torch's env:// and tacit put prefixes before their keys."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _own_name() -> str:
    return f"{_PROCESS}/{os.getpid()}"


def _seat(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and size; raise if there is no such rank."""
    size = _number(variables, "WORLD_SIZE", 1)
    seat = _number(variables, "RANK", 0)
    require(
        0 <= seat < size or LIFE not in variables,
        f"RANK={seat} must be from 0 to {size - 1}: there are WORLD_SIZE={size} seats; "
        f"give every machine the same --total-workers, and seats that exist.",
    )
    return seat, size


def _number(variables: Mapping[str, str], name: str, otherwise: int) -> int:
    text = variables.get(name, str(otherwise))
    lowest = 0 if name == "RANK" else 1
    require(
        text.isdecimal() and int(text) >= lowest,
        f"{name}={text} must be a whole number, at least {lowest}; tacit launch sets it.",
    )
    return int(text)
