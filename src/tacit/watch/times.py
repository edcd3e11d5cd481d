"""Where the time of the workers goes, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.watch.progress_reader import Slice, WorkerProgress

RECENT_S: Final = 10.0
_RECENT_SHARE: Final = 0.05
ACTIVITIES: Final = ("computing", "hooks", "wire", "waiting")


class WorkerTimes(NamedTuple):
    """How one worker spent ``elapsed_s`` seconds in which it took ``steps`` steps."""

    rank: int
    elapsed_s: float
    steps: int
    seconds: dict[str, float]  # by activity

    @property
    def compute_step_s(self) -> float:
        """Seconds of computing per step."""
        return self.seconds["computing"] / self.steps if self.steps else 0.0


def recent(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices of the last ten seconds, in long runs of the last twentieth."""
    if not slices:
        return []
    from_s = slices[-1].time_s - max(RECENT_S, _RECENT_SHARE * slices[-1].time_s)
    chosen = [one for one in slices if one.time_s - one.elapsed_s >= from_s]
    return chosen or [slices[-1]]


def blocked_s(slices: Sequence[Slice]) -> float:
    """Return the seconds in which the worker neither computed nor worked in hooks.

    It is that of all slices together: a step that is counted where it ends may be longer than its slice.
    """
    return max(0.0, sum(one.elapsed_s - one.compute_s - one.hook_s for one in slices))


def times_of(workers: Sequence[WorkerProgress], *, has_rounds: bool, is_whole: bool) -> list[WorkerTimes]:
    """Return how the workers spent their time, the whole run or recently.

    In rounds, the worker that is blocked least waits for no other: its blocked time is taken as that on the wire, and
    what others are blocked longer as waiting. A saved run knows both. Without rounds all blocked time is waiting.
    """
    chosen = {worker.rank: worker.slices if is_whole else recent(worker.slices) for worker in workers}
    blocked = {rank: blocked_s(slices) for rank, slices in chosen.items() if slices}
    elapsed = {rank: sum(one.elapsed_s for one in slices) for rank, slices in chosen.items() if slices}
    shares = [blocked[rank] / elapsed[rank] for rank in blocked if elapsed[rank] > 0]
    wire = min(shares, default=0.0) if has_rounds and len(shares) > 1 else 0.0
    found = []
    for rank, slices in chosen.items():
        if not slices:
            continue
        compute_s, hook_s = sum(one.compute_s for one in slices), sum(one.hook_s for one in slices)
        waits = [one.wait_s for one in slices]
        if has_rounds and all(wait is not None for wait in waits):
            waiting = min(blocked[rank], sum(wait for wait in waits if wait is not None))
        elif has_rounds and len(shares) == 1:  # the others are not visible
            waiting = 0.0
        else:
            waiting = blocked[rank] - wire * elapsed[rank]
        seconds = {"computing": compute_s, "hooks": hook_s, "wire": blocked[rank] - waiting, "waiting": waiting}
        found.append(WorkerTimes(rank, elapsed[rank], sum(one.steps for one in slices), seconds))
    return found


def pace_s(workers: Sequence[WorkerProgress], *, is_whole: bool) -> float | None:
    """Return the seconds of a step; with a server, of an update."""
    slices = workers[0].slices
    chosen = slices if is_whole else recent(slices)
    if not chosen:
        return None
    elapsed_s = sum(one.elapsed_s for one in chosen)
    if chosen[-1].updates is not None:
        place = len(slices) - len(chosen)
        before = (slices[place - 1].updates or 0) if place else 0
        done = chosen[-1].updates - before
    else:
        done = sum(one.steps for one in chosen)
    return elapsed_s / done if done > 0 else None


def all_reduce_bytes(parameters: int, element_bytes: int, workers: int) -> int:
    """Return the bytes that all workers send in one step of AllReduce: the gradient and its weight."""
    return sum(ring_all_reduce_bytes(parameters + 1, element_bytes, workers))
