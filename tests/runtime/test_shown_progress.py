"""What a run in progress shows on rank 0: the current step, and the last loss with its step."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import tacit
from tacit.cli.screens.terminal import Screen
from tacit.runtime import train as training
from tests.runtime.processes import together

STEPS = 12


def shown(strategy: tacit.Strategy) -> list[tuple[int, float | None]]:
    """Train, and return the steps that were shown, with their losses."""
    training._SHOWN_S = 0.0  # type: ignore[misc]
    found: list[tuple[int, float | None]] = []
    training.train(
        tacit.workloads.quadratic(dimension=3),
        strategy,
        steps=STEPS,
        evaluate_every=8,
        lr=0.01,
        progress=lambda step, steps, time_s, loss: found.append((step, loss)),
    )
    return found


@pytest.mark.processes
@pytest.mark.parametrize("strategy", [tacit.LocalSGD(period=tacit.Every(2)), tacit.KAsync(k=1)], ids=str)
def test_progress_is_called_between_evaluations_on_rank_0(strategy: tacit.Strategy) -> None:
    first, second = together(2, shown, strategy)
    without_loss = {step for step, loss in first if loss is None}
    measured = {step for step, loss in first if loss is not None}
    assert second == []
    if strategy.has_server:  # the models that it keeps are evaluated after the run
        assert without_loss and measured == {STEPS}
    else:
        assert without_loss == set(range(1, STEPS + 1)) - {8} and measured == {0, 8, STEPS}


def test_the_bar_names_the_step_of_an_older_loss() -> None:
    with Screen(Console(file=io.StringIO(), force_terminal=True, width=150), clock="s") as screen:
        screen.begin("LocalSGD")
        [bar] = screen.progress.tasks

        def state(step: int, time_s: float, loss: float | None) -> tuple[float, str]:
            screen.step(step, 400_000, time_s, loss)
            return bar.completed, bar.fields["state"]

        assert state(0, 0.000347, 2.331) == (0, "step · 0.000347 s · loss 2.331")
        assert state(3540, 30.0, None) == (3540, "step · 30 s · loss 2.331 at step 0")
        assert state(4000, 32.0, 0.5) == (4000, "step · 32 s · loss 0.5")
        screen.begin("AllReduce")
        assert state(10, 1.0, None) == (10, "step · 1 s")
