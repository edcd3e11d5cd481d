"""What the members of a run need of the rest of the runtime, and of the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch._C._distributed_c10d import Store

from tacit.runtime.membership.calls import Wait
from tacit.runtime.membership.generations import Generation
from tacit.runtime.process_groups import Group


class Session(Protocol):
    """What a session does for its members: see ``session.steps.regrouping``."""

    @property
    def step(self) -> int:
        """Completed steps."""

    def everything(self) -> bytes:
        """Return the state of this worker at a step boundary, for joiners."""

    def adopt(self, everything: bytes) -> None:
        """Continue from the state of another worker."""

    def members_changed(self, seats: Sequence[int]) -> None:
        """Tell the strategy who takes part from now on."""


class MeansInProgress(Protocol):
    """The overlapped means of this worker."""

    def drain_means(self) -> None:
        """Wait for them while the clock is stopped."""

    def forget_means(self) -> None:
        """Forget them: this worker continues from the state of another one."""


class NoMeans:
    """Without overlapped means."""

    def drain_means(self) -> None:
        """Do nothing."""

    def forget_means(self) -> None:
        """Do nothing."""


@dataclass
class World:
    """What members need of the rest of the runtime.

    open_group: opens the group of a generation within some seconds, unless a member is lost meanwhile. check: raises if
    the run ends; it is called while this worker waits. too_few: returns the error where not enough members are left,
    given the seats that are lost. lives_on: returns what the launcher says about lives, read through another
    connection.
    """

    open_group: Callable[[Generation, float, Callable[[], bool]], Group]
    wait: Callable[[str], Wait]
    check: Callable[[], None]
    too_few: Callable[[Sequence[int]], BaseException]
    longest_wait_s: Callable[[], float]
    lives_on: Callable[[Store], Any]
    attach_timeout_s: float
    chosen_wait_s: float | None = None
