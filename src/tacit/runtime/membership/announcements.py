"""What a strategy has been told of the members, and when it is told anew."""

from __future__ import annotations

from collections.abc import Callable

from tacit.errors import MembersChanged
from tacit.runtime.membership.generations import Generation
from tacit.runtime.membership.world import Session


class Announcements:
    """Tells a session of other members. All members do so at the same place among their calls."""

    def __init__(self, size: int) -> None:
        self.seats = tuple(range(size))  # as told
        self.session: Session | None = None
        self.are_of_generations = False  # whether a generation with the same members is told as well
        self.is_running = False
        self._told: object = None

    def is_due(self, generation: Generation) -> bool:
        """Whether the session is to be told of ``generation``."""
        return self._told != self._known_by(generation)

    def begin(self, generation: Generation) -> None:
        """Note the first generation, which nobody needs to be told of."""
        self.seats, self._told = generation.seats, self._known_by(generation)

    def forget(self) -> None:
        """Let the session be told of all members: it continues from the state of another worker."""
        self._told = None

    def run(self, latest: Callable[[], Generation]) -> None:
        """Tell the session of the ``latest`` generation, anew if another begins meanwhile."""
        is_told = False
        while not is_told:
            self.begin(latest())
            self.is_running = True
            try:
                if self.session is not None:
                    self.session.members_changed(self.seats)
                is_told = not self.is_due(latest())
            except MembersChanged:
                continue
            finally:
                self.is_running = False

    def _known_by(self, generation: Generation) -> object:
        return generation.number if self.are_of_generations else generation.members
