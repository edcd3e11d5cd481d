"""Whether collectives of a run go on without lost workers, and the membership that makes them do so."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch._C._distributed_c10d import PrefixStore, Store

from tacit.core.strategy import Strategy
from tacit.runtime.environment import Environment
from tacit.runtime.launched import LaunchedLives
from tacit.runtime.membership.generations import Generation
from tacit.runtime.membership.members import Membership
from tacit.runtime.membership.opening import open_watched
from tacit.runtime.membership.world import World
from tacit.runtime.process_groups import Group

if TYPE_CHECKING:
    from tacit.runtime.collectives import Collectives

MAX_RESTARTS: Final = "TORCHELASTIC_MAX_RESTARTS"
"""Environment variable: how often the launcher starts a seat again."""


def may_regroup(strategy: Strategy[Any], lives: LaunchedLives) -> bool:
    """Whether a run of ``strategy`` goes on with other members: ``tacit launch`` may lose or restart some.

    Strategies with a server or with handlers go on in a way of their own.
    """
    may_change = lives.is_elastic and (
        lives.min_workers < lives.size or os.environ.get(MAX_RESTARTS, "0") not in ("", "0")
    )
    return may_change and strategy.regroups and not (strategy.handles or strategy.has_server)


def membership_of(environment: Environment, lives: LaunchedLives, collectives: Collectives, address: str) -> Membership:
    """Return the membership of this process, for ``collectives``."""
    store = PrefixStore("members", environment.store)

    def open_group(generation: Generation, open_s: float, is_lost: Callable[[], bool]) -> Group:
        def make(watched: Store) -> Group:
            return Group(
                watched,
                f"group/{generation.number}",
                list(generation.seats),
                environment.rank,
                address=address,
                backend="gloo",
                timeout_s=membership.timeout_s,
                open_s=open_s,
            )

        return open_watched(store, make, is_lost)

    world = World(
        open_group=open_group,
        wait=lambda what: lambda call: collectives.wait_once(call, what),
        check=collectives.check_run,
        too_few=collectives.lost_for_good,
        longest_wait_s=lambda: collectives.timeout.timeout_s,
        lives_on=LaunchedLives,
        attach_timeout_s=environment.timeout_s,
        chosen_wait_s=collectives.timeout.chosen_s,
    )
    membership = Membership(store, lives, environment.size, world)
    environment.has_ended = membership.has_ended
    return membership
