"""AdaSync: start with a small K and raise it as the loss falls (Dutta, Wang & Joshi, JSAIT 2021, arXiv 2003.10579).

    batch kinds         K = K_0 √(F_0/F)
    K-sync, K-async     K²/(P−K) = K_0²/(P−K_0) · F_0/F      (``theory.adasync``)

F is the mean loss of the mini-batches since K was last chosen. F_0 = F(w_0) is the mean loss of all mini-batches at
the first model; in the async kinds some arrive late, and each makes F_0 more accurate. ``f_star`` is subtracted from
both. The rule is derived for intervals of equal time (``every_s``); intervals of ``every`` updates grow with K. Early
in a run the error is far above the noise of one gradient: many updates are worth more than good ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import ServerStrategy, TakesJoiners
from tacit.core.weights import has_data
from tacit.core.worker import Server, Worker
from tacit.errors import MisplacedCall, require
from tacit.strategies.servers.learner import Learner, LearnerState
from tacit.strategies.servers.messages import Pushed, ServerPush
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.server import ParameterServer
from tacit.strategies.servers.strategy import ParameterServerStrategy
from tacit.theory.adasync import RULES, next_k

_EVERY: Final = 50  # default number of updates between two choices of K
_TINY: Final = 1e-12


@dataclass(frozen=True)
class AdaSync(ServerStrategy[Any], TakesJoiners):
    """Adapt K during the run: small at first, larger as the loss falls. ``base`` is the kind, with K_0 as its k.

    every: number of updates between two choices of K; larger = steadier. Default: 50, unless every_s is given.
    every_s: seconds between two choices of K on the run's clock, which is virtual in the simulator.
    rule: "square-root" or "quadratic"; None: the rule that is derived for the kind.
    f_star: a lower bound on the loss, if one above 0 is known; larger = K is raised sooner.
    """

    base: ParameterServerStrategy = field(metadata=ALWAYS_SPELLED)
    every: int | None = field(default=None, kw_only=True)
    every_s: float | None = field(default=None, kw_only=True)
    rule: str | None = field(default=None, kw_only=True)
    f_star: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require(
            isinstance(self.base, ParameterServerStrategy) and self.base.has_adjustable_k,
            f"base={self.base!r} must be a server strategy with a k, such as KAsync(k=1).",
        )
        require(self.every is None or self.every >= 1, f"every={self.every} must be at least 1 update.")
        require(self.every_s is None or self.every_s > 0, f"every_s={self.every_s} must be positive.")
        require(
            self.every is None or self.every_s is None,
            f"every={self.every} and every_s={self.every_s} exclude each other: remove one of them.",
        )
        known = ", ".join(RULES)
        require(self.rule is None or self.rule in RULES, f"rule={self.rule!r} must be one of {known}, or None.")
        for name in ("cancels", "handles", "shards", "keeps_shards"):  # attributes of the kind that a world reads
            object.__setattr__(self, name, getattr(self.base, name))

    # The learner's hooks: those of the kind, but a push carries the loss.

    def init(self, worker: Worker) -> LearnerState:
        most = worker.size - (self._rule != "square-root")  # the quadratic rule stays at K = P
        require(most > 0, f"workers=1: AdaSync with base={self.base} needs at least two workers.")
        require(self.base.k <= most, f"base={self.base} with workers={worker.size} needs k at most {most}.")
        return self.base.init(worker)

    def before_step(self, worker: Worker, state: LearnerState) -> None:
        worker.skip_update()
        learner = Learner(self.base, worker, state)
        if learner.is_done:
            return
        loss = worker.take_observed().loss
        if loss is None and has_data(worker.weight):
            raise MisplacedCall("AdaSync needs the loss; call session.observe(loss) before optimizer.step().")
        learner.push(math.nan if loss is None else loss)

    def after_step(self, worker: Worker, state: LearnerState) -> None:
        self.base.after_step(worker, state)

    def on_message(self, worker: Worker, state: LearnerState, source: int, message: Message) -> None:
        self.base.on_message(worker, state, source, message)

    def join(self, worker: Worker, state: LearnerState) -> None:
        self.base.join(worker, state)

    def finish(self, worker: Worker, state: LearnerState) -> None:
        self.base.finish(worker, state)

    def reported(self, worker: Worker, state: LearnerState) -> Tensor | None:
        return self.base.reported(worker, state)

    # The server's hooks.

    def init_server(self, server: Server) -> ServerState:
        return self.base.init_server(server)

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size
        state.memory["chosen_s"] = server.now_s()  # a resumed run has another clock
        ParameterServer(self.base, server, state, self).serve()

    def dismiss(self, server: Server, state: ServerState) -> None:
        self.base.dismiss(server, state)

    def is_speed_biased(self, workers: int) -> bool:
        return replace(self.base, k=1).is_speed_biased(workers)

    @property
    def _rule(self) -> str:
        return self.rule or ("quadratic" if self.base.waits_for_update else "square-root")

    def next_k(self, server: Server, state: ServerState, batch: Sequence[Pushed]) -> int:
        """Return K for the next updates, chosen from the losses of the gradients if a choice is due."""
        memory = state.memory
        for _, push in batch:
            if math.isfinite(push.loss):
                _add(memory, "", push)
                if push.version == 0:
                    _add(memory, "first_", push)
        if not self._is_due(server, state) or not memory.get("weight"):
            return state.k
        loss = memory.pop("sum") / memory.pop("weight")  # F
        first = memory["first_sum"] / memory["first_weight"] if "first_weight" in memory else loss  # F_0
        memory["chosen_s"] = server.now_s()
        ratio = max(_TINY, first - self.f_star) / max(_TINY, loss - self.f_star)
        return round(next_k(self._rule, self.base.k, server.size, ratio))

    def _is_due(self, server: Server, state: ServerState) -> bool:
        """Whether K is chosen after this update."""
        if self.every_s is not None:
            return server.now_s() - state.memory.get("chosen_s", 0.0) >= self.every_s
        return state.version % (self.every or _EVERY) == 0


def _add(memory: dict[str, float], prefix: str, push: ServerPush) -> None:
    """Add the loss of ``push`` to the mean F, or with prefix "first_" to F_0."""
    memory[prefix + "sum"] = memory.get(prefix + "sum", 0.0) + push.loss * push.weight
    memory[prefix + "weight"] = memory.get(prefix + "weight", 0.0) + push.weight
