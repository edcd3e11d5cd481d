"""What the members of a new generation tell each other in the store before they go on.

progress/G/SEAT    the ``Progress`` of a member of generation G
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from torch._C._distributed_c10d import Store

from tacit.runtime.membership.generations import Generation, Member

_PAUSE_S: Final = (0.0005, 0.005)  # between two looks at the store: soon at first, then less often


class Progress(NamedTuple):
    """What a member of a new generation tells the others."""

    holds: bool  # the model of the run
    begun: int  # calls
    lacks: tuple[int, ...]  # calls without a result
    has: tuple[int, ...]  # results that it can give away
    step: int = 0  # completed steps
    joiner_waits: bool = False  # as far as it knows
    sent: Mapping[str, int] = {}  # messages, by peer


def progress_of_all(
    store: Store,
    generation: Generation,
    seat: int,
    mine: Progress,
    *,
    is_lost: Callable[[Member], bool],
    check: Callable[[], None],
) -> dict[int, Progress] | None:
    """Publish that of this member, ``seat``; return that of all, or None if one of them is lost meanwhile.

    check: called while this worker waits; it raises if the run ends.
    """
    store.set(f"progress/{generation.number}/{seat}", json.dumps(mine))
    found: dict[int, Progress] = {}
    pause_s = _PAUSE_S[0]
    while True:
        for member in generation.members:
            key = f"progress/{generation.number}/{member.seat}"
            if member.seat in found:
                continue
            if store.check([key]):
                holds, begun, lacks, has, *more = json.loads(store.get(key))
                found[member.seat] = Progress(holds, begun, tuple(lacks), tuple(has), *more)
            elif is_lost(member):
                return None
        if len(found) == len(generation.members):
            return {seat: found[seat] for seat in generation.seats}  # in one order on all: the first holder gives
        check()
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _PAUSE_S[1])
