"""Writing TOML, as much of it as a run needs; ``tomllib`` reads it back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def dump(table: Mapping[str, object], *, comment: str = "") -> str:
    """Return ``table`` as TOML, nested tables last, entries that are None left out."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None and not isinstance(v, Mapping)]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in inner.items() if v is not None]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f"{value}"
        case str():
            return _text(value)
        case list() | tuple():
            items = [_value(item) for item in value]
            short = ", ".join(items)
            return f"[{short}]" if len(short) < 80 else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        case Mapping():
            return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    raise TypeError(f"{value!r} cannot be written as TOML.")


def _key(key: object) -> str:
    text = str(key)
    is_bare = text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    return text if is_bare else _text(text)


def _text(text: str) -> str:
    """Return ``text`` quoted: in single quotes where it holds double ones, so that calls stay readable."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
