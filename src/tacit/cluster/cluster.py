"""The description of a simulated cluster: workers, compute times, hosts, links and faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from tacit.cluster import checks
from tacit.cluster.collectives import CollectiveTimes, Gloo
from tacit.cluster.costs import Cost, check_costs
from tacit.cluster.delays import Delay, Exponential
from tacit.cluster.faults import Crash, Fault, Join
from tacit.cluster.links import Link, Nic, host_of_each
from tacit.core.network import shard_at
from tacit.core.specs import ALWAYS_SPELLED, Spec, spell

_IF_CHANGED: Final = {"if_changed": True}
"""Metadata of a field that ``Cluster.table`` contains only if it differs from its default."""

_STEP: Final = Exponential(mean_s=0.02)
_COLLECTIVES: Final[Mapping[str, CollectiveTimes | None]] = {"ring": None, "gloo": Gloo()}


@dataclass(frozen=True, kw_only=True)
class Cluster(Spec):
    """A cluster: number of workers, their speeds, their hosts, their network and its faults.

    - ``compute``: time of one step on a worker of speed 1; one delay for all, or one for each rank.
    - ``speed``: ``{3: 0.33}`` gives worker 3 a third of the speed.
    - ``latency_s``, ``bandwidth_bytes_per_s``: of each host's NIC, per direction; ``math.inf`` is without a limit.
    - ``links``: ``{(0, 3): Link(…)}``; (3, 0) defaults to it. Rank -1 is the server.
    - ``nics``: ``{3: Nic(…)}`` is the NIC of the host of rank 3.
    - ``header_overhead``: what headers add to the bytes on the wire; 0.047 for TCP at an MTU of 1500.
    - ``hosts``: number of hosts that the ranks are divided over, or the host of each rank; None: one host per worker.
      Traffic within a host does not use the NIC. It takes ``host_latency_s`` and ``host_bandwidth_bytes_per_s``.
    - ``cores``: of each host; None: enough for all its ranks. ``communication_cores``: that the communication of a rank
      takes beside its computation. See ``slowdown``.
    - ``processor_s_per_byte``: processor time that a byte which a rank sends or receives over its NIC takes from the
      computation of the rank, while it travels; 0 where communication has cores of its own.
    - ``collectives``: "ring", "gloo", ``Gloo(…)``, or ``Measured({bytes: seconds})``.
    - ``cancel``: when an abandoned step ends: "instant" at once, "step_end" as if it were computed.
    - ``server``: where the server runs: "extra" on a host of its own, "rank0" on the host of rank 0.
    - ``timeout_s``: how long a collective waits for a partitioned link.
    - ``min_workers``: how many workers must be left for collectives to continue without lost ones, and with joiners;
      None: all. See ``Strategy.regrouped``.
    - ``regroup_s``: from when all that are left know of other members until they continue, without transfers.
    - ``costs``: seconds per number of work in hooks, or a pair of these and of seconds per call: ``{"encode": 3e-8}``.
    """

    workers: int = field(default=16, metadata=ALWAYS_SPELLED)
    compute: Delay | Sequence[Delay] | Mapping[int, Delay] = field(default=_STEP, metadata=ALWAYS_SPELLED)
    speed: Mapping[int, float] = field(default_factory=dict)
    latency_s: float = 1e-4
    bandwidth_bytes_per_s: float = 125e6  # 1 Gbit/s
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    nics: Mapping[int, Nic] = field(default_factory=dict)
    header_overhead: float = field(default=0.0, metadata=_IF_CHANGED)
    hosts: int | Sequence[int] | None = field(default=None, metadata=_IF_CHANGED)
    host_latency_s: float = field(default=0.0, metadata=_IF_CHANGED)
    host_bandwidth_bytes_per_s: float = field(default=math.inf, metadata=_IF_CHANGED)
    cores: int | None = field(default=None, metadata=_IF_CHANGED)
    communication_cores: float = field(default=0.15, metadata=_IF_CHANGED)
    processor_s_per_byte: float = field(default=0.0, metadata=_IF_CHANGED)
    collectives: str | CollectiveTimes = field(default="ring", metadata=_IF_CHANGED)
    faults: Sequence[Fault] = ()
    cancel: str = "instant"
    server: str = "extra"
    timeout_s: float = 1800.0
    min_workers: int | None = field(default=None, metadata=_IF_CHANGED)
    regroup_s: float = field(default=0.2, metadata=_IF_CHANGED)  # measured on real processes: 0.19 s
    costs: Mapping[str, Cost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.check_compute(self)
        checks.check_network(self)
        checks.check_hosts(self)
        checks.check_faults(self)
        checks.check_members(self)
        check_costs(self.costs)

    @property
    def fewest_workers(self) -> int:
        """``min_workers``, or the number of workers where it is None."""
        return self.workers if self.min_workers is None else self.min_workers

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

    # Time of a step.

    def delay(self, rank: int) -> Delay:
        """Return the compute time of a step of worker ``rank``, at speed 1 and on a core of its own."""
        return self.compute if isinstance(self.compute, Delay) else self.compute[rank]

    def slowdown(self, rank: int) -> float:
        """Return the factor by which steps of worker ``rank`` take longer because its host has too few cores.

        Each rank takes one core and ``communication_cores``. If the ranks of a host take more than its ``cores``, all
        of them are slowed down in proportion.
        """
        if self.cores is None:
            return 1.0
        ranks = self._hosts.count(self._hosts[rank])
        return max(1.0, ranks * (1 + self.communication_cores) / self.cores)

    @property
    def slowdowns(self) -> dict[str, float]:
        """The factor of each rank that ``slowdown`` slows down, as the record of a run has it."""
        factors = {str(rank): self.slowdown(rank) for rank in range(self.workers)}
        return {rank: factor for rank, factor in factors.items() if factor > 1}

    # Time of a collective.

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

    def core_of(self, node: int) -> int | None:
        """Return the rank whose core a rank or a server shares with computation; None: no rank computes there."""
        if node >= 0:
            return node
        return shard_at(node) % self.workers if self.server == "rank0" else None

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
        own, from_host, to_host = self.link_bandwidth(source, target), self.host(source), self.host(target)
        if from_host == to_host:
            return own
        return min(own, self.nic_bandwidth("out", from_host), self.nic_bandwidth("in", to_host))

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
            rates = [self.link_bandwidth(source, target)]
            if from_host != to_host:
                rates.append(self.nic_bandwidth("out", from_host) / leaving[from_host])
                rates.append(self.nic_bandwidth("in", to_host) / entering[to_host])
            found.append(min(rates))
        return found

    def link_bandwidth(self, source: int, target: int) -> float:
        """Return the bandwidth of the link itself, without headers and without the NICs at its ends."""
        link = self._link(source, target)
        own = None if link is None else link.bandwidth_bytes_per_s
        if self.is_local(source, target):
            return self.host_bandwidth_bytes_per_s if own is None else own
        return math.inf if own is None else own / (1 + self.header_overhead)

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


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {",".join(map(str, k)) if isinstance(k, tuple) else str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, int | float | str) else spell(value)
