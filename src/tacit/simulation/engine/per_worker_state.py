"""Buffers and random state of each worker, for modules that run one worker at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BuffersPerWorker:
    """The buffers and the torch random state of each worker."""

    def __init__(self, module: nn.Module, workers: int, seed: Callable[[int], int]) -> None:
        named = {name: buffer.detach() for name, buffer in module.named_buffers()}
        self._buffers = [{name: buffer.clone() for name, buffer in named.items()} for _ in range(workers)]
        self._seed = seed
        self._random: dict[int, Tensor] = {}  # by rank, after its first use

    @contextmanager
    def of(self, rank: int) -> Iterator[dict[str, Tensor]]:
        """Yield the worker's buffers; within the context the global random state is that of the worker."""
        outside = torch.get_rng_state()
        if rank not in self._random:
            self._random[rank] = torch.Generator().manual_seed(self._seed(rank)).get_state()
        torch.set_rng_state(self._random[rank])
        try:
            yield self._buffers[rank]
        finally:
            self._random[rank] = torch.get_rng_state()
            torch.set_rng_state(outside)

    def copy(self, source: int, target: int) -> None:
        """Give worker ``target`` the buffers of worker ``source``; its random state stays its own."""
        self._buffers[target] = {name: buffer.clone() for name, buffer in self._buffers[source].items()}

    def size_bytes(self, rank: int) -> int:
        return sum(buffer.nbytes for buffer in self._buffers[rank].values())

    def mean(self) -> dict[str, Tensor]:
        first = self._buffers[0]
        return {
            name: torch.stack([own[name] for own in self._buffers]).mean(0) if value.is_floating_point() else value
            for name, value in first.items()
        }
