"""What a module that runs one worker at a time finds in place: its worker's own buffers and random state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BuffersPerWorker:
    """Each worker's own buffers and torch random state, for modules that run one worker at a time."""

    def __init__(self, module: nn.Module, workers: int, seeds: Sequence[int]) -> None:
        named = {name: buffer.detach() for name, buffer in module.named_buffers()}
        self._buffers = [{name: buffer.clone() for name, buffer in named.items()} for _ in range(workers)]
        self._random = [torch.Generator().manual_seed(seed).get_state() for seed in seeds]

    @contextmanager
    def of(self, rank: int) -> Iterator[dict[str, Tensor]]:
        """Lend the worker's buffers and put its random state in place of the global one."""
        outside = torch.get_rng_state()
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
