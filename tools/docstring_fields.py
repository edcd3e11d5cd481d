"""Extension of griffe for the API reference: the comments of dataclass fields, and lines «name: text» of docstrings, as
lists.

Sources describe a field in the comment on its line, and a parameter in a line «name: text» of the docstring. This
extension makes a Markdown list of both.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

PARAMETER: Final = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (\S.*)$")
CODE: Final = re.compile(r"``.*?``|`[^`]*`|\]\[", re.S)
COMMENT: Final = re.compile(r"#\s(?!fmt:|noqa|type:)(.*?)(?:\s+#.*)?$")


class DocstringFields(griffe.Extension):
    """Make lists of parameters and fields."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of a class or function of tacit."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)
        if obj.is_class and "dataclass" in obj.labels:
            described = [line for name, member in obj.members.items() if (line := self._field(name, member))]
            if described:
                first = obj.docstring.value if obj.docstring is not None else ""
                obj.docstring = griffe.Docstring("\n".join([first, "", "Fields:", "", *described]), parent=obj)

    def _field(self, name: str, member: Any) -> str | None:
        """Return the description of one field, or None where it has no comment."""
        if member.is_alias or not member.is_attribute or name.startswith("_") or member.annotation is None:
            return None
        comments = [found[1] for line in member.source.splitlines() if (found := COMMENT.search(line))]
        return f"- `{name}`: {escaped(' '.join(comments))}" if comments else None


def with_lists(text: str) -> str:
    """Return ``text`` with each run of lines «name: text» as a list; an indented line continues its item."""
    lines: list[str] = []
    is_list = False
    for line in escaped(text).splitlines():
        found = PARAMETER.match(line)
        if found:
            lines += [] if is_list else [""]
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            line, is_list = f"- {names}: {found[2]}", True
        elif not line.strip():
            is_list = False
        elif is_list:
            line = f"  {line.strip()}"
        lines.append(line)
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return ``text`` with each «][» outside of code escaped: Markdown would read a reference link."""
    return CODE.sub(lambda match: "]\\[" if match[0] == "][" else match[0], text)
