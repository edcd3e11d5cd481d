"""Collectives among real processes: groups, participants, time-outs, and the causes of failures."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from tacit.errors import Interrupted, PeerLost, RunError, TimedOut
from tacit.runtime.environment import Environment
from tacit.runtime.failures.causes import LOST, Cause, FailureCauses
from tacit.runtime.failures.signals import TerminationSignal
from tacit.runtime.failures.timeouts import AdaptiveTimeout
from tacit.runtime.failures.wait_notices import WaitNotices
from tacit.runtime.membership.calls import Broadcast, Gather, MemberCall, Sum
from tacit.runtime.membership.members import Membership
from tacit.runtime.membership.opening import open_watched
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.participants import Participants
from tacit.runtime.process_groups import Call, Group, is_time_out

_log: Final = logging.getLogger("tacit")
_LAST_BARRIER_S: Final = 30.0
_STOPPED_S: Final = 1.0
"""How long to wait before looking whether others are stopped."""
_LOOK_AGAIN_S: Final = (0.001, 0.02)  # soon at first, then less often


class Collectives:
    """One process's collectives. address: of this process. backend: of the strategy's groups.

    participants: where lost workers come back as new lives, and the strategy sends messages. membership: where
    collectives go on with other members. Where both are None a lost worker ends the run.
    """

    def __init__(
        self,
        environment: Environment,
        causes: FailureCauses,
        termination: TerminationSignal,
        hook_lock: HookLock,
        timeout: AdaptiveTimeout,
        *,
        address: str,
        backend: str,
        now_s: Callable[[], float],
        participants: Participants | None = None,
    ) -> None:
        self._environment, self._causes, self._termination = environment, causes, termination
        self._hook_lock, self.timeout, self._now_s = hook_lock, timeout, now_s
        self._address, self._backend, self._rank = address, backend, environment.rank
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self._failure: BaseException | None = None  # the error that ended this worker's collectives
        self._everyone = tuple(range(environment.size))
        self.skips_lost = False  # whether collectives of all workers continue without lost ones
        self.skips_failed = False  # and without those that ended by an error of their own
        self._living, self.exchanges = self._everyone, 0
        self._participants, self._lives = participants, dict[int, int]()  # lives: by rank, where they may change
        self.notices = WaitNotices(environment, timeout)
        self.membership: Membership | None = None

    def start(self, membership: Membership | None) -> None:
        """Open the groups of all workers, or take part in the ``membership``."""
        self.membership = membership
        if membership is not None:
            with self._hook_lock.released():
                membership.start()
        elif self._participants is None or not self._participants.joins:
            self.control()
            self.group(self._everyone)
        self.notices.start()

    @property
    def living(self) -> tuple[int, ...]:
        """The workers that take part."""
        return self._living if self.membership is None else self.membership.seats

    @living.setter
    def living(self, ranks: tuple[int, ...]) -> None:
        self._living = ranks

    # Groups.

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Return the strategy's group of ``ranks``, opened when its members first use it."""
        return self._open("strategy", ranks, self._backend)

    def control(self) -> Group:
        """Return the group for exchanges among sessions, of all living workers."""
        return self._open("control", self.living, "gloo")

    def _open(self, name: str, ranks: tuple[int, ...], backend: str) -> Group:
        if self._lives:  # a group with an earlier life of one of them is no use
            name += "/" + "-".join(str(self._lives.get(rank, 0)) for rank in ranks)
        if (name, ranks) not in self._groups:
            with self._hook_lock.released():
                self._groups[name, ranks] = self._opened(name, ranks, backend)
        return self._groups[name, ranks]

    def _opened(self, name: str, ranks: tuple[int, ...], backend: str) -> Group:
        def make(store: Store) -> Group:
            return Group(
                store,
                f"{name}/{ranks}",
                list(ranks),
                self._rank,
                address=self._address,
                backend=backend,
                timeout_s=lambda: self.timeout.timeout_s,
            )

        participants = self._participants
        if participants is None:
            return make(self._environment.store)

        def lost() -> list[int]:
            return [rank for rank in ranks if participants.is_gone(rank, self._lives.get(rank))]

        try:  # another one may be lost before it opens the group
            return open_watched(self._environment.store, make, lambda: bool(lost()))
        except RuntimeError:
            if not (gone := lost()):
                raise
            raise self.lost_for_good(gone) from None

    def close_groups(self) -> None:
        """Close all groups: calls of other workers that wait for this one fail at once."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        if self.membership is not None:
            self.membership.close_group()

    def last_barrier(self) -> None:
        """Wait until all workers are done, so that none closes its sockets while another still reads from them."""
        if self.membership is not None:
            with suppress(RunError, Interrupted):
                self.run(Sum("the last barrier", torch.zeros(1)), self.living, of_all=True)
            return
        with suppress(RuntimeError):
            self.control().all_reduce(torch.zeros(1), _LAST_BARRIER_S).wait()

    # Participants.

    def participants(self, ranks: Sequence[int] | None, what: str) -> tuple[int, ...]:
        """Return who takes part in a collective of ``ranks`` (None: all); raise if this worker or the run ends."""
        if self._failure is not None:
            raise self._failure
        chosen = (self._everyone if self.membership is None else self.living) if ranks is None else tuple(ranks)
        self.end_on_termination(at_collective=True)
        if not self.skips_lost or chosen != self._everyone:
            return chosen
        with self._hook_lock.released():
            return self._gather_living(what)

    def _gather_living(self, what: str) -> tuple[int, ...]:
        """Wait until all living workers have reached this collective; the first to see that decides who they are."""
        self.exchanges += 1
        mark, begun_s, pause_s = f"arrived/{self.exchanges}", time.monotonic(), _LOOK_AGAIN_S[0]
        self._environment.mark(_of_life(mark, 1 if self._participants is None else self._participants.life))
        self.notices.begin(what, "arrived", self.exchanges, self.living)
        while True:
            present, lost = self._present()
            awaited = [
                rank for rank, life in present.items() if not self._environment.has(f"{_of_life(mark, life)}/{rank}")
            ]
            if self._environment.store_is_gone:  # with its host: the survivors cannot find each other any more
                self.notices.fail()
                raise self._ended(self._causes.agree(Cause(LOST, lost or [0])), what)
            if not awaited and self._present()[0] == present:  # a joiner is admitted before its donor arrives
                break
            if self._participants is not None and self._environment.has(f"living/{self.exchanges}"):
                break  # another worker has decided
            if (cause := self._causes.cause()) is not None:
                self.notices.fail()
                raise self._ended(cause, what)
            if self._participants is not None and time.monotonic() - begun_s > _STOPPED_S:
                self._participants.leave_out_silent({rank: present[rank] for rank in awaited})
            if time.monotonic() - begun_s > self.timeout.timeout_s:
                self.notices.fail()
                raise self._fail(TimedOut(what, awaited, self.timeout.timeout_s, self.notices.differences()))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_AGAIN_S[1])
        self.notices.end()
        decided = self._environment.decide(f"living/{self.exchanges}", json.dumps([*present.items()]))
        self.set_living(present if decided is None else dict(json.loads(decided)))
        if self._participants is not None:
            self._participants.decided(self.exchanges, self._lives)
        if self._rank not in self.living:
            raise self._fail(PeerLost(self._rank, self._now_s(), what, "the other workers continue without it."))
        return self.living

    def _present(self) -> tuple[dict[int, int], list[int]]:
        """Return the lives that take part in this exchange, by rank, and the workers that are lost."""
        lives = (
            dict.fromkeys(self.living, 1) if self._participants is None else self._participants.present(self.exchanges)
        )
        gone = set(self._causes.lost() if self._participants is None else ())
        if self.skips_failed and self._causes.cause() is None:  # a learner's error is no cause for the run to end
            gone.update(rank for rank in lives if self._causes.is_leaving(rank))
        present = {rank: life for rank, life in lives.items() if rank not in gone}
        return present, [rank for rank in self.living if rank not in present]

    def begin_last(self, lives: Mapping[int, int]) -> None:
        """Let these workers, whose lives are given by rank, take part in the exchanges that are left.

        Those that are lost from now on are not waited for.
        """
        self.set_living(lives)
        self.skips_lost = True
        if self._participants is not None:
            self._participants.last = dict(lives)

    def set_living(self, lives: Mapping[int, int]) -> None:
        """Continue with these workers, whose lives are given by rank."""
        before, self.living = self.living, tuple(sorted(lives))
        if self._participants is not None:
            self._lives = dict(lives)
        for rank in set(before) - set(self.living):
            _log.warning("worker %d was lost; the run continues without it.", rank)
        for rank in set(self.living) - set(before):
            _log.warning("worker %d takes part again.", rank)

    # Calls.

    def begin_call(self, call: MemberCall, ranks: tuple[int, ...], *, of_all: bool) -> None:
        """Begin a call of the strategy among ``ranks``; ``of_all``: of all workers that take part."""
        if of_all and self.membership is not None:
            self.membership.begin(call)
        else:
            call.seats = ranks
            call.begin(self.group(ranks))

    def end_call(self, call: MemberCall) -> None:
        """Wait for the result of ``call``."""
        if call.number and self.membership is not None:
            self.membership.end(call)
        else:
            call.end(lambda part: self.wait_for(part, call.label))
            return
        self.timeout.collective_done(self._now_s())

    def run(self, call: MemberCall, ranks: tuple[int, ...], *, of_all: bool) -> None:
        self.begin_call(call, ranks, of_all=of_all)
        self.end_call(call)

    def _run_among_all(self, call: MemberCall) -> None:
        """Run an exchange among sessions, which is not counted as traffic."""
        ranks = self.participants(None, call.label)
        if self.membership is None:
            call.seats = self.living
            call.begin(self.control())
            self.end_call(call)
        else:
            self.run(call, ranks, of_all=True)

    @property
    def joiner_waits(self) -> bool:
        return self.membership is not None and self.membership.joiner_waits

    def admit(self) -> None:
        """Take joiners in at the end of this step: a round has said that one waits."""
        assert self.membership is not None
        self.membership.admits = True

    def wire_device(self, tensor: Tensor) -> torch.device:
        """Return the device on which ``tensor`` must be to be sent."""
        return tensor.device if self._backend == "nccl" else torch.device("cpu")

    # Exchanges among sessions: uncounted.

    def exchange(self, data: bytes) -> list[bytes]:
        gather = Gather("exchange of states", data)
        self._run_among_all(gather)
        by_rank = dict(zip(gather.seats, gather.received, strict=True))
        return [by_rank.get(rank, b"") for rank in self._everyone]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        what = "broadcast of the model"
        if source not in self.participants(None, what):
            raise self._ended(self._causes.agree(Cause(LOST, [source])), what)
        call = Broadcast(what, tensor.detach().to("cpu").contiguous(), source)
        self._run_among_all(call)
        tensor.copy_(call.wire)

    def mean(self, tensor: Tensor) -> Tensor:
        wire = tensor.detach().to("cpu", torch.promote_types(tensor.dtype, torch.float32), copy=True)
        call = Sum("mean of the models", wire)
        self._run_among_all(call)
        return (call.wire / len(call.seats)).to(tensor)

    # Waiting, and failures.

    def wait_for(self, call: Call, what: str) -> None:
        """Wait with the hook lock released; turn errors of gloo into the cause of the run's end."""
        try:
            self._wait(call, what)
        except RuntimeError as error:
            self.notices.fail()
            self._causes.leave()
            self.close_groups()  # first: in a ring only the neighbours of a lost worker see its connections break
            cause = self._causes.find(is_timeout=is_time_out(error), places=self.notices.differences)
            if cause is None:
                raise self._fail(RunError(f"{what} failed although no worker is lost: {error}")) from error
            raise self._ended(cause, what) from error
        self.timeout.collective_done(self._now_s())

    def wait_once(self, call: Call, what: str) -> None:
        """Wait with the hook lock released; errors of gloo are the caller's."""
        try:
            self._wait(call, what)
        except RuntimeError:
            self.notices.end()
            raise

    def _wait(self, call: Call, what: str) -> None:
        self.notices.begin(what, call.group, call.number, call.ranks, can_pass=call.is_broadcast)
        with self._hook_lock.released():
            has_ended = call.wait(lambda: self._termination.is_overdue)
        self.notices.end()
        if not has_ended:
            self._end_on_signal()

    def check_run(self) -> None:
        """Raise if the run ends: by a published cause, or by SIGTERM to this worker."""
        if (cause := self._causes.cause()) is not None:
            raise self._ended(cause, "this run")
        self.end_on_termination(at_collective=True)

    def lost_for_good(self, ranks: Sequence[int]) -> RunError | Interrupted:
        """Return the error for the end of a run without ``ranks``, which are lost."""
        return self._ended(self._causes.agree(Cause(LOST, ranks)), "this run")

    def end_on_termination(self, *, at_collective: bool) -> None:
        """Raise if SIGTERM has arrived and the run ends now: ``PeerLost`` if a worker is lost, or ``Interrupted``."""
        if self._termination.is_due(at_collective=at_collective):
            self._end_on_signal()

    def _end_on_signal(self) -> NoReturn:
        raise self._ended(self._causes.agree(self._causes.asked()), "this run")

    def error_with_cause(self, failure: RunError | Interrupted, what: str) -> RunError | Interrupted:
        """Return the error for the run's cause if one is known, else ``failure``, which may be its consequence."""
        cause = self._causes.cause_with(failure)
        return failure if cause is None else self._causes.error_of(cause, what, self.timeout.timeout_s)

    def _ended(self, cause: Cause, what: str) -> RunError | Interrupted:
        return self._fail(self._causes.error_of(cause, what, self.timeout.timeout_s))

    def _fail(self, failure: RunError | Interrupted) -> RunError | Interrupted:
        self.end(failure)
        return failure

    def end(self, failure: BaseException, *, ends_run: bool = True) -> None:
        """End this worker's collectives because of ``failure``; publish the failure first if it ``ends_run``."""
        self._failure = self._failure or failure
        is_member = self.membership is None or self.membership.holds
        self._causes.leave(failure if ends_run and is_member else None)
        self.close_groups()


def _of_life(mark: str, life: int) -> str:
    """Return the mark of a life."""
    return mark if life == 1 else f"{mark}.{life}"
