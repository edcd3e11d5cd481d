"""The interface between a session and the world it runs in: real processes, or the simulator's fibers.

A strategy sees the network alone. A session also needs steps, a clock, a trace, agreement before the first step, and
exchanges of its own, which are not part of the strategy's traffic and not counted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import Network
from tacit.record.progress import Totals
from tacit.record.trace import PlainEvent, Trace
from tacit.session.server_model import KeptModel, ServerLoop, ServerModel
from tacit.session.steps.step_context import StepContext

if TYPE_CHECKING:
    from tacit.session.session import Session


class LiveRound(NamedTuple):
    """The times of all ranks between the latest round and the one before, in rank order."""

    steps: int  # that this rank has computed in between
    compute_s: tuple[float, ...]  # seconds in which each rank computed
    hook_s: tuple[float, ...]  # seconds of each rank's hooks, without waits and exchanges


StepEnded = Callable[[int, float, "float | Tensor | None", float], None]
"""A callback with the number of a worker's step, the time of its end, its loss if it was observed, and its weight."""


class Start(NamedTuple):
    """What a worker needs that joins a run, besides the trained model: frozen parameters, then buffers."""

    step: int
    time_s: float
    tensors: Sequence[Tensor]


class StartExchange(Protocol):
    """How workers join a run that has begun, where the strategy sends messages: what a donor gives, a joiner gets."""

    @property
    def is_due(self) -> bool:
        """Whether this worker has yet to join."""

    @property
    def requests(self) -> Sized:
        """The workers that wait to join."""

    def give(self, start: Callable[[], Start]) -> None:
        """Give what ``start`` returns to the workers that wait, at the beginning of a step."""

    def fetch(self) -> Start:
        """Return what another worker gives."""

    def end(self) -> None:
        """Take part from now on."""


class Joining(Protocol):
    """What members of a run call in a session: see ``Regrouping``."""

    @property
    def step(self) -> int: ...

    def everything(self) -> bytes: ...

    def adopt(self, everything: bytes) -> None: ...

    def members_changed(self, members: Sequence[int]) -> None: ...


class Members(Protocol):
    """The members of a run that goes on without lost workers, and with joiners."""

    def attach_session(self, session: Joining) -> None:
        """Tell ``session`` of changes from now on, and of workers that were lost while it was made."""

    @property
    def holds(self) -> bool:
        """Whether this worker holds the model of the run; otherwise it is to join."""

    def join(self) -> None:
        """Wait until the members take this worker in, and continue from the state of one of them."""

    @property
    def is_due(self) -> bool:
        """Whether members change before the next step, on all members alike."""

    def at_boundary(self) -> None:
        """Take joiners in, between the same two steps on all members."""


class SessionBackend(Protocol):
    """One worker's world during one session."""

    rank: int
    size: int
    world: str  # "processes" or "simulated"
    step_ended: StepEnded | None  # called after each step; a planner follows simulated scripts with it

    @property
    def step(self) -> StepContext:
        """The step in progress: its boundaries and hooks."""

    @property
    def network(self) -> Network: ...

    @property
    def start_exchange(self) -> StartExchange | None:
        """How workers join this run; None where nobody can."""

    @property
    def membership(self) -> Members | None:
        """The members, where they may change; None where a lost worker ends the run."""

    @property
    def is_handling(self) -> bool:
        """Whether the caller is a handler, which may not access parameters."""

    @property
    def hook_lock(self) -> AbstractContextManager[Any]:
        """The lock that every hook and handler holds, so that one of them runs at a time."""

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        """Pass messages of the kinds in the strategy's ``handles`` to ``handler``: ``session`` is ready."""

    # Clock and trace.

    def start_clock(self) -> None:
        """Start the clock at 0 on all ranks: start values are exchanged, the first step begins. Collective."""

    def now_s(self) -> float:
        """Return the time since the first step began; 0 before."""

    def set_clock(self, time_s: float) -> None:
        """Continue from ``time_s``, the time of a checkpoint."""

    def pause(self) -> AbstractContextManager[None]:
        """Stop the clock, for evaluations and checkpoints."""

    def drain(self) -> None:
        """Wait for rounds and messages under way, so that they do not proceed at no cost while the clock stands.

        Collective, after ``pause``. The strategy gets the results of rounds when they would have ended on a clock that
        runs. The clock is set to the arrival of the last message.
        """

    @property
    def trace(self) -> Trace:
        """The events of this worker."""

    def restore_trace(self, rows: list[PlainEvent]) -> None:
        """Insert the events of a checkpoint before those of this process."""

    @property
    def live_round(self) -> LiveRound | None:
        """The times of all ranks in the latest round; None where they do not travel, and before the first round."""

    @property
    def totals(self) -> Totals | None:
        """What this worker has done since its process began; None in the simulator."""

    def facts(self) -> dict[str, Any]:
        """Return what the record of the run says about this worker's process: cores, memory, machine, backend."""

    # Exchanges among sessions, not counted as traffic.

    def agree(self, own: dict[str, Any]) -> None:
        """Raise ``Disagreement`` on every rank, with the first difference, unless the tables of all ranks are equal."""

    def publish(self, name: str, value: Any) -> None:
        """Publish a JSON value for the other ranks, without waiting for them."""

    def published(self, name: str) -> list[Any]:
        """Return what ranks have published under ``name`` so far, in rank order."""

    @property
    def live_ranks(self) -> Sequence[int]:
        """The ranks in the latest exchange: all, or in gossip those whose processes exist."""

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes in rank order, empty for a rank that is not in ``live_ranks``."""

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrite ``tensor`` with that of rank ``source``."""

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the plain mean over ``live_ranks``."""

    # The strategy's server.

    def start_server(self, loop: ServerLoop | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        """Start the shard of the server in this worker's process, if it has one (``loop``). All workers call it."""

    @property
    def server_hook_lock(self) -> AbstractContextManager[Any]:
        """The lock that the server in this worker's process holds except while it waits."""

    @property
    def server_is_process(self) -> bool:
        """Whether the server is a process of its own."""

    @property
    def server_models(self) -> list[KeptModel]:
        """The models that a server process kept, after ``join_server``."""

    def send_initial_model(self, model: Tensor) -> None:
        """Send the model to start from to a server process; one worker's is enough."""

    def join_server(self) -> Tensor | None:
        """Wait until the servers are done; only ``live_ranks`` take part in exchanges from then on.

        Return the part of the model of the server in this worker's process. The first of ``live_ranks`` returns the
        model of a server process. Others return None.
        """

    # The end.

    def abort(self, failure: BaseException) -> None:
        """Publish the reason why this session ends early, and leave all collectives."""

    @property
    def failure_name(self) -> str | None:
        """A name for the run's early end that is equal on all workers and new in each run; None with one worker."""

    def is_gone(self, rank: int) -> bool:
        """Return whether the process of another worker is known to have ended."""

    def close(self, failure: BaseException | None) -> None:
        """Close all threads, sockets and groups. Other workers receive the reason of a failure."""


def synchronize_clocks(backend: SessionBackend) -> None:
    """Set all clocks to that of the last rank to arrive. Clocks stop while ranks wait, and would drift otherwise."""
    own_s = backend.now_s()
    last_s = max(float(time_s) for time_s in backend.all_gather(repr(own_s).encode()) if time_s)
    backend.set_clock(last_s)
    if last_s > own_s and backend.world == "processes":  # in a simulation no rank waits for an evaluation
        backend.trace.wait(backend.rank, own_s, last_s, "evaluation")
