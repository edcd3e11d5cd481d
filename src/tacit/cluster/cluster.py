"""The description of a simulated cluster: workers, compute times, links and faults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tacit.cluster.costs import Cost, check_costs
from tacit.cluster.delays import Delay, Exponential
from tacit.cluster.faults import Crash, Fault, Join, Partition, Pause, Slow
from tacit.core.specs import ALWAYS_SPELLED, Spec, spell
from tacit.errors import nearest, require


@dataclass(frozen=True, kw_only=True)
class Link(Spec):
    """Latency and bandwidth of one link; None: those of the cluster."""

    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        _check_link(self.latency_s, self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Cluster(Spec):
    """A cluster: number of workers, their speeds, their network and its faults."""

    workers: int = field(default=16, metadata=ALWAYS_SPELLED)
    compute: Delay = field(default=Exponential(mean_s=0.02), metadata=ALWAYS_SPELLED)  # one step on a worker of speed 1
    speed: Mapping[int, float] = field(default_factory=dict)  # {3: 0.33}: worker 3 has a third of the speed
    latency_s: float = 1e-4
    bandwidth_bytes_per_s: float = 125e6  # of each worker's NIC, per direction (125e6: 1 Gbit/s); math.inf: no limit
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)  # {(0, 3): Link(...)}; (3, 0) defaults to it
    faults: Sequence[Fault] = ()
    cancel: str = "instant"  # when an abandoned step ends: "instant" at once, "step_end" as if it were computed
    server: str = "extra"  # where the server runs: on a node of its own, or on the node (and NIC) of "rank0"
    timeout_s: float = 1800.0  # how long a collective waits for a partitioned link
    costs: Mapping[str, Cost] = field(
        default_factory=dict
    )  # seconds per number of work in hooks: {"encode TopK": 3e-8}

    def __post_init__(self) -> None:
        require(
            isinstance(self.workers, int) and self.workers >= 1,
            f"workers={self.workers} must be a whole number, at least 1.",
        )
        require(
            isinstance(self.compute, Delay), f"compute={self.compute!r} must be a delay; try Constant(mean_s=0.02)."
        )
        _check_link(self.latency_s, self.bandwidth_bytes_per_s)
        for rank, speed in self.speed.items():
            self._check_rank("speed", rank)
            require(
                speed > 0, f"speed={{{rank}: {speed}}} must be positive; use Pause or Crash for a worker that stops."
            )
        for pair, link in self.links.items():
            require(
                len(pair) == 2 and isinstance(link, Link),
                f"links={{{pair}: {link}}} must map pairs of ranks to links; write {{(0, 3): Link(...)}}.",
            )
            for rank in pair:
                self._check_rank("links", rank, server=True)
        for name, known in (("cancel", ("instant", "step_end")), ("server", ("extra", "rank0"))):
            value = getattr(self, name)
            require(value in known, f"{name}={value!r} is not one of {', '.join(known)}{nearest(str(value), known)}")
        require(self.timeout_s > 0, f"timeout_s={self.timeout_s} must be positive.")
        check_costs(self.costs)
        for fault in self.faults:
            self._check_fault(fault)

    @property
    def joins(self) -> list[Crash | Join]:
        """The faults in which a worker joins or returns during the run."""
        return [
            fault
            for fault in self.faults
            if isinstance(fault, Join) or (isinstance(fault, Crash) and fault.for_s < math.inf)
        ]

    def table(self) -> dict[str, Any]:
        """Return the cluster as a table of a TOML file: numbers, and texts in the notation."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: _plain(value) for name, value in values.items() if isinstance(value, str) or value not in ({}, (), [])
        }

    def latency(self, source: int, target: int) -> float:
        """Return the latency from ``source`` to ``target`` in seconds."""
        link = self._link(source, target)
        return self.latency_s if link is None or link.latency_s is None else link.latency_s

    def bandwidth(self, source: int, target: int) -> float:
        """Return the bandwidth from ``source`` to ``target`` of a transfer that shares it with no other."""
        link = self._link(source, target)
        own = None if link is None else link.bandwidth_bytes_per_s
        return self.bandwidth_bytes_per_s if own is None else min(own, self.bandwidth_bytes_per_s)

    def _link(self, source: int, target: int) -> Link | None:
        return self.links.get((source, target)) or self.links.get((target, source))

    def _check_fault(self, fault: Fault) -> None:
        require(
            isinstance(fault, Fault),
            f"faults contains {fault!r}; use Crash, Join, Pause, Slow, Partition or MessageLoss.",
        )
        match fault:
            case Crash(rank=rank):
                self._check_rank(str(fault), rank, server=True)
            case Join(rank=rank) | Pause(rank=rank) | Slow(rank=rank):
                self._check_rank(str(fault), rank)
            case Partition(ranks=ranks):
                for rank in ranks:
                    self._check_rank(str(fault), rank)

    def _check_rank(self, where: str, rank: int, server: bool = False) -> None:
        require(
            isinstance(rank, int) and (0 <= rank < self.workers or (server and rank == -1)),
            f"{where} names worker {rank}, but workers={self.workers} have ranks 0 to {self.workers - 1}.",
        )


def _check_link(latency_s: float | None, bandwidth_bytes_per_s: float | None) -> None:
    if latency_s is not None:
        require(0 <= latency_s < math.inf, f"latency_s={latency_s} must be at least 0 and finite.")
    if bandwidth_bytes_per_s is not None:
        require(bandwidth_bytes_per_s > 0, f"bandwidth_bytes_per_s={bandwidth_bytes_per_s} must be positive.")


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {",".join(map(str, k)) if isinstance(k, tuple) else str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, int | float | str) else spell(value)
