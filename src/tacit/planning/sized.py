"""A workload that is only a number of parameters, for simulations of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.core.randomness import Streams
from tacit.workloads.workload import Evaluation, Problem, Sampler, Token, Workload


@dataclass(frozen=True, kw_only=True)
class Sized(Workload):
    """A model of ``parameters`` numbers of type ``dtype``, without data or loss.

    It opens at once and leaves torch's random generator alone, so that another thread may train meanwhile.
    """

    parameters: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return "sized"

    def open(self, workers: int, streams: Streams) -> Problem:
        return _SizedProblem(self.parameters, getattr(torch, self.dtype), workers)


class _NoData:
    batch_size = 1

    def take(self, count: int) -> list[int]:
        return [0] * count


class _SizedProblem(Problem):
    batch_size = 1

    def __init__(self, parameters: int, dtype: torch.dtype, workers: int) -> None:
        self.module = nn.Module()
        self.module.register_parameter("numbers", nn.Parameter(torch.zeros(parameters, dtype=dtype)))
        self.samplers: Sequence[Sampler] = [_NoData()] * workers

    def collate(self, ranks: Sequence[int], tokens: Sequence[Token]) -> tuple[Tensor, ...]:
        return (torch.zeros(len(ranks), 1),)

    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        return Evaluation(0.0, None, None)
