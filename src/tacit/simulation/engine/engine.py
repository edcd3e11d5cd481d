"""The gradient engine: parameters of all workers are rows of one matrix, and operations on rows are batched lazily.

Operations of a worker (a gradient, an update, a snapshot for an evaluation) wait in its queue; rows are independent.
When a result is needed, the engine runs all queues in lockstep: the gradients at the heads of the queues in one call of
``torch.func.vmap``, the updates in one call of an elementwise optimizer. Hook-free steps are queued ahead of their
virtual time, several as one operation, and fill these calls.

The captured and compiled engines run the same operations through ``static_calls``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.core.worker import ObservedLosses
from tacit.simulation.engine.choice import STATIC, Choice, warn_once
from tacit.simulation.engine.losses import DeviceLosses, HostLosses, Losses
from tacit.simulation.engine.per_worker_state import BuffersPerWorker
from tacit.simulation.engine.plain_gradients import PlainGradients
from tacit.simulation.engine.row_optimizer import RowOptimizer
from tacit.simulation.engine.static_calls import CannotCapture, StaticCalls, Work
from tacit.workloads.workload import Problem, Token

_ADVANCE, _GRADIENT, _UPDATE, _SNAPSHOT = range(4)
REPLICAS_PER_CALL: Final = {"cpu": 256, "cuda": 1024}  # limits the memory of a call's activations
NUMBERS_PER_CALL: Final = {"cpu": 32_000_000, "cuda": 256_000_000}  # limits the memory of its gradients

Operation = tuple[int, int, Any]
"""Kind, step and argument: mini-batches, one per step; None; or the function that takes the snapshot."""

Snapshot = Callable[[int, int, Tensor], None]
"""Called with rank, step and the row, which it must copy."""


class Engine:
    """Parameters and gradients of all workers, and their queues of operations.

    storage: the parameters, one row per worker, and a last row of scratch memory.
    """

    def __init__(
        self, problem: Problem, storage: Tensor, optimizer: RowOptimizer, choice: Choice, seed: Callable[[int], int]
    ) -> None:
        matrix = storage[:-1]
        self.problem, self.matrix, self.optimizer = problem, matrix, optimizer
        self.layout, self._first = problem.layout, matrix[0].clone()
        self.workers = len(matrix)
        kind = "cuda" if matrix.is_cuda else "cpu"
        self._per_call = max(1, min(REPLICAS_PER_CALL[kind], NUMBERS_PER_CALL[kind] // self.layout.dimension))
        self._rows = [
            matrix[rank] for rank in range(self.workers)
        ]  # views, made once because hooks use them in every round
        self._gradients: Tensor | None = None  # flat rows, allocated at the first use
        self._gradient_rows: list[Tensor] = []  # views of them
        self._queues: list[deque[Operation]] = [deque() for _ in range(self.workers)]
        self._waiting: set[int] = set()
        self._snapshots = 0  # in all queues
        self._calls_update = False
        self._losses: Losses = HostLosses(self.workers)
        self._sizes = [sampler.batch_size for sampler in problem.samplers]
        self._has_sizes = len(set(self._sizes)) > 1
        self._weights = [size / problem.batch_size for size in self._sizes]
        self._plain = PlainGradients(problem, choice, BuffersPerWorker(problem.module, self.workers, seed))
        self._static: StaticCalls | None = None
        if choice.engine in STATIC:
            self._losses = losses = DeviceLosses(self.workers, matrix.device)
            is_compiled = choice.engine == "compiled"
            self._static = StaticCalls(
                problem, storage, optimizer, losses, self._plain.vmapped, is_compiled=is_compiled
            )
            self._gradients = self._static.gradients[:-1]

    @property
    def choice(self) -> Choice:
        """The way gradients are evaluated now: what cannot be captured, compiled or batched falls back."""
        return self._plain.choice

    # Queue operations.

    def advance(self, rank: int, step: int, tokens: Sequence[Token]) -> None:
        """Queue whole steps, gradient and update, from ``step`` on, one per mini-batch."""
        if len(tokens):
            self._queues[rank].append((_ADVANCE, step, tokens))
            self._waiting.add(rank)

    def compute_gradient(self, rank: int, step: int, token: Token) -> None:
        """Queue a gradient that a hook will use."""
        self._queues[rank].append((_GRADIENT, step, (token,)))
        self._waiting.add(rank)

    def update(self, rank: int, step: int) -> None:
        """Queue a step of the optimizer with the gradient that the hook leaves."""
        self._calls_update = True
        self._queues[rank].append((_UPDATE, step, None))
        self._waiting.add(rank)

    def snapshot(self, rank: int, step: int, purpose: Snapshot) -> None:
        """Queue a snapshot of the row for an evaluation."""
        self._snapshots += 1
        self._queues[rank].append((_SNAPSHOT, step, purpose))
        self._waiting.add(rank)

    def reset(self, rank: int) -> None:
        """Reset the worker to the initial parameters and the initial state of the optimizer."""
        if rank in self._waiting:
            self.settle(rank)
        self._rows[rank].copy_(self._first)
        self.optimizer.forget(rank)

    # Interface of hooks.

    def row(self, rank: int) -> Tensor:
        """Return the worker's parameters after running its queued operations."""
        if rank in self._waiting:
            self.settle(rank)
        return self._rows[rank]

    def gradient(self, rank: int) -> Tensor:
        """Return the worker's gradient as a flat row."""
        if rank in self._waiting:
            self.settle(rank)
        if not self._gradient_rows:
            self._gradient_rows = list(self._flat_gradients)
        return self._gradient_rows[rank]

    def set_gradient(self, rank: int, value: Tensor) -> None:
        """Replace the gradient that the next update uses."""
        own = self.gradient(rank)
        if value is not own:
            own.copy_(value)

    def matrix_of(self, tensors: Sequence[Tensor], ranks: Sequence[int]) -> Tensor | None:
        """Return the matrix whose rows ``ranks`` are ``tensors``: parameters or gradients; None: there is none."""
        for matrix, rows in ((self.matrix, self._rows), (self._gradients, self._gradient_rows)):
            if rows and all(map(is_, tensors, [rows[rank] for rank in ranks])):
                return matrix
        return None

    def take_observed(self, rank: int) -> ObservedLosses:
        """Return and reset the number of steps and the losses of the worker."""
        if rank in self._waiting:
            self.settle(rank)
        steps, first, loss = self._losses.take(rank)
        return ObservedLosses(steps, steps * self._weights[rank], first, loss)

    def weight(self, rank: int) -> float:
        return self._weights[rank]

    def learning_rate(self, step: int) -> float:
        return self.optimizer.learning_rate(step)

    # Run operations.

    def settle(self, rank: int | None = None) -> None:
        """Run all queues in lockstep, or until the queue of ``rank`` is empty; the others then fill later calls."""
        while True:
            if self._snapshots:
                self._settle_snapshots()
            if rank is None and not self._waiting:
                self._losses.check()
                return
            if rank is not None and rank not in self._waiting:
                return
            waiting, queues = sorted(self._waiting), self._queues
            updates = [rank for rank in waiting if queues[rank][0][0] == _UPDATE] if self._calls_update else []
            if updates:
                self._settle_updates(updates)
            elif waiting:
                self._settle_gradients(waiting)

    def _pop(self, rank: int) -> Operation:
        queue = self._queues[rank]
        operation = queue.popleft()
        if not queue:
            self._waiting.discard(rank)
        return operation

    def _settle_snapshots(self) -> None:
        for rank in sorted(self._waiting):
            queue = self._queues[rank]
            while queue and queue[0][0] == _SNAPSHOT:
                _, step, purpose = self._pop(rank)
                self._snapshots -= 1
                purpose(rank, step, self._rows[rank])

    def _settle_updates(self, ranks: list[int]) -> None:
        steps = [self._pop(rank)[1] for rank in ranks]
        self.optimizer.step(ranks, steps, self.layout.split(self._some(self._flat_gradients, ranks)))

    def _settle_gradients(self, ranks: list[int]) -> None:
        """Evaluate the gradients at the heads of the queues, for as many steps as all of them contain."""
        heads = {rank: self._pop(rank) for rank in ranks}
        steps = min(len(tokens) for _, _, tokens in heads.values())
        for rank, (kind, step, tokens) in heads.items():
            if len(tokens) > steps:
                self._queues[rank].appendleft((kind, step + steps, tokens[steps:]))
                self._waiting.add(rank)
        if self._static is not None:
            self._settle_static(ranks, heads, steps)
            return
        calls = [(some, [heads[rank] for rank in some]) for some in self._calls(ranks)]
        for ahead in range(steps):
            for some, operations in calls:
                self._settle_call(some, operations, ahead)

    def _settle_static(self, ranks: list[int], heads: dict[int, Operation], steps: int) -> None:
        """Evaluate the gradients of ``steps`` steps in calls with static inputs."""
        for kind in (_ADVANCE, _GRADIENT):
            left = [rank for rank in ranks if heads[rank][0] == kind]
            while left:
                some = self._calls(left)[0]
                if self._run_static(some, [heads[rank] for rank in some], steps):
                    done = set(some)
                    left = [rank for rank in left if rank not in done]

    def _run_static(self, ranks: list[int], operations: list[Operation], steps: int) -> bool:
        """Run one call with static inputs, or plain calls where that fails; return False if it must be smaller."""
        if self._static is not None:
            tokens = [tokens[:steps] for _, _, tokens in operations]
            numbers = [step for _, step, _ in operations]
            updates = operations[0][0] == _ADVANCE
            try:
                self._static.run(Work(ranks, numbers, tokens, self._sizes[ranks[0]], updates))
            except CannotCapture as error:
                self._static = None
                self._plain.choice = Choice("vmap", str(error))
                warn_once(str(error), "in plain calls of vmap")
            except torch.OutOfMemoryError:
                if len(ranks) == 1:
                    raise
                self._per_call = -(-len(ranks) // 2)
                reason = f"{self.choice.reason}; memory limits a call to {self._per_call}"
                self._plain.choice = self.choice._replace(reason=reason)
                return False
            else:
                return True
        for ahead in range(steps):
            self._settle_call(ranks, operations, ahead)
        return True

    def _calls(self, ranks: list[int]) -> list[list[int]]:
        """Divide ``ranks`` into calls with equal batch sizes and a limited number of ranks."""
        by_size: dict[int, list[int]] = {self._sizes[0]: ranks}
        if self._has_sizes:
            by_size = {}
            for rank in ranks:
                by_size.setdefault(self._sizes[rank], []).append(rank)
        at_once = self._per_call
        return [same[start : start + at_once] for same in by_size.values() for start in range(0, len(same), at_once)]

    def _settle_call(self, ranks: list[int], operations: list[Operation], ahead: int) -> None:
        """Evaluate the gradients of one call, ``ahead`` steps into each operation; update rows of whole steps."""
        kinds = [kind for kind, _, _ in operations]
        steps = [step + ahead for _, step, _ in operations]
        batch = self.problem.collate(ranks, [tokens[ahead] for _, _, tokens in operations])
        parameters = self.layout.split(self._some(self.matrix, ranks))
        gradients, losses = self._plain.evaluate(ranks, parameters, batch)
        self._losses.observe(ranks, steps, losses)
        if kinds.count(_ADVANCE) == len(ranks):
            self.optimizer.step(ranks, steps, gradients)
            return
        flat = self.matrix.new_empty(len(ranks), self.layout.dimension)
        self.layout.join(gradients, flat)
        self._flat_gradients[ranks] = flat
        whole = [place for place, kind in enumerate(kinds) if kind == _ADVANCE]
        if whole:
            rows = {name: gradient[whole] for name, gradient in gradients.items()}
            self.optimizer.step([ranks[place] for place in whole], [steps[place] for place in whole], rows)

    @property
    def _flat_gradients(self) -> Tensor:
        if self._gradients is None:
            self._gradients = torch.zeros_like(self.matrix)
        return self._gradients

    def _some(self, matrix: Tensor, ranks: list[int]) -> Tensor:
        """Return these rows, without a copy if they are adjacent."""
        if ranks[-1] - ranks[0] + 1 == len(ranks):
            return matrix[ranks[0] : ranks[-1] + 1]
        return matrix[ranks]

    def mean_buffers(self) -> dict[str, Tensor]:
        """Return the mean of the workers' buffers (the first worker's where they are integers), for evaluation."""
        return self._plain.buffers.mean()

    def release(self) -> None:
        """Free the memory of captured calls now, not when the garbage collector runs."""
        if self._static is not None:
            self._static.release()


class TimingEngine:
    """An engine without gradients: parameters never change, only time and bytes are simulated."""

    def __init__(self, parameters: Tensor, learning_rate: float, layout: Layout) -> None:
        self.layout = layout
        self._parameters, self._gradient, self._rate = parameters, torch.zeros_like(parameters), learning_rate
        self.choice = Choice("timing", "timing_only=True")

    def advance(self, rank: int, step: int, tokens: Sequence[Token]) -> None: ...
    def compute_gradient(self, rank: int, step: int, token: Token) -> None: ...
    def update(self, rank: int, step: int) -> None: ...
    def snapshot(self, rank: int, step: int, purpose: Snapshot) -> None: ...
    def set_gradient(self, rank: int, value: Tensor) -> None: ...
    def settle(self) -> None: ...
    def reset(self, rank: int) -> None: ...
    def release(self) -> None: ...

    def row(self, rank: int) -> Tensor:
        return self._parameters

    def gradient(self, rank: int) -> Tensor:
        return self._gradient

    def take_observed(self, rank: int) -> ObservedLosses:
        return ObservedLosses(1, 1.0, None, None)

    def weight(self, rank: int) -> float:
        return 1.0

    def learning_rate(self, step: int) -> float:
        return self._rate
