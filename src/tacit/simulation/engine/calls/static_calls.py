"""Calls of the engine with static inputs, so that CUDA graphs can repeat them: captured and compiled engines.

A call is padded to one of a few sizes. For each size a *program* has its own input tensors and one function of them:

    rows, batches  ←  selected from the parameters of all workers and from the data
    gradients      ←  vmap of the loss, compiled with engine="compiled"
    losses, rows   ←  added and updated on the device, for whole steps

A program of whole steps takes several steps where that saves launches. A program of gradients gets copies of rows and
returns gradients and losses. On CUDA the function is captured once as a graph and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.simulation.engine.calls.programs import GradientCall, Gradients, Indices, Program, WholeSteps
from tacit.simulation.engine.flat_optimizer import FlatOptimizer
from tacit.simulation.engine.losses import DeviceLosses
from tacit.simulation.engine.row_optimizer import RowOptimizer
from tacit.workloads.workload import Problem, Token

MOST_STEPS_PER_REPLAY: Final = 8
LARGEST_FOR_SEVERAL_STEPS: Final = 100_000  # parameters; calls of larger models are not limited by launches
MOST_COMPILED_SIZES: Final = 64  # of one process; torch's default of 8 ends compiled calls in sweeps without an error

AnyProgram = TypeVar("AnyProgram", bound=Program)


class CannotCapture(Exception):
    """A call that cannot be captured or compiled; the text is the reason."""


class Steps(NamedTuple):
    """The next steps of several workers with batches of one size; ``tokens``: of each worker, one per step."""

    ranks: list[int]
    numbers: list[int]  # of the first of these steps of each worker
    tokens: list[Sequence[Token]]
    batch_size: int


def padded_size(replicas: int, workers: int, *, by_powers: bool = False) -> int:
    """Return the size to which a call of ``replicas`` is padded.

    Sizes are the number of workers, powers of two up to 16, then multiples of 8, from 128 on of an eighth of the next
    power of two. by_powers: powers of two only, for calls that are expensive to prepare.
    """
    power = 1 << max(0, replicas - 1).bit_length()
    grain = power if by_powers or power <= 16 else max(8, power // 8)
    size = -(-replicas // grain) * grain
    return workers if replicas <= workers < size else size


class StaticCalls:
    """One program per padded size, batch size, number of steps and kind of call.

    storage: the parameters of all workers and a last row for padding. Without ``can_update``, the optimizer cannot be
    part of a program, and ``advance`` must not be called.
    """

    def __init__(
        self,
        problem: Problem,
        storage: Tensor,
        optimizer: RowOptimizer,
        losses: DeviceLosses,
        call: GradientCall,
        *,
        is_compiled: bool,
    ) -> None:
        self.problem, self.storage, self.optimizer, self.losses = problem, storage, optimizer, losses
        self.call: GradientCall = torch.compile(call, dynamic=False, fullgraph=True) if is_compiled else call
        self.can_update = isinstance(optimizer, FlatOptimizer)
        self._is_compiled = is_compiled
        self._programs: dict[tuple[str, int, int, int], Program] = {}
        self._pool = torch.cuda.graph_pool_handle() if storage.is_cuda else None

    def advance(self, steps: Steps) -> None:
        """Take these steps: gradients and updates. Raise ``CannotCapture`` before anything has changed."""
        ranks, done = steps.ranks, 0
        numbers = np.asarray(steps.numbers)
        prepared: list[tuple[WholeSteps, Indices | None, Indices]] = []
        for count in self._parts(steps):
            tokens = [own[done : done + count] if count > 1 else own[done] for own in steps.tokens]
            indices = self.problem.indices(ranks, tokens)
            if indices is not None and count == 1:
                indices = indices[:, None]
            program = self._program(WholeSteps, ranks, indices, [own[done] for own in steps.tokens], steps.batch_size)
            prepared.append((program, indices, numbers + np.arange(done, done + count)[:, None]))
            done += count
        for done, (program, indices, some) in enumerate(prepared):
            if indices is None:
                program.set_batch(self.problem.collate(ranks, [own[done] for own in steps.tokens]))
            else:
                program.set_indices(indices)
            program.set_plan(ranks, some)
            program.run()
            self.losses.called()

    def evaluate(
        self, ranks: list[int], parameters: Tensor, tokens: list[Token], batch_size: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return gradients by name and losses at the rows of ``parameters``, with mini-batches of ``ranks``."""
        indices = self.problem.indices(ranks, tokens)
        indices = None if indices is None else indices[:, None]
        program = self._program(Gradients, ranks, indices, tokens, batch_size)
        if indices is None:
            program.set_batch(self.problem.collate(ranks, tokens))
        else:
            program.set_indices(indices)
        program.set_rows(parameters)
        program.run()
        gradients, losses = program.results(len(ranks))
        return self.problem.layout.split(gradients), losses

    def release(self) -> None:
        """Free the memory of all graphs."""
        self._programs.clear()

    def _limits(self) -> AbstractContextManager[object]:
        """Allow torch.compile more sizes than by default, while a program is made."""
        patch = torch._dynamo.config.patch
        return patch(cache_size_limit=MOST_COMPILED_SIZES) if self._is_compiled else nullcontext()

    def _parts(self, steps: Steps) -> list[int]:
        """Divide the steps into programs: several steps each if the model is small and tokens are arrays."""
        left = len(steps.tokens[0])
        first = self.problem.indices(steps.ranks[:1], [steps.tokens[0][0]])
        is_small = self.storage.shape[1] <= LARGEST_FOR_SEVERAL_STEPS
        if not is_small or first is None or not isinstance(steps.tokens[0], np.ndarray):
            return [1] * left
        parts = []
        while left:
            parts.append(min(MOST_STEPS_PER_REPLAY, 1 << left.bit_length() - 1))
            left -= parts[-1]
        return parts

    def _program(
        self, kind: type[AnyProgram], ranks: list[int], indices: Indices | None, tokens: list[Token], batch_size: int
    ) -> AnyProgram:
        """Return the program for a call; make it, run it on padding and capture it at its first use."""
        size = padded_size(len(ranks), len(self.storage) - 1, by_powers=self._is_compiled)
        steps = 1 if indices is None else indices.shape[1]
        key = (kind.__name__, size, batch_size, steps)
        program = self._programs.get(key)
        if program is None:
            program = kind(self, size, indices, self.problem.collate(ranks[:1], tokens[:1]))
            try:
                with self._limits():
                    program.prepare(self._pool)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                what = "compiling" if self._is_compiled else "capturing"
                first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
                raise CannotCapture(f"{what} failed: {first_line}") from error
            self._programs[key] = program
        assert isinstance(program, kind)
        return program
