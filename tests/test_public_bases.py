"""The public base classes: exported, abstract, and documented with an example that runs."""

from __future__ import annotations

import doctest
import inspect

import pytest

import tacit
from tacit.core.specs import Parameters
from tacit.registry import FAMILIES
from tacit.registry.families import base_name

BASES = {
    "Strategy": (),
    "Period": ("init",),
    "Compressor": ("compress", "contraction"),
    "Feedback": ("begin", "decode_updates", "encode_update", "merged"),
    "Topology": ("targets",),
    "Delay": ("draw", "expected_s"),
    "Workload": ("name", "open"),
    "Outer": ("step",),
    "Schedule": ("factor",),
}


@pytest.mark.parametrize("name", BASES)
def test_the_example_in_the_docstring_runs(name: str) -> None:
    base = getattr(tacit, name)
    [example] = doctest.DocTestFinder(recurse=False).find(base, name, globs={})
    assert len(example.examples) >= 3
    runner = doctest.DocTestRunner(verbose=False)
    printed: list[str] = []
    runner.run(example, out=printed.append)
    assert runner.failures == 0, "".join(printed)


@pytest.mark.parametrize(("name", "methods"), BASES.items())
def test_a_base_says_what_to_override_and_is_abstract(name: str, methods: tuple[str, ...]) -> None:
    base = getattr(tacit, name)
    assert name in tacit.__all__ and issubclass(base, Parameters)
    assert sorted(base.__abstractmethods__) == sorted(methods)
    described = inspect.cleandoc(base.__doc__)
    assert described.startswith("Base class of ")
    assert [method for method in methods if f"``{method}``" not in described] == []
    if methods:
        with pytest.raises(TypeError, match="abstract"):
            type("Incomplete", (base,), {})()


def test_errors_name_the_bases_where_they_are_public() -> None:
    """A family of ``tacit.Period`` must not be said to want a class that users cannot import from there."""
    for family in FAMILIES.values():
        if family.base is not None and family.name != "rates":
            assert getattr(tacit, base_name(family.base).removeprefix("tacit.")) is family.base


def test_functions_of_the_step_stay_schedules() -> None:
    run = tacit.simulate(tacit.workloads.quadratic(dimension=2), tacit.AllReduce(), steps=3, schedule=lambda step: 0.0)
    assert run.history[-1]["loss"] == run.history[0]["loss"]
