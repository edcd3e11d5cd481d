"""Programs: one function of static inputs for calls of one size, captured as a CUDA graph where there is a GPU.

Gradients    gradients and losses at rows that are copied into the program
WholeSteps   one or several steps of rows of the storage: gradients, losses and updates
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.simulation.engine.flat_optimizer import FlatOptimizer

if TYPE_CHECKING:
    from tacit.simulation.engine.calls.static_calls import StaticCalls

GradientCall = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""From parameters by name and a batch, both with a leading dimension of replicas, to gradients and losses."""
Indices = NDArray[np.int64]


class Program(ABC):
    """Static inputs for ``size`` replicas, and the function of them.

    indices: those of the first call, ranks × steps × …; None: a program for one step, with batches like ``batch``.
    """

    def __init__(self, calls: StaticCalls, size: int, indices: Indices | None, batch: tuple[Tensor, ...]) -> None:
        self.calls, self.size, self.steps = calls, size, 1 if indices is None else indices.shape[1]
        self._indices: Input | None = None
        self._batch: tuple[Tensor, ...] = ()
        if indices is None:
            self._batch = tuple(part[:1].repeat(size, *[1] * (part.dim() - 1)) for part in batch)
        else:
            padding = np.broadcast_to(indices[:1], (size, *indices.shape[1:]))  # any that ``gather`` accepts
            self._indices = Input(padding, calls.storage.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @abstractmethod
    def body(self) -> None:
        """Compute from the static inputs."""

    def prepare(self, pool: Any) -> None:
        """Run the function on padding; capture it where there is a pool of graph memory."""
        if pool is None:
            self.body()
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.body()  # libraries allocate and choose their kernels
            stream.synchronize()
            torch.cuda.empty_cache()  # the graph has memory of its own
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool)  # torch.cuda.graph() would also collect garbage, which takes longer
            try:
                self.body()
            except BaseException:
                with suppress(Exception):  # the first error is the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = graph

    def run(self) -> None:
        """Compute from the inputs as they are now."""
        if self._graph is None:
            self.body()
        else:
            self._graph.replay()

    def set_batch(self, batch: tuple[Tensor, ...]) -> None:
        """Set the mini-batches of a program for one step."""
        for static, part in zip(self._batch, batch, strict=True):
            static[: len(part)].copy_(part)

    def set_indices(self, indices: Indices) -> None:
        """Set what ``Problem.gather`` turns into mini-batches."""
        assert self._indices is not None
        self._indices.values[: len(indices)] = indices
        self._indices.upload()

    def gradients(self, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return flat gradients at ``rows`` with the mini-batches of a step, and their losses."""
        problem = self.calls.problem
        batch = self._batch if self._indices is None else problem.gather(self._indices.tensor[:, step])
        by_name, losses = self.calls.call(problem.layout.split(rows), *batch)
        flat = torch.empty_like(rows)
        problem.layout.join(by_name, flat)
        return flat, losses


class Gradients(Program):
    """Gradients and losses at rows that are copied into the program."""

    def __init__(self, calls: StaticCalls, size: int, indices: Indices | None, batch: tuple[Tensor, ...]) -> None:
        super().__init__(calls, size, indices, batch)
        self._rows = calls.storage[-1:].repeat(size, 1)
        self._flat = torch.empty_like(self._rows)
        self._losses = self._rows.new_empty(size)

    def set_rows(self, rows: Tensor) -> None:
        """Set the parameters of the first replicas; the others are padding."""
        self._rows[: len(rows)].copy_(rows)

    def results(self, count: int) -> tuple[Tensor, Tensor]:
        """Return copies of the first ``count`` gradients and losses."""
        return self._flat[:count].clone(), self._losses[:count].clone()

    def body(self) -> None:
        flat, losses = self.gradients(self._rows, 0)
        self._flat.copy_(flat)
        self._losses.copy_(losses)


class WholeSteps(Program):
    """One or several steps of rows of the storage: gradients, losses and updates."""

    def __init__(self, calls: StaticCalls, size: int, indices: Indices | None, batch: tuple[Tensor, ...]) -> None:
        super().__init__(calls, size, indices, batch)
        self._padding = len(calls.storage) - 1  # the row that belongs to no worker
        plan = np.zeros((1 + 3 * self.steps, size), np.int64)
        plan[0] = self._padding
        device = calls.storage.device
        self._plan, self._rates = Input(plan, device), Input(np.zeros((self.steps, size)), device)

    def set_plan(self, ranks: Sequence[int], numbers: Indices) -> None:
        """Set rows, and for each step the counts, the first losses, the step numbers and the learning rates.

        numbers: of the steps, steps × ranks.
        """
        calls, count, steps = self.calls, len(ranks), self.steps
        assert isinstance(calls.optimizer, FlatOptimizer)
        plan, rates = self._plan.values, self._rates.values
        plan[0, :count], plan[0, count:] = ranks, self._padding
        plan[1 : 1 + steps, :count] = calls.optimizer.counts(ranks, steps)
        plan[1 + steps : 1 + 2 * steps, :count] = calls.losses.first_flags(ranks, steps)
        plan[1 + 2 * steps :, :count] = numbers
        rates[:, count:] = 0.0
        for step, own in enumerate(numbers):
            rates[step, :count] = calls.optimizer.rates(own)
        self._rates.upload()
        self._plan.upload()

    def body(self) -> None:
        calls, optimizer, places = self.calls, self.calls.optimizer, self._plan.tensor[0]
        assert isinstance(optimizer, FlatOptimizer)
        counts, firsts, numbers = self._plan.tensor[1:].view(3, self.steps, self.size)
        rows = calls.storage.index_select(0, places)
        state = {name: kept.index_select(0, places) for name, kept in optimizer.state.items()}
        for step in range(self.steps):
            flat, losses = self.gradients(rows, step)
            calls.losses.add(places, losses, numbers[step], firsts[step])
            rows, state = optimizer.update(rows, flat, state, self._rates.tensor[step], counts[step])
        calls.storage.index_copy_(0, places, rows)
        for name, values in state.items():
            optimizer.state[name].index_copy_(0, places, values)


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
