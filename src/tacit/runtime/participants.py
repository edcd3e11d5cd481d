"""Participants: which lives of which seats take part, in a run whose strategy sends messages.

Such a run goes on without lost workers. Under ``tacit launch`` they come back as new lives, which take part from an
exchange of all workers on that nobody has decided on: a worker that has yet to reach it admits them.

    begun/0            the run is on: a process that attaches now joins it
    joined/RANK        [life, exchange]: the life that takes part, and its first exchange of all workers
    living/NUMBER      [[rank, life], …]: who takes part in an exchange, as decided by the first to see who has come
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Final

from tacit.runtime.environment import Environment
from tacit.runtime.launched import LaunchedLives
from tacit.runtime.membership.generations import NobodyLeft, RunIsOver
from tacit.runtime.membership.heartbeats import Heartbeats

_BEGUN: Final = "begun/0"
_MOMENT_S: Final = 1.0
"""How long the launcher may take to say that a process has ended, whose connections have broken."""
_LOOK_AGAIN_S: Final = 0.01
_SILENT_S: Final = 15.0
"""How long a process may be stopped, or cut off from the store, before the others go on without it."""


def taking_part(environment: Environment) -> dict[int, int]:
    """Return the life of each rank that has joined last."""
    return {rank: _joined(environment, rank)[0] for rank in range(environment.size)}


def _joined(environment: Environment, rank: int) -> tuple[int, int]:
    """Return the life of ``rank`` that has joined last, and its first exchange of all workers."""
    text = environment.find(f"joined/{rank}")
    life, first = (1, 1) if text is None else json.loads(text)
    return life, first


def heartbeats(environment: Environment) -> Heartbeats:
    """Return heartbeats by which ``environment`` finds out who is stopped or cut off for long."""
    return Heartbeats(environment.store, environment.rank, least_s=_SILENT_S)


def is_silent(beats: Heartbeats, rank: int) -> bool:
    """Whether the process of ``rank`` has been stopped or cut off for long, since it was asked about first."""
    try:
        return beats.is_silent(rank)
    except RuntimeError:  # the store is gone
        return False


class Participants:
    """One process's view. Its liveness is what the launcher says, so no socket to each process is needed.

    has_server: whether the model is with a server too.
    """

    def __init__(self, environment: Environment, lives: LaunchedLives, *, has_server: bool = False) -> None:
        self._environment, self._lives, self._has_server = environment, lives, has_server
        self.life = lives.life
        self.joins = environment.has(_BEGUN)  # the run is on, and this process has not got its model yet
        self._beats = heartbeats(environment)
        self._out: set[tuple[int, int]] = set()  # ranks and lives without which the others have gone on
        self.last: dict[int, int] | None = None  # the only lives that may still take part, by rank; None: any may join
        self.run_name = environment.decide("run name", secrets.token_hex(4)) or "lost"
        if not self.joins:
            environment.publish("joined", [self.life, 1])

    def begin(self) -> None:
        """Note that all workers have attached."""
        self._beats.start()
        self._environment.decide(_BEGUN, "1")

    @property
    def has_begun(self) -> bool:
        """Whether all workers have attached."""
        return self._environment.has(_BEGUN)

    def prepare_to_join(self) -> None:
        """Remove what an earlier life has left."""
        self._beats.start()
        if self._environment.has(f"leaving/{self._environment.rank}"):
            self._environment.store.delete_key(f"leaving/{self._environment.rank}")

    def admit(self, rank: int, life: int, exchanges: int) -> None:
        """Let ``life`` of ``rank`` take part from the exchange on that follows the last one of this worker.

        Called at a step: nobody has decided on that exchange, because all wait for this worker. Do nothing if it takes
        part already, or a later life: another worker has answered, too.
        """
        if life <= _joined(self._environment, rank)[0]:
            return
        self._environment.store.set(f"joined/{rank}", json.dumps([life, exchanges + 1]))

    # Who takes part.

    def present(self, exchange: int) -> dict[int, int]:
        """Return the lives that take part in an exchange, by rank."""
        found = {}
        for rank in range(self._environment.size) if self.last is None else self.last:
            life, first = _joined(self._environment, rank) if self.last is None else (self.last[rank], 0)
            if first <= exchange and (rank, life) not in self._out and not self._has_ended(rank, life):
                found[rank] = life
        return found

    def leave_out_silent(self, lives: Mapping[int, int]) -> None:
        """Go on without those of ``lives``, given by rank, that are stopped or cut off. Call it again and again."""
        self._out.update((rank, life) for rank, life in lives.items() if self.is_silent(rank))

    def decided(self, exchange: int, lives: Mapping[int, int]) -> None:
        """Note who takes part in an exchange: the others do not take part any more, until a new life joins."""
        self._out.update((rank, life) for rank, life in self.present(exchange).items() if lives.get(rank) != life)

    def is_silent(self, rank: int) -> bool:
        return is_silent(self._beats, rank)

    def is_gone(self, rank: int, life: int | None = None) -> bool:
        """Whether the process of ``life`` of ``rank`` has ended. None: of the life that has joined last."""
        if self._environment.store_is_gone:
            return False
        return self._has_ended(rank, _joined(self._environment, rank)[0] if life is None else life)

    def raise_if_over(self) -> None:
        """Raise if all others that took part have ended: ``RunIsOver`` if one finished, else ``NobodyLeft``.

        With a server the model is not lost with them.
        """
        if self._environment.store_is_gone:
            return
        joined = ((rank, _joined(self._environment, rank)[0]) for rank in range(self._environment.size))
        others = [life for life in joined if life != (self._environment.rank, self.life)]  # this one has no model
        if all(self._has_ended(*life) for life in others):
            ends = [self._lives.dead(*life) for life in others]
            if any(end is not None and end.exit_code == 0 for end in ends):
                raise RunIsOver
            if not self._has_server:
                raise NobodyLeft(self._environment.rank, tuple(rank for rank, _ in others))

    def will_be_gone(self, rank: int) -> bool:
        """Whether the process of ``rank`` has ended, or ends within a moment: its connections broke before."""
        until_s = time.monotonic() + _MOMENT_S
        while not self.is_gone(rank) and time.monotonic() < until_s and not self._environment.store_is_gone:
            time.sleep(_LOOK_AGAIN_S)
        return self.is_gone(rank)

    def close(self) -> None:
        self._beats.close()

    def _has_ended(self, rank: int, life: int) -> bool:
        try:
            return self._lives.dead(rank, life) is not None
        except RuntimeError:
            self._environment.store_is_gone = True
            return False
