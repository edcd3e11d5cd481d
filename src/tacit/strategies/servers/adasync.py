"""AdaSync: begin with a small K, fast and noisy, and raise it as the loss falls (Dutta, Wang & Joshi, IEEE JSAIT 2021, arXiv 2003.10579).

    batch kinds         K = K_0 √(F_0/F)
    K-sync, K-async     K²/(P−K) = K_0²/(P−K_0) · F_0/F      (``theory.adasync``)

F is the mean loss of the mini-batches pushed since K was last looked at, F_0 that of the first such interval, both above ``f_star`` where known.
Why: early on the error is far above the noise of a single gradient, and updates are worth more than averages; at the end it is the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from torch import Tensor

from tacit.errors import MisplacedCall, require
from tacit.messages import Message
from tacit.specs import ALWAYS_SPELLED
from tacit.strategies.servers.counter import Counter, ServerState
from tacit.strategies.servers.kinds import KofP, Learner
from tacit.strategies.servers.messages import ServerPush
from tacit.strategies.strategy import Strategy
from tacit.theory.adasync import RULES, next_k
from tacit.worker import Server, Worker

_TINY: Final = 1e-12
_NO_DATA: Final = 2.0**-50
"""A step of less weight had no data, or a GradScaler skipped it, and need not have a loss."""


@dataclass(frozen=True)
class AdaSync(Strategy[Any]):
    """Adapt K of a server strategy while it runs: small at first, larger as the loss falls; ``base`` says which kind, and K_0.

    every: updates between looks at the loss; larger = steadier.
    rule: "square-root" or "quadratic"; None takes the one that is derived for the kind.
    f_star: the loss that no model goes below, where it is known to be above 0; larger = K raised sooner.
    """

    has_server: ClassVar[bool] = True

    base: KofP = field(metadata=ALWAYS_SPELLED)
    every: int = field(default=50, kw_only=True)
    rule: str | None = field(default=None, kw_only=True)
    f_star: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.base, KofP), f"base={self.base!r} must be a server strategy such as KAsync(k=1).")
        require(self.every >= 1, f"every={self.every} must be at least 1 update.")
        require(
            self.rule is None or self.rule in RULES, f"rule={self.rule!r} must be one of {', '.join(RULES)}, or None."
        )
        for name in ("cancels", "handles", "shards"):  # what a world asks of the kind
            object.__setattr__(self, name, getattr(self.base, name))

    # The learner: as its kind, but it tells the loss.

    def init(self, worker: Worker) -> Learner:
        require(
            self.base.k < worker.size or self._rule == "square-root",
            f"base={self.base} begins at K = P = {worker.size}, where the quadratic rule stays; begin with a smaller k.",
        )
        return self.base.init(worker)

    def before_step(self, worker: Worker, state: Learner) -> None:
        worker.skip_update()
        if self.base.is_over(worker, state):
            return
        loss = worker.take_observed().loss
        if loss is None and worker.weight > _NO_DATA:
            raise MisplacedCall(
                "AdaSync needs the loss; call session.observe(loss) in the training loop, before optimizer.step()."
            )
        self.base.push(worker, state, math.nan if loss is None else loss)

    def after_step(self, worker: Worker, state: Learner) -> None:
        self.base.after_step(worker, state)

    def on_message(self, worker: Worker, state: Learner, source: int, message: Message) -> None:
        self.base.on_message(worker, state, source, message)

    def join(self, worker: Worker, state: Learner) -> None:
        self.base.join(worker, state)

    def finish(self, worker: Worker, state: Learner) -> None:
        self.base.finish(worker, state)

    def reported(self, worker: Worker, state: Learner) -> Tensor:
        return self.base.reported(worker, state)

    # The server.

    def init_server(self, server: Server) -> ServerState:
        return self.base.init_server(server)

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size
        Counter(self.base, server, state, self).serve()

    def dismiss(self, server: Server, state: ServerState) -> None:
        self.base.dismiss(server, state)

    @property
    def _rule(self) -> str:
        return self.rule or ("quadratic" if self.base.waits else "square-root")

    def next_k(self, server: Server, state: ServerState, batch: Sequence[tuple[int, ServerPush]]) -> int:
        """Return K for the next updates: looked at every so often, from the losses that came with the gradients."""
        memory = state.memory
        for _, push in batch:
            if math.isfinite(push.loss):
                memory["sum"] = memory.get("sum", 0.0) + push.loss * push.weight
                memory["weight"] = memory.get("weight", 0.0) + push.weight
        if state.version % self.every or not memory.get("weight"):
            return state.k
        gap = max(_TINY, memory.pop("sum") / memory.pop("weight") - self.f_star)  # F − F*
        first = memory.setdefault("first", gap)  # F_0 − F*
        return round(next_k(self._rule, self.base.k, server.size, first / gap))
