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

from tacit.errors import require
from tacit.strategies.servers.messages import ServerRestart
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
    """

    maximum_staleness: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.maximum_staleness is None or self.maximum_staleness >= 0,
            f"maximum_staleness={self.maximum_staleness} must be at least 0; None sets no bound.",
        )

    @property
    def staleness_bound(self) -> int | None:
        return self.maximum_staleness


@dataclass(frozen=True, kw_only=True)
class KAsync(AsyncStrategy):
    """Update with K learners' gradients; the others continue at their old model. k=1 is asynchronous SGD."""

    waits_for_update: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class KBatchAsync(AsyncStrategy):
    """Update with K mini-batches of any learners; none waits or is cancelled: fastest updates, stale gradients."""

    waits_for_update: ClassVar[bool] = False
