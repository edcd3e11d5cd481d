"""The public checks of strategies find strategies that break a promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import tacit
from tacit.testing import CHECKS, Row, check_strategy, strategies, toys

_COUNTER = itertools.count()


@dataclass
class Memory:
    hidden: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True, kw_only=True)
class Mean(tacit.Strategy[Memory], tacit.RunsAhead):
    """Average gradients, in every step, with one flaw at most."""

    flaw: str = ""

    def init(self, worker) -> Memory:
        return Memory()

    def before_step(self, worker, state: Memory) -> None:
        if self.flaw == "global":
            worker.note("count", next(_COUNTER))
        if self.flaw == "deaf":
            worker.gradient = torch.zeros_like(worker.gradient)
        if self.flaw == "data" and float(worker.gradient.sum()) > 0:
            worker.note("positive", 1.0)
        mean = worker.network.all_reduce_mean(worker.gradient)
        if self.flaw == "single" and worker.size == 1:
            raise ValueError("workers=1 is too few.")
        worker.gradient = mean

    def hook_free_steps(self, worker, state: Memory) -> int:
        return 3 if self.flaw == "quiet" else 0

    def finish(self, worker, state: Memory) -> None:
        if self.flaw == "finish":
            worker.parameters.add_(worker.rank)


@dataclass(frozen=True, kw_only=True)
class Forgetful(Mean):
    """Keeps a running sum on the side, where no checkpoint finds it."""

    sums: dict = field(default_factory=dict, init=False, compare=False, repr=False)

    def before_step(self, worker, state: Memory) -> None:
        super().before_step(worker, state)
        kept = self.sums.get(worker.rank) if worker.step else None
        self.sums[worker.rank] = worker.gradient if kept is None else 0.5 * kept + worker.gradient
        worker.gradient = self.sums[worker.rank]


@dataclass(frozen=True, kw_only=True)
class Hoarder(Mean):
    """Holds something that a checkpoint cannot."""

    def init(self, worker):
        return {"held": object()}


@dataclass(frozen=True, kw_only=True)
class Punctual(tacit.SwarmSGD):
    """Claims that the order of messages makes no difference."""

    depends_on_time = False


@dataclass(frozen=True, kw_only=True)
class Paced(tacit.LocalSGD):
    """Claims that a period from measured times makes no difference."""

    period: tacit.Period = tacit.PacePeriod(communication=0.02)
    depends_on_time = False


def test_a_strategy_without_a_flaw_passes() -> None:
    check_strategy(Mean())


@pytest.mark.parametrize(
    ("check", "strategy", "message"),
    [
        (strategies.check_determinism, Mean(flaw="global"), "two runs from one seed differ"),
        (strategies.check_finish, Mean(flaw="finish"), r"rank 1 ends 1 away from the reported model; see finish\(\)"),
        (strategies.check_hook_free_steps, Mean(flaw="quiet"), r"hook_free_steps\(\) counts a step that communicates"),
        (strategies.check_times, Paced(), "the spread at step .* depends on the cluster; set depends_on_time = True"),
        (strategies.check_times, Punctual(), "depends on the cluster; set depends_on_time = True in the class"),
        (strategies.check_bytes, Mean(flaw="data"), "say depends_on_data=True"),
        (strategies.check_learning, Mean(flaw="deaf"), "the loss on digits went from"),
        (strategies.check_checkpoint, Forgetful(), "a resumed run ends .* away; keep all that changes in the state"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_promise_is_found(check: Callable[[Row], None], strategy: tacit.Strategy, message: str) -> None:
    assert check in CHECKS
    with pytest.raises(AssertionError, match=message):
        check(Row(strategy))


def test_a_strategy_that_sends_without_an_endpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "may_send", lambda strategy: False)
    strategies.check_messages(Row(Mean()))
    with pytest.raises(AssertionError, match=r"sends messages, but may_send\(\) is False"):
        strategies.check_messages(Row(toys.AskAround()))


def test_a_state_that_no_checkpoint_can_hold_is_found() -> None:
    with pytest.raises(Exception, match="holds a object, which a checkpoint cannot"):
        strategies.check_checkpoint(Row(Hoarder()))


def test_what_is_said_about_a_strategy_is_checked_too() -> None:
    with pytest.raises(AssertionError, match="does not survive a crash"):
        strategies.check_crash(Row(Mean(), survives_a_crash=True))
    with pytest.raises(AssertionError, match="a crash left a run that finished"):
        strategies.check_crash(Row(tacit.SwarmSGD(local_steps=4)))
    with pytest.raises(AssertionError, match="takes one worker, but fewest_workers=2"):
        strategies.check_one_worker(Row(Mean(), fewest_workers=2))
    strategies.check_one_worker(Row(Mean(flaw="single"), fewest_workers=2))


def test_a_class_that_no_process_can_import_is_found() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Local(Mean):
        pass

    with pytest.raises(AssertionError, match="does not read back what it prints: unknown strategy 'Local'"):
        strategies.check_notation(Row(Local()))


def test_toys_print_with_their_module() -> None:
    assert str(toys.AskAround(every=2)) == "tacit.testing.toys:AskAround(every=2)"
    assert tacit.strategy(str(toys.AskAround(every=2))) == toys.AskAround(every=2)
