"""Changes of the members where the strategy sends messages, and workers have no common rounds.

A member notices a change while it waits for a message, or at the end of a step: another has ended, is silent or stands
at the door, or one waits to join. All then come to the door, and messages of the generation before are dropped. Joiners
come in at the end of a step that no member has completed yet, so that all stand at the same boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tacit.runtime.membership.generations import Door, Generation, Member
from tacit.runtime.membership.progress import Progress

if TYPE_CHECKING:
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_ARRIVAL_S: Final = 2.0
"""How long messages of the generation before may take to arrive."""


class MessageChanges:
    """One member's view of the next change."""

    def __init__(self, endpoint: MessageEndpoint) -> None:
        self._endpoint = endpoint
        self._coming = 0  # the generation that is to come, as far as known
        self.lets_in_at: int | None = None  # the completed steps at which joiners come in

    def look(self, door: Door, generation: Generation, me: Member, *, joiner_waits: bool) -> None:
        """See whether the next generation is to come. Called with every heartbeat, on its thread."""
        number, others = generation.number + 1, [member for member in generation.members if member != me]
        is_announced = joiner_waits and self.lets_in_at is None
        is_announced = is_announced or door.generation(number) is not None
        if is_announced or any(door.has_ended(one) or door.is_at(number, one, in_step=True) for one in others):
            self._coming = number

    def are_near(self, generation: Generation) -> bool:
        """Whether members of ``generation`` are to come to the door."""
        return self._coming > generation.number

    def prepare(self, members: Iterable[Member]) -> None:
        """Connect to new lives among the members, and count messages to them from 0."""
        self._endpoint.follow({member.seat: member.life for member in members})

    @property
    def sent(self) -> dict[str, int]:
        """The number of messages sent, by peer, as text."""
        sent = dict(self._endpoint.sent)  # which the thread that reads may change
        return {str(peer): count for peer, count in sent.items()}

    def settle(self, met: Mapping[int, Progress], me: int, *, is_short: bool) -> None:
        """Drop all messages of the generation before; agree on the step at which joiners come in."""
        sent = {seat: progress.sent.get(str(me), 0) for seat, progress in met.items() if seat != me}
        self._endpoint.wait_for_arrival(sent, _ARRIVAL_S)
        self._endpoint.forget_received()
        waits = is_short or any(progress.joiner_waits for progress in met.values())
        self.lets_in_at = 1 + max(progress.step for progress in met.values()) if waits else None
