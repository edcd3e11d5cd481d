"""Tensors that are adjacent rows of one matrix, such as the gradients of simulated ranks, as that matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def matrix_of(rows: Sequence[Tensor]) -> Tensor | None:
    """Return a matrix that shares memory with ``rows``; None where they are not adjacent rows of one."""
    if isinstance(rows, Tensor):
        return rows
    first, numbers = rows[0], rows[0].numel()
    if set(map(type, rows)) != {Tensor} or first.dim() != 1 or not numbers:
        return None
    begin, stride = first.data_ptr(), numbers * first.element_size()
    if [row.data_ptr() for row in rows] != list(range(begin, begin + len(rows) * stride, stride)):
        return None
    dtype, shape = first.dtype, first.shape
    if any(row.dtype != dtype or row.shape != shape or row.requires_grad or not row.is_contiguous() for row in rows):
        return None
    # The storage of the first row holds the addresses of all, so all rows are in it.
    ends_at = (first.storage_offset() + len(rows) * numbers) * first.element_size()
    return first.as_strided((len(rows), numbers), (numbers, 1)) if ends_at <= first.untyped_storage().nbytes() else None


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Return the matrix of ``rows``, a view where they are its adjacent rows already; do not write to it."""
    matrix = matrix_of(rows)
    return torch.stack(list(rows)) if matrix is None else matrix
