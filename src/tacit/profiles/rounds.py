"""Collectives of measured runs by kind and size, and the times that a model gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tacit.cluster.collectives import CollectiveTimes
from tacit.cluster.group_network import GroupNetwork
from tacit.profiles.measurement import Exchange

_SAME_SIZE: Final = 1.1
"""Sizes of compressed messages differ; those within this factor of the smallest are one size."""


class Round(NamedTuple):
    """A kind of collective of one size, as ``Measured`` and ``Calibrated`` count sizes, and its mean time."""

    label: str
    size_bytes: float
    seconds: float


def rounds_of(exchanges: Iterable[Exchange], workers: int) -> list[Round]:
    """Return the mean time of each kind and size of collective, smallest first."""
    by_label: dict[str, list[tuple[float, float]]] = {}
    for label, sent_bytes, seconds in exchanges:
        if sent_bytes and seconds > 0:
            by_label.setdefault(label, []).append((_size_bytes(label, sent_bytes, workers), seconds))
    found = []
    for label, pairs in sorted(by_label.items()):
        group: list[tuple[float, float]] = []
        for pair in sorted(pairs):
            if group and pair[0] > _SAME_SIZE * group[0][0]:
                found.append(_round(label, group))
                group = []
            group.append(pair)
        found.append(_round(label, group))
    return found


def _size_bytes(label: str, sent_bytes: int, workers: int) -> float:
    """Return the bytes on each rank, of a message, or to all others, from the bytes that a rank sent."""
    if label == "all-reduce":
        return sent_bytes * workers / (2 * (workers - 1))
    return sent_bytes / (workers - 1) if label == "all-gather" else float(sent_bytes)


def _round(label: str, group: Sequence[tuple[float, float]]) -> Round:
    sizes, times_s = zip(*group, strict=True)
    return Round(label, float(np.mean(sizes)), float(np.mean(times_s)))


def round_time_s(one: Round, network: GroupNetwork, times: CollectiveTimes) -> float:
    """Return the time of a round by a model."""
    n = network.size
    if one.label == "all-reduce":
        time_s = times.all_reduce_s(one.size_bytes, network)
    elif one.label == "all-gather":
        time_s = times.all_gather_s(np.full(n, one.size_bytes), network)
    else:
        time_s = times.all_to_all_s(np.full((n, n), one.size_bytes / (n - 1)), network)
    assert time_s is not None
    return time_s
