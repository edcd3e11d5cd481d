"""Rendezvous by call count: the n-th call of every rank of a group is one call, which starts when all have made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tacit.errors import Disagreement, PeerLost
from tacit.simulation.fibers import Fiber

Group = tuple[int, ...]


class Call:
    """One call that all ranks of a group make."""

    __slots__ = ("failure", "group", "index", "joined", "kind", "waiters")

    def __init__(self, kind: str, group: Group, index: int) -> None:
        self.kind, self.group, self.index = kind, group, index
        self.joined: dict[int, Any] = {}  # by rank: the arguments of its call
        self.waiters: dict[int, Fiber] = {}  # by rank: the fiber parked in the call
        self.failure: BaseException | None = None

    def __str__(self) -> str:
        return self.kind

    def describe_wait(self) -> str:
        """Return the call and the ranks that have not made it, for the text of a deadlock."""
        missing = [str(rank) for rank in self.group if rank not in self.joined]
        if not missing:
            return str(self)
        return f"{self} for worker{'s' * (len(missing) > 1)} {', '.join(missing[:8])}{' …' * (len(missing) > 8)}"


AnyCall = TypeVar("AnyCall", bound=Call)


class Rendezvous(ABC, Generic[AnyCall]):
    """Calls of one kind of channel, matched by how many calls each rank has made in each group."""

    noun: ClassVar[str]  # what ranks disagree on when their calls differ

    def __init__(self, workers: int, make_call: type[AnyCall]) -> None:
        self.all_ranks: Group = tuple(range(workers))
        self.skips_lost = False  # whether calls continue without lost workers instead of failing
        self._make_call = make_call
        self._numbers: dict[Group, int] = {self.all_ranks: 0}  # numbers of groups: hashing a long tuple is slow
        self._groups: list[Group] = [self.all_ranks]
        self._counts: list[list[int]] = [[0] * workers]  # by group and rank: calls made
        self._open: dict[tuple[int, int], AnyCall] = {}  # by group and call count
        self._lost: dict[int, float] = {}  # by rank: when

    @property
    def members(self) -> Group:
        """The ranks that calls of all ranks are among: without the lost ones if calls continue without them."""
        if not (self._lost and self.skips_lost):
            return self.all_ranks
        return tuple(rank for rank in self.all_ranks if rank not in self._lost)

    @abstractmethod
    def _start(self, call: AnyCall) -> None:
        """All ranks have joined ``call``, which is no longer open."""

    def _enter(self, rank: int, kind: str, arguments: Any, group: Sequence[int] | None) -> AnyCall:
        """Join the next call of the group; the last rank starts it. Raise if the ranks' calls differ or one is lost."""
        number = 0 if group is None else self._number(tuple(group))
        counts = self._counts[number]
        count = counts[rank] = counts[rank] + 1
        key = (number, count)
        call = self._open.get(key)
        if call is None:
            call = self._open[key] = self._make_call(kind, self._groups[number], count)
        if call.kind != kind:
            raise Disagreement(self.noun, kind, call.kind, rank, others=sorted(call.joined))
        if self._lost and not self.skips_lost:
            for lost, at_s in self._lost.items():
                if lost in call.group:
                    raise self._peer_lost(lost, at_s, call)
        call.joined[rank] = arguments
        if self._lost or len(call.joined) == len(call.group):
            self._start_if_complete(key, call)
        return call

    def _start_if_complete(self, key: tuple[int, int], call: AnyCall) -> None:
        awaited = len(call.group) if not self._lost else sum(rank not in self._lost for rank in call.group)
        if len(call.joined) == awaited > 0:
            del self._open[key]
            if self._lost:
                call.group = tuple(rank for rank in call.group if rank in call.joined)
            self._start(call)

    def _number(self, group: Group) -> int:
        if group not in self._numbers:
            self._numbers[group] = len(self._groups)
            self._groups.append(group)
            self._counts.append([0] * len(self.all_ranks))
        return self._numbers[group]

    def lose(self, rank: int, at_s: float) -> None:
        """Fail the open calls of a lost worker, or continue them without it."""
        self._lost[rank] = at_s
        for key, call in list(self._open.items()):
            if rank not in call.group:
                continue
            if self.skips_lost:
                call.joined.pop(rank, None)
                call.waiters.pop(rank, None)
                self._start_if_complete(key, call)
            else:
                del self._open[key]
                self._fail(call, self._peer_lost(rank, at_s, call))

    def readmit(self, rank: int) -> None:
        """Let a new worker replace a lost one: it joins the earliest call that no remaining worker has passed."""
        self._lost.pop(rank, None)
        for group, counts in zip(self._groups, self._counts, strict=True):
            others = (counts[other] for other in group if other != rank and other not in self._lost)
            counts[rank] = min(others, default=0)

    def _fail(self, call: AnyCall, failure: BaseException) -> None:
        call.failure = failure
        for rank in sorted(call.waiters):
            call.waiters.pop(rank).throw(failure)

    def _peer_lost(self, rank: int, at_s: float, call: AnyCall) -> PeerLost:
        of_some = "" if call.group == self.all_ranks else f" of ranks {', '.join(map(str, call.group))}"
        return PeerLost(rank, at_s, str(call), need=f"needs every worker{of_some}")
