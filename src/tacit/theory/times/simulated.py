"""Seconds per update of K-async by simulation, for delays without a closed form.

After an update K workers start a new step and P − K continue the one they are in. The state is therefore the P
remaining times: an update takes their K-th smallest, which is subtracted from the others, and the K that finished are
drawn again. Many independent copies are simulated at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tacit.cluster.delays import Delay
from tacit.theory.checks import SpeedGroups

_REPLICAS: Final = 100
_LEAST_REPLICAS: Final = 2
_UPDATES: Final = 500
_CYCLES: Final = 20  # minimum number of steps of every worker, P/K updates each
_WARM_UP: Final = 0.5  # fraction of the measured updates, discarded: all workers start together
_MOST_DRAWS: Final = 10**7  # maximum number of remaining times, over all updates and replicas


def simulated_k_async_time(compute: Delay, k: int, by_speed: SpeedGroups, seed: int) -> float:
    """Return the mean time between updates after a warm-up; the arguments must be valid."""
    speeds = np.repeat([speed for speed, _ in by_speed], [count for _, count in by_speed])
    workers, random = len(speeds), np.random.default_rng(seed)
    measured = max(_UPDATES, _CYCLES * -(-workers // k))
    discarded = round(_WARM_UP * measured)
    replicas = max(_LEAST_REPLICAS, min(_REPLICAS, _MOST_DRAWS // (measured * workers)))
    left_s = compute.draw(random, replicas * workers).reshape(replicas, workers) / speeds
    total_s = 0.0
    for update in range(discarded + measured):
        order = np.argpartition(left_s, k - 1, axis=1)
        finished, last = order[:, :k], order[:, k - 1 : k]
        update_s = np.take_along_axis(left_s, last, axis=1)
        left_s -= update_s
        drawn_s = compute.draw(random, replicas * k).reshape(replicas, k) / speeds[finished]
        np.put_along_axis(left_s, finished, drawn_s, axis=1)
        if update >= discarded:
            total_s += float(update_s.mean())
    return total_s / measured
