"""Exact selection of the k largest magnitudes of every row of a matrix, on the CPU: ``largest`` of each row.

A row is divided into several times k blocks. The k-th largest of their peaks is at most the k-th largest number, and
few numbers reach it: the k largest are found among these.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.kernels.backend import PIECE, keys
from tacit.compression.kernels.selection import largest_keys

_BLOCKS: Final = 6
"""Blocks of a row for each number to select: hence few of the largest are in one block."""
_MOST: Final = 4
"""Candidates for each number to select, above which a search of the whole row is faster."""

Array = np.ndarray[Any, np.dtype[Any]]


def largest_of_rows(
    rows: Tensor, k: int, estimates: Tensor | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return ascending columns (int64) and values of the ``k`` largest of each row, ties to the lower column.

    ``k`` is at least one and less than the number of columns.
    With ``estimates`` the numbers are those of row − estimate, computed in the wider of their dtypes and rounded to
    ``dtype``.
    """
    if estimates is None:
        return _largest(rows, k)
    differences = torch.empty(rows.shape, dtype=dtype or rows.dtype)
    if {rows.dtype, estimates.dtype, differences.dtype} <= {torch.float32, torch.float64}:
        one, other, result = [tensor.detach().numpy() for tensor in (rows, estimates, differences)]
        with np.errstate(all="ignore"):  # the caller checks the values
            np.subtract(one, other, out=result, casting="same_kind")  # faster than torch where dtypes differ
        return _largest(differences, k)
    at_once = max(1, PIECE // rows.shape[1])  # so that a few rows at a time stay in the cache
    for begin in range(0, len(rows), at_once):
        some = slice(begin, begin + at_once)
        differences[some] = rows[some] - estimates[some]
    return _largest(differences, k)


def _largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return columns and values of the ``k`` largest, fewer than there are columns."""
    found = keys(rows)
    chosen = _from_candidates(found.numpy(), k)
    columns = _from_all(found, k) if chosen is None else torch.from_numpy(chosen)
    return columns, rows.gather(1, columns)


def _from_all(found: Tensor, k: int) -> Tensor:
    """Return the columns of the ``k`` largest keys of each row."""
    most = torch.topk(found, k + 1, dim=1)
    columns = most.indices[:, :k].sort(dim=1).values
    is_tied = most.values[:, k - 1] == most.values[:, k]  # topk then chooses any of the equal numbers
    for row in is_tied.nonzero().view(-1).tolist():
        columns[row] = largest_keys(found[row], k)
    return columns


def _from_candidates(found: Array, k: int) -> Array | None:
    """Return the columns of the ``k`` largest keys of each row; None where blocks are short or candidates many."""
    n, length = found.shape
    block = length // (_BLOCKS * k)
    if block < 2:
        return None
    blocks = length // block
    peaks = found[:, : block * blocks].reshape(n, block, blocks).max(axis=1)  # a block is every blocks-th number
    least = np.partition(peaks, blocks - k, axis=1)[:, blocks - k]
    candidates = np.flatnonzero(found >= least[:, None])
    if len(candidates) > _MOST * n * k:
        return None
    rows, columns = np.divmod(candidates, length)
    counts = np.bincount(rows, minlength=n)
    width = int(counts.max())
    if width > _MOST * k:
        return None
    places = np.arange(len(candidates)) - np.repeat(counts.cumsum() - counts, counts)
    table = np.full((n, width), -1, found.dtype)  # below every key
    table[rows, places] = found.ravel()[candidates]
    last = np.partition(table, width - k, axis=1)[:, width - k]
    is_chosen = table >= last[:, None]
    surplus = is_chosen.sum(axis=1) - k
    for row in np.flatnonzero(surplus).tolist():  # of equal numbers, those in higher columns
        is_chosen[row, np.flatnonzero(table[row] == last[row])[-surplus[row] :]] = False
    chosen: Array = columns[is_chosen[rows, places]].reshape(n, k)
    return chosen
