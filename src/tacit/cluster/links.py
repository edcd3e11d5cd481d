"""Links and NICs that differ from the others of a cluster, and the hosts on which ranks run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.specs import Spec
from tacit.errors import require


@dataclass(frozen=True, kw_only=True)
class Link(Spec):
    """Latency and bandwidth of one link; None: those of the cluster."""

    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_link(self.latency_s, self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Nic(Spec):
    """Bandwidths of one NIC, for what it sends and for what it receives; None: that of the cluster."""

    out_bytes_per_s: float | None = None
    in_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("out_bytes_per_s", "in_bytes_per_s"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}={value} must be positive; inf is a NIC without a limit.")


def check_link(latency_s: float | None, bandwidth_bytes_per_s: float | None, prefix: str = "") -> None:
    """Raise ``ValueError`` unless latency and bandwidth are those of a link; None is accepted."""
    if latency_s is not None:
        require(0 <= latency_s < math.inf, f"{prefix}latency_s={latency_s} must be at least 0 and finite.")
    if bandwidth_bytes_per_s is not None:
        require(bandwidth_bytes_per_s > 0, f"{prefix}bandwidth_bytes_per_s={bandwidth_bytes_per_s} must be positive.")


def host_of_each(hosts: int | Sequence[int] | None, workers: int) -> tuple[int, ...]:
    """Return the number of each rank's host.

    hosts: a number divides the ranks evenly, in order; a list has the host of each rank; None: one host per rank.
    """
    if hosts is None:
        return tuple(range(workers))
    if isinstance(hosts, int):
        require(
            1 <= hosts <= workers,
            f"hosts={hosts} must be between 1 and workers={workers}; leave it out for one host per worker.",
        )
        return tuple(rank * hosts // workers for rank in range(workers))
    example = f"write hosts={max(1, workers // 2)}, or a list such as {[rank // 2 for rank in range(min(workers, 6))]}"
    require(
        isinstance(hosts, list | tuple) and all(type(host) is int and host >= 0 for host in hosts),
        f"hosts={hosts!r} must be a number of hosts, or a list with the number of each rank's host; {example}.",
    )
    require(
        len(hosts) == workers,
        f"hosts has {len(hosts)} entries, but workers={workers}; give the host of each rank.",
    )
    return tuple(hosts)
