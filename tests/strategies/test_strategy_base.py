"""The base class of strategies: six hooks, and errors for classes written for older hooks."""

from __future__ import annotations

import inspect

import pytest

import tacit
from tacit.core.strategy import hook_free_steps, merged_state, shards_of, takes_joiners


def test_strategy_has_six_hooks() -> None:
    hooks = [name for name, value in vars(tacit.Strategy).items() if inspect.isfunction(value)]
    public = [name for name in hooks if not name.startswith("_") and name not in ("begins_like", "regrouped")]
    # begins_like is a question; regrouped is called at changes of the members only, by no step
    assert public == ["init", "before_step", "after_step", "on_message", "reported", "finish"]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("quiet_steps", lambda self, worker, state: 1, "derive from tacit.RunsAhead and define hook_free_steps"),
        ("hook_free_steps", lambda self, worker, state: 1, "derive from tacit.RunsAhead as well"),
        ("join", lambda self, worker, state: None, "derive from tacit.TakesJoiners as well"),
        ("merged", lambda self, states, rank, size: None, "derive from tacit.MergesStates as well"),
        ("init_server", lambda self, server: None, "derive from tacit.ServerStrategy instead"),
        ("serve", lambda self, server, state: None, "derive from tacit.ServerStrategy instead"),
        ("has_server", True, "derive from tacit.ServerStrategy instead"),
        ("is_gossip", True, "set skips_lost_workers and keeps_models_apart instead"),
    ],
)
def test_a_class_for_the_old_hooks_is_refused_with_the_new_form(name: str, value: object, remedy: str) -> None:
    with pytest.raises(TypeError, match=f"Old defines {name}, which is no longer part of Strategy; {remedy}"):
        type("Old", (tacit.Strategy,), {name: value})


def test_capabilities_default_to_none() -> None:
    plain = tacit.AllReduce()
    assert hook_free_steps(plain, None, None) == 0  # type: ignore[arg-type]
    assert not takes_joiners(plain) and shards_of(plain) == 0
    assert merged_state(plain, ["a", "b"], 3, 4) == "b"  # type: ignore[list-item]


def test_capabilities_of_the_strategies() -> None:
    assert takes_joiners(tacit.SwarmSGD()) and not takes_joiners(tacit.SwarmSGD(blocking=True))
    assert takes_joiners(tacit.KAsync(k=1)) and shards_of(tacit.KAsync(k=1, shards=2)) == 2
