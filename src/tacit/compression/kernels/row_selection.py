"""Exact selection of the k largest magnitudes of every row of a matrix, on the CPU: ``largest`` of each row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tacit.compression.kernels.backend import keys


def largest_of_rows(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ascending columns (int64) and values of the ``k`` largest of each row, ties to the lower column."""
    found = keys(rows)
    least = torch.topk(found, k, dim=1, sorted=False).values.amin(1, keepdim=True)
    is_chosen = (found >= least).numpy()
    for row in np.flatnonzero(np.count_nonzero(is_chosen, axis=1) > k):
        is_chosen[row] = found[row].numpy() > int(least[row])
        ties = np.flatnonzero(found[row].numpy() == int(least[row]))
        is_chosen[row, ties[: k - np.count_nonzero(is_chosen[row])]] = True
    columns = torch.from_numpy(np.flatnonzero(is_chosen).reshape(len(rows), k) % rows.shape[1])
    return columns, rows.gather(1, columns)
