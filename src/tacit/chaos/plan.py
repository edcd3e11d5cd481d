"""A plan of faults for a run on this machine: a TOML file with the times, seats and kinds of its faults.

workers = 4
for_s = 60.0

[[fault]]
kind = "stop"
seats = [2]
at_s = 12.5
for_s = 4.0
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from tacit.cluster.faults import Crash, Fault, Partition, Pause, Slow
from tacit.errors import require
from tacit.record.files import toml_text, write_text

KINDS: Final = {
    "kill": "SIGKILL; the launcher starts the worker again",
    "stop": "SIGSTOP, and SIGCONT after for_s",
    "slow": "stopped for a part of each tenth of a second, so that it is factor times slower, for for_s",
    "cut": "no packet passes between each of these workers and anybody else for for_s; needs root",
    "fill": "the disk with the checkpoints is full for for_s; needs root",
}
"""The kinds of faults, and what each does."""
RETURN_S: Final = 8.0
"""How long a killed worker counts as away: its restart, the import of torch, and the join."""
_LASTING: Final = ("stop", "slow", "cut", "fill")


@dataclass(frozen=True, kw_only=True)
class ChaosFault:
    """One fault. seats: the workers that it hits, none for "fill". for_s: how long, for all kinds but "kill"."""

    kind: str
    at_s: float
    seats: tuple[int, ...] = ()
    for_s: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"kind={self.kind!r} must be one of {', '.join(KINDS)}.")
        object.__setattr__(self, "seats", tuple(sorted(self.seats)))
        is_time = isinstance(self.at_s, int | float) and math.isfinite(self.at_s) and self.at_s >= 0
        require(is_time, f"{self.kind}: at_s={self.at_s} must be a time in seconds, at least 0.")
        if self.kind in _LASTING:
            is_long = self.for_s is not None and 0 < self.for_s < math.inf
            require(is_long, f"{self.kind} at {self.at_s} s: for_s={self.for_s} must be a positive time in seconds.")
        else:
            require(self.for_s is None, f"{self.kind} at {self.at_s} s: remove for_s={self.for_s}.")
        is_slow = self.kind == "slow"
        require(
            (self.factor is not None and self.factor > 1) if is_slow else self.factor is None,
            f"{self.kind} at {self.at_s} s: factor={self.factor} must be above 1 for slow, and left out otherwise.",
        )
        require(
            bool(self.seats) != (self.kind == "fill"),
            f"{self.kind} at {self.at_s} s: seats={list(self.seats)} must name the workers that it hits"
            + ("; fill hits all, so leave them out." if self.kind == "fill" else "."),
        )

    @property
    def until_s(self) -> float:
        """When its effect is over."""
        return self.at_s + (RETURN_S if self.for_s is None else self.for_s)

    @property
    def takes_away(self) -> bool:
        """Whether its workers cannot take part meanwhile."""
        return self.kind in ("kill", "stop", "cut")

    def __str__(self) -> str:
        seats = f" of {', '.join(map(str, self.seats))}" if self.seats else ""
        lasting = "" if self.for_s is None else f" for {self.for_s:g} s"
        return f"{self.kind}{seats} at {self.at_s:g} s{lasting}"


@dataclass(frozen=True, kw_only=True)
class ChaosPlan:
    """Faults of a run with ``workers``, which lasts ``for_s`` at least.

    min_workers: the run ends when fewer are left. max_restarts: of one worker. seed: that it was drawn with.
    """

    workers: int
    for_s: float
    faults: tuple[ChaosFault, ...] = field(default=())
    min_workers: int = 1
    max_restarts: int = 100
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(sorted(self.faults, key=lambda fault: fault.at_s)))
        require(self.workers >= 2, f"workers={self.workers} must be at least 2.")
        require(self.for_s > 0, f"for_s={self.for_s} must be a positive time in seconds.")
        require(
            1 <= self.min_workers <= self.workers,
            f"min_workers={self.min_workers} must be from 1 to workers={self.workers}.",
        )
        require(self.max_restarts >= 0, f"max_restarts={self.max_restarts} must be at least 0.")
        for fault in self.faults:
            for seat in fault.seats:
                require(
                    0 <= seat < self.workers,
                    f"{fault}: there is no seat {seat}; the seats of workers={self.workers} are 0 to "
                    f"{self.workers - 1}.",
                )
            require(
                fault.at_s < self.for_s,
                f"{fault}: the plan ends at for_s={self.for_s:g}; choose an earlier at_s, or a larger for_s.",
            )
        self._check_survivors()

    def _check_survivors(self) -> None:
        """Raise if a fault leaves fewer workers than the run needs."""
        for fault in self.faults:
            left = self.workers - len(self._away_at(fault.at_s))
            require(
                left >= self.min_workers,
                f"{fault}: it leaves {left} of workers={self.workers}, and min_workers={self.min_workers}; the run "
                f"would end. Let fewer workers be away at a time, or choose a smaller min_workers.",
            )

    def _away_at(self, at_s: float) -> set[int]:
        """Return the seats that are away just after ``at_s``; a seat without restarts left stays away."""
        away, kills = set[int](), dict.fromkeys(range(self.workers), 0)
        for fault in self.faults:
            if fault.at_s > at_s:
                break
            for seat in fault.seats:
                kills[seat] += fault.kind == "kill"
                if fault.takes_away and (fault.until_s > at_s or kills[seat] > self.max_restarts):
                    away.add(seat)
        return away

    def check_hosts(self, hosts: int) -> None:
        """Raise if a worker is killed that hosts the server, or a shard of it: the first ``hosts`` seats."""
        for fault in self.faults:
            lost = [seat for seat in fault.seats if seat < hosts and fault.kind == "kill"]
            require(
                not lost,
                f"{fault}: worker {lost[0] if lost else 0} hosts the server, and nothing can replace it; the run would "
                f"end. Choose another seat.",
            )

    # Files.

    @classmethod
    def read(cls, path: Path) -> ChaosPlan:
        """Return the plan in a TOML file."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is not TOML: {error}.") from None
        faults = table.pop("fault", [])
        require(isinstance(faults, list), f"{path}: write each fault as a [[fault]].")
        _check_keys(table, cls, f"{path}", without=("faults",))
        for name in ("workers", "for_s"):
            require(name in table, f"{path}: {name} is missing.")
        for number, fault in enumerate(faults, 1):
            _check_keys(fault, ChaosFault, f"{path}, fault {number}")
            for name in ("kind", "at_s"):
                require(name in fault, f"{path}, fault {number}: {name} is missing.")
        return cls(**table, faults=tuple(ChaosFault(**fault) for fault in faults))

    def write(self, path: Path) -> None:
        """Write the plan as TOML."""
        table = {name: value for name, value in asdict(self).items() if name != "faults"}
        faults = [
            {name: value for name, value in asdict(one).items() if value not in (None, ())} for one in self.faults
        ]
        for fault in faults:
            fault["seats"] = list(fault["seats"]) if "seats" in fault else None
        write_text(path, toml_text(table | {"fault": [_without_none(fault) for fault in faults]}))

    def simulated(self) -> list[Fault]:
        """Return the same faults for ``Cluster(faults=…)``; the simulator has no disk, so "fill" is left out."""
        return [one for fault in self.faults for one in _simulated(fault)]


def _simulated(fault: ChaosFault) -> Iterator[Fault]:
    at_s, for_s = fault.at_s, fault.until_s - fault.at_s
    for seat in fault.seats:
        match fault.kind:
            case "kill":
                yield Crash(rank=seat, at_s=at_s, for_s=for_s)
            case "stop":
                yield Pause(rank=seat, at_s=at_s, for_s=for_s)
            case "cut":
                yield Partition(ranks=(seat,), at_s=at_s, for_s=for_s)
            case "slow":
                yield Slow(rank=seat, factor=fault.factor or 1.0, at_s=at_s, for_s=for_s)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value is not None}


def _check_keys(table: Mapping[str, Any], kind: type, where: str, without: tuple[str, ...] = ()) -> None:
    known = [one.name for one in fields(kind) if one.name not in without]
    for name in table:
        require(name in known, f"{where}: {name} is unknown; known are {', '.join(known)}.")
