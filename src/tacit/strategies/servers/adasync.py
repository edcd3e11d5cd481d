"""AdaSync: begin with a small K, fast and noisy, and raise it as the loss falls (Dutta, Wang & Joshi, IEEE JSAIT 2021,
arXiv 2003.10579).

    batch kinds         K = K_0 √(F_0/F)
    K-sync, K-async     K²/(P−K) = K_0²/(P−K_0) · F_0/F      (``theory.adasync``)

F is the mean loss of the mini-batches since K was last chosen. F_0 = F(w_0) is the mean loss of all mini-batches taken
at the first model; in the async kinds some of them are used late, and F_0 becomes more accurate with each. Both are
counted above ``f_star`` where that is known. The rule is derived for intervals of equal time, which is ``every_s``;
``every`` counts updates, so its intervals get longer as K grows. Why: early on the error is far above the noise of a
single gradient, and updates are worth more than averages; at the end it is the other way round.
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
from tacit.strategies.servers.learner import KofP, Learner
from tacit.strategies.servers.messages import ServerPush
from tacit.strategies.servers.server import ParameterServer, ServerState
from tacit.theory.adasync import RULES, next_k

_EVERY: Final = 50
"""Updates between two choices of K unless something else is given."""
_TINY: Final = 1e-12


@dataclass(frozen=True)
class AdaSync(ServerStrategy[Any], TakesJoiners):
    """Adapt K of a server strategy while it runs: small at first, larger as the loss falls; ``base`` says which kind,
    and K_0.

    every: updates between two choices of K; larger = steadier. Default: 50, unless every_s is given.
    every_s: seconds between two choices of K, on the run's clock: virtual in the simulator.
    rule: "square-root" or "quadratic"; None takes the one that is derived for the kind.
    f_star: the loss that no model goes below, where it is known to be above 0; larger = K raised sooner.
    """

    base: KofP = field(metadata=ALWAYS_SPELLED)
    every: int | None = field(default=None, kw_only=True)
    every_s: float | None = field(default=None, kw_only=True)
    rule: str | None = field(default=None, kw_only=True)
    f_star: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require(
            isinstance(self.base, KofP) and self.base.has_k,
            f"base={self.base!r} must be a server strategy with a k, such as KAsync(k=1).",
        )
        require(self.every is None or self.every >= 1, f"every={self.every} must be at least 1 update.")
        require(self.every_s is None or self.every_s > 0, f"every_s={self.every_s} must be positive.")
        require(
            self.every is None or self.every_s is None,
            f"give one of every={self.every} and every_s={self.every_s}: K is chosen by updates or by time.",
        )
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
        if loss is None and has_data(worker.weight):
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

    def reported(self, worker: Worker, state: Learner) -> Tensor | None:
        return self.base.reported(worker, state)

    # The server.

    def init_server(self, server: Server) -> ServerState:
        return self.base.init_server(server)

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size
        state.memory["chosen_s"] = server.now_s()  # the clock of an earlier life is not this one's
        ParameterServer(self.base, server, state, self).serve()

    def dismiss(self, server: Server, state: ServerState) -> None:
        self.base.dismiss(server, state)

    def follows_speed(self, workers: int) -> bool:
        return replace(self.base, k=1).follows_speed(workers)

    @property
    def _rule(self) -> str:
        return self.rule or ("quadratic" if self.base.waits else "square-root")

    def next_k(self, server: Server, state: ServerState, batch: Sequence[tuple[int, ServerPush]]) -> int:
        """Return K for the next updates: chosen every so often, from the losses that came with the gradients."""
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
        """Whether K is to be chosen after this update."""
        if self.every_s is not None:
            return server.now_s() - state.memory.get("chosen_s", 0.0) >= self.every_s
        return state.version % (self.every or _EVERY) == 0


def _add(memory: dict[str, float], which: str, push: ServerPush) -> None:
    """Add the loss of ``push`` to one of the two means."""
    memory[which + "sum"] = memory.get(which + "sum", 0.0) + push.loss * push.weight
    memory[which + "weight"] = memory.get(which + "weight", 0.0) + push.weight
