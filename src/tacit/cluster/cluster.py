"""The description of a simulated cluster: workers, compute times, hosts, links and faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from tacit.cluster.collectives import CollectiveTimes, Gloo
from tacit.cluster.costs import Cost, check_costs
from tacit.cluster.delays import Delay, Exponential
from tacit.cluster.faults import Crash, Fault, Join, Partition, Pause, Slow
from tacit.cluster.links import Link, Nic, check_link, host_of_each
from tacit.core.network import shard_at
from tacit.core.specs import ALWAYS_SPELLED, Spec, spell
from tacit.errors import nearest, require

_IF_CHANGED: Final = {"if_changed": True}
"""Metadata of a field that ``Cluster.table`` contains only if it differs from its default."""

_COLLECTIVES: Final[Mapping[str, CollectiveTimes | None]] = {"ring": None, "gloo": Gloo()}


@dataclass(frozen=True, kw_only=True)
class Cluster(Spec):
    """A cluster: number of workers, their speeds, their hosts, their network and its faults."""

    workers: int = field(default=16, metadata=ALWAYS_SPELLED)
    compute: Delay = field(default=Exponential(mean_s=0.02), metadata=ALWAYS_SPELLED)  # one step on a worker of speed 1
    speed: Mapping[int, float] = field(default_factory=dict)  # {3: 0.33}: worker 3 has a third of the speed
    latency_s: float = 1e-4
    bandwidth_bytes_per_s: float = 125e6  # of each host's NIC, per direction (125e6: 1 Gbit/s); math.inf: no limit
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)  # {(0, 3): Link(...)}; (3, 0) defaults to it
    nics: Mapping[int, Nic] = field(
        default_factory=dict
    )  # {3: Nic(...)}: the NIC of the host of rank 3; -1: the server
    header_overhead: float = field(default=0.0, metadata=_IF_CHANGED)  # 0.047: headers add 4.7 % to what NICs transfer
    hosts: int | Sequence[int] | None = field(default=None, metadata=_IF_CHANGED)  # None: one host per worker
    host_latency_s: float = field(default=0.0, metadata=_IF_CHANGED)  # between ranks of one host
    host_bandwidth_bytes_per_s: float = field(default=math.inf, metadata=_IF_CHANGED)  # of each pair on one host
    collectives: str | CollectiveTimes = field(
        default="ring", metadata=_IF_CHANGED
    )  # "gloo", Gloo(...), Measured({...})
    faults: Sequence[Fault] = ()
    cancel: str = "instant"  # when an abandoned step ends: "instant" at once, "step_end" as if it were computed
    server: str = "extra"  # where the server runs: on a host of its own, or on the host (and NIC) of "rank0"
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
        check_link(self.latency_s, self.bandwidth_bytes_per_s)
        check_link(self.host_latency_s, self.host_bandwidth_bytes_per_s, "host_")
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
        require(
            isinstance(self.collectives, CollectiveTimes) or self.collectives in tuple(_COLLECTIVES),
            f"collectives={spell(self.collectives)} must be {' or '.join(map(spell, _COLLECTIVES))}, Gloo(…) with its "
            f"own software time, or a table of measured times: Measured({{1000: 0.0004, 1000000: 0.011}}).",
        )
        for name, known in (("cancel", ("instant", "step_end")), ("server", ("extra", "rank0"))):
            value = getattr(self, name)
            near = nearest(str(value), known).partition("; known")[0] or "."
            require(value in known, f"{name}={value!r} must be {' or '.join(map(spell, known))}{near}")
        require(self.timeout_s > 0, f"timeout_s={self.timeout_s} must be positive.")
        check_costs(self.costs)
        require(
            0 <= self.header_overhead < math.inf,
            f"header_overhead={self.header_overhead} must be at least 0 and finite; 0.047 adds 4.7 % of headers.",
        )
        host_of_each(self.hosts, self.workers)
        for rank, nic in self.nics.items():
            self._check_rank("nics", rank, server=True)
            require(
                isinstance(nic, Nic),
                f"nics={{{rank}: {nic}}} must map ranks to NICs; write {{{rank}: Nic(out_bytes_per_s=12.5e6)}}.",
            )
            same = next(other for other in self.nics if self.host(other) == self.host(rank))
            require(
                self.nics[same] == nic,
                f"nics gives ranks {same} and {rank} different NICs, but they share a host; give the NIC of one rank.",
            )
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
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if not (field.metadata.get("if_changed") and getattr(self, field.name) == field.default)
        }
        return {
            name: _plain(value) for name, value in values.items() if isinstance(value, str) or value not in ({}, (), [])
        }

    @property
    def collective_times(self) -> CollectiveTimes | None:
        """The times of collectives; None: those of a ring."""
        return _COLLECTIVES[self.collectives] if isinstance(self.collectives, str) else self.collectives

    # Time of a message.

    def host(self, node: int) -> int:
        """Return the number of the host of a rank, or of a server (negative); a host of its own has a negative one."""
        if node >= 0:
            return self._hosts[node]
        return self._hosts[shard_at(node) % self.workers] if self.server == "rank0" else node

    def is_local(self, source: int, target: int) -> bool:
        """Whether messages from ``source`` to ``target`` stay on one host, and use no NIC."""
        return self.host(source) == self.host(target)

    @property
    def is_uniform(self) -> bool:
        """Whether all messages take the latency of the cluster and nothing else."""
        is_spread = self.server == "extra" and len(set(self._hosts)) == self.workers
        has_own = bool(self.links or self.nics)
        return self.bandwidth_bytes_per_s == math.inf and not has_own and is_spread

    @property
    def is_free(self) -> bool:
        """Whether messages take no time."""
        is_free_within = self.host_latency_s == 0 and self.host_bandwidth_bytes_per_s == math.inf
        is_free_between = self.latency_s == 0 and self.bandwidth_bytes_per_s == math.inf
        return is_free_between and is_free_within and not self.links and not self.nics

    def latency(self, source: int, target: int) -> float:
        """Return the latency from ``source`` to ``target`` in seconds."""
        link = self._link(source, target)
        if link is not None and link.latency_s is not None:
            return link.latency_s
        return self.host_latency_s if self.is_local(source, target) else self.latency_s

    def bandwidth(self, source: int, target: int) -> float:
        """Return the bandwidth from ``source`` to ``target`` of a transfer that shares it with no other."""
        return self.bandwidths([(source, target)])[0]

    def bandwidths(self, transfers: Sequence[tuple[int, int]]) -> list[float]:
        """Return the bandwidth of each of several transfers at the same time.

        Those that leave one host share its NIC equally, and so do those that enter one host. Transfers within a host
        share nothing.
        """
        ends = [(self.host(source), self.host(target)) for source, target in transfers]
        leaving = Counter(source for source, target in ends if source != target)
        entering = Counter(target for source, target in ends if source != target)
        found = []
        for (source, target), (from_host, to_host) in zip(transfers, ends, strict=True):
            link = self._link(source, target)
            own = math.inf if link is None or link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s
            if from_host == to_host:
                found.append(own if own < math.inf else self.host_bandwidth_bytes_per_s)
            else:
                out_rate = self.nic_bandwidth("out", from_host) / leaving[from_host]
                in_rate = self.nic_bandwidth("in", to_host) / entering[to_host]
                found.append(min(own / (1 + self.header_overhead), out_rate, in_rate))
        return found

    def nic_bandwidth(self, direction: str, host: int) -> float:
        """Return the bytes per second of a host's NIC, without headers; ``direction`` is "out" or "in"."""
        nic = self._nics.get(host)
        own = None if nic is None else nic.out_bytes_per_s if direction == "out" else nic.in_bytes_per_s
        return (self.bandwidth_bytes_per_s if own is None else own) / (1 + self.header_overhead)

    @cached_property
    def _nics(self) -> dict[int, Nic]:
        return {self.host(rank): nic for rank, nic in self.nics.items()}

    @cached_property
    def _hosts(self) -> tuple[int, ...]:
        return host_of_each(self.hosts, self.workers)

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


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {",".join(map(str, k)) if isinstance(k, tuple) else str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, int | float | str) else spell(value)
