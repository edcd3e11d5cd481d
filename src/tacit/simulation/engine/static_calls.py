"""Calls of the engine with static inputs, so that CUDA graphs can repeat them: captured and compiled engines.

A call is padded to one of a few sizes. For each size a *program* has its own input tensors and one function of them:

    rows, batches  ←  selected from the parameters of all workers and from the data
    gradients      ←  vmap of the loss, compiled with engine="compiled"
    losses         ←  added on the device
    rows           ←  updated, for hook-free steps; several steps in one program where that saves launches

On CUDA the function is captured once as a graph and replayed. Padding uses the last row of the parameters, which
belongs to no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.simulation.engine.flat_optimizer import FlatOptimizer
from tacit.simulation.engine.losses import DeviceLosses
from tacit.simulation.engine.row_optimizer import RowOptimizer
from tacit.workloads.workload import Problem, Token

MOST_STEPS_PER_REPLAY: Final = 8
LARGEST_FOR_SEVERAL_STEPS: Final = 100_000  # parameters; calls of larger models are not limited by launches

GradientCall = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""From parameters by name and a batch, both with a leading dimension of replicas, to gradients and losses."""


class CannotCapture(Exception):
    """A call that cannot be captured or compiled; the text is the reason."""


class Work(NamedTuple):
    """The next steps of several workers with batches of one size; ``tokens``: of each worker, one per step."""

    ranks: list[int]
    first_steps: list[int]
    tokens: list[Sequence[Token]]
    batch_size: int
    updates: bool  # whether each gradient is followed by the update of the row


def padded_size(replicas: int, most: int, *, by_powers: bool = False) -> int:
    """Return the size to which a call of ``replicas`` is padded, at most ``most``.

    Sizes are powers of two up to 16, then multiples of 8, from 128 on of an eighth of the next power of two.
    by_powers: powers of two only, for calls that are expensive to prepare.
    """
    power = 1 << max(0, replicas - 1).bit_length()
    grain = power if by_powers or power <= 16 else max(8, power // 8)
    return min(most, -(-replicas // grain) * grain)


class StaticCalls:
    """One program per padded size, batch size, number of steps and kind of call."""

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
        self.gradients = torch.zeros_like(storage)
        self.call: GradientCall = torch.compile(call, dynamic=False) if is_compiled else call
        self._is_compiled = is_compiled
        self._programs: dict[tuple[int, int, int, bool], Program] = {}
        self._pool = torch.cuda.graph_pool_handle() if storage.is_cuda else None

    def run(self, work: Work) -> None:
        """Evaluate ``work``; raise ``CannotCapture`` before anything has changed."""
        updates = work.updates and isinstance(self.optimizer, FlatOptimizer)
        size = padded_size(len(work.ranks), len(self.storage) - 1, by_powers=self._is_compiled)
        done, steps = 0, len(work.tokens[0])
        can_repeat = updates and self.storage.shape[1] <= LARGEST_FOR_SEVERAL_STEPS
        while done < steps:
            count = min(MOST_STEPS_PER_REPLAY, 1 << (steps - done).bit_length() - 1) if can_repeat else 1
            indices = self._indices(work, done, count)
            count = 1 if indices is None else indices.shape[1]
            key = (size, work.batch_size, count, updates)
            if key not in self._programs:
                self._programs[key] = self._prepared(size, indices, work, updates=updates)
            program = self._programs[key]
            if indices is None:
                program.set_batch(self.problem.collate(work.ranks, [own[done] for own in work.tokens]))
            else:
                program.set_indices(indices)
            numbers = [[step + done + ahead for step in work.first_steps] for ahead in range(count)]
            program.set_plan(work.ranks, numbers)
            program.run()
            if work.updates and not updates:
                self.optimizer.step(work.ranks, numbers[0], self.problem.layout.split(self.gradients[work.ranks]))
            self.losses.called()
            done += count

    def release(self) -> None:
        """Free the memory of all graphs."""
        self._programs.clear()

    def _indices(self, work: Work, done: int, count: int) -> NDArray[np.int64] | None:
        """Return what ``Problem.gather`` needs, ranks × steps × …, for ``count`` steps or, from lists, for one step."""
        if count > 1 and isinstance(work.tokens[0], np.ndarray):
            return self.problem.indices(work.ranks, [own[done : done + count] for own in work.tokens])
        indices = self.problem.indices(work.ranks, [own[done] for own in work.tokens])
        return None if indices is None else indices[:, None]

    def _prepared(self, size: int, indices: NDArray[np.int64] | None, work: Work, *, updates: bool) -> Program:
        """Return a new program after its first calls on padding alone, captured where that is possible."""
        batch = self.problem.collate(work.ranks[:1], [work.tokens[0][0]])
        program = Program(self, size, indices, batch, updates=updates)
        try:
            program.prepare(self._pool)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            what = "compiling" if self._is_compiled else "capturing"
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise CannotCapture(f"{what} failed: {first_line}") from error
        return program


class Program:
    """Static inputs for ``size`` replicas, and the function of them.

    indices: those of the first call, ranks × steps × …; None: a program for one step, with batches like ``batch``.
    """

    def __init__(
        self,
        calls: StaticCalls,
        size: int,
        indices: NDArray[np.int64] | None,
        batch: tuple[Tensor, ...],
        *,
        updates: bool,
    ) -> None:
        steps = 1 if indices is None else indices.shape[1]
        self._calls, self._size, self._steps, self._updates = calls, size, steps, updates
        device = calls.storage.device
        self._scratch = len(calls.storage) - 1
        plan = np.zeros((1 + 3 * steps, size), np.int64)
        plan[0] = self._scratch
        self._plan_input, self._rates_input = Input(plan, device), Input(np.zeros((steps, size)), device)
        self._indices_input: Input | None = None
        self._batch: tuple[Tensor, ...] = ()
        if indices is None:
            self._batch = tuple(part[:1].repeat(size, *[1] * (part.dim() - 1)) for part in batch)
        else:
            padding = np.broadcast_to(indices[:1], (size, *indices.shape[1:]))  # any that ``gather`` accepts
            self._indices_input = Input(padding, device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self, pool: Any) -> None:
        """Run the function on padding; capture it where there is a pool of graph memory."""
        if pool is None:
            self._body()
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._body()  # libraries allocate and choose their kernels
            stream.synchronize()
            torch.cuda.empty_cache()  # the graph has memory of its own
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool)  # torch.cuda.graph() would also collect garbage, which takes longer
            try:
                self._body()
            except BaseException:
                with suppress(Exception):  # the first error is the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = graph

    def set_batch(self, batch: tuple[Tensor, ...]) -> None:
        """Set the mini-batches of a program for one step."""
        for static, part in zip(self._batch, batch, strict=True):
            static[: len(part)].copy_(part)

    def set_indices(self, indices: NDArray[np.int64]) -> None:
        """Set what ``Problem.gather`` turns into mini-batches."""
        assert self._indices_input is not None
        self._indices_input.values[: len(indices)] = indices
        self._indices_input.upload()

    def set_plan(self, ranks: Sequence[int], numbers: list[list[int]]) -> None:
        """Set rows, and for each step the counts, the first losses, the step numbers and the learning rates."""
        calls, count, steps = self._calls, len(ranks), self._steps
        plan, rates = self._plan_input.values, self._rates_input.values
        plan[0, :count], plan[0, count:] = ranks, self._scratch
        plan[1 + steps : 1 + 2 * steps, :count] = calls.losses.first_flags(ranks, steps)
        plan[1 + 2 * steps :, :count] = numbers
        if self._updates:
            assert isinstance(calls.optimizer, FlatOptimizer)
            plan[1 : 1 + steps, :count] = calls.optimizer.counts(ranks, steps)
            for step, own in enumerate(numbers):
                rates[step, :count] = calls.optimizer.rates(own)
            self._rates_input.upload()
        self._plan_input.upload()

    def run(self) -> None:
        """Run the function on its inputs."""
        if self._graph is None:
            self._body()
        else:
            self._graph.replay()

    def _body(self) -> None:
        calls, plan, rates = self._calls, self._plan_input.tensor, self._rates_input.tensor
        places = plan[0]
        counts, firsts, numbers = plan[1:].view(3, self._steps, self._size)
        optimizer, layout = calls.optimizer, calls.problem.layout
        rows = calls.storage.index_select(0, places)
        state = {}
        if self._updates:
            assert isinstance(optimizer, FlatOptimizer)
            state = {name: kept.index_select(0, places) for name, kept in optimizer.state.items()}
        for step in range(self._steps):
            batch = self._batch
            if self._indices_input is not None:
                batch = calls.problem.gather(self._indices_input.tensor[:, step])
            gradients, losses = calls.call(layout.split(rows), *batch)
            calls.losses.add(places, losses, numbers[step], firsts[step])
            flat = torch.empty_like(rows)
            layout.join(gradients, flat)
            if self._updates:
                assert isinstance(optimizer, FlatOptimizer)
                rows, state = optimizer.update(rows, flat, state, rates[step], counts[step])
            else:
                calls.gradients.index_copy_(0, places, flat)
        if self._updates:
            calls.storage.index_copy_(0, places, rows)
            for name, values in state.items():
                optimizer.state[name].index_copy_(0, places, values)  # type: ignore[attr-defined]


class Input:
    """A static input on the device, and the array on the host from which it is filled.

    ``values`` may be changed only after the copy that ``upload`` started has ended; reading it waits for that.
    """

    def __init__(self, values: NDArray[Any], device: torch.device) -> None:
        staged = torch.from_numpy(np.array(values))
        self.tensor = staged.to(device, copy=True)
        self._staged = staged.pin_memory() if device.type == "cuda" else staged
        self._values: NDArray[Any] = self._staged.numpy()
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def values(self) -> NDArray[Any]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._values

    def upload(self) -> None:
        """Copy the values to the device, without waiting."""
        self.tensor.copy_(self._staged, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
