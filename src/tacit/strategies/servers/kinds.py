"""K-sync, K-batch-sync, K-async and K-batch-async: SGD with a server that waits for K of P learners or K mini-batches.

Dutta, Joshi, Ghosh, Dube & Nagpurkar, "Slow and Stale Gradients Can Win the Race" (AISTATS 2018, arXiv 1803.01113;
extended 2003.10579).

    w_{j+1} = w_j − (η/K) Σ_{l=1..K} g(w_τ(l,j), ξ_{l,j}),   τ(l,j) = j for the sync kinds, ≤ j for the async kinds

                   the K are                   after its push a learner      at an update the other learners
    K-sync         the first K learners        idles until the update        are cancelled and restart at the new w
    K-batch-sync   the first K mini-batches    continues at the same w       are cancelled and restart at the new w
    K-async        the first K learners        idles until the update        continue at their old w (stale gradients)
    K-batch-async  the first K mini-batches    continues at the current w    continue at their old w

With random compute times, synchronous SGD is as slow as the slowest of P learners. Waiting for K < P costs noise (sync
kinds) or staleness (async kinds) instead. ``server.py`` has the server's side, ``learner.py`` the learner's, and
``strategy.py`` the fields that all kinds share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.core.worker import Server, Worker
from tacit.errors import require
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.servers.learner import LearnerState
from tacit.strategies.servers.local_steps import ChangeServer, LocalLearner
from tacit.strategies.servers.messages import ServerRestart
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.strategy import ParameterServerStrategy


@dataclass(frozen=True, kw_only=True)
class KSync(ParameterServerStrategy):
    """Update with the first K learners' gradients and cancel the others: no staleness, no wait for the slowest."""

    cancels: ClassVar[bool] = True
    waits_for_update: ClassVar[bool] = True
    handles = (ServerRestart,)


@dataclass(frozen=True, kw_only=True)
class KBatchSync(ParameterServerStrategy):
    """Update with the first K mini-batches of any learners, all at one model, and cancel the unfinished ones."""

    cancels: ClassVar[bool] = True
    waits_for_update: ClassVar[bool] = False
    handles = (ServerRestart,)


@dataclass(frozen=True, kw_only=True)
class AsyncStrategy(ParameterServerStrategy):
    """Base class of the two async kinds.

    maximum_staleness: largest number of updates between a gradient's model and its use. Fast learners wait for slow
    ones where necessary. None: no bound.
    drop_staleness: R; a gradient that arrives R or more updates after its model is not used, and its learner gets the
    current model (Ringmaster ASGD, Maranjyan, Tyurin & Richtárik, arXiv 2501.16168). None: all are used.
    """

    maximum_staleness: int | None = None
    drop_staleness: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.maximum_staleness is None or self.maximum_staleness >= 0,
            f"maximum_staleness={self.maximum_staleness} must be at least 0; None sets no bound.",
        )
        drop = self.drop_staleness
        require(drop is None or drop >= 1, f"drop_staleness={drop} must be at least 1; None uses all gradients.")
        require(
            drop is None or (self.maximum_staleness is None and self.shards == 1 and self.compressor is None),
            f"drop_staleness={drop} excludes maximum_staleness, shards and compressor: a dropped message must not be "
            f"awaited or needed to decode the next one; remove one of the two.",
        )

    @property
    def staleness_bound(self) -> int | None:
        return self.maximum_staleness

    def drops(self, staleness: int) -> bool:
        return self.drop_staleness is not None and staleness >= self.drop_staleness


@dataclass(frozen=True, kw_only=True)
class KAsync(AsyncStrategy):
    """Update with K learners' gradients; the others continue at their old model. k=1 is asynchronous SGD."""

    waits_for_update: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class KBatchAsync(AsyncStrategy):
    """Update with K mini-batches of any learners; none waits or is cancelled: fastest updates, stale gradients.

    local_steps: H. With more than one, or with ``outer``, learners take H steps of their own optimizer and push the
    change of their model: asynchronous local SGD (``local_steps.py``). outer: the server's optimizer for the mean of K
    changes; None subtracts it. ``rate`` weighs changes by staleness; ``k`` is the size of FedBuff's buffer.
    """

    waits_for_update: ClassVar[bool] = False

    local_steps: int = 1
    outer: Outer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, outer = self.local_steps, self.outer
        require(isinstance(steps, int) and steps >= 1, f"local_steps={steps} must be a whole number, at least 1.")
        require(outer is None or isinstance(outer, Outer), f"outer={outer!r} must be like OuterSGD(lr=0.7), or None.")
        # A learner's own rate multiplies its change already, and the distance to its model is its own doing.
        is_known = self.rate is None or not self.rate.needs_distance
        require(is_known or not self.pushes_changes, f"{self.rate} is for gradients; use InverseStaleness().")
        object.__setattr__(self, "has_adjustable_k", not self.pushes_changes)

    @property
    def pushes_changes(self) -> bool:
        return self.local_steps > 1 or self.outer is not None

    def before_step(self, worker: Worker, state: LearnerState) -> None:
        if self.pushes_changes:
            LocalLearner(self, worker, state).before_step()
        else:
            super().before_step(worker, state)

    def after_step(self, worker: Worker, state: LearnerState) -> None:
        if self.pushes_changes:
            LocalLearner(self, worker, state).after_step()

    def serve(self, server: Server, state: ServerState) -> None:
        if not self.pushes_changes:
            return super().serve(server, state)
        state.has_left = [False] * server.size
        return ChangeServer(self, server, state, self.outer).serve()
