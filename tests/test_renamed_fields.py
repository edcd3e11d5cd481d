"""Renamed fields of specifications: old names work with a warning, and texts of earlier versions are understood."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field

import pytest

from tacit.core.compatibility.renamed_fields import renamed_from
from tacit.core.specs import Spec, current_text, current_texts


@dataclass(frozen=True, kw_only=True)
class Renamed(Spec):
    size: int = field(default=1, metadata=renamed_from("length"))
    other: Spec | None = None


@dataclass(frozen=True, kw_only=True)
class Derived(Renamed):
    width: int = 2


class Undecorated(Renamed):
    pass


@pytest.mark.parametrize("cls", [Undecorated, Derived, Renamed])
def test_an_old_name_is_accepted_with_a_warning_that_names_the_new_one(cls):
    with pytest.warns(DeprecationWarning, match=r"\(length=…\) is deprecated .* use size=…") as caught:
        spec = cls(length=5)
    assert caught[0].filename == __file__  # the caller's line is shown, not the library's
    assert spec == cls(size=5) and str(spec).rpartition(":")[2] == f"{cls.__name__}(size=5)"


def test_new_names_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataclasses.replace(Derived(size=3), width=4) == Derived(size=3, width=4)


def test_both_names_at_once_are_refused():
    with pytest.raises(TypeError, match="length is the old name of size, and both are given; remove length"):
        Derived(length=1, size=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'height'"):
        Derived(height=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("stored", "current"),
    [
        ("Renamed(length=3)", "Renamed(size=3)"),
        ("Derived(width=3, length=4, other=Renamed(length=5))", "Derived(width=3, size=4, other=Renamed(size=5))"),
        ('Known("ä length=3", Renamed(length=1e-05))', 'Known("ä length=3", Renamed(size=1e-05))'),
        ("Spell(compute=Constant(mean_s=0.1))", "SlowSpells(compute=Constant(mean_s=0.1))"),
        ("Unknown(length=3)", "Unknown(length=3)"),
        ("the script's own loop", "the script's own loop"),
    ],
)
def test_texts_of_an_earlier_version_get_the_new_names(stored, current):
    assert current_text(stored) == current


def test_texts_inside_a_table_get_the_new_names():
    table = {"cluster": {"faults": ["Loss(probability=0.1)"], "workers": 4}, "strategy": "Renamed(length=2)"}
    assert current_texts(table) == {
        "cluster": {"faults": ["MessageLoss(probability=0.1)"], "workers": 4},
        "strategy": "Renamed(size=2)",
    }
