"""Specifications: frozen dataclasses that print as the call that makes them.

``str(spec)`` names only what differs from the defaults, so that it can stand in a table, a legend or a TOML file and be read back by
``tacit.registry.parse``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Final

ALWAYS_SPELLED: Final = {"always_spelled": True}
"""Metadata of a field that is printed even where it holds its default, because a reader wants to see it."""


class Spec:
    """A frozen dataclass of parameters that does nothing but hold, check and print them."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({spell_fields(self)})"


def spell_fields(spec: object) -> str:
    """Return the arguments of ``spec`` that differ from their defaults, as they would be typed."""
    parts = []
    for field in dataclasses.fields(spec) if dataclasses.is_dataclass(spec) else ():
        value = getattr(spec, field.name)
        if not field.init or (_is_default(field, value) and not field.metadata.get("always_spelled")):
            continue
        parts.append(spell(value) if not field.kw_only else f"{field.name}={spell(value)}")
    return ", ".join(parts)


def spell(value: object) -> str:
    """Return ``value`` as it would be typed in a call."""
    if isinstance(value, Spec):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{spell(k)}: {spell(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(spell(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return type(field.default) is type(value) and field.default == value
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory() == value
    return False
