"""``Gathered``: the one list that simulated ranks get from an all-gather of deferred messages, and what it keeps."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import tacit
from tacit.compression.feedback.updates import computed_once
from tacit.core.network import DeferredMessage, Gathered
from tacit.core.worker import Worker
from tacit.strategies import Strategy
from tacit.testing.toys import Ball
from tacit.workloads import quadratic


@dataclass
class Later(DeferredMessage[Ball]):
    """A message that is made in the all-gather."""

    number: int

    def make(self) -> Ball:
        return Ball(self.number)


class Gathering(Strategy[None]):
    """Gathers one message per rank and step; all but ``ready_rank`` pass a deferred one."""

    def __init__(self, ready_rank: int | None) -> None:
        self.ready_rank = ready_rank
        self.gathered: dict[tuple[int, int], list[Ball]] = {}

    def after_step(self, worker: Worker, state: None) -> None:
        later = Later(10 * worker.step + worker.rank)
        message = later.make() if worker.rank == self.ready_rank else later
        self.gathered[worker.step, worker.rank] = worker.network.all_gather(message)


def gathered(ready_rank: int | None = None) -> dict[tuple[int, int], list[Ball]]:
    """Return what each rank got in each of two steps."""
    strategy = Gathering(ready_rank)
    tacit.simulate(quadratic(dimension=2), strategy, cluster=tacit.Cluster(workers=3), steps=2)
    for (step, _), messages in strategy.gathered.items():
        assert [ball.number for ball in messages] == [10 * step + rank for rank in range(3)]
    return strategy.gathered


def test_ranks_share_one_list_of_deferred_messages():
    found = gathered()
    for step in (1, 2):
        first, *others = (found[step, rank] for rank in range(3))
        assert isinstance(first, Gathered) and all(other is first for other in others)
    assert found[1, 0] is not found[2, 0]


def test_each_rank_has_its_own_list_where_a_message_was_ready():
    """A strategy may change the list of its own messages."""
    found = gathered(ready_rank=1)
    lists = [found[1, rank] for rank in range(3)]
    assert len({id(one) for one in lists}) == 3
    assert all(isinstance(one, Gathered) and one.derived is lists[0].derived for one in lists)
    assert found[2, 0].derived is not lists[0].derived


def test_a_value_is_computed_once_for_each_key_and_list():
    balls, calls = [Ball(1), Ball(2)], []

    def compute() -> int:
        calls.append(len(calls))
        return calls[-1]

    first, second = Gathered(balls), Gathered(balls)
    found = [computed_once(*given, compute) for given in ((first, "a"), (first, "a"), (first, "b"), (second, "a"))]
    assert found == [0, 0, 1, 2]
    assert computed_once(first, "a", compute) == 0, "a later exchange leaves the values of an earlier one"


def test_values_last_as_long_as_their_list():
    messages = Gathered([Ball(1)])
    value = weakref.ref(computed_once(messages, "key", lambda: Ball(3)))
    assert value() is not None
    del messages
    gc.collect()
    assert value() is None
