"""Which loss reaches a period rule: the one of the first step after an averaging. The k-th step has the loss k here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.strategies.local_sgd.periods import PeriodState, Round


class Watched(tacit.PeriodList):
    """A list of periods that asks for losses and records what each round brings."""

    needs_loss = True

    def update(self, state: PeriodState, reduced: Round) -> None:
        self.__dict__.setdefault("seen", []).append(reduced.first_loss)
        super().update(state, reduced)


class Loop:
    """A training loop whose k-th step has the loss k."""

    def __init__(self, strategy: tacit.Strategy) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.session = tacit.attach(self.model, self.optimizer, strategy)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def train(self, until: int, overflows: Collection[int] = (), unobserved: Collection[int] = ()) -> None:
        for step in range(self.session.step + 1, until + 1):
            self.optimizer.zero_grad()
            loss = self.model(torch.ones(2, 3)).square().mean()
            self.scaler.scale(loss * (float("inf") if step in overflows else 1.0)).backward()
            if step not in unobserved:
                self.session.observe(float(step))
            self.scaler.step(self.optimizer)
            self.scaler.update()


def losses_seen(periods: list[int], steps: int, *, overflows: Collection[int] = (), **settings) -> list[float | None]:
    period = Watched(periods)
    loop = Loop(tacit.LocalSGD(period=period, **settings))
    loop.train(steps, overflows)
    seen = list(period.__dict__["seen"])
    loop.session.close()
    return seen


def test_it_is_the_loss_of_the_first_step_after_an_averaging():
    """The first of all is that of the first step: the loss at the common start."""
    assert losses_seen([3, 4, 1], 10) == [1, 4, 8, 9, 10]


def test_after_a_warm_up_the_first_is_the_loss_at_its_last_average():
    assert losses_seen([4], 11, warmup_steps=3) == [4, 8]


def test_compressed_rounds_and_outer_optimizers_change_nothing_about_it():
    assert losses_seen([3], 9, compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()) == [1, 4, 7]
    assert losses_seen([3], 9, outer=tacit.SlowMo()) == [1, 4, 7]


def test_an_overlapped_round_averages_when_it_ends():
    """Rounds begin after steps 5, 10, 15 and 20 and change the models after 7, 12, 17 and 22."""
    assert losses_seen([5], 22, overlap_steps=2) == [1, 8, 13, 18]


def test_overlapped_rounds_longer_than_the_period_follow_each_other():
    """Rounds begin after steps 2, 6, 10 and 14. That of step 6 has no new loss: until then no average had come."""
    assert losses_seen([2], 18, overlap_steps=4) == [1, None, 7, 11]


def test_where_the_period_shrinks_below_the_overlap_no_loss_counts_twice():
    """Rounds begin after steps 6, 12, 15 and 18, and change the models after 9, 15, 18 and 21."""
    assert losses_seen([6, 6, 2], 21, overlap_steps=3) == [1, 10, None, 16]


def test_a_step_that_a_scaler_skips_leaves_the_model_where_it_was():
    """So the next loss is still one at the average. Where all steps of a period are skipped there is none."""
    assert losses_seen([3], 9, overflows={1, 4, 5}) == [2, 6, 7]
    assert losses_seen([2], 8, overflows={1, 2, 7, 8}) == [None, 3, 5, None]


@pytest.mark.parametrize("unobserved", [{1}, {4}, {4, 5, 6}])
def test_a_first_step_without_its_loss_names_the_call_to_add(unobserved: set[int]):
    loop = Loop(tacit.LocalSGD(period=tacit.LossPeriod(initial=3)))
    with pytest.raises(tacit.MisplacedCall, match=r"needs the loss; call session\.observe\(loss\) in every step"):
        loop.train(6, unobserved=unobserved)


def test_other_steps_may_go_without():
    loop = Loop(tacit.LocalSGD(period=tacit.LossPeriod(initial=3)))
    loop.train(6, unobserved={2, 3, 5})
    loop.session.close()


def without(stored: Any, name: str) -> Any:
    """Return a stored state less a field, at any depth."""
    if not isinstance(stored, dict):
        return stored
    return {key: without(value, name) for key, value in stored.items() if key != name}


def test_a_checkpoint_of_a_version_that_did_not_keep_it_can_be_resumed():
    period = Watched([6])
    first = Loop(tacit.LocalSGD(period=period))
    first.train(8)
    again = Loop(tacit.LocalSGD(period=period))
    stored = first.session.state_dict()
    older = without(stored, "interval")
    assert older != stored
    again.session.load_state_dict(older)
    again.train(18)
    assert period.__dict__["seen"] == [1, 7, 13]
    again.session.close()


@pytest.mark.parametrize("stop", [7, 11, 12, 13])
@pytest.mark.parametrize("settings", [{}, {"overlap_steps": 3}], ids=str)
def test_a_checkpoint_in_mid_period_keeps_it(stop: int, settings: dict[str, int]):
    whole = losses_seen([6, 6, 2], 26, **settings)
    period = Watched([6, 6, 2])
    first = Loop(tacit.LocalSGD(period=period, **settings))
    first.train(stop)
    again = Loop(tacit.LocalSGD(period=period, **settings))
    again.session.load_state_dict(first.session.state_dict())
    again.train(26)
    assert period.__dict__["seen"] == whole
    again.session.close()
