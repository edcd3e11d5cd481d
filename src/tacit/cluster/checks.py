"""Checks of a cluster's description. Each error says what to write instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tacit.cluster.collectives import CollectiveTimes
from tacit.cluster.delays import Delay
from tacit.cluster.faults import Crash, Fault, Join, Partition, Pause, Slow
from tacit.cluster.links import Link, Nic, check_link, host_of_each
from tacit.core.specs import spell
from tacit.errors import nearest, require

if TYPE_CHECKING:
    from tacit.cluster.cluster import Cluster


def check_compute(cluster: Cluster) -> None:
    """Check workers, compute times, speeds and cores."""
    workers, given = cluster.workers, cluster.compute
    require(isinstance(workers, int) and workers >= 1, f"workers={workers} must be a whole number, at least 1.")
    require(
        isinstance(given, Delay | list | tuple | Mapping),
        f"compute={given!r} must be a delay; try Constant(mean_s=0.02), or a list with one delay for each rank.",
    )
    if not isinstance(given, Delay):
        delays = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
        require(
            set(delays) == set(range(workers)),
            f"compute has delays of {len(delays)} ranks, but workers={workers}; give one delay for each of the ranks "
            f"0 to {workers - 1}, or one for all.",
        )
        for rank, delay in delays.items():
            require(
                isinstance(delay, Delay),
                f"compute of rank {rank} is {delay!r}, which is not a delay; try Constant(mean_s=0.02).",
            )
    for rank, speed in cluster.speed.items():
        check_rank(cluster, "speed", rank)
        require(speed > 0, f"speed={{{rank}: {speed}}} must be positive; use Pause or Crash for a worker that stops.")
    cores, taken = cluster.cores, cluster.communication_cores
    require(
        cores is None or (type(cores) is int and cores >= 1),
        f"cores={cores} must be a whole number, at least 1; leave it out if every worker has its own cores.",
    )
    require(
        0 <= taken < math.inf,
        f"communication_cores={taken} must be at least 0 and finite; 0 if communication takes no processor time.",
    )
    per_byte_s = cluster.processor_s_per_byte
    require(
        0 <= per_byte_s < math.inf,
        f"processor_s_per_byte={per_byte_s} must be at least 0 and finite; 1e-8 is 10 ms of a core for each megabyte.",
    )


def check_network(cluster: Cluster) -> None:
    """Check latencies, bandwidths, links, headers and collectives."""
    check_link(cluster.latency_s, cluster.bandwidth_bytes_per_s)
    check_link(cluster.host_latency_s, cluster.host_bandwidth_bytes_per_s, "host_")
    for pair, link in cluster.links.items():
        require(
            len(pair) == 2 and isinstance(link, Link),
            f"links={{{pair}: {link}}} must map pairs of ranks to links; write {{(0, 3): Link(...)}}.",
        )
        for rank in pair:
            check_rank(cluster, "links", rank, server=True)
    require(
        0 <= cluster.header_overhead < math.inf,
        f"header_overhead={cluster.header_overhead} must be at least 0 and finite; 0.047 adds 4.7 % of headers.",
    )
    require(
        isinstance(cluster.collectives, CollectiveTimes) or cluster.collectives in ("ring", "gloo"),
        f'collectives={spell(cluster.collectives)} must be "ring" or "gloo", Gloo(…) with its own software time, or a '
        f"table of measured times: Measured({{1000: 0.0004, 1000000: 0.011}}).",
    )
    require(cluster.timeout_s > 0, f"timeout_s={cluster.timeout_s} must be positive.")


def check_hosts(cluster: Cluster) -> None:
    """Check hosts, their NICs, and where the server is."""
    for name, known in (("cancel", ("instant", "step_end")), ("server", ("extra", "rank0"))):
        value = getattr(cluster, name)
        near = nearest(str(value), known).partition("; known")[0] or "."
        require(value in known, f"{name}={value!r} must be {' or '.join(map(spell, known))}{near}")
    host_of_each(cluster.hosts, cluster.workers)
    for rank, nic in cluster.nics.items():
        check_rank(cluster, "nics", rank, server=True)
        require(
            isinstance(nic, Nic),
            f"nics={{{rank}: {nic}}} must map ranks to NICs; write {{{rank}: Nic(out_bytes_per_s=12.5e6)}}.",
        )
        same = next(other for other in cluster.nics if cluster.host(other) == cluster.host(rank))
        require(
            cluster.nics[same] == nic,
            f"nics gives ranks {same} and {rank} different NICs, but they share a host; give the NIC of one rank.",
        )


def check_faults(cluster: Cluster) -> None:
    """Check that faults are faults, and name ranks of the cluster."""
    for fault in cluster.faults:
        require(
            isinstance(fault, Fault),
            f"faults contains {fault!r}; use Crash, Join, Pause, Slow, Partition or MessageLoss.",
        )
        match fault:
            case Crash(rank=rank):
                check_rank(cluster, str(fault), rank, server=True)
            case Join(rank=rank) | Pause(rank=rank) | Slow(rank=rank):
                check_rank(cluster, str(fault), rank)
            case Partition(ranks=ranks):
                for rank in ranks:
                    check_rank(cluster, str(fault), rank)


def check_members(cluster: Cluster) -> None:
    """Check ``min_workers`` and the time of regrouping, and that enough workers are there at the start."""
    fewest, regroup_s = cluster.min_workers, cluster.regroup_s
    require(
        0 <= regroup_s < math.inf, f"regroup_s={regroup_s} must be at least 0 and finite; 0.2 is the measured value."
    )
    if fewest is None:
        return
    require(
        type(fewest) is int and 1 <= fewest <= cluster.workers,
        f"min_workers={fewest} must be a whole number from 1 to workers={cluster.workers}; None stands for all.",
    )
    late = {fault.rank for fault in cluster.faults if isinstance(fault, Join)}
    require(
        fewest == cluster.workers or cluster.workers - len(late) >= fewest,
        f"min_workers={fewest} of workers={cluster.workers} must be there at the start, and {len(late)} join later; "
        f"remove a Join, or lower min_workers.",
    )


def check_rank(cluster: Cluster, where: str, rank: int, server: bool = False) -> None:
    """Raise ``ValueError`` unless ``rank`` is one of the cluster's; ``server``: or -1."""
    require(
        isinstance(rank, int) and (0 <= rank < cluster.workers or (server and rank == -1)),
        f"{where} names worker {rank}, but workers={cluster.workers} have ranks 0 to {cluster.workers - 1}.",
    )
