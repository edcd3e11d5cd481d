"""Means over the ranks of an all-reduce in the simulator.

The tensors of a round are usually rows of one matrix: the parameters of all workers, or their gradients. The mean is
then one reduction of the matrix, and one copy writes it into all rows. Other tensors are stacked first. Numbers that
travel with the tensors are columns of a table of their own, on the CPU, so that no rank waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.core.network import Parts, joined
from tacit.errors import Disagreement

FindMatrix = Callable[[Sequence[Tensor], Sequence[int]], Tensor | None]
"""Returns the matrix that has these tensors as its rows of these numbers; None: there is none."""


_NOTHING: Final[Sequence[float]] = ()


class Given:
    """What one rank gives to an all-reduce. ``into``: where the mean of ``tensor`` goes; None: into a new tensor."""

    __slots__ = ("into", "numbers", "tensor")

    def __init__(self, parts: Parts, into: Tensor | None = None) -> None:
        self.into = into
        if isinstance(parts, Tensor):
            self.tensor, self.numbers = parts, _NOTHING
        elif len(parts) == 2 and not isinstance(parts[1], Tensor) and isinstance(parts[0], Tensor):
            self.tensor, self.numbers = parts[0], parts[1]  # neither copied nor joined
        else:
            self.tensor, self.numbers = joined(parts), _NOTHING

    @property
    def elements(self) -> int:
        return self.tensor.numel() + len(self.numbers)

    def __str__(self) -> str:
        shape = (self.elements,) if self.numbers else tuple(self.tensor.shape)
        return f"{shape} of {self.tensor.dtype}"


class Means:
    """The results of one all-reduce, by rank: a tensor, which ranks share, and the numbers, which each rank owns."""

    __slots__ = ("_matrix", "numbers", "tensors")

    def __init__(self, tensors: dict[int, Tensor], numbers: dict[int, Tensor], matrix: Tensor | None = None) -> None:
        self.tensors, self.numbers = tensors, numbers
        self._matrix = matrix  # the tensors go into its rows when the ranks leave

    def write(self, ranks: Sequence[int]) -> None:
        """Write the mean into the rows of ``ranks``, which leave the all-reduce."""
        if self._matrix is not None and ranks:
            rows = slice(None) if len(ranks) == len(self._matrix) else list(ranks)
            self._matrix[rows] = self.tensors[ranks[0]]

    def share(self, source: int, rank: int) -> None:
        """Give ``rank``, which has not taken part, the result of ``source``."""
        self.tensors[rank], self.numbers[rank] = self.tensors[source], self.numbers[source].clone()

    def take(self, rank: int, into: Tensor | None) -> Tensor:
        """Return the mean as a tensor of the caller's own; with ``into``, only what does not fit into it."""
        numbers = self.numbers[rank]
        if self._matrix is not None:
            return numbers
        tensor = self.tensors[rank]
        if into is not None and into.numel() == tensor.numel():
            if into is not tensor:
                into.copy_(tensor.view_as(into))
            return numbers
        whole = torch.cat((tensor, numbers.to(tensor))) if numbers.numel() else tensor.clone()
        if into is None:
            return whole
        whole = whole.view(-1)
        into.copy_(whole[: into.numel()].view_as(into))
        return whole[into.numel() :]


def check_equal(group: Sequence[int], given: Sequence[Given]) -> None:
    """Raise ``Disagreement`` unless all ranks give tensors of one shape and type."""
    first, expected = given[0], (given[0].tensor.shape, given[0].tensor.dtype, len(given[0].numbers))
    for rank, one in zip(group, given, strict=True):
        if (one.tensor.shape, one.tensor.dtype, len(one.numbers)) != expected:
            rule = "all ranks must pass tensors of one shape and type."
            raise Disagreement("size of a round", str(one), str(first), rank, others=group[:1], rule=rule)


def own_values(group: Sequence[int], given: Sequence[Given]) -> Means:
    """Return what each rank gave as its result."""
    numbers = dict(zip(group, _table(given).unbind(0), strict=True))
    return Means({rank: one.tensor for rank, one in zip(group, given, strict=True)}, numbers)


def timing_means(group: Sequence[int], given: Sequence[Given], weights: Sequence[float]) -> Means:
    """Return each rank's own tensor, for runs without models, and the means of the numbers that travel with it."""
    values = own_values(group, given)
    if len(given[0].numbers) > 1 and any(weights):  # a number alone is the period, which is equal on all ranks
        means = mean_of_rows(_table(given), weights)
        values.numbers = dict(zip(group, means.expand(len(group), -1).clone().unbind(0), strict=True))
    return values


def means_of(
    group: Sequence[int], given: Sequence[Given], weights: Sequence[float], find_matrix: FindMatrix | None
) -> Means:
    """Return Σ wᵢ xᵢ / Σ wᵢ; if all weights are 0, each rank's own. Raise if the ranks' tensors differ in size."""
    n, tensors = len(group), [one.tensor for one in given]
    matrix = None if find_matrix is None else find_matrix(tensors, group)
    if matrix is None or len({len(one.numbers) for one in given}) > 1:
        check_equal(group, given)
    if n == 1 or not any(weights):
        return own_values(group, given)
    is_whole = matrix is not None and n == len(matrix)
    rows = torch.stack(tensors) if matrix is None else matrix if is_whole else matrix[list(group)]
    mean, numbers = mean_of_rows(rows, weights), mean_of_rows(_table(given), weights)
    own = numbers.expand(n, -1).clone().unbind(0) if numbers.numel() else [numbers] * n  # ranks may overwrite them
    is_written = matrix is not None and all(map(is_, tensors, [one.into for one in given]))
    return Means(dict.fromkeys(group, mean), dict(zip(group, own, strict=True)), matrix if is_written else None)


def equal_means(given: Given, weight: float, workers: int, matrix: Tensor | None) -> Tensor:
    """Write the mean of the rows of ``matrix`` into them, where all workers give the same numbers and weights.

    Return the means of the numbers. None: a run without models.
    """
    table, weights = _table([given] * workers), [weight] * workers
    if workers == 1 or not weight or (matrix is None and len(given.numbers) <= 1):  # as in ``timing_means``
        return table[0]
    if matrix is not None:
        matrix[:] = mean_of_rows(matrix, weights)
    return mean_of_rows(table, weights)


def mean_of_rows(rows: Tensor, weights: Sequence[float]) -> Tensor:
    """Return Σ wᵢ xᵢ / Σ wᵢ over the rows."""
    if weights.count(1.0) < len(weights):
        rows = rows * rows.new_tensor(weights).view(-1, *[1] * (rows.dim() - 1))
    return rows.sum(0).div_(sum(weights))


def _table(given: Sequence[Given]) -> Tensor:
    """Return the numbers of all ranks, one row per rank, in the type of the tensors."""
    values = np.array([one.numbers for one in given], np.float64).reshape(len(given), -1)
    return torch.from_numpy(values).to(given[0].tensor.dtype)
