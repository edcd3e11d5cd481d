"""What one run on real processes tells about its cluster: step times, rounds and work in hooks.

Times are taken from the trace, whose events cover each worker's time: a step is computation and update, a hook is the
work of the strategy, an exchange is the time on the wire. All ranks start their clocks after a common barrier, so their
clocks agree up to the latency.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean
from typing import Any, Final, NamedTuple

from tacit.errors import require
from tacit.record.run import Run
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, NOTE, WAIT, Event

_WARM_UP: Final = 2
"""First steps of a run that do not count: memory is allocated and caches are filled. Short runs drop fewer."""
_UPDATE, _OTHER = "update", "other"
BEGINS: Final = "beside begins"
"""The note after which a run only measures what rounds take from the computation beside them."""
COLLECTIVES: Final = ("all-reduce", "all-gather", "all-to-all")


class Exchange(NamedTuple):
    """One collective of all ranks: its label, the most bytes that a rank sent, and the seconds on the wire."""

    label: str
    sent_bytes: int
    seconds: float


class Work(NamedTuple):
    """Work of a hook on so many numbers, and its seconds."""

    numbers: int
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """What was measured in one run.

    - ``steps_s``: by rank, computation and update, without hooks, waits and exchanges.
    - ``work``: in hooks, by label. Of the work before an exchange only that of the rank which enters last is kept,
      because all others wait for it.
    - ``updates_s``: of the optimizer alone, on workers.
    - ``again_s``: steps at the end of a probe, as ``steps_s``.
    """

    run: Run
    steps_s: Mapping[int, list[float]]
    exchanges: list[Exchange]
    work: Mapping[str, list[Work]]
    updates_s: list[float]
    again_s: Mapping[int, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Measurement:
        """Return the measurement of ``run``, or raise if it is not a complete run on real processes."""
        require(
            run.record.get("world") == "processes",
            f"this run of {run.strategy} was not on real processes, so it has no measured step times; "
            f"give a run that tacit train or tacit.attach made.",
        )
        by_rank: dict[int, list[Event]] = defaultdict(list)
        until_s = {event.rank: event.time_s for event in run.trace.of(NOTE) if event.label == BEGINS}
        for event in run.trace.of(COMPUTE, CANCELLED, HOOK, WAIT, EXCHANGE):
            if event.rank >= 0 and 0 <= event.time_s <= until_s.get(event.rank, math.inf):
                by_rank[event.rank].append(event)
        steps = {rank: found for rank, events in by_rank.items() if (found := _after_warm_up(list(steps_in(events))))}
        require(
            len(steps) == run.workers,
            f"the trace of this run has steps of {len(steps)} of {run.workers} workers; give a complete run.",
        )
        return cls(
            run,
            {rank: [step.seconds for step in own] for rank, own in steps.items()},
            list(exchanges_in(by_rank, run.workers)),
            work_of(steps.values()),
            [step.update_s for own in steps.values() for step in own if step.update_s],
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """The record of the run."""
        return self.run.record

    @property
    def is_dense(self) -> bool:
        """Whether no vector was compressed."""
        return not any(label.startswith("encode") for label in self.work)


class Step(NamedTuple):
    """A step of one worker: seconds of computation and update, those of the update alone, and the work in its hooks.

    entered_s: when it entered its first exchange; None: it had none. before, after: the work before and after that.
    """

    number: int
    seconds: float
    update_s: float
    entered_s: float | None
    before: list[tuple[str, Work]]
    after: list[tuple[str, Work]]


def _after_warm_up(steps: list[Step]) -> list[Step]:
    return steps[min(_WARM_UP, len(steps) // 4) :]


def steps_in(events: list[Event]) -> Iterator[Step]:
    """Yield the steps of one rank: from the start of a computation to the start of the next one."""
    current: list[Event] = []
    for event in sorted(events, key=lambda event: (event.start_s, event.time_s)):
        if event.kind in (COMPUTE, CANCELLED) and current:
            yield _step(current)
            current = []
        current.append(event)
    if current and current[0].kind in (COMPUTE, CANCELLED):
        yield _step(current)


def _step(events: list[Event]) -> Step:
    """Return the step of these events. Unnamed work belongs to the named work before it, or to the first one."""
    compute_s = sum(e.time_s - e.start_s for e in events if e.kind in (COMPUTE, CANCELLED))
    entered_s = next((e.start_s for e in events if e.round and e.kind in (WAIT, EXCHANGE) and not e.value), None)
    update_s, unnamed_s, work = 0.0, 0.0, list[tuple[float, str, Work]]()
    for event in events:
        if event.kind != HOOK:
            continue
        seconds = event.time_s - event.start_s
        if event.label == _UPDATE:
            update_s += seconds
        elif event.label != _OTHER:
            work.append((event.start_s, event.label, Work(int(event.value), seconds + unnamed_s)))
            unnamed_s = 0.0
        elif work:
            start_s, label, done = work[-1]
            work[-1] = (start_s, label, Work(done.numbers, done.seconds + seconds))
        else:
            unnamed_s += seconds
    is_before = [entered_s is not None and start_s < entered_s for start_s, _, _ in work]
    named = [(label, done) for _, label, done in work]
    return Step(
        max(event.step for event in events),
        compute_s + update_s + unnamed_s,
        update_s,
        entered_s,
        [one for one, is_early in zip(named, is_before, strict=True) if is_early],
        [one for one, is_early in zip(named, is_before, strict=True) if not is_early],
    )


def work_of(steps: Iterable[list[Step]]) -> dict[str, list[Work]]:
    """Return the work in hooks by label: before an exchange that of the last rank to enter, after it that of all."""
    by_number: dict[int, list[Step]] = defaultdict(list)
    for own in steps:
        for step in own:
            by_number[step.number].append(step)
    found: dict[str, list[Work]] = defaultdict(list)
    for same in by_number.values():
        last = max(same, key=lambda step: -math.inf if step.entered_s is None else step.entered_s)
        for label, done in [*last.before, *(one for step in same for one in step.after)]:
            found[label].append(done)
    return found


def exchanges_in(by_rank: Mapping[int, list[Event]], workers: int) -> Iterator[Exchange]:
    """Yield the collectives of all ranks, but for overlapped ones and the first of each kind.

    A collective takes from the entry of the last rank to its end on the rank that enters the next one last. This is the
    path that decides how long the run takes: a late end elsewhere delays none. The last one takes until its mean end.
    """
    complete = [one for one in _collectives(by_rank) if len(one.entered_s) == workers]
    total, seen = Counter(one.label for one in complete), Counter[str]()
    for one, following in zip_longest(complete, complete[1:]):
        seen[one.label] += 1
        if seen[one.label] > min(_WARM_UP, total[one.label] // 4):
            ended_s = fmean(one.ended_s.values()) if following is None else one.ended_s[following.last_rank]
            yield Exchange(one.label, one.sent_bytes, max(0.0, ended_s - one.entered_s[one.last_rank]))


@dataclass
class _Collective:
    """The times of one collective by rank, and the most bytes that a rank sent."""

    label: str
    sent_bytes: int = 0
    entered_s: dict[int, float] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)

    @property
    def last_rank(self) -> int:
        """The rank that entered last."""
        return max(self.entered_s, key=self.entered_s.__getitem__)


def _collectives(by_rank: Mapping[int, list[Event]]) -> list[_Collective]:
    """Return the collectives that are not overlapped, in the order of their entries."""
    waited_s: dict[tuple[str, int, int], float] = {}
    found: dict[tuple[str, int], _Collective] = {}
    for rank, events in by_rank.items():
        for event in events:
            if event.kind == WAIT and event.round:
                key = (event.label, event.round, rank)
                waited_s[key] = min(event.start_s, waited_s.get(key, event.start_s))
        for event in events:
            if event.kind == EXCHANGE and event.label in COLLECTIVES and not event.value:
                one = found.setdefault((event.label, event.round), _Collective(event.label))
                since_s = waited_s.get((event.label, event.round, rank), event.start_s)
                one.sent_bytes = max(one.sent_bytes, event.size_bytes)
                one.entered_s[rank], one.ended_s[rank] = min(since_s, event.start_s), event.time_s
    return sorted(found.values(), key=lambda one: max(one.entered_s.values()))
