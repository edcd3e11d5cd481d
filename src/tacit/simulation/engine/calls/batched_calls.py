"""Calls of the engine: gradients of several rows at once, and whole steps, which also update the rows.

A call has rows with batches of one size, and a limited number of them. Calls are static where the engine is captured or
compiled, else plain. What cannot be captured, or does not fit into memory, falls back to plain or to smaller calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.simulation.engine.calls.plain_gradients import PlainGradients
from tacit.simulation.engine.calls.static_calls import CannotCapture, StaticCalls, Steps
from tacit.simulation.engine.choice import STATIC, Choice, warn_once
from tacit.simulation.engine.losses import DeviceLosses, HostLosses, Losses
from tacit.simulation.engine.operations import ADVANCE, Work
from tacit.simulation.engine.per_worker_state import BuffersPerWorker
from tacit.simulation.engine.row_optimizer import RowOptimizer
from tacit.workloads.workload import Problem, Token

REPLICAS_PER_CALL: Final = {"cpu": 256, "cuda": 1024}  # limits the memory of a call's activations
MOST_REPLICAS: Final = 1024  # of a call with small batches, which has at most as many samples as 256 batches of 32
SAMPLES_OF_SMALL_BATCHES: Final = 8192
NUMBERS_IN_CACHE: Final = 1_250_000  # parameters of a call on a CPU with more than the usual number of replicas
NUMBERS_PER_CALL: Final = {"cpu": 32_000_000, "cuda": 256_000_000}  # limits the memory of its gradients


class Calls:
    """Runs calls, and collects their losses.

    storage: the parameters, one row per worker, and a last row of scratch memory.
    """

    def __init__(
        self, problem: Problem, storage: Tensor, optimizer: RowOptimizer, choice: Choice, buffers: BuffersPerWorker
    ) -> None:
        self._problem, self._matrix, self._optimizer = problem, storage[:-1], optimizer
        self._layout, workers = problem.layout, len(storage) - 1
        self._sizes = [sampler.batch_size for sampler in problem.samplers]
        self._per_call = replicas_per_call(self._layout.dimension, max(self._sizes), storage.device)
        self._has_sizes = len(set(self._sizes)) > 1
        self._plain = PlainGradients(problem, choice, buffers)
        self._static: StaticCalls | None = None
        self.losses: Losses = HostLosses(workers)
        if choice.engine in STATIC:
            self.losses = losses = DeviceLosses(workers, storage.device)
            is_compiled = choice.engine == "compiled"
            self._static = StaticCalls(
                problem, storage, optimizer, losses, self._plain.vmapped, is_compiled=is_compiled
            )

    @property
    def choice(self) -> Choice:
        """The way gradients are evaluated now."""
        return self._plain.choice

    @property
    def are_static(self) -> bool:
        return self._static is not None

    def divided(self, work: list[Work]) -> list[list[Work]]:
        """Divide ``work`` into calls with equal batch sizes and a limited number of replicas."""
        by_size: dict[int, list[Work]] = {self._sizes[0]: work}
        if self._has_sizes:
            by_size = {}
            for one in work:
                by_size.setdefault(self._sizes[one[0]], []).append(one)
        at_once = self._per_call
        return [same[start : start + at_once] for same in by_size.values() for start in range(0, len(same), at_once)]

    def advance(self, work: list[Work], steps: int) -> None:
        """Take ``steps`` whole steps of each worker in plain calls."""
        for some in self.divided(work):
            ranks = [rank for rank, _ in some]
            numbers = [step for _, (_, step, _) in some]
            batches = self._batches(ranks, [tokens[:steps] for _, (_, _, tokens) in some])
            for batch in batches:
                rows = some_rows(self._matrix, ranks)
                gradients, losses = self._plain.evaluate(ranks, self._layout.split(rows), batch)
                self.losses.observe(ranks, numbers, losses)
                self._optimizer.step(ranks, numbers, gradients, copy=rows)
                numbers = [number + 1 for number in numbers]

    def advance_statically(self, work: list[Work], steps: int) -> list[Work]:
        """Take ``steps`` whole steps in static calls, as far as these are possible; return the work that is left."""
        if self._static is None or not self._static.can_update:
            return work
        left = [one for one in work if one[1][0] == ADVANCE]
        others = [one for one in work if one[1][0] != ADVANCE]
        while left and self._static is not None:
            some = self.divided(left)[0]
            ranks = [rank for rank, _ in some]
            numbers = [step for _, (_, step, _) in some]
            tokens = [tokens[:steps] for _, (_, _, tokens) in some]
            try:
                self._static.advance(Steps(ranks, numbers, tokens, self._sizes[ranks[0]]))
            except CannotCapture as error:
                self._use_plain_calls(error)
            except torch.OutOfMemoryError as error:
                self._halve_calls(len(some), error)
            else:
                done = set(ranks)
                left = [one for one in left if one[0] not in done]
        return left + others

    def evaluate(self, ranks: list[int], parameters: Tensor, tokens: list[Token]) -> tuple[dict[str, Tensor], Tensor]:
        """Return gradients by name and losses of the rows of ``parameters``, which are those of ``ranks``."""
        if self._static is not None:
            try:
                return self._static.evaluate(ranks, parameters, tokens, self._sizes[ranks[0]])
            except CannotCapture as error:
                self._use_plain_calls(error)
            except torch.OutOfMemoryError as error:
                half = self._halve_calls(len(ranks), error)
                first = self.evaluate(ranks[:half], parameters[:half], tokens[:half])
                rest = self.evaluate(ranks[half:], parameters[half:], tokens[half:])
                gradients = {name: torch.cat((part, rest[0][name])) for name, part in first[0].items()}
                return gradients, torch.cat((first[1], rest[1]))
        return self._plain.evaluate(ranks, self._layout.split(parameters), self._problem.collate(ranks, tokens))

    def mean_buffers(self) -> dict[str, Tensor]:
        """Return the mean of the workers' buffers (the first worker's where they are integers), for evaluation."""
        return self._plain.buffers.mean()

    def release(self) -> None:
        """Free the memory of captured calls now, not when the garbage collector runs."""
        if self._static is not None:
            self._static.release()

    def _batches(self, ranks: list[int], tokens: list[Sequence[Token]]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the mini-batches of consecutive steps; arrays of tokens are put together once for all steps."""
        indices = self._problem.indices(ranks, tokens) if isinstance(tokens[0], np.ndarray) else None
        for ahead in range(len(tokens[0])):
            if indices is None:
                yield self._problem.collate(ranks, [own[ahead] for own in tokens])
            else:
                own = torch.from_numpy(np.ascontiguousarray(indices[:, ahead]))
                yield self._problem.gather(own.to(self._matrix.device))

    def _use_plain_calls(self, error: CannotCapture) -> None:
        """Evaluate gradients without static inputs from now on."""
        self._static = None
        self._plain.choice = Choice("vmap", str(error))
        warn_once(str(error), "in plain calls of vmap")

    def _halve_calls(self, replicas: int, error: torch.OutOfMemoryError) -> int:
        """Limit calls to half of the ``replicas`` for which memory did not suffice, and return that."""
        if replicas == 1:
            raise error
        self._per_call = -(-replicas // 2)
        reason = f"{self.choice.reason}; memory limits a call to {self._per_call}"
        self._plain.choice = self.choice._replace(reason=reason)
        return self._per_call


def replicas_per_call(dimension: int, batch_size: int, device: torch.device) -> int:
    """Return the largest number of replicas of a call, by a fixed rule; ``dimension``: of a model."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    more = min(MOST_REPLICAS, SAMPLES_OF_SMALL_BATCHES // batch_size, NUMBERS_IN_CACHE // dimension)
    replicas = max(REPLICAS_PER_CALL[kind], more)
    return max(1, min(replicas, NUMBERS_PER_CALL[kind] // dimension))


def some_rows(matrix: Tensor, ranks: list[int]) -> Tensor:
    """Return these rows, without a copy if they are adjacent."""
    adjacent = adjacent_rows(matrix, ranks)
    return chosen_rows(matrix, ranks) if adjacent is None else adjacent


def adjacent_rows(matrix: Tensor, ranks: list[int]) -> Tensor | None:
    """Return a view of these rows; None where they are not adjacent."""
    return matrix[ranks[0] : ranks[-1] + 1] if ranks[-1] - ranks[0] + 1 == len(ranks) else None


def chosen_rows(matrix: Tensor, places: list[int]) -> Tensor:
    """Return a copy of these rows; three times as fast as ``matrix[places]``."""
    return matrix.index_select(0, torch.tensor(places, device=matrix.device))
