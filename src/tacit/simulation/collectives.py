"""Collectives in the simulator: the last rank that joins starts the exchange, and all ranks leave with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, DeferredParts, Gathered
from tacit.errors import TimedOut
from tacit.record.trace import Trace
from tacit.simulation.agenda import Agenda
from tacit.simulation.computing.backward_overlap import BackwardOverlap
from tacit.simulation.engine.means import FindMatrix, Given, Means, check_equal, means_of, timing_means
from tacit.simulation.links import Fabric, Price
from tacit.simulation.rendezvous import Call, Group, Rendezvous


class Collective(Call):
    """One collective of one group; ``joined``: payload, then weight or source or continues, then time."""

    __slots__ = (
        "attempt",
        "begun_s",
        "called_by",
        "done_s",
        "is_numbered",
        "label",
        "lets_in",
        "means",
        "results",
        "since_s",
    )

    joined: dict[int, tuple[Any, float, float]]

    def __init__(self, kind: str, group: Group, index: int) -> None:
        super().__init__(kind, group, index)
        self.called_by, self.label = group, kind  # ``group`` loses members that are lost
        self.results: dict[int, Any] = {}
        self.means: Means | None = None  # of an all-reduce
        self.since_s: dict[int, float] = {}  # by rank: since when it waits
        self.done_s: dict[int, float] = {}
        self.begun_s, self.attempt, self.is_numbered = 0.0, 0, False
        self.lets_in = 0  # the generation that lets joiners in after it, at the end of its step; 0: none

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"

    @property
    def continues(self) -> bool:
        """Whether it is the second half of an exchange and not a round of its own."""
        return self.kind == "all-gather" and all(flag for _, flag, _ in self.joined.values())


class Collectives(Rendezvous[Collective]):
    """All collectives of a session. They take virtual time, are counted and written into the trace."""

    noun = "collective"

    def __init__(
        self,
        workers: int,
        agenda: Agenda,
        fabric: Fabric,
        trace: Trace,
        timeout_s: float,
        awake_from: Callable[[Sequence[int]], float],
        is_timing: bool,
    ) -> None:
        super().__init__(workers, Collective)
        self._agenda, self._fabric, self._trace, self._timeout_s = agenda, fabric, trace, timeout_s
        self._awake_from, self._is_timing = awake_from, is_timing
        self.find_matrix: FindMatrix | None = None  # of a world whose workers' parameters are rows of a matrix
        self.overlap: BackwardOverlap | None = None  # of all-reduces with the backward pass
        self._held_up: list[Collective] = []  # by a cut or a pause: all ranks have joined, and it has not begun
        self.rounds = 0  # of all ranks
        self._group_rounds: dict[Group, int] = {}  # of other groups

    def join(self, rank: int, kind: str, payload: Any, weight: float, group: Sequence[int] | None) -> Collective:
        """Join the next collective of the group; the last rank starts it."""
        return self._enter(rank, kind, (payload, weight, self._agenda.now_s), group)

    def needs_regrouping(self, rank: int, collective: Collective) -> bool:
        """Whether ``rank``, which waits in ``collective``, has to agree on other members or to join them first."""
        return False

    def rejoin(self, rank: int, collective: Collective) -> None:
        """Let ``rank`` take part, with what it had given, in a collective that is repeated by other members."""

    def withdraw(self, collective: Collective) -> None:
        """Let all ranks in a collective that has not begun raise ``MembersChanged``."""

    def interrupt(self) -> None:
        """Let the ranks in collectives that have not begun agree on other members."""

    def let_in(self, rank: int, donor: int) -> None:
        """Let a joiner continue with the calls that follow those of ``donor``."""

    def follow(self, rank: int, collective: Collective) -> None:
        """Let a joiner have the result of a round in progress that it copied from a member."""

    def _start(self, collective: Collective) -> None:
        self._trace.pack_if_long()
        if not collective.is_numbered:  # a repeated one keeps its number
            self._number_round(collective)
            collective.is_numbered = True
        now_s = self._agenda.now_s
        collective.begun_s = max(self._fabric.open_from(collective.group), self._awake_from(collective.group))
        if collective.begun_s > now_s + self._timeout_s:
            failure = TimedOut(str(collective), self._fabric.cut_off(collective.group), self._timeout_s)
            self._agenda.at(now_s + self._timeout_s, partial(self._time_out, collective, collective.attempt, failure))
        elif collective.begun_s > now_s:
            self._held_up.append(collective)
            self._agenda.at(collective.begun_s, partial(self._begin_late, collective, collective.attempt))
        else:
            self._begin(collective)

    def _begin_late(self, collective: Collective, attempt: int) -> None:
        if attempt == collective.attempt:
            self._held_up.remove(collective)
            self._begin(collective)

    def _begin(self, collective: Collective) -> None:
        """Exchange: write the traffic into the trace, and let each rank leave when it has its result."""
        price, results = self._price(collective)
        collective.results = dict(zip(collective.group, results, strict=True))
        ends_s = [collective.begun_s + seconds for seconds in price.seconds]
        self._record(collective, ends_s, price.sent_bytes)
        self._fabric.load_all(collective.group, ends_s, price.sent_bytes)
        leaving: dict[float, list[int]] = {end_s: [] for end_s in sorted(set(ends_s))}
        for rank, end_s in zip(collective.group, ends_s, strict=True):
            leaving[end_s].append(rank)
        for end_s, ranks in leaving.items():
            self._agenda.at(end_s, partial(self._leave, collective, ranks, collective.attempt))

    def lose(self, rank: int, at_s: float) -> None:
        for collective in [one for one in self._held_up if rank in one.group]:
            self._held_up.remove(collective)
            collective.attempt += 1
            if not self.skips_lost:
                self._fail(collective, self._peer_lost(rank, at_s, collective))
                continue
            collective.joined.pop(rank, None)
            collective.waiters.pop(rank, None)
            collective.group = tuple(other for other in collective.group if other != rank)
            if collective.group:
                self._start(collective)
        super().lose(rank, at_s)

    def _time_out(self, collective: Collective, attempt: int, failure: TimedOut) -> None:
        if attempt == collective.attempt:
            self._fail(collective, failure)

    def _record(self, collective: Collective, ends_s: Sequence[float], sent_bytes: Sequence[int]) -> None:
        """Write the exchange into the trace when it starts; ``ends_s``, ``sent_bytes``: by rank of its group."""
        begun_s, label, index = collective.begun_s, collective.label, collective.index
        self._trace.exchanges(collective.group, begun_s, ends_s, label, index, sent_bytes)

    def _number_round(self, collective: Collective) -> None:
        """Number the collective among those of its group, and label it, as real processes do."""
        group, is_new = collective.called_by, not collective.continues
        if len(group) == len(self.all_ranks):
            self.rounds += is_new
            collective.index = self.rounds
        else:
            collective.index = self._group_rounds[group] = self._group_rounds.get(group, 0) + is_new
            collective.label = f"{collective.kind} of {group}"

    def _leave(self, collective: Collective, ranks: list[int], attempt: int) -> None:
        """Write the results that one copy can write, and the waits; then resume the ranks."""
        if attempt != collective.attempt:  # broken off, and maybe repeated
            return
        collective.done_s.update(dict.fromkeys(ranks, self._agenda.now_s))
        waiters, since_s = collective.waiters, collective.since_s
        waiting = [rank for rank in ranks if rank in waiters and not waiters[rank].is_over]
        if collective.means is not None:
            collective.means.write(waiting)
        begun_s = collective.begun_s
        late = [rank for rank in waiting if since_s[rank] < begun_s]
        self._trace.waits(late, [since_s[rank] for rank in late], begun_s, collective.label, collective.index)
        for rank in waiting:
            waiters.pop(rank).resume()

    def _price(self, collective: Collective) -> tuple[Price, Sequence[Any]]:
        """Return time and bytes of the collective, and the result of each rank in the order of the group."""
        group = collective.group
        joined = [collective.joined[rank] for rank in group]
        match collective.kind:
            case "all-reduce":
                return self._all_reduce(collective, [given for given, _, _ in joined], [w for _, w, _ in joined])
            case "all-gather":
                payloads = [payload for payload, _, _ in joined]
                messages, are_shared = _made(payloads), all(isinstance(one, DeferredMessage) for one in payloads)
                self._keep_made(collective, messages)
                price = self._fabric.price_all_gather(group, [message.size_bytes for message in messages])
                first = Gathered(messages)
                own_lists = [Gathered(messages, first.derived) for _ in group]
                return price, [first] * len(group) if are_shared else own_lists
            case "all-to-all":
                payloads = [payload for payload, _, _ in joined]
                parts, are_shared = _made_parts(payloads), all(isinstance(one, DeferredParts) for one in payloads)
                price = self._fabric.price_all_to_all(group, [*map(_sizes_bytes, parts)])
                return price, _by_receiver(parts) if are_shared else [*map(list, zip(*parts, strict=True))]
            case _:
                source = int(joined[0][1])
                value: Tensor = collective.joined[source][0]
                price = self._fabric.price_broadcast(group, source, value.numel() * value.element_size())
                return price, [value] * len(group)

    def _keep_made(self, collective: Collective, messages: Sequence[Message]) -> None:
        """Keep messages that were deferred, where the collective may be repeated."""

    def _all_reduce(
        self, collective: Collective, given: list[Given], weights: list[float]
    ) -> tuple[Price, Sequence[Any]]:
        """Return time and bytes of an all-reduce, and the mean for each rank."""
        group, first = collective.group, given[0]
        if self._is_timing:
            check_equal(group, given)
            collective.means = timing_means(group, given, weights)
        else:
            collective.means = means_of(group, given, weights, self.find_matrix)
        elements = first.elements + 1  # with the weight
        price_of, element_bytes = partial(self._fabric.price_all_reduce, group), first.tensor.element_size()
        if self.overlap is None:
            return price_of(elements, element_bytes), [collective.means] * len(group)
        joined_s = {rank: time_s for rank, (_, _, time_s) in collective.joined.items()}
        price = self.overlap.exposed(joined_s, elements, element_bytes, price_of)
        return price, [collective.means] * len(group)


def _made(payloads: list[Message | DeferredMessage[Message]]) -> list[Message]:
    """Return the messages of an all-gather; the deferred ones are made together."""
    deferred = [payload for payload in payloads if isinstance(payload, DeferredMessage)]
    made = iter(type(deferred[0]).make_all(deferred) if deferred else ())
    messages = [next(made) if isinstance(payload, DeferredMessage) else payload for payload in payloads]
    return [message if message.is_owned else message.snapshot() for message in messages]


def _made_parts(payloads: list[Sequence[Message] | DeferredParts[Message]]) -> list[Sequence[Message]]:
    """Return the messages of an all-to-all, by sender; the deferred ones are made together."""
    deferred = [payload for payload in payloads if isinstance(payload, DeferredParts)]
    made = iter(type(deferred[0]).make_all(deferred) if deferred else ())
    return [next(made) if isinstance(payload, DeferredParts) else payload for payload in payloads]


def _by_receiver(parts: Sequence[Sequence[Message]]) -> list[Gathered[Message]]:
    """Return what each rank receives; ranks that receive the very same messages share the list."""
    received: dict[tuple[int, ...], Gathered[Message]] = {}
    keys = [tuple(map(id, messages)) for messages in zip(*parts, strict=True)]
    for key, messages in zip(keys, zip(*parts, strict=True), strict=True):
        if key not in received:
            received[key] = Gathered(messages)
    return [received[key] for key in keys]


def _sizes_bytes(messages: Sequence[Message]) -> list[int]:
    """Return the size of each message; one that is sent several times is measured once."""
    sizes = {key: message.size_bytes for key, message in {id(one): one for one in messages}.items()}
    return [sizes[id(message)] for message in messages]
