"""The number of steps of each phase of a probe follows from its budget and from what was measured."""

from __future__ import annotations

import math

import pytest

from tacit.profiles.probe import agenda
from tacit.profiles.probe.agenda import Agreed, steps_of

BUDGET_S = 60.0


def plan(
    step_s: float, round_s: float, budget_s: float = BUDGET_S, *, workers: int = 4, steps: float = math.inf
) -> tuple[dict[str, int], float]:
    """Return the steps of all phases, and the seconds that the probe takes."""
    elapsed_s, found = 0.0, dict[str, int]()
    for phase in agenda.PHASES:
        taken = sum(number + 1 for number in found.values() if number)  # a step follows that counts for no phase
        agreed = Agreed(elapsed_s=elapsed_s, step_s=step_s, round_s=round_s, steps_left=steps - taken)
        found[phase] = steps_of(phase, agreed, budget_s, workers)
        has_rounds = phase in (agenda.ROUNDS, agenda.TOP_K, agenda.QSGD)
        elapsed_s += found[phase] * (step_s + has_rounds * round_s) + (step_s if found[phase] else 0.0)
        if phase == agenda.NETWORK and workers > 1:
            elapsed_s += 4 * agenda.affordable_s(agreed, budget_s)  # back to back, an eighth, and twice for pairs
    return found, elapsed_s


def test_a_usual_job_is_measured_in_full() -> None:
    found, seconds = plan(0.03, 0.36)  # 600 KB at 20 Mbit/s
    assert found[agenda.ROUNDS] == 12 and found[agenda.TOP_K] == found[agenda.QSGD] == 4
    assert found[agenda.STEPS] == pytest.approx(2 / 0.03, abs=1) and found[agenda.GRADIENTS] == 8
    assert found[agenda.STEPS_AGAIN] == found[agenda.STEPS]
    assert seconds < BUDGET_S


@pytest.mark.parametrize("step_s", [1e-4, 0.02, 0.5, 3.0])
@pytest.mark.parametrize("round_s", [1e-3, 0.4, 27.0])
@pytest.mark.parametrize("budget_s", [10.0, 60.0])
def test_the_budget_is_kept(step_s: float, round_s: float, budget_s: float) -> None:
    found, seconds = plan(step_s, round_s, budget_s)
    assert seconds <= max(budget_s, 8 * step_s)  # the steps without which there is no profile
    assert found[agenda.STEPS] >= 2


def test_phases_that_do_not_fit_are_left_out() -> None:
    found, _ = plan(0.5, 30.0)
    assert found[agenda.ROUNDS] == found[agenda.TOP_K] == 0 and found[agenda.GRADIENTS] > 0
    assert plan(0.5, 8.0)[0][agenda.ROUNDS] >= 2


def test_one_worker_has_no_rounds() -> None:
    found, _ = plan(0.03, 0.0, workers=1)
    assert not any(found[phase] for phase in agenda.WITH_OTHERS) and found[agenda.STEPS_AGAIN] > 0


def test_the_probe_fits_into_the_steps_of_the_script() -> None:
    found, _ = plan(1e-3, 1e-3, steps=100)
    assert sum(number + 1 for number in found.values() if number) <= 100 and found[agenda.STEPS_AGAIN] > 0


def test_the_models_are_averaged_if_one_round_is_affordable() -> None:
    assert agenda.averages_models(Agreed(elapsed_s=10, step_s=0.1, round_s=5.0), BUDGET_S)
    assert not agenda.averages_models(Agreed(elapsed_s=10, step_s=0.1, round_s=27.0), BUDGET_S)
