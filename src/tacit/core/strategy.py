"""The base class of strategies: a frozen specification, a state, and six hooks that a world calls.

A strategy with further capabilities also derives from one of the other classes: ``ServerStrategy`` has a server,
``RunsAhead`` knows steps without communication, ``ActsForAll`` runs the hook of all ranks in one call,
``TakesJoiners`` admits workers during the run, ``MergesStates`` combines states when a run resumes with another number
of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import Spec
from tacit.core.worker import AllWorkers, Server, Worker
from tacit.errors import MisplacedCall

State = TypeVar("State")


_OLD_HOOKS: Final = {
    "quiet_steps": ("", "derive from tacit.RunsAhead and define hook_free_steps(self, worker, state)"),
    "hook_free_steps": ("RunsAhead", "derive from tacit.RunsAhead as well"),
    "untouched_steps": ("RunsAhead", "derive from tacit.RunsAhead as well"),
    "join": ("TakesJoiners", "derive from tacit.TakesJoiners as well"),
    "merged": ("MergesStates", "derive from tacit.MergesStates as well"),
    "init_server": ("ServerStrategy", "derive from tacit.ServerStrategy instead of tacit.Strategy"),
    "serve": ("ServerStrategy", "derive from tacit.ServerStrategy instead of tacit.Strategy"),
    "has_server": ("ServerStrategy", "derive from tacit.ServerStrategy instead of tacit.Strategy"),
    "is_gossip": ("", "set skips_lost_workers and keeps_models_apart instead"),
}
"""Names that ``Strategy`` declared in version 0.1: the class that declares each now, and the change to make."""


def _refuse_old_hooks(cls: type[Strategy[Any]]) -> None:
    """Raise ``TypeError`` for a class with hooks of version 0.1, which no world would call."""
    bases = {base.__name__ for base in cls.__mro__}
    for name, (owner, change) in _OLD_HOOKS.items():
        if name in vars(cls) and owner not in bases:
            raise TypeError(f"{cls.__name__} defines {name}, which is no longer part of Strategy; {change}.")


class Strategy(Spec, ABC, Generic[State]):
    """Base class of strategies: when and how workers communicate.

    Derive a frozen keyword-only dataclass whose fields are the arguments, and override the hooks that it needs; a hook
    that is not overridden does nothing. ``init`` returns the worker's state, which other hooks get. Hooks run in the
    worker, one at a time, with gradients disabled. They may block on the network; handlers (``on_message``) may not.
    ``tacit.testing.check_strategy`` tests the result.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class MeanGradient(tacit.Strategy[None]):
    ...     def before_step(self, worker, state):
    ...         worker.gradient = worker.network.all_reduce_mean(worker.gradient)
    >>> tacit.simulate(tacit.workloads.quadratic(dimension=3), MeanGradient(), steps=5).status
    'finished'
    """

    handles: ClassVar[tuple[type[Message], ...]] = ()
    """Message kinds that are passed to ``on_message``; all others wait for ``receive``."""

    cancels: ClassVar[bool] = False
    """Whether the strategy abandons steps: gradients are then evaluated only when the step ends."""

    skips_lost_workers: ClassVar[bool] = False
    """Whether collectives of all workers continue without lost workers; otherwise they raise ``PeerLost``."""

    keeps_models_apart: ClassVar[bool] = False
    """Whether workers' models and states differ throughout the run: each model is then evaluated as well."""

    has_server: ClassVar[bool] = False
    """Whether the strategy has a server. Derive from ``ServerStrategy`` to set it."""

    regroups: ClassVar[bool] = True
    """Whether a run that allows it continues with other members, of which ``regrouped`` is told.

    False: the strategy needs all workers, or continues without lost workers by itself.
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        _refuse_old_hooks(cls)

    @property
    def depends_on_time(self) -> bool:
        """Whether the model after a given step depends on how long computation and messages take.

        By default this is so for a strategy that has a server, handles messages or abandons steps, and if one of its
        arguments reads time (``reads_time`` of a period). Override it in a strategy that receives messages from any
        source, and in one whose handlers have no effect on models.
        """
        parts = list(_arguments(self))
        reads_time = any(getattr(part, "reads_time", False) for part in parts)
        depends = any(part.depends_on_time for part in parts if isinstance(part, Strategy))
        return self.has_server or self.cancels or bool(self.handles) or reads_time or depends

    def begins_like(self, steps: int, longer: int) -> bool:
        """Return whether a run of ``longer`` steps begins with the steps of a run of ``steps`` steps.

        By default this is so unless one of its arguments makes use of the length, such as a period that is a function
        of the number of steps. Override it in a strategy that uses ``worker.steps`` before the last step.
        """
        return all(part.begins_like(steps, longer) for part in _arguments(self) if hasattr(part, "begins_like"))

    def init(self, worker: Worker) -> State:
        """Return the worker's state: a dataclass of tensors and numbers, which checkpoints store."""
        return None  # type: ignore[return-value]

    def before_step(self, worker: Worker, state: State) -> None:
        """Run between the gradient and the optimizer's step."""

    def after_step(self, worker: Worker, state: State) -> None:
        """Run after the optimizer's step."""

    def on_message(self, worker: Worker, state: State, source: int, message: Message) -> None:
        """Handle a message of a kind in ``handles``. May send; may neither block nor access parameters."""

    def reported(self, worker: Worker, state: State) -> Tensor | None:
        """Return this worker's share of the model to evaluate now, or None for ``worker.parameters``.

        Both worlds evaluate the mean of the shares. The mean must be a model that the run can end with. The mean of all
        parameters is such a model where ``finish`` takes exactly that mean. Where a round computes something else from
        the parameters (compression, an outer optimizer), return the model that the last round left on all workers.
        The method may neither change state nor communicate. A server strategy asks its server instead; each worker's
        share is then the whole model.
        """
        return None

    def finish(self, worker: Worker, state: State) -> None:
        """Write the model to report into ``worker.parameters``, the same on every rank."""

    def regrouped(self, worker: Worker, state: State, members: Sequence[int]) -> None:
        """Adapt ``state`` to other members: workers were lost, or joined.

        Called on every member, joiners included, inside the collective that found the change and before it is repeated,
        or at a step boundary. A joiner has a copy of a member's model and state. Means weigh the living, so a strategy
        that keeps nothing about other workers does nothing here.
        """


def _arguments(strategy: Strategy[Any]) -> Iterator[Any]:
    """Yield the arguments that ``strategy`` was made with."""
    if is_dataclass(strategy):
        yield from (getattr(strategy, field.name) for field in fields(strategy) if field.init)


class RunsAhead(ABC):
    """A strategy that knows how many coming steps have hooks without effect. A world may compute these ahead."""

    @abstractmethod
    def hook_free_steps(self, worker: Worker, state: Any) -> int:
        """Return how many coming steps have hooks that do nothing, whatever other workers do."""

    def untouched_steps(self, worker: Worker, state: Any) -> int:
        """Return how many coming steps have hooks that use neither parameters nor gradient nor losses.

        Such a hook may send messages. By default these are the hook-free steps.
        """
        return self.hook_free_steps(worker, state)

    @property
    def ranks_act_alike(self) -> bool:
        """Whether the hooks of all ranks do the same with the same numbers, where all batches have one size.

        Such hooks use no rank (but for notes of rank 0), time, random numbers or losses. Their only communication is
        averaging the parameters of all ranks, into these parameters. A simulation then runs the hooks of rank 0 alone.
        A subclass that does not define this property itself does not have it.
        """
        return False


class ActsForAll(ABC):
    """A strategy that can run ``before_step`` of all ranks in one call, which a simulation does where it is faster.

    The strategy has no other hooks but ``init``. A subclass that does not define ``before_step_of_all`` itself does not
    have it.
    """

    @abstractmethod
    def acts_for_all(self, worker: Worker) -> bool:
        """Return whether ``before_step_of_all`` can replace ``before_step`` in a run of workers like ``worker``."""

    @abstractmethod
    def before_step_of_all(self, ranks: AllWorkers, states: Sequence[Any]) -> None:
        """Do what ``before_step`` does on each of all workers: the same messages, gradients and states, to the bit."""


class TakesJoiners(ABC):
    """A strategy that admits workers during the run. Without this class, faults that bring a worker are refused."""

    @property
    def takes_joiners(self) -> bool:
        """Whether this specification admits workers during the run."""
        return True

    @abstractmethod
    def join(self, worker: Worker, state: Any) -> None:
        """Fetch the trained model. Called once after ``init`` on a worker that starts or returns late. May block."""


class MergesStates(ABC):
    """A strategy whose states need more than a copy when a run resumes with another number of workers."""

    @abstractmethod
    def merged(self, states: Sequence[Any], rank: int, size: int) -> Any:
        """Return the state of ``rank`` among ``size`` workers, all of which start from the mean model.

        ``states``: those of the checkpoint, one per former worker.
        """


class ServerStrategy(Strategy[State]):
    """A strategy with a server, which has its own model and state and is not a worker."""

    has_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False

    shards: int = 1
    """Number of servers among which the model is divided."""

    keeps_shards: ClassVar[bool] = False
    """Whether ``serve`` and ``dismiss`` answer ``CheckpointRequest``. With several shards checkpoints need it."""

    @abstractmethod
    def init_server(self, server: Server) -> Any:
        """Return the server's state."""

    @abstractmethod
    def serve(self, server: Server, state: Any) -> None:
        """Run the server until its last update."""

    def dismiss(self, server: Server, state: Any) -> None:
        """After ``serve``: answer workers that still push or ask until all have left."""


def hook_free_steps(strategy: Strategy[State], worker: Worker, state: State) -> int:
    """Return how many coming steps have hooks that do nothing; 0 for a strategy without ``RunsAhead``."""
    return strategy.hook_free_steps(worker, state) if isinstance(strategy, RunsAhead) else 0


def takes_joiners(strategy: Strategy[Any]) -> bool:
    """Return whether a worker may start, or return after a crash, while others train."""
    return isinstance(strategy, TakesJoiners) and strategy.takes_joiners


def shards_of(strategy: Strategy[Any]) -> int:
    """Return the number of servers among which the model is divided; 0 without a server."""
    return strategy.shards if isinstance(strategy, ServerStrategy) else 0


def merged_state(strategy: Strategy[State], states: Sequence[State], rank: int, size: int) -> State:
    """Return the state of ``rank`` when a run resumes with ``size`` workers from a checkpoint of ``len(states)``."""
    if isinstance(strategy, MergesStates):
        merged: State = strategy.merged(states, rank, size)
        return merged
    return states[rank % len(states)]


def check_cancels(strategy: Strategy[Any]) -> None:
    """Raise unless ``strategy`` may abandon steps. Every world calls this when it abandons one."""
    if not strategy.cancels:
        name = type(strategy).__name__
        raise MisplacedCall(f"{name} abandons a step, but cancels=False; set cancels = True in the class.")
