"""Old names and module paths work with a warning that names the new one."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

import tacit
from tacit.core.compatibility.deprecation import DEPRECATED, SERVER_VALUES, renamed_keyword, renamed_value
from tacit.core.compatibility.moved_modules import MOVED
from tacit.registry import parse


@pytest.fixture(autouse=True)
def forget_old_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import old paths again in every test: a module warns when it is first imported."""
    for old in MOVED:
        monkeypatch.delitem(sys.modules, old, raising=False)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_path_imports_with_a_warning_that_names_the_new_one(old: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alias = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public
    assert all(getattr(alias, name) is getattr(new, name) for name in public)
    [shown] = [warning for warning in caught if f"the module {old} is deprecated" in str(warning.message)]
    assert shown.category is DeprecationWarning
    assert str(shown.message).endswith(f"use {MOVED[old]}.")


def test_the_warning_points_at_the_import_statement() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        from tacit.periods import Every  # type: ignore[import-not-found]
    assert Every is tacit.Every
    assert caught[0].filename == __file__


def test_a_submodule_of_a_moved_package_imports() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        from tacit.feedback.ef21 import EF21  # type: ignore[import-not-found]
    assert EF21 is tacit.EF21
    assert str(caught[-1].message).endswith("use tacit.compression.feedback.ef21.")


def test_a_member_that_was_renamed_with_its_module() -> None:
    from tacit.testing import check_compressor

    with pytest.warns(DeprecationWarning, match="tacit.testing.compressors"):
        from tacit.compression.kit import check  # type: ignore[import-not-found]
    assert check is check_compressor


def test_the_public_module_hooks_imports_without_a_warning() -> None:
    assert importlib.import_module("tacit.hooks") is tacit.hooks
    from tacit.hooks import ef21  # type: ignore[import-not-found]

    assert ef21 is tacit.hooks.ef21


def test_modules_that_became_packages_still_have_their_public_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"use tacit\.strategies\.local_sgd\.strategy\.LocalSGD"):
        from tacit.strategies.local_sgd import LocalSGD
    assert LocalSGD is tacit.LocalSGD
    with pytest.warns(DeprecationWarning, match=r"use tacit\.simulation\.scripts\.run\.simulate_script"):
        from tacit.simulation.scripts import simulate_script
    assert callable(simulate_script)


def test_an_unknown_path_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="tacit.peroids"):
        importlib.import_module("tacit.peroids")
    with pytest.raises(ImportError, match="Nonsense"):
        from tacit.strategies.local_sgd import Nonsense  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("old", DEPRECATED)
def test_every_deprecated_name_stands_for_a_public_one(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"tacit\.{old} is deprecated .* use tacit\.{DEPRECATED[old]}\.$"):
        found = getattr(tacit, old)
    assert found is getattr(tacit, DEPRECATED[old])
    assert DEPRECATED[old] in tacit.__all__
    assert old not in tacit.__all__


def test_a_renamed_name_warns_and_returns_the_new_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "OldRing", "Ring")
    with pytest.warns(
        DeprecationWarning, match=r"tacit\.OldRing is deprecated .* removed in version 0\.3; use tacit\.Ring"
    ):
        assert tacit.OldRing is tacit.Ring  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="module 'tacit' has no attribute 'Rnig'"):
        _ = tacit.Rnig  # type: ignore[attr-defined]


def test_the_notation_reads_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "OldRing", "Ring")
    with pytest.warns(DeprecationWarning, match="OldRing is deprecated .* use Ring"):
        assert parse("DPSGD(topology=OldRing())", "strategies") == tacit.DPSGD(topology=tacit.Ring())


def test_a_class_of_the_same_name_comes_before_a_deprecated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "Ring", "Star")
    assert parse("Ring()", "topologies") == tacit.Ring()


def test_a_renamed_error_is_found_in_its_module() -> None:
    with pytest.warns(DeprecationWarning, match=r"use tacit\.errors\.ReplayDiverged"):
        from tacit.errors import Diverged
    assert Diverged is tacit.ReplayDiverged
    with pytest.raises(AttributeError, match=r"'tacit\.errors' has no attribute 'Dverged'"):
        _ = tacit.errors.Dverged


def test_renamed_values_and_keywords() -> None:
    with pytest.warns(DeprecationWarning, match='server="beside" is deprecated .* use server="rank0"'):
        assert renamed_value("server", "beside", SERVER_VALUES) == "rank0"
    assert renamed_value("server", "rank0", SERVER_VALUES) == "rank0"
    with pytest.warns(DeprecationWarning, match="rescue= is deprecated .* use rescue_folder="):
        assert renamed_keyword("rescue", "here", "rescue_folder", None) == "here"
    assert renamed_keyword("rescue", None, "rescue_folder", "there") == "there"
