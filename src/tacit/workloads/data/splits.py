"""Who gets which samples: four ways to divide a training set so that every sample has exactly one worker."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tacit.errors import nearest, require

Indices = NDArray[np.int64]

SPLITS = ("shuffled", "contiguous", "dirichlet", "sorted")

_MOST_CLASSES = 100  # real-valued targets with more distinct values than this are grouped by quantile
_QUANTILE_GROUPS = 10


def check_split(split: str, alpha: float = 0.5) -> None:
    """Raise ``ValueError`` unless ``split`` and ``alpha`` name a way to divide samples."""
    require(split in SPLITS, f"split={split!r} is not a way to divide samples{nearest(split, SPLITS)}")
    require(
        math.isfinite(alpha) and alpha > 0,
        f"alpha={alpha} must be a positive number; smaller = workers that see fewer classes, 100 is nearly uniform.",
    )


def split_samples(
    count: int,
    workers: int,
    split: str,
    rng: np.random.Generator,
    labels: NDArray[np.generic] | None = None,
    alpha: float = 0.5,
) -> list[Indices]:
    """Return the sample numbers of each worker: a partition of ``range(count)`` into ``workers`` non-empty parts.

    - ``"shuffled"``: dealt at random into parts whose sizes differ by at most one;
    - ``"contiguous"``: equal blocks in file order, the remainder to the last worker (as in EF21's experiments);
    - ``"sorted"``: the same blocks after a stable sort by label or target, the most heterogeneous division;
    - ``"dirichlet"``: each class divided by proportions from Dirichlet(alpha): small alpha, few classes per
      worker. Real-valued targets with more than 100 distinct values form ten classes, by quantile.
    """
    check_split(split, alpha)
    require(workers >= 1, f"workers={workers} must be at least 1.")
    require(
        count >= workers,
        f"workers={workers} exceeds the {count} training samples and every worker needs one; "
        f"use at most {count} workers or more data.",
    )
    if split == "shuffled":
        return [part.astype(np.int64) for part in np.array_split(rng.permutation(count), workers)]
    if split == "contiguous":
        return _blocks(np.arange(count, dtype=np.int64), workers)
    if labels is None or labels.ndim != 1:
        shape = "no labels" if labels is None else f"targets of shape {labels.shape}"
        raise ValueError(
            f'split={split!r} divides by label and this workload has {shape}; use split="shuffled" or "contiguous".'
        )
    require(len(labels) == count, f"{len(labels)} labels for {count} samples; every sample needs one.")
    if split == "sorted":
        return _blocks(np.argsort(labels, kind="stable").astype(np.int64), workers)
    return _dirichlet(_classes(labels), workers, alpha, rng)


def _blocks(order: Indices, workers: int) -> list[Indices]:
    size = len(order) // workers
    bounds = [size * rank for rank in range(workers)] + [len(order)]
    return [order[start:stop] for start, stop in pairwise(bounds)]


def _classes(labels: NDArray[np.generic]) -> NDArray[np.intp]:
    values, inverse = np.unique(labels, return_inverse=True)
    classes: NDArray[np.intp] = inverse
    if labels.dtype.kind == "f" and len(values) > _MOST_CLASSES:
        classes = classes * _QUANTILE_GROUPS // len(values)
    return classes


def _dirichlet(classes: NDArray[np.intp], workers: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(workers)]
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label)).astype(np.int64)
        shares = rng.dirichlet(np.full(workers, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    shards = [np.concatenate(part) for part in parts]
    for rank in range(workers):
        if not len(shards[rank]):  # the proportions left it nothing: the richest worker gives one
            richest = max(range(workers), key=lambda other: len(shards[other]))
            shards[rank], shards[richest] = shards[richest][-1:], shards[richest][:-1]
    return shards
