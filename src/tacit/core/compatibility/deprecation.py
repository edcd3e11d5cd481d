"""Renamed public names, keywords and values: the old ones work for one version, with a warning that names the new."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

DEPRECATED: Final[dict[str, str]] = {"Diverged": "ReplayDiverged", "Spell": "SlowSpells", "shared": "load_once"}
"""Old public names of ``tacit`` and the new ones."""

SECOND_NAMES: Final[dict[str, str]] = {"Loss": "MessageLoss"}
"""Second public names of ``tacit`` that stay, without a warning."""

SERVER_VALUES: Final[dict[str, str]] = {"beside": "rank0", "apart": "process", "elsewhere": "remote"}
"""Old values of ``server=`` and the new ones."""


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller's caller that ``old`` is now called ``new``."""
    warnings.warn(
        f"{old} is deprecated and will be removed in version 0.3; use {new}.", DeprecationWarning, stacklevel=stacklevel
    )


def renamed_value(keyword: str, value: Any, renamed: Mapping[str, str], stacklevel: int = 4) -> Any:
    """Return the new name of ``value``, with a warning if it is an old one; other values unchanged."""
    if not isinstance(value, str) or value not in renamed:
        return value
    new = renamed[value]
    warn_renamed(f'{keyword}="{value}"', f'{keyword}="{new}"', stacklevel)
    return new


def renamed_keyword(old: str, old_value: Any, new: str, new_value: Any, stacklevel: int = 4) -> Any:
    """Return the value of keyword ``new``, or with a warning that of its old name ``old``; None: not given."""
    if old_value is None:
        return new_value
    warn_renamed(f"{old}=", f"{new}=", stacklevel)
    return old_value if new_value is None else new_value


def renamed_attributes(package: str) -> Callable[[str], Any]:
    """Return a module ``__getattr__`` for ``package`` that resolves the names in ``DEPRECATED``, with a warning."""

    def getattribute(name: str) -> Any:
        if name not in DEPRECATED:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warn_renamed(f"{package}.{name}", f"{package}.{DEPRECATED[name]}")
        return getattr(importlib.import_module(package), DEPRECATED[name])

    return getattribute


def moved_attributes(package: str, moved: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module ``__getattr__`` for ``package`` with a warning; ``moved``: name to the module that has it now."""

    def getattribute(name: str) -> Any:
        if name not in moved:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warn_renamed(f"{package}.{name}", f"{moved[name]}.{name}")
        return getattr(importlib.import_module(moved[name]), name)

    return getattribute
