"""SwarmSGD: local steps, then an average with one random neighbour (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308).

    x_i ← x_i − η g_i                                  every step, on the node's working model
    X_i ← (Q(X_i) + Q(X_j))/2 − η h_i,  x_i ← X_i      every H steps, with a random neighbour j; η h_i: local progress
    X_j ← (Q(X_i) + Q(X_j))/2                          the working model x_j does not change

X is the communication buffer, which others read and write while its owner computes. An assignment would overwrite
concurrent changes, so both sides add: j adds (Q(X_i) − Q(X_j))/2 when the request arrives, and i adds
(Q(X_j) − Q(X_i))/2 when the response arrives (``nonblocking``). Node i copies X_i to x_i after its current step. A node
whose own request is outstanding responds with less than half. Σ X is conserved under any interleaving. Without
interleaving and with Q the identity this is the paper's update; with a ``Lattice`` (``codec``) X_i keeps X_i − Q(X_i).
Blocking form: both partners end with the mean of their working models; pairs come from random matchings (``blocking``).

Why it works: models with a common mean differ only by their last few steps, so one random neighbour is nearly as good
as all. Momentum and module buffers stay local, as in the paper. The authors' released code only pulls: ``PullSwarm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tacit.compression import Lattice
from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, RunsAhead, Strategy, TakesJoiners
from tacit.core.worker import Worker
from tacit.errors import require
from tacit.strategies.swarm.blocking import average_with, draw_partner, require_steps, steps_to_matching
from tacit.strategies.swarm.codec import ModelCodec
from tacit.strategies.swarm.local_steps import Geometric, check_local_steps, draw_steps, mean_steps
from tacit.strategies.swarm.messages import HANDLED, SwarmJoinRequest
from tacit.strategies.swarm.nonblocking import Exchanges
from tacit.strategies.swarm.partners import abandon_overdue, draw_neighbour, request_trained_model, sends_buffer
from tacit.strategies.swarm.reconcile import mean_of_all, reconcile
from tacit.strategies.swarm.state import SwarmState
from tacit.topology import Complete, Topology


@dataclass(frozen=True, kw_only=True)
class SwarmSGD(Strategy[SwarmState], RunsAhead, TakesJoiners, MergesStates):
    """Average with a random neighbour every few local steps, without waiting (Nadiradze et al., arXiv 1910.12308)."""

    local_steps: int | Geometric = field(default=4, metadata=ALWAYS_SPELLED)  # H; larger = fewer messages
    topology: Topology = Complete()
    blocking: bool = False  # True: both partners wait for each other and end with the mean of their models
    compressor: Lattice | None = None  # None: models are sent uncompressed
    two_stage: bool = False  # True: also send the outdated model as reference: twice the bytes, a finer lattice

    skips_lost_workers, keeps_models_apart, regroups = True, True, False  # an exchange skips a lost partner

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps)
        compressor, topology = self.compressor, self.topology
        require(isinstance(topology, Topology), f"topology={topology!r} must be a topology such as Complete().")
        require(
            compressor is None or isinstance(compressor, Lattice),
            f"compressor={compressor} cannot be decoded against a neighbour's model; use Lattice(bits=8).",
        )
        require(
            not self.two_stage or (compressor is not None and not self.blocking),
            "two_stage=True needs compressor=Lattice(bits=8) and blocking=False; leave two_stage out otherwise.",
        )
        object.__setattr__(self, "handles", () if self.blocking else HANDLED)

    def init(self, worker: Worker) -> SwarmState:
        if worker.rank == 0:
            worker.note("period", mean_steps(self.local_steps))
        if self.blocking:
            require_steps(worker)
        return SwarmState(worker.parameters.clone(), worker.parameters.clone(), self._next_due(worker))

    def hook_free_steps(self, worker: Worker, state: SwarmState) -> int:
        return 0 if state.in_flight >= 0 or state.has_response else max(0, state.due - worker.step - 1)

    def untouched_steps(self, worker: Worker, state: SwarmState) -> int:
        is_sent = not self.blocking and sends_buffer(worker, state, self.topology, self.compressor)
        return self.hook_free_steps(worker, state) + is_sent

    def after_step(self, worker: Worker, state: SwarmState) -> None:
        if state.has_response:
            self._adopt_buffer(worker, state)
        if worker.step < state.due or worker.size == 1:
            return
        state.exchanges, state.due = state.exchanges + 1, self._next_due(worker)
        if not self.blocking:
            self._start_exchange(worker, state)
        elif (partner := draw_partner(worker, self.topology, self.local_steps)) is not None:
            average_with(worker, state, self._codec(worker, state), partner)

    def _start_exchange(self, worker: Worker, state: SwarmState) -> None:
        """Send a request to a random neighbour, unless a response is outstanding."""
        if state.in_flight >= 0:
            worker.note("skipped", 1)
            self._adopt_buffer(worker, state)  # publishes local progress while the response is outstanding
            if not abandon_overdue(state):
                return
        partner = draw_neighbour(worker, state, self.topology)
        if partner is None:
            self._adopt_buffer(worker, state)
        else:
            Exchanges(worker, state, self._codec(worker, state)).request(partner)

    def _adopt_buffer(self, worker: Worker, state: SwarmState) -> None:
        """X_i ← X_i − η h_i, which publishes the local progress; x_i ← X_i."""
        model, buffer = worker.parameters, state.buffer
        buffer.add_(model - state.base)
        model.copy_(buffer)
        state.base.copy_(buffer)
        state.published, state.has_response = worker.step, False

    def on_message(self, worker: Worker, state: SwarmState, source: int, message: Message) -> None:
        if state.is_finished and not isinstance(message, SwarmJoinRequest):
            return
        Exchanges(worker, state, self._codec(worker, state)).handle(source, message)

    def finish(self, worker: Worker, state: SwarmState) -> None:
        if not self.blocking:
            reconcile(worker, state)
            self._adopt_buffer(worker, state)
        worker.parameters.copy_(mean_of_all(worker, worker.parameters))

    @property
    def takes_joiners(self) -> bool:
        return not self.blocking  # blocking nodes draw partners from a shared stream, which a joiner has not followed

    def join(self, worker: Worker, state: SwarmState) -> None:
        """Take the model of a neighbour that has trained; decline requests until then."""
        state.is_ready = False
        state.started = int(worker.random.integers(2**31))  # peers may still hold numbers from before a restart
        model = request_trained_model(worker, self.topology)
        if model is not None:
            for own in (worker.parameters, state.buffer, state.base):
                own.copy_(model)
        state.is_ready, state.published, state.due = True, worker.step, self._next_due(worker)

    def merged(self, states: Sequence[SwarmState], rank: int, size: int) -> SwarmState:
        """Start all nodes from the mean of the buffers; drop exchanges in progress."""
        own = min(states, key=lambda state: state.exchanges) if self.blocking else states[rank % len(states)]
        mean = torch.stack([state.buffer for state in states]).mean(0)
        return SwarmState(mean, mean.clone(), own.due, own.exchanges, own.published, own.started, memory=own.memory)

    def _next_due(self, worker: Worker) -> int:
        steps = self.local_steps
        return worker.step + (steps_to_matching(steps) if self.blocking else draw_steps(steps, worker.random))

    def _codec(self, worker: Worker, state: SwarmState) -> ModelCodec:
        return ModelCodec(self.compressor, self.two_stage, worker, state.memory)
