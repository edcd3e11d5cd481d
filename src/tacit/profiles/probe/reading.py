"""What the trace of a probe says, phase by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from tacit.profiles.measurement import Exchange, Measurement, Step, Work, exchanges_in, steps_in, work_of
from tacit.profiles.pairs import Pair
from tacit.profiles.probe import agenda
from tacit.profiles.probe.gradients import Products
from tacit.profiles.probe.strategy import (
    BACK_TO_BACK,
    BATCHES,
    BETWEEN,
    BETWEEN_RANKS,
    LOAD,
    NOISE,
    NOT_FINITE,
    PEAK_MEMORY,
    PHASE,
    PRODUCTS_SQUARED,
    SMALL,
    WITHIN,
)
from tacit.record.run import Run
from tacit.record.trace import COMPUTE, EXCHANGE, HOOK, NOTE, WAIT, Event

WITH_ROUNDS: Final = (agenda.ROUNDS, agenda.TOP_K, agenda.QSGD)
_EXCHANGED: Final = (SMALL, *WITH_ROUNDS, agenda.NETWORK)
"""Parts of a probe whose rounds the network is fitted to."""


class Window(NamedTuple):
    """The events of one rank in one phase."""

    steps: int
    events: list[Event]
    is_complete: bool


@dataclass(frozen=True)
class Reading:
    """The windows of each phase by rank, and the notes of each rank."""

    run: Run
    windows: Mapping[str, Mapping[int, Window]]
    notes: Mapping[int, Mapping[str, float]]

    @classmethod
    def of(cls, run: Run) -> Reading:
        """Return what the trace of ``run`` says."""
        events: dict[int, list[Event]] = defaultdict(list)
        notes: dict[int, dict[str, float]] = defaultdict(dict)
        for event in run.trace.of(COMPUTE, HOOK, WAIT, EXCHANGE, NOTE):
            if event.rank >= 0:
                events[event.rank].append(event)
                if event.kind == NOTE:
                    notes[event.rank][event.label] = event.value
        windows: dict[str, dict[int, Window]] = defaultdict(dict)
        for rank, of_rank in events.items():
            for name, window in _windows(of_rank).items():
                windows[name][rank] = window
        return cls(run, windows, notes)

    # Phases.

    def has(self, phase: str) -> bool:
        """Whether every rank has begun and completed ``phase``."""
        found = self.windows.get(phase, {})
        return len(found) == self.run.workers and all(window.is_complete for window in found.values())

    def begun(self, phase: str) -> bool:
        """Whether a rank has begun ``phase``."""
        return bool(self.windows.get(phase))

    def missing(self) -> list[str]:
        """Return the phases that are not complete, of those that the probe of so many workers has."""
        wanted = [p for p in agenda.TITLES if self.run.workers > 1 or p not in agenda.WITH_OTHERS]
        return [phase for phase in wanted if not self.has(phase)]

    # Steps.

    def steps_s(self, phase: str) -> dict[int, list[float]]:
        """Return the times of steps without hooks by rank."""
        found = {}
        for rank, window in self.windows.get(phase, {}).items():
            times_s = [e.time_s - e.start_s for e in window.events if e.kind == COMPUTE][: window.steps]
            if times_s:
                found[rank] = times_s
        return found

    def steps(self, phase: str) -> dict[int, list[Step]]:
        """Return the steps of a phase with rounds, with the work of their hooks, by rank; the first is left out."""
        return {
            rank: list(steps_in(window.events))[1 : window.steps]
            for rank, window in self.windows.get(phase, {}).items()
        }

    def hooks_s(self, phase: str) -> float | None:
        """Return the median over ranks and steps of the work in hooks; None if the phase is missing."""
        if not self.has(phase):
            return None
        return median(
            sum(done.seconds for _, done in (*step.before, *step.after))
            for steps in self.steps(phase).values()
            for step in steps
        )

    # Rounds.

    def exchanges(self, part: str) -> list[Exchange]:
        """Return the collectives of one part of the probe, if all ranks have completed it."""
        if not self.has(part):
            return []
        by_rank = {rank: window.events for rank, window in self.windows[part].items()}
        found = exchanges_in(by_rank, self.run.workers)
        # Between pairs, all-gathers wait behind their data, and all-to-alls send to one rank each.
        return [one for one in found if part != agenda.NETWORK or one.label == "all-reduce"]

    def round_s(self, part: str) -> float | None:
        """Return the median time of the largest all-reduces in one part of the probe."""
        rounds = [one for one in self.exchanges(part) if one.label == "all-reduce"]
        return median(one.seconds for one in rounds) if rounds else None

    def back_to_back_s(self) -> float | None:
        """Return the median time of rounds without a step between them."""
        return self.round_s(BACK_TO_BACK)

    def pairs(self) -> dict[tuple[int, int], Pair]:
        """Return the shortest latency and the highest rate of each pair of ranks."""
        found = {}
        for rank, notes in self.notes.items():
            for other in range(self.run.workers):
                latencies_s = [value for name, value in notes.items() if name.startswith(f"pair {other} latency ")]
                rates = [value for name, value in notes.items() if name.startswith(f"pair {other} rate ")]
                if latencies_s and rates:
                    found[rank, other] = Pair(min(latencies_s), max(rates))
        return found

    def shift_rates(self) -> list[float]:
        """Return the rates at which ranks send while all of them send."""
        return [value for notes in self.notes.values() for name, value in notes.items() if name.startswith("shift ")]

    # Notes.

    def products(self) -> dict[int, Products]:
        """Return what each rank contributes to noise scale and heterogeneity; empty if a rank is missing."""
        found = {
            rank: Products(
                notes[WITHIN],
                notes[NOISE],
                notes.get(BETWEEN_RANKS),
                int(notes[BATCHES]),
                notes[PRODUCTS_SQUARED],
            )
            for rank, notes in self.notes.items()
            if WITHIN in notes and NOISE in notes
        }
        return found if len(found) == self.run.workers else {}

    def loads(self) -> dict[int, float]:
        """Return the load of each rank's host before the probe."""
        return {rank: notes[LOAD] for rank, notes in self.notes.items() if LOAD in notes}

    def peak_memory_bytes(self) -> dict[int, int]:
        """Return the largest memory of each rank in steps without hooks; empty if a rank is missing."""
        found = {rank: int(notes[PEAK_MEMORY]) for rank, notes in self.notes.items() if PEAK_MEMORY in notes}
        return dict(sorted(found.items())) if len(found) == self.run.workers else {}

    @property
    def was_not_finite(self) -> bool:
        """Whether a gradient was NaN or infinite."""
        return any(NOT_FINITE in notes for notes in self.notes.values())

    def measurement(self) -> Measurement:
        """Return what a profile is made from. Step times are those without hooks."""
        work: dict[str, list[Work]] = defaultdict(list)
        updates_s: list[float] = []
        for phase in filter(self.has, WITH_ROUNDS):
            by_rank = self.steps(phase).values()
            updates_s += [step.update_s for steps in by_rank for step in steps if step.update_s]
            for label, done in work_of(by_rank).items():
                work[label] += done
        exchanges = [one for part in _EXCHANGED for one in self.exchanges(part)]
        again_s = self.steps_s(agenda.STEPS_AGAIN) if self.has(agenda.STEPS_AGAIN) else {}
        return Measurement(self.run, self.steps_s(agenda.STEPS), exchanges, work, updates_s, again_s)


def _windows(events: list[Event]) -> dict[str, Window]:
    """Return the parts of one rank's events, without what comes before the first step of a phase with steps."""
    found: dict[str, Window] = {}
    name, steps, inside = "", 0, list[Event]()
    for event in events:  # by the time of their end
        if event.kind != NOTE:
            inside.append(event)
        elif event.label == BETWEEN and name:
            found[name] = Window(steps, _from_first_step(inside, steps), True)
            name = ""
        elif event.label.startswith(PHASE) and event.label != BETWEEN:
            name, steps, inside = event.label.removeprefix(PHASE), int(event.value), []
    if name:
        found[name] = Window(steps, _from_first_step(inside, steps), False)
    return found


def _from_first_step(events: list[Event], steps: int) -> list[Event]:
    if not steps:
        return list(events)
    first = next((place for place, event in enumerate(events) if event.kind == COMPUTE), len(events))
    return events[first:]
