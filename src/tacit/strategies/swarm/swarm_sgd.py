"""SwarmSGD: nodes train alone and average with one neighbour at a time, without waiting (Nadiradze et al., NeurIPS
2021, arXiv 1910.12308).

    x_i ← x_i − γ g_i                                  every step, on the node's working model
    X_i ← (Q(X_i) + Q(X_j))/2 − η h_i,  x_i ← X_i      every H steps, with a random neighbour j; η h_i: what those steps changed
    X_j ← (Q(X_i) + Q(X_j))/2                          while its working model x_j goes on as it was

X is the communication buffer, which others read and write while its owner computes. Across a wire an assignment would
lose what was written in between, so both sides add: j, in one handler, (Q(X_i) − Q(X_j))/2 when it is asked, and i
(Q(X_j) − Q(X_i))/2 when the answer comes; its working model follows at the next step boundary. A node that answers
while its own request is unanswered adds less than half (``exchanges``). Whatever interleaves, Σ X stays, and where
nothing does this is the paper's update.

Blocking, both partners end with the mean of their working models; pairs meet in random matchings (``rounds``).

Why it works: models of one mean drift apart only by their last few steps, so half of one random neighbour's serves as
well as the mean of all. Momentum stays local and modules' buffers are not averaged, as in the paper. The authors'
released code only pulls: that is ``PullSwarm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from tacit.compression import Lattice
from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, RunsAhead, Strategy, TakesJoiners
from tacit.core.worker import Worker
from tacit.errors import PeerLost, require
from tacit.strategies.swarm.blocking import draw_partner, meet, require_end, steps_to_matching
from tacit.strategies.swarm.local_steps import Geometric, check_local_steps, draw_steps, mean_steps
from tacit.strategies.swarm.messages import ModelCodec, SwarmHello, SwarmWelcome, distance
from tacit.strategies.swarm.nonblocking import HANDLED, Exchanges, SwarmState
from tacit.strategies.swarm.reconcile import mean_of_all, settle
from tacit.topology import Complete
from tacit.topology.topology import Topology

_PATIENCE: Final = 8
"""Meetings skipped for one unanswered exchange before its partner is taken for gone and asked no more, until it is
heard of again.
"""


@dataclass(frozen=True, kw_only=True)
class SwarmSGD(Strategy[SwarmState], RunsAhead, TakesJoiners, MergesStates):
    """Average with a random neighbour every few local steps, nobody waiting for anybody (Nadiradze et al., arXiv
    1910.12308).
    """

    local_steps: int | Geometric = field(default=4, metadata=ALWAYS_SPELLED)  # H; larger = fewer messages
    topology: Topology = Complete()
    blocking: bool = False  # True: both partners wait for each other and end with their mean
    compressor: Lattice | None = None  # None: models travel as they are
    two_stage: bool = (
        False  # the sender's outdated model goes before and is the reference: twice the bytes, a finer lattice
    )

    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps)
        require(
            isinstance(self.topology, Topology), f"topology={self.topology!r} must be a topology such as Complete()."
        )
        require(
            self.compressor is None or isinstance(self.compressor, Lattice),
            f"compressor={self.compressor} cannot be decoded against a neighbour's model; use Lattice(bits=8).",
        )
        require(
            not self.two_stage or (self.compressor is not None and not self.blocking),
            "two_stage=True decodes lattice points of nodes that do not wait; it needs compressor=Lattice(bits=8) and blocking=False.",
        )
        object.__setattr__(self, "handles", () if self.blocking else HANDLED)

    def init(self, worker: Worker) -> SwarmState:
        state = SwarmState(worker.parameters.clone(), worker.parameters.clone())
        if worker.rank == 0:
            worker.note("period", mean_steps(self.local_steps))
        if self.blocking:
            require_end(worker)
        state.due = self._next_due(worker)
        return state

    def join(self, worker: Worker, state: SwarmState) -> None:
        """Take the model of a neighbour that has trained; until then nobody gets to see this node's own."""
        state.is_member = False
        state.begun = int(worker.random.integers(2**31))  # an earlier life's numbers may still be in somebody's mind
        peers = self.topology.neighbours(worker.size)[worker.rank]
        for place in worker.random.permutation(len(peers)).tolist():
            worker.network.send(peers[place], SwarmHello())
            try:
                _, welcome = worker.network.receive(SwarmWelcome, source=peers[place])
            except PeerLost:
                continue
            if welcome.model.numel():
                for own in (worker.parameters, state.buffer, state.base):
                    own.copy_(welcome.model)
                break
        state.is_member, state.published, state.due = True, worker.step, self._next_due(worker)

    @property
    def takes_joiners(self) -> bool:
        """Without waiting. Blocking nodes draw their partners from a stream that a joiner has not followed."""
        return not self.blocking

    def hook_free_steps(self, worker: Worker, state: SwarmState) -> int:
        return 0 if state.in_flight >= 0 or state.has_answer else max(0, state.due - worker.step - 1)

    def after_step(self, worker: Worker, state: SwarmState) -> None:
        if state.has_answer:
            self._follow(worker, state)
        if worker.step < state.due or worker.size == 1:
            return
        state.meetings += 1
        state.due = self._next_due(worker)
        if not self.blocking:
            self._begin_exchange(worker, state)
            return
        partner = draw_partner(worker, self.topology, self.local_steps)
        if partner is not None:
            meet(worker, state, self._tongue(worker, state), partner)

    def on_message(self, worker: Worker, state: SwarmState, source: int, message: Message) -> None:
        if state.is_closed and not isinstance(message, SwarmHello):
            return
        if source in state.silent:
            state.silent.remove(source)
        Exchanges(worker, state, self._tongue(worker, state)).handle(source, message)

    def finish(self, worker: Worker, state: SwarmState) -> None:
        if not self.blocking:
            settle(worker, state)
            self._follow(worker, state)
        worker.parameters.copy_(mean_of_all(worker, worker.parameters))

    def merged(self, states: Sequence[SwarmState], rank: int, size: int) -> SwarmState:
        """All start from the mean of their models; what was under way is forgotten."""
        own = min(states, key=lambda state: state.meetings) if self.blocking else states[rank % len(states)]
        mean = torch.stack([state.buffer for state in states]).mean(0)
        return SwarmState(mean, mean.clone(), own.due, own.meetings, own.published, own.begun, memory=own.memory)

    def _begin_exchange(self, worker: Worker, state: SwarmState) -> None:
        """Ask a random neighbour, unless an answer is still expected."""
        if state.in_flight >= 0:
            worker.note("skipped", 1)
            self._follow(worker, state)  # its progress must not stay its secret until then
            if state.meetings - state.asked_at <= _PATIENCE:
                return
            state.silent.append(state.asked[state.in_flight])
            state.in_flight = -1
        partner = self._partner(worker, state)
        if partner is None:
            self._follow(worker, state)
            return
        tongue = self._tongue(worker, state)
        if (
            tongue.lattice is not None and not state.memory
        ):  # nothing measured yet: others will have come as far as this node
            tongue.observe(distance(worker.parameters, state.base))
        Exchanges(worker, state, tongue).ask(partner)

    def _follow(self, worker: Worker, state: SwarmState) -> None:
        """x_i ← X_i, with the local progress −η h_i, which others may read from now on."""
        model, buffer = worker.parameters, state.buffer
        buffer.add_(model - state.base)
        model.copy_(buffer)
        state.base.copy_(buffer)
        state.published, state.has_answer = worker.step, False

    def _next_due(self, worker: Worker) -> int:
        if self.blocking:
            return worker.step + steps_to_matching(self.local_steps)
        return worker.step + draw_steps(self.local_steps, worker.random)

    def _partner(self, worker: Worker, state: SwarmState) -> int | None:
        if isinstance(self.topology, Complete) and not state.silent:  # a list of everybody is not needed
            return (worker.rank + 1 + int(worker.random.integers(worker.size - 1))) % worker.size
        reach = self.topology.neighbours(worker.size, state.meetings)[worker.rank]
        there = [peer for peer in reach if peer not in state.silent]
        return there[int(worker.random.integers(len(there)))] if there else None

    def _tongue(self, worker: Worker, state: SwarmState) -> ModelCodec:
        return ModelCodec(self.compressor, self.two_stage, worker.random, state.memory)
