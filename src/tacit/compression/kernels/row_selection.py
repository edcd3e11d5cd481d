"""Exact selection of the k largest magnitudes of every row of a matrix, on the CPU: ``largest`` of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.compression.kernels.backend import PIECE, keys
from tacit.compression.kernels.selection import largest_keys


def largest_of_rows(
    rows: Tensor, k: int, estimates: Sequence[Tensor] | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return ascending columns (int64) and values of the ``k`` largest of each row, ties to the lower column.

    ``k`` is at least one and less than the number of columns.
    With ``estimates`` the numbers are those of row − estimate, computed in the wider of their dtypes and rounded to
    ``dtype``. A few rows at a time are subtracted and selected, so that they stay in the cache.
    """
    found, at_once = [], max(1, PIECE // rows.shape[1])
    for begin in range(0, len(rows), at_once):
        some = rows[begin : begin + at_once]
        if estimates is not None:
            some = (some - torch.stack(list(estimates[begin : begin + at_once]))).to(dtype or rows.dtype)
        found.append(_largest(some, k))
    columns, values = zip(*found, strict=True)
    return torch.cat(columns), torch.cat(values)


def _largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return columns and values of the ``k`` largest, fewer than there are columns."""
    found = keys(rows)
    most = torch.topk(found, k + 1, dim=1)
    columns = most.indices[:, :k].sort(dim=1).values
    is_tied = most.values[:, k - 1] == most.values[:, k]  # topk then chooses any of the equal numbers
    for row in is_tied.nonzero().view(-1).tolist():
        columns[row] = largest_keys(found[row], k)
    return columns, rows.gather(1, columns)
