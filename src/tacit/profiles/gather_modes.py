"""The two modes of gloo's all-gather and all-to-all between two ranks.

If both ranks enter at once, their messages cross, and both have the result after one transfer. If one enters earlier,
the transfers follow one another, and the rank that entered last has the result first. It then enters the next round
first, and so on. Where a transfer is long, against what the steps of the two ranks differ by, a run stays in one mode
for dozens of rounds: twelve steps may see either. A profile then expects the share of both that ``Gloo`` states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from tacit.cluster.cluster import Cluster
from tacit.cluster.collectives import Gloo
from tacit.cluster.group_network import GroupNetwork
from tacit.profiles.measurement import Measurement
from tacit.profiles.rounds import Round, round_time_s, rounds_of

_SHARE: Final = 0.1
"""Of a step with its round: a smaller difference between the two modes is not worth a warning."""
_KEPT: Final = 5.0
"""How many times longer than what the steps of two ranks differ by a transfer must be, for a run to stay in a mode."""
_BETWEEN: Final = 1.5
"""Transfers that the fastest round of the first mode does not take, and that of the second exceeds."""
_CROSSING: Final = Gloo(entry_spread_s=0.0)


class Modes(NamedTuple):
    """The times of a round in both modes: one transfer, and two."""

    crossing_s: float
    following_s: float

    @classmethod
    def of(cls, one: Round, network: GroupNetwork) -> Modes:
        """Return the times by the fastest measured round, which is in one of the modes."""
        latencies_s = 4 * float(network.latency_s.max())  # they pass once in both modes
        if one.fastest_s < _BETWEEN * round_time_s(one, network, _CROSSING):
            return cls(one.fastest_s, max(one.fastest_s, 2 * one.fastest_s - latencies_s))
        return cls((one.fastest_s + latencies_s) / 2, one.fastest_s)

    def is_kept(self, measurements: Iterable[Measurement]) -> bool:
        """Whether a run stays in one mode for long."""
        differences_s: list[float] = [
            abs(own_s - other_s)
            for m in measurements
            for own_s, other_s in zip(m.steps_s[0], m.steps_s[1], strict=False)
        ]
        return self.following_s - self.crossing_s > _KEPT * median(differences_s)


def in_both_modes(one: Round, network: GroupNetwork, gloo: Gloo, measurements: Sequence[Measurement]) -> Round:
    """Return the round with the time to expect in a long run, if the measured ones may all have been in one mode."""
    if network.size != 2 or one.label == "all-reduce":
        return one
    modes = Modes.of(one, network)
    if not modes.is_kept(measurements) or not gloo.entry_spread_s:
        return one
    share = math.exp(-float(network.latency_s.max()) / gloo.entry_spread_s)
    return one._replace(seconds=modes.crossing_s + share * (modes.following_s - modes.crossing_s))


def gather_warnings(measurements: Sequence[Measurement], fields: Mapping[str, Any], backend: str) -> Iterator[str]:
    """Yield a sentence for each run of two ranks whose all-gathers take a clearly different time in the other mode.

    fields: of the cluster that was fitted to the measurements.
    """
    if backend != "gloo" or fields["workers"] != 2:
        return
    network = GroupNetwork(Cluster(**fields), range(2))
    for measurement in measurements:
        gathers = [one for one in rounds_of(measurement.exchanges, 2) if one.label != "all-reduce"]
        if not gathers:
            continue
        largest = max(gathers, key=lambda one: one.size_bytes)
        modes, step_s = Modes.of(largest, network), fmean(fmean(times_s) for times_s in measurement.steps_s.values())
        if modes.following_s - modes.crossing_s > _SHARE * (step_s + largest.seconds):
            yield (
                f"gloo's {largest.label} of {largest.size_bytes / 1e3:.3g} kB between two ranks took "
                f"{_ms(largest.seconds)} ms. It takes one transfer or two, and may keep to either for dozens of "
                f"rounds: {_ms(modes.crossing_s)} or {_ms(modes.following_s)} ms for {measurement.run.strategy}."
            )


def _ms(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g}"
