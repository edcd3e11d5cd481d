"""The gradient engine: parameters of all workers are rows of one matrix, and operations on rows are batched lazily.

Operations of a worker (a gradient, an update, a snapshot for an evaluation) wait in its queue; rows are independent.
When a result is needed, the engine runs all queues in lockstep: the gradients at the heads of the queues in one call of
``torch.func.vmap``, the updates in one call of an elementwise optimizer. Hook-free steps are queued ahead of their
virtual time, several as one operation, and fill these calls. A gradient that is only sent (``deferred_gradient``) waits
outside the queues until its receiver uses it.

``calls`` evaluates gradients, captured and compiled engines through ``static_calls``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import is_

import torch
from torch import Tensor

from tacit.core.worker import ObservedLosses
from tacit.simulation.engine.calls.batched_calls import Calls, adjacent_rows, chosen_rows, some_rows
from tacit.simulation.engine.choice import Choice
from tacit.simulation.engine.deferred import DeferredGradient, DeferredGradients, DeferredTensor
from tacit.simulation.engine.operations import ADVANCE, DEFERRED, GRADIENT, SNAPSHOT, UPDATE, Operation, Snapshot, Work
from tacit.simulation.engine.per_worker_state import BuffersPerWorker
from tacit.simulation.engine.row_optimizer import RowOptimizer
from tacit.workloads.workload import Problem, Token, Tokens


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
        self._rows: list[Tensor] = list(matrix)  # views, made once because hooks use them in every round
        self._gradients: Tensor | None = None  # flat rows, allocated at the first use
        self._gradient_rows: list[Tensor] = []  # views of them
        self._queues: list[deque[Operation]] = [deque() for _ in range(self.workers)]
        self._waiting: set[int] = set()
        self._deferred = DeferredGradients()
        self._snapshots = 0  # in all queues
        self._calls_update = False
        self._buffers = BuffersPerWorker(problem.module, self.workers, seed)
        self._calls = Calls(problem, storage, optimizer, choice, self._buffers)
        self._losses = self._calls.losses
        self._weights = [sampler.batch_size / problem.batch_size for sampler in problem.samplers]

    @property
    def choice(self) -> Choice:
        """The way gradients are evaluated now: what cannot be captured, compiled or batched falls back."""
        return self._calls.choice

    # Queue operations.

    def advance(self, rank: int, step: int, tokens: Sequence[Token]) -> None:
        """Queue whole steps, gradient and update, from ``step`` on, one per mini-batch."""
        if len(tokens):
            self._queues[rank].append((ADVANCE, step, tokens))
            self._waiting.add(rank)

    def advance_all(self, step: int, tokens: Sequence[Tokens]) -> None:
        """Take whole steps of all workers now, from ``step`` on; ``tokens``: equally many of each worker."""
        assert not self._waiting
        if len(tokens[0]):
            self._settle_heads([(rank, (ADVANCE, step, own)) for rank, own in enumerate(tokens)], len(tokens[0]), [])

    def compute_gradients(self, step: int, tokens: Sequence[Tokens]) -> None:
        """Compute the gradients of all workers now; ``tokens``: one mini-batch of each worker."""
        assert not self._waiting
        self._settle_heads([(rank, (GRADIENT, step, own)) for rank, own in enumerate(tokens)], 1, [])

    def update_all(self, step: int) -> None:
        """Take a step of the optimizer of all workers now, with ``gradients``."""
        assert not self._waiting
        self.optimizer.step(range(self.workers), [step] * self.workers, self.layout.split(self.gradients))

    def compute_gradient(self, rank: int, step: int, token: Token) -> None:
        """Queue a gradient that a hook will use."""
        self._queues[rank].append((GRADIENT, step, (token,)))
        self._waiting.add(rank)

    def update(self, rank: int, step: int) -> None:
        """Queue a step of the optimizer with the gradient that the hook leaves."""
        self._calls_update = True
        if rank in self._deferred:
            self._deferred.keep_row(rank, self._rows[rank])
        self._queues[rank].append((UPDATE, step, None))
        self._waiting.add(rank)

    def snapshot(self, rank: int, step: int, purpose: Snapshot) -> None:
        """Queue a snapshot of the row for an evaluation."""
        self._snapshots += 1
        self._queues[rank].append((SNAPSHOT, step, purpose))
        self._waiting.add(rank)

    def reset(self, rank: int) -> None:
        """Reset the worker to the initial parameters and the initial state of the optimizer."""
        self.row(rank).copy_(self._first)
        self.optimizer.forget(rank)

    def copy_worker(self, source: int, target: int) -> None:
        """Give a worker the parameters, optimizer state, buffers and observed losses of another one."""
        self.row(target).copy_(self.row(source))
        self.optimizer.copy(source, target)
        self._buffers.copy(source, target)
        self._losses.copy(source, target)

    def size_bytes(self, rank: int) -> int:
        """Return the size of what ``copy_worker`` copies."""
        return self.row(rank).nbytes + self.optimizer.size_bytes(rank) + self._buffers.size_bytes(rank)

    # Interface of hooks.

    def row(self, rank: int) -> Tensor:
        """Return the worker's parameters after running its queued operations."""
        if rank in self._waiting:
            self.settle(rank)
        if rank in self._deferred:
            self._deferred.keep_row(rank, self._rows[rank])
        return self._rows[rank]

    def gradient(self, rank: int) -> Tensor:
        """Return the worker's gradient as a flat row."""
        if rank in self._waiting:
            self.settle(rank)
        if not self._gradient_rows:
            self._gradient_rows = list(self.gradients)
        return self._gradient_rows[rank]

    def deferred_gradient(self, rank: int) -> Tensor:
        """Return the worker's gradient, which no update will use; it may be evaluated at the first use of its numbers.

        All deferred gradients that are still referenced are then evaluated in one call.
        """
        queue = self._queues[rank]
        if len(queue) != 1 or queue[0][0] != GRADIENT:
            return self.gradient(rank)
        _, step, (token,) = self._pop(rank)
        deferred = DeferredGradient(rank, step, token, self._settle_deferred, self._rows[rank])
        self._deferred.add(deferred)
        return DeferredTensor.of(deferred)

    def gradient_at(self, rank: int, step: int, token: Token, parameters: Tensor) -> DeferredGradient:
        """Return a deferred gradient of a worker at ``parameters``, which do not change, in place of its own."""
        deferred = DeferredGradient(rank, step, token, self._settle_deferred, parameters)
        deferred.parameters = parameters
        self._deferred.add(deferred)
        return deferred

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
        if rank in self._deferred:
            self._settle_deferred()
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
            updates = [rank for rank in waiting if queues[rank][0][0] == UPDATE] if self._calls_update else []
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
            while queue and queue[0][0] == SNAPSHOT:
                _, step, purpose = self._pop(rank)
                self._snapshots -= 1
                purpose(rank, step, self._rows[rank])

    def _settle_updates(self, ranks: list[int]) -> None:
        steps = [self._pop(rank)[1] for rank in ranks]
        self.optimizer.step(ranks, steps, self.layout.split(some_rows(self.gradients, ranks)))

    def _settle_deferred(self) -> None:
        """Evaluate all deferred gradients, together with the gradients at the heads of the queues."""
        self._settle_gradients([rank for rank in self._waiting if self._queues[rank][0][0] in (ADVANCE, GRADIENT)])

    def _settle_gradients(self, ranks: list[int]) -> None:
        """Evaluate deferred gradients and those at the heads of the queues, for as many steps as all contain."""
        deferred = self._deferred.take()
        heads = [(rank, self._pop(rank)) for rank in ranks]
        steps = 1 if deferred else min(len(tokens) for _, (_, _, tokens) in heads)
        for rank, (kind, step, tokens) in heads:
            if len(tokens) > steps:
                self._queues[rank].appendleft((kind, step + steps, tokens[steps:]))
                self._waiting.add(rank)
        self._settle_heads(heads, steps, deferred)

    def _settle_heads(self, heads: list[Work], steps: int, deferred: list[DeferredGradient]) -> None:
        """Evaluate deferred gradients and ``steps`` steps of each of ``heads``."""
        heads = self._calls.advance_statically(heads, steps)
        if not (self._calls.are_static or deferred) and all(operation[0] == ADVANCE for _, operation in heads):
            self._calls.advance(heads, steps)
            return
        work: list[Work] = [(one.rank, (DEFERRED, one.step, one)) for one in deferred] + heads
        work.sort(key=lambda one: one[0])  # stable: a worker's deferred gradients are older than its queue
        calls = self._calls.divided(work)
        for ahead in range(steps):
            for some in calls:
                self._settle_call([rank for rank, _ in some], [operation for _, operation in some], ahead)

    def _settle_call(self, ranks: list[int], operations: list[Operation], ahead: int) -> None:
        """Evaluate the gradients of one call, ``ahead`` steps into each operation; update rows of whole steps."""
        kinds = [kind for kind, _, _ in operations]
        steps = [step + ahead for _, step, _ in operations]
        tokens = [one.token if kind == DEFERRED else one[ahead] for kind, _, one in operations]
        deferred = {place: one for place, (kind, _, one) in enumerate(operations) if kind == DEFERRED}
        gradients, losses = self._calls.evaluate(ranks, self._parameters(ranks, deferred), tokens)
        self._losses.observe(ranks, steps, losses)
        adjacent = None if deferred else adjacent_rows(self.gradients, ranks)
        flat = self.matrix.new_empty(len(ranks), self.layout.dimension) if adjacent is None else adjacent
        self.layout.join(gradients, flat)
        rows = flat.unbind() if deferred else ()
        for place, one in deferred.items():
            one.value = rows[place]
        if adjacent is None and not deferred:
            self.gradients[ranks] = flat
        elif len(deferred) < len(ranks):
            queued = [place for place in range(len(ranks)) if place not in deferred]
            self.gradients[[ranks[place] for place in queued]] = chosen_rows(flat, queued)
        whole = [place for place, kind in enumerate(kinds) if kind == ADVANCE]
        if whole:
            own = gradients
            if len(whole) < len(ranks):
                own = {name: chosen_rows(gradient, whole) for name, gradient in gradients.items()}
            self.optimizer.step([ranks[place] for place in whole], [steps[place] for place in whole], own)

    def _parameters(self, ranks: list[int], deferred: dict[int, DeferredGradient]) -> Tensor:
        """Return the parameters of a call: the rows ``ranks``, or what they were; a rank may occur several times."""
        if not deferred:
            return some_rows(self.matrix, ranks)
        taken_at = [one.parameters for one in deferred.values() if one.parameters is not None]
        if len(taken_at) == len(ranks):
            return torch.stack(taken_at)
        rows = chosen_rows(self.matrix, ranks)
        for place, one in deferred.items():
            if one.parameters is not None:
                rows[place] = one.parameters
        return rows

    @property
    def gradients(self) -> Tensor:
        """The latest gradients of all workers, one flat row per worker."""
        if self._gradients is None:
            self._gradients = torch.zeros_like(self.matrix)
        return self._gradients

    def mean_buffers(self) -> dict[str, Tensor]:
        """Return the mean of the workers' buffers (the first worker's where they are integers), for evaluation."""
        return self._calls.mean_buffers()

    def release(self) -> None:
        """Free the memory of captured calls now, not when the garbage collector runs."""
        self._calls.release()
