"""Mini-batch losses of all workers since a hook last took them, on the host or on the device.

Both forms reject a loss that is not finite. The host form does so in the same call. The device form does so when a hook
takes losses, every ``CALLS_PER_CHECK`` calls, and at the end of a run, so that calls need no synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import NotFinite

CALLS_PER_CHECK: Final = 64
_SUM, _FIRST, _BAD_STEP, _BAD_LOSS = range(4)


class Losses(Protocol):
    """The losses of all workers."""

    def observe(self, ranks: Sequence[int], steps: Sequence[int], losses: Tensor) -> None:
        """Add the loss of one step (numbered from 0) of each of ``ranks``."""

    def take(self, rank: int) -> tuple[int, float | None, float | None]:
        """Return and reset the worker's number of steps, its first loss and its mean loss."""

    def copy(self, source: int, target: int) -> None:
        """Give worker ``target`` what worker ``source`` has observed since it last took losses."""

    def check(self) -> None:
        """Raise ``NotFinite`` if a loss that was observed is not finite."""


class HostLosses:
    """Losses as numpy arrays; reading the losses of a call waits for it."""

    def __init__(self, workers: int) -> None:
        self._sum, self._first = np.zeros(workers), np.zeros(workers)
        self._seen = np.zeros(workers, np.int64)

    def observe(self, ranks: Sequence[int], steps: Sequence[int], losses: Tensor) -> None:
        values = losses.detach().double().cpu().numpy()
        if not np.isfinite(values).all():
            place = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NotFinite(ranks[place], steps[place] + 1, float(values[place]))
        if len(set(ranks)) < len(ranks):  # several gradients of one worker
            for place, rank in enumerate(ranks):
                self._add([rank], values[place : place + 1])
        else:
            self._add(ranks, values)

    def _add(self, ranks: Sequence[int], values: NDArray[np.float64]) -> None:
        """Add one loss of each of ``ranks``, which differ from each other."""
        some = slice(ranks[0], ranks[-1] + 1) if ranks[-1] - ranks[0] + 1 == len(ranks) else list(ranks)
        self._first[some] = np.where(self._seen[some] == 0, values, self._first[some])
        self._sum[some] += values
        self._seen[some] += 1

    def take(self, rank: int) -> tuple[int, float | None, float | None]:
        steps = self._seen.item(rank)
        if not steps:
            return 0, None, None
        first, mean = self._first.item(rank), self._sum.item(rank) / steps
        self._seen[rank], self._sum[rank] = 0, 0.0
        return steps, first, mean

    def copy(self, source: int, target: int) -> None:
        for values in (self._sum, self._first, self._seen):
            values[target] = values[source]

    def check(self) -> None:
        """Do nothing: ``observe`` has checked."""


class DeviceLosses:
    """Losses as columns of a tensor on the device, with one column more than workers: rows of padding use it."""

    def __init__(self, workers: int, device: torch.device) -> None:
        self._table = torch.zeros(4, workers + 1, dtype=torch.float64, device=device)
        self._table[_BAD_STEP] = -1
        self._seen = np.zeros(workers, np.int64)
        self._host: list[list[float]] | None = None  # a copy of the table, valid until the next call
        self._calls = 0

    def first_flags(self, ranks: Sequence[int], steps: int = 1) -> NDArray[np.int64]:
        """Return, for ``steps`` steps of each of ``ranks``, whether it is the first since ``take``, and count them.

        The shape is steps × ranks.
        """
        chosen = np.asarray(ranks)
        flags = np.zeros((steps, len(chosen)), np.int64)
        flags[0] = self._seen[chosen] == 0
        self._seen[chosen] += steps
        return flags

    def add(self, columns: Tensor, losses: Tensor, steps: Tensor, is_first: Tensor) -> None:
        """Add the losses of one step of the workers in ``columns``, by operations on the device alone."""
        losses = losses.detach().double()
        total, first, bad_step, bad_loss = self._table.index_select(1, columns)
        is_first = is_first.bool()
        is_bad = ~losses.isfinite() & (bad_step < 0)
        values = (
            torch.where(is_first, losses, total + losses),
            torch.where(is_first, losses, first),
            torch.where(is_bad, steps.double(), bad_step),
            torch.where(is_bad, losses, bad_loss),
        )
        self._table.index_copy_(1, columns, torch.stack(values))

    def called(self) -> None:
        """Note that a call has added losses; check them from time to time."""
        self._host = None
        self._calls += 1
        if self._calls % CALLS_PER_CHECK == 0:
            self.check()

    def observe(self, ranks: Sequence[int], steps: Sequence[int], losses: Tensor) -> None:
        device = self._table.device
        for places in _without_repetition(ranks):
            some, numbers = [ranks[place] for place in places], [steps[place] for place in places]
            own = losses if len(places) == len(ranks) else losses[places]
            flags = torch.from_numpy(self.first_flags(some)[0]).to(device)
            self.add(torch.tensor(some, device=device), own, torch.tensor(numbers, device=device), flags)
        self.called()

    def take(self, rank: int) -> tuple[int, float | None, float | None]:
        steps = self._seen.item(rank)
        if not steps:
            return 0, None, None
        if self._host is None:
            self.check()
        assert self._host is not None
        self._seen[rank] = 0
        return steps, self._host[_FIRST][rank], self._host[_SUM][rank] / steps

    def copy(self, source: int, target: int) -> None:
        self._table[:, target], self._host = self._table[:, source], None
        self._seen[target] = self._seen[source]

    def check(self) -> None:
        """Copy the table to the host; raise for the first step with a loss that is not finite."""
        if self._host is None:
            self._host = self._table[:, :-1].tolist()
        wrong = [(step, rank) for rank, step in enumerate(self._host[_BAD_STEP]) if step >= 0]
        if wrong:
            step, rank = min(wrong)
            raise NotFinite(rank, int(step) + 1, self._host[_BAD_LOSS][rank])


def _without_repetition(ranks: Sequence[int]) -> list[list[int]]:
    """Divide the places of ``ranks`` into lists in which no rank occurs twice, earlier places first."""
    if len(set(ranks)) == len(ranks):
        return [list(range(len(ranks)))]
    groups: list[list[int]] = []
    seen: dict[int, int] = {}
    for place, rank in enumerate(ranks):
        earlier = seen.get(rank, 0)
        seen[rank] = earlier + 1
        if earlier == len(groups):
            groups.append([])
        groups[earlier].append(place)
    return groups
