"""A warning about gloo's all-gather between two ranks, which takes one of two times.

If both ranks enter at once, their messages cross, and both have the result after one transfer. If one enters earlier,
the transfers follow one another, and the rank that entered last has the result first. It then enters the next round
first, and so on: a run stays in one mode for dozens of rounds. Twelve steps may see either mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, Final

from tacit.cluster.cluster import Cluster
from tacit.cluster.collectives import Gloo
from tacit.cluster.group_network import GroupNetwork
from tacit.profiles.measurement import Measurement
from tacit.profiles.network_fit import Round, round_time_s, rounds_of

_SHARE: Final = 0.1
"""Of a step with its round: a smaller difference between the two modes is not worth a warning."""
_BETWEEN: Final = 1.5
"""Transfers that the fastest round of the first mode does not take, and that of the second exceeds."""
_SAME_SIZE: Final = 1.1
_CROSSING: Final = Gloo(entry_spread_s=0.0)


def gather_warnings(measurements: Iterable[Measurement], fields: Mapping[str, Any], backend: str) -> Iterator[str]:
    """Yield a sentence for each run of two ranks whose all-gathers take a clearly different time in the other mode.

    fields: of the cluster that was fitted to the measurements.
    """
    if backend != "gloo" or fields["workers"] != 2:
        return
    network = GroupNetwork(Cluster(**fields), range(2))
    for measurement in measurements:
        gathers = [one for one in measurement.exchanges if one.label == "all-gather"]
        if not gathers:
            continue
        largest = rounds_of(gathers, 2)[-1]
        alike_s = [one.seconds for one in gathers if _SAME_SIZE * one.sent_bytes >= largest.size_bytes]
        fast_s, slow_s = _modes_s(largest, min(alike_s), network)
        step_s = fmean(fmean(times_s) for times_s in measurement.steps_s.values())
        if slow_s - fast_s > _SHARE * (step_s + largest.seconds):
            yield (
                f"gloo's all-gather of {largest.size_bytes / 1e3:.3g} kB between two ranks took "
                f"{_ms(largest.seconds)} ms. It takes one transfer or two, and keeps to either for dozens of "
                f"rounds: expect {_ms(fast_s)} to {_ms(slow_s)} ms for {measurement.run.strategy}."
            )


def _modes_s(one: Round, fastest_s: float, network: GroupNetwork) -> tuple[float, float]:
    """Return the times of both modes, from the fastest measured round, which is in one of them."""
    latencies_s = 4 * float(network.latency_s.max())  # they pass once in both modes
    if fastest_s < _BETWEEN * round_time_s(one, network, _CROSSING):
        return fastest_s, max(fastest_s, 2 * fastest_s - latencies_s)
    return (fastest_s + latencies_s) / 2, fastest_s


def _ms(seconds: float) -> str:
    return f"{float(f'{1e3 * seconds:.3g}'):g}"
