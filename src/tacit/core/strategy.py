"""What every strategy is: a frozen specification, a state, and hooks that a world calls."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import Spec
from tacit.core.worker import Server, Worker
from tacit.errors import MisplacedCall

State = TypeVar("State")


class Strategy(Spec, ABC, Generic[State]):
    """How workers talk. Subclasses are frozen keyword-only dataclasses; a hook that is not overridden does nothing.

    Hooks run in the worker, one at a time, with gradients disabled. They may block on the network; handlers
    (``on_message``) may not.
    """

    handles: ClassVar[tuple[type[Message], ...]] = ()
    """Message kinds given to ``on_message``; all others wait for ``receive``."""

    cancels: ClassVar[bool] = False
    """Whether steps may be abandoned: gradients are then evaluated only once they land."""

    is_gossip: ClassVar[bool] = False
    """Whether nodes go their own ways: collectives of all leave out workers that are lost, and the worst single model
    is measured as well.
    """

    has_server: ClassVar[bool] = False

    shards: int = 1
    """Endpoints among which a server's model is divided."""

    def init(self, worker: Worker) -> State:
        """Return the worker's state: a dataclass of tensors and numbers, checkpointable."""
        return None  # type: ignore[return-value]

    def before_step(self, worker: Worker, state: State) -> None:
        """The gradient is ready, the optimizer has not run."""

    def after_step(self, worker: Worker, state: State) -> None:
        """The local update is done."""

    def on_message(self, worker: Worker, state: State, source: int, message: Message) -> None:
        """A message of a kind in ``handles`` arrived while the worker computes or blocks.

        May send; may not block or touch parameters.
        """

    def join(self, worker: Worker, state: State) -> None:
        """Called once, after ``init`` and before the first step, on a worker that comes (back) when others have
        trained. May block.

        A strategy that does not override it takes no workers in mid-run: faults that bring one are refused
        (``takes_joiners``).
        """

    @property
    def takes_joiners(self) -> bool:
        """Whether a worker may start, or return after a crash, while others train: whether ``join`` is overridden."""
        return type(self).join is not Strategy.join

    def hook_free_steps(self, worker: Worker, state: State) -> int:
        """How many coming steps have hooks that do nothing, whatever others do: a world may run them ahead."""
        return 0

    def finish(self, worker: Worker, state: State) -> None:
        """Bring the model to report into ``worker.parameters``, the same on every rank."""

    def reported(self, worker: Worker, state: State) -> Tensor | None:
        """Return this worker's share of the model to evaluate now; None: ``worker.parameters``. Both worlds evaluate
        the mean of the shares.

        The mean must be a model that the run can really end with. The mean of all parameters is one where ``finish``
        takes that mean exactly. Where a round makes something else of the parameters (compression, an outer optimizer),
        return the model that the last round left on all workers. May not change anything or communicate; a server
        strategy asks its server instead, and each worker's share is then the whole model.
        """
        return None

    def merged(self, states: Sequence[State], rank: int, size: int) -> State:
        """The state of ``rank`` when a run goes on with ``size`` workers from a checkpoint of ``len(states)``, all
        starting from the mean model.
        """
        return states[rank % len(states)]

    def init_server(self, server: Server) -> State:
        """Server strategies only: return the server's state."""
        raise TypeError(f"{type(self).__name__} has no server.")

    def serve(self, server: Server, state: State) -> None:
        """Server strategies only: the server's life, until its last update."""
        raise TypeError(f"{type(self).__name__} has no server.")

    def dismiss(self, server: Server, state: State) -> None:
        """Server strategies only: after ``serve``, where workers do not end with the server, answer those that still
        come until all have left.
        """


def check_cancels(strategy: Strategy[Any]) -> None:
    """Raise unless ``strategy`` may abandon steps. Every world calls this when it abandons one."""
    if not strategy.cancels:
        name = type(strategy).__name__
        raise MisplacedCall(f"{name} abandons steps; say cancels = True in its class, so that none runs ahead.")
