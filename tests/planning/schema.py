"""A small validator of JSON Schema: the keywords that docs/reference/*.schema.json use, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_TYPES: Final[dict[str, Any]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_KNOWN: Final = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "properties", "required", "additionalProperties"),
    *("items", "enum", "const", "anyOf", "minimum"),
}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "$") -> Iterator[str]:
    """Yield what in ``value`` breaks ``schema``, with its place."""
    assert schema.keys() <= _KNOWN, f"{place}: this validator does not know {schema.keys() - _KNOWN}"
    if "$ref" in schema:
        yield from violations(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, place)
    if "const" in schema and value != schema["const"]:
        yield f"{place} is {value!r}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} is {value!r}, not one of {schema['enum']}"
    if "anyOf" in schema and all(list(violations(value, one, root, place)) for one in schema["anyOf"]):
        yield f"{place} fits none of the alternatives"
    if "type" in schema and not _has_type(value, schema["type"]):
        yield f"{place} is {value!r}, not {schema['type']}"
        return
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{place} is {value}, below {schema['minimum']}"
    if isinstance(value, dict):
        yield from _object_violations(value, schema, root, place)
    if isinstance(value, list) and "items" in schema:
        for index, one in enumerate(value):
            yield from violations(one, schema["items"], root, f"{place}[{index}]")


def _object_violations(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], place: str
) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, one in value.items():
        if name in known:
            yield from violations(one, known[name], root, f"{place}.{name}")
        elif others is False:
            yield f"{place}.{name} is not in the schema"
        elif isinstance(others, dict):
            yield from violations(one, others, root, f"{place}.{name}")


def _has_type(value: Any, names: str | list[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in ([names] if isinstance(names, str) else names)
    return any(isinstance(value, _TYPES[name]) for name in ([names] if isinstance(names, str) else names))
