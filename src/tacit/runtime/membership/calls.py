"""Collectives of all members that can begin anew when the members change, and the record of those under way.

All workers make the same calls in the same order, so a call has the same number on all of them. A call that has ended
on one worker was begun by all members of that time. So after a failure each call is in one of two states: it has ended
somewhere, and whoever lacks its result gets it from there; or nowhere, and all begin it anew with what each had given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from tacit.runtime.process_groups import Call, Group

Wait = Callable[[Call], object]
"""Waits for a call of a group; raises ``RuntimeError`` if it fails."""
_LENGTHS: Final = torch.int64


class MemberCall(ABC):
    """A collective of all members. label: for errors and traces."""

    continues = False  # an exchange whose first half was the call before
    is_divided = False  # among its members: others must divide it anew, the strategy begins it again
    needs: Sequence[int] = ()  # seats without which it cannot take place
    number = 0
    is_old = False  # from before the step boundary at which joiners came in
    returned_at = 0  # how many calls had begun when the worker got the result

    def __init__(self, label: str) -> None:
        self.label = label
        self.seats: tuple[int, ...] = ()  # whose contributions are in the result

    @abstractmethod
    def begin(self, group: Group | None) -> None:
        """Begin, or begin anew, with what this worker gives; None: this worker is the only member."""

    @abstractmethod
    def end(self, wait: Wait) -> None:
        """Wait until the result is there."""

    def look(self) -> bool:
        """Return whether the result is there, without waiting."""
        return False

    @abstractmethod
    def result(self) -> list[Tensor]:
        """Return the result, for a member that lacks it."""

    @abstractmethod
    def take(self, result: Sequence[Tensor]) -> None:
        """Take the result from a member that has it, instead of ``end``."""


class Broadcast(MemberCall):
    """Overwrite ``wire`` with that of the seat ``source``."""

    def __init__(self, label: str, wire: Tensor, source: int) -> None:
        super().__init__(label)
        self.wire, self._source, self.needs = wire, source, (source,)
        self._call: Call | None = None

    def begin(self, group: Group | None) -> None:
        if group is not None:
            self._call = group.broadcast(self.wire, group.ranks.index(self._source))

    def end(self, wait: Wait) -> None:
        if self._call is not None:
            wait(self._call)

    def result(self) -> list[Tensor]:
        return [self.wire]

    def take(self, result: Sequence[Tensor]) -> None:
        self.wire.copy_(result[0].view(self.wire.shape))


class Sum(MemberCall):
    """The sum of ``given`` over all members, in ``wire``."""

    def __init__(self, label: str, given: Tensor) -> None:
        super().__init__(label)
        self._given, self.wire = given, given
        self._call: Call | None = None

    def begin(self, group: Group | None) -> None:
        self.wire = self._given.clone()
        self._call = None if group is None else group.all_reduce(self.wire)

    def end(self, wait: Wait) -> None:
        if self._call is not None:
            wait(self._call)

    def result(self) -> list[Tensor]:
        return [self.wire]

    def take(self, result: Sequence[Tensor]) -> None:
        self.wire = result[0].view(self._given.shape)


class Gather(MemberCall):
    """The bytes of all members, in the order of seats. continues: the second half of an exchange that is divided."""

    def __init__(self, label: str, given: bytes, *, continues: bool = False) -> None:
        super().__init__(label)
        self._given, self.is_divided, self.continues = given, continues, continues
        self._group: Group | None = None
        self.received: list[bytes] = []

    def begin(self, group: Group | None) -> None:
        self._group = group

    def end(self, wait: Wait) -> None:
        group = self._group
        self.received = [self._given] if group is None else group.exchange_bytes([self._given] * group.size, wait)

    def result(self) -> list[Tensor]:
        lengths = torch.tensor([len(part) for part in self.received], dtype=_LENGTHS)
        return [lengths, torch.frombuffer(bytearray(b"".join(self.received) or b"\0"), dtype=torch.uint8)]

    def take(self, result: Sequence[Tensor]) -> None:
        lengths, data = result[0].tolist(), result[1].numpy().tobytes()
        ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
        self.received = [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class AllToAll(MemberCall):
    """Messages from each to each: ``given`` has one for every member. It cannot begin anew with others."""

    is_divided = True

    def __init__(self, label: str, given: list[bytes]) -> None:
        super().__init__(label)
        self._given = given
        self._group: Group | None = None
        self.received: list[bytes] = []

    def begin(self, group: Group | None) -> None:
        self._group = group

    def end(self, wait: Wait) -> None:
        assert self._group is not None
        self.received = self._group.exchange_bytes(self._given, wait)

    def result(self) -> list[Tensor]:
        raise NotImplementedError("what one member receives is no result for another")

    def take(self, result: Sequence[Tensor]) -> None:
        raise NotImplementedError("what one member receives is no result for another")


class CallRecord:
    """The calls of this worker: those under way, and results that another member may still lack."""

    def __init__(self) -> None:
        self.begun = 0
        self.under_way: dict[int, MemberCall] = {}
        self.ended: dict[int, MemberCall] = {}

    def begin(self, call: MemberCall) -> None:
        self.begun += 1
        call.number = self.begun
        self.under_way[call.number] = call

    def withdraw(self, call: MemberCall) -> bool:
        """Undo ``begin`` if ``call`` is the latest; return whether it is."""
        if call.number != self.begun:
            return False
        self.begun -= 1
        del self.under_way[call.number]
        return True

    def void(self, call: MemberCall) -> None:
        """Forget ``call``, the latest, and the call before if it ``continues`` that: both begin again later."""
        self.withdraw(call)
        if call.continues:
            self.ended.pop(self.begun, None)
            self.begun -= 1

    @property
    def to_give(self) -> list[int]:
        """The calls whose results another member can use."""
        return sorted(number for number, call in self.ended.items() if not isinstance(call, AllToAll))

    def end(self, call: MemberCall) -> None:
        """Note that the result of ``call`` is there: all members have begun it, so have got all earlier results."""
        self.under_way.pop(call.number, None)
        self.ended[call.number] = call
        done = [one.number for one in self.ended.values() if 0 < one.returned_at < call.number]
        for number in done:
            del self.ended[number]

    def returned(self, call: MemberCall) -> None:
        """Note that the worker has got the result of ``call``."""
        call.returned_at = self.begun

    def age(self) -> None:
        """Note that members change at a step boundary, with no call under way."""
        for call in self.ended.values():
            call.is_old = True

    @property
    def lacking(self) -> list[int]:
        return sorted(self.under_way)

    def restart(self, begun: int) -> None:
        """Continue after call ``begun`` with the state of another member: what was under way here is void."""
        self.begun = begun
        self.under_way.clear()
        self.ended.clear()
