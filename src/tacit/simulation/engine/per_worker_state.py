"""What a module that runs one worker at a time finds in place: its worker's own buffers and random state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BuffersPerWorker:
    """Each worker's own buffers and torch random state, for modules that run one worker at a time."""

    def __init__(self, module: nn.Module, workers: int, seed: Callable[[int], int]) -> None:
        named = {name: buffer.detach() for name, buffer in module.named_buffers()}
        self._buffers = [{name: buffer.clone() for name, buffer in named.items()} for _ in range(workers)]
        self._seed = seed
        self._random: dict[int, Tensor] = {}  # by rank, from its first turn on

    @contextmanager
    def of(self, rank: int) -> Iterator[dict[str, Tensor]]:
        """Lend the worker's buffers and put its random state in place of the global one."""
        outside = torch.get_rng_state()
        if rank not in self._random:
            self._random[rank] = torch.Generator().manual_seed(self._seed(rank)).get_state()
        torch.set_rng_state(self._random[rank])
        try:
            yield self._buffers[rank]
        finally:
            self._random[rank] = torch.get_rng_state()
            torch.set_rng_state(outside)

    def mean(self) -> dict[str, Tensor]:
        first = self._buffers[0]
        return {
            name: torch.stack([own[name] for own in self._buffers]).mean(0) if value.is_floating_point() else value
            for name, value in first.items()
        }
