"""LocalSGD by fragments: the parameters in P parts of equal size, each averaged at its own offset inside the period.

    step        1 … τ/P     … 2τ/P     …      τ      … τ + τ/P
    round of    fragment 0   fragment 1   fragment P−1   fragment 0

Each fragment is averaged every τ steps, as by a ``LocalSGD`` of its own with its own outer optimizer. All-reduces are P
times smaller and P times as frequent, so that the peak of the bandwidth is P times lower and the bytes stay the same
(Streaming DiLoCo, Douillard et al., arXiv 2501.18512; there a fragment is a set of layers).

Buffers and moments of an attached model are averaged after the start of the last fragment's round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.core.network import Network, Parts, Pending
from tacit.core.worker import ObservedLosses, Worker
from tacit.errors import require
from tacit.strategies.local_sgd.periods import Period, first_period
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.observed import Observed
from tacit.strategies.worker_view import WorkerView


@dataclass
class Fragment:
    """One part of the parameters, from ``begin`` to ``end``, and the state of its rounds."""

    begin: int
    end: int
    rounds: LocalSGDState
    seen: Observed = field(default_factory=Observed)


class FragmentNetwork:
    """The network of a fragment's rounds, without buffers and moments; all else is the worker's own."""

    def __init__(self, network: Network) -> None:
        self._network, self.weight = network, 0.0  # of this rank in the latest round

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def all_reduce_mean(self, parts: Parts, weight: float = 1.0, *, into: Tensor | None = None) -> Tensor:
        self.weight = weight
        return self._network.all_reduce_mean(parts, weight, into=into, extra_state=False)

    def start_all_reduce_mean(self, parts: Parts, weight: float = 1.0) -> Pending:
        self.weight = weight
        return self._network.start_all_reduce_mean(parts, weight, extra_state=False)


class FragmentView(WorkerView):
    """A worker with a part of its parameters. Only the last fragment records its period."""

    def __init__(self, worker: Worker, fragments: Sequence[Fragment], fragment: Fragment) -> None:
        network = FragmentNetwork(worker.network)
        super().__init__(worker, cast(Network, network), partial(_taken, worker, fragments, fragment))
        self.rounds_network = network
        self._fragment, self._is_last = fragment, fragment.end == worker.parameters.numel()

    @property
    def parameters(self) -> Tensor:
        return self._worker.parameters[self._fragment.begin : self._fragment.end]

    def note(self, name: str, value: float) -> None:
        if self._is_last:
            self._worker.note(name, value)


def _taken(worker: Worker, fragments: Sequence[Fragment], fragment: Fragment) -> ObservedLosses:
    """Return what the worker has observed since ``fragment`` took it."""
    seen = worker.take_observed()
    for one in fragments:
        one.seen.add(seen)
    return fragment.seen.take()


Strategy = TypeVar("Strategy")
Hook = Callable[[Strategy, Worker, LocalSGDState], None]


def by_fragment(hook: Hook[Strategy]) -> Hook[Strategy]:
    """Let ``hook`` of a ``LocalSGD`` run once for each fragment of the state, if there are fragments."""

    @wraps(hook)
    def run(self: Strategy, worker: Worker, state: LocalSGDState) -> None:
        if not state.fragments:
            hook(self, worker, state)
            return
        for fragment in state.fragments:
            before, view = fragment.rounds.last_round, FragmentView(worker, state.fragments, fragment)
            hook(self, cast(Worker, view), fragment.rounds)
        if fragment.rounds.last_round > before:  # the last one has started a round
            worker.average_extra_state(view.rounds_network.weight)

    return run


def check_fragments(count: int, period: Period, compressor: Compressor | None, warmup_steps: int) -> None:
    """Raise ``ValueError`` where another part of the strategy needs the whole model."""
    require(count >= 1, f"fragments={count} must be at least 1, the default.")
    what = f"fragments={count} must be 1 with"
    require(
        count == 1 or compressor is None, f"{what} a compressor, which needs the whole model; leave out one of them."
    )
    reads = period.needs_loss or period.needs_variance or period.reads_time
    rule = "whose rule reads losses, variances or times; use Every(…), LinearPeriod(…) or RatePeriod(…)."
    require(count == 1 or not reads, f"{what} period={period}, {rule}")
    warm = f"{what} warmup_steps={warmup_steps}, which average the whole model; leave out one of them."
    require(count == 1 or warmup_steps == 0, warm)


def divided(worker: Worker, count: int, period: Period, init: Callable[[Worker], LocalSGDState]) -> LocalSGDState:
    """Return a state with ``count`` fragments before the first step; ``init`` returns the state of each."""
    length, state = worker.parameters.numel(), LocalSGDState(first_period(period, worker.steps), None)
    require(count <= length, f"fragments={count} must be at most {length}, the number of parameters; use fewer.")
    for place in range(count):
        fragment = Fragment(place * length // count, (place + 1) * length // count, state)
        fragment.rounds = init(cast(Worker, FragmentView(worker, state.fragments, fragment)))
        fragment.rounds.due = -(-(place + 1) * fragment.rounds.due // count)  # the offset inside the period
        state.fragments.append(fragment)
    return state


def merged_fragments(
    states: Sequence[LocalSGDState], rank: int, merge: Callable[[Sequence[LocalSGDState]], LocalSGDState]
) -> list[Fragment]:
    """Return the fragments of ``rank`` when a run resumes with another number of workers; ``merge``: of one of them."""
    return [
        replace(own, rounds=merge([state.fragments[place].rounds for state in states]))
        for place, own in enumerate(states[rank % len(states)].fragments)
    ]
