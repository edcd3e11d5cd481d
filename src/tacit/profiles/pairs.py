"""NICs and links that differ from the others, from measured latencies and rates of pairs of ranks.

A transfer from host a to host b is as fast as the slowest of three: what a sends, what b receives, and the link between
them. What a host sends at best is the bandwidth of its NIC, and a pair that is slower than both its NICs has a slow
link. Only what is slower than usual is described: burst allowances make some transfers faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from tacit.cluster.links import Link, Nic

_DIFFERENT: Final = 0.1
"""Share by which a NIC or link must be slower than the others to be described on its own."""
_LATENCY_S: Final = 5e-4
"""Difference of latencies below which they are equal: schedulers of busy hosts add as much."""
_DIGITS: Final = 3


class Pair(NamedTuple):
    """What was measured from one rank to another: one way, and of a long transfer."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Differences:
    """NICs and links that differ, as factors on the common bandwidth and as additions to the common latency."""

    out: Mapping[int, float] = field(default_factory=dict)  # by a rank of the host
    into: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    latency_s: float | None = None  # of most pairs; None: not measured
    added_latency_s: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def fields(self, latency_s: float, bandwidth: float) -> dict[str, Any]:
        """Return NICs and links as fields of a cluster with this latency and bandwidth."""
        nics = {
            rank: Nic(
                out_bytes_per_s=_short(bandwidth * self.out[rank]) if rank in self.out else None,
                in_bytes_per_s=_short(bandwidth * self.into[rank]) if rank in self.into else None,
            )
            for rank in sorted({*self.out, *self.into})
        }
        links = {
            pair: Link(
                latency_s=_short(latency_s + self.added_latency_s[pair]) if pair in self.added_latency_s else None,
                bandwidth_bytes_per_s=_short(bandwidth * self.links[pair]) if pair in self.links else None,
            )
            for pair in sorted({*self.links, *self.added_latency_s})
        }
        return {**({"nics": nics} if nics else {}), **({"links": links} if links else {})}


def differences(pairs: Mapping[tuple[int, int], Pair], hosts: Sequence[int] | None) -> Differences:
    """Return which NICs and links differ. hosts: of each rank; None: each has its own. Pairs on one host are left out.

    (3, 0) is like (0, 3) unless both are given, as in ``Cluster.links``.
    """
    host = (lambda rank: rank) if hosts is None else (lambda rank: hosts[rank])
    between = {pair: one for pair, one in pairs.items() if host(pair[0]) != host(pair[1])}
    if len(between) < 2:
        return Differences()
    first = {host(rank): rank for rank in sorted({rank for pair in between for rank in pair}, reverse=True)}
    out, into = dict[int, float](), dict[int, float]()
    for (source, target), one in between.items():
        sender, receiver = first[host(source)], first[host(target)]
        out[sender] = max(one.bytes_per_s, out.get(sender, 0.0))
        into[receiver] = max(one.bytes_per_s, into.get(receiver, 0.0))
    common = median([*out.values(), *into.values()])
    links = {
        pair: _factor(one.bytes_per_s / common)
        for pair, one in between.items()
        if one.bytes_per_s < (1 - _DIFFERENT) * min(common, out[first[host(pair[0])]], into[first[host(pair[1])]])
    }
    one_way_s = {  # half a round trip, so both directions have the same
        pair: min(one.latency_s, between.get(pair[::-1], one).latency_s) for pair, one in between.items()
    }
    usual_s = median(one_way_s.values())
    added_s = {
        pair: latency_s - usual_s
        for pair, latency_s in one_way_s.items()
        if abs(latency_s - usual_s) > max(_LATENCY_S, _DIFFERENT * usual_s)
    }
    return Differences(
        {rank: _factor(rate / common) for rank, rate in out.items() if rate < (1 - _DIFFERENT) * common},
        {rank: _factor(rate / common) for rank, rate in into.items() if rate < (1 - _DIFFERENT) * common},
        _both_ways(links, 1.0),
        usual_s,
        _both_ways(added_s, 0.0),
    )


def _both_ways(values: dict[tuple[int, int], float], usual: float) -> dict[tuple[int, int], float]:
    """Return one entry for a pair whose directions are alike, and both for one whose directions are not."""
    found = {}
    for (source, target), value in values.items():
        back = values.get((target, source), usual)
        if abs(value - back) > _DIFFERENT * abs(value):
            found[source, target], found[target, source] = value, back
        elif source < target:
            found[source, target] = value
    return found


def _factor(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS + 1}g}")
