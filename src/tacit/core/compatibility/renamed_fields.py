"""Renamed fields of dataclasses: the old names work in calls, with a ``DeprecationWarning``, and in stored texts."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tacit.core.compatibility.deprecation import DEPRECATED, SECOND_NAMES, warn_renamed

_OLD_NAME: Final = "old_name"


def renamed_from(old_name: str) -> dict[str, str]:
    """Return the metadata of a field that was called ``old_name`` in an earlier version."""
    return {_OLD_NAME: old_name}


def old_field_names(constructor: object) -> dict[str, str]:
    """Return the renamed fields of a dataclass as {old name: new name}; empty for other objects."""
    if not dataclasses.is_dataclass(constructor):
        return {}
    fields = dataclasses.fields(constructor)
    return {field.metadata[_OLD_NAME]: field.name for field in fields if field.init and _OLD_NAME in field.metadata}


def with_new_names(constructor: Any, keywords: Mapping[str, Any], stacklevel: int = 2) -> dict[str, Any]:
    """Return keyword arguments of ``constructor`` with new field names in place of old ones; warn of old ones."""
    renamed, given = old_field_names(constructor), dict(keywords)
    for old in [name for name in keywords if name in renamed]:
        new = renamed[old]
        if new in given:
            raise TypeError(f"{old} is the old name of {new}, and both are given; remove {old}.")
        given[new] = given.pop(old)
        warn_renamed(f"{constructor.__name__}({old}=…)", f"{new}=…", stacklevel + 2)
    return given


def accept_old_names(cls: type) -> None:
    """Let the constructor of ``cls`` accept the old names of its renamed fields. Repeated calls have no effect."""
    if "_accepts_old_names" in vars(cls):
        return
    for base in cls.__mro__:
        if "__init__" in vars(base) and "_accepts_old_names" not in vars(base) and old_field_names(base):
            base.__init__ = _translating(base)  # type: ignore[misc]
            base._accepts_old_names = True  # type: ignore[attr-defined]
    if "_accepts_old_names" not in vars(cls):
        cls._accepts_old_names = False  # type: ignore[attr-defined]


def _translating(cls: Any) -> Any:
    """Return the constructor of ``cls``, with old field names translated."""
    init = cls.__init__

    @functools.wraps(init)
    def translated(self: object, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **with_new_names(cls, kwargs))

    return translated


def text_with_new_names(text: str, classes: Mapping[str, type]) -> str:
    """Return the text of a specification, such as ``KAsync(k=1)``, with new names in place of old ones.

    For texts that an earlier version stored. classes: the specifications, by name. Other text is returned unchanged.
    """
    if "(" not in text:
        return text
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return text
    data = text.encode()  # ``ast`` counts bytes
    for at, old, new in sorted(_old_names(tree, classes), reverse=True):
        data = data[:at] + new.encode() + data[at + len(old.encode()) :]
    return data.decode()


def _old_names(tree: ast.AST, classes: Mapping[str, type]) -> Iterator[tuple[int, str, str]]:
    """Yield position, old name and new name of each class and keyword that has an old name."""
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        name = {**DEPRECATED, **SECOND_NAMES}.get(call.func.id, call.func.id)
        if name in classes:
            if name != call.func.id:
                yield call.func.col_offset, call.func.id, name
            renamed = old_field_names(classes[name])
            for keyword in call.keywords:
                if keyword.arg in renamed:
                    yield keyword.col_offset, keyword.arg, renamed[keyword.arg]
