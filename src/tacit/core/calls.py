"""Syntax of the notation: reads ``LocalSGD(period=Every(8))`` as calls of names, without evaluation or imports.

``tacit.registry`` makes objects of these calls. ``tacit.report`` only inspects them: the report of a run with the
strategy ``my_package.my_module:MyStrategy(k=2)`` does not import that module.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Final

DOTTED_NAME: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
REFERENCE: Final = re.compile(rf"(?<![\w.])({DOTTED_NAME}):({DOTTED_NAME})")
"""A class of another package within a call, ``my_package.my_module:MyStrategy``: no blanks around the colon."""
_QUOTED: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_DASHED: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)+")
_COLON: Final = "\u02d0"
"""A letter that looks like a colon: with it in place of the colon, a reference is a name to Python's parser."""
_NUMBERS: Final = {"inf": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Call:
    """A call of a name. Arguments are numbers, texts, lists, tuples, dicts and calls."""

    name: str  # Every, my_module:MyPeriod, or anything else with dots
    arguments: tuple[object, ...] = ()
    keywords: tuple[tuple[str, object], ...] = ()
    has_parentheses: bool = True

    def __str__(self) -> str:
        """Return the beginning of the call, as an error shows it."""
        return f"{self.name}(…)" if self.arguments or self.keywords else self.name


def read_call(text: str) -> Call:
    """Return the call that ``text`` is; ``AllReduce`` is a call without parentheses. Raise ``ValueError`` otherwise."""
    try:
        node = ast.parse(_prepared(text.strip()), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"{text!r} cannot be read ({reason}); write a call such as LocalSGD(period=Every(8))."
        ) from None
    found = _value(node, text) if isinstance(node, ast.Call | ast.Name | ast.Attribute) else None
    if not isinstance(found, Call):
        raise ValueError(f"{text!r} is not a name or a call; write one such as LocalSGD(period=Every(8)).")
    return found


def unquoted(text: str) -> list[str]:
    """Return the pieces of ``text`` outside of quotes."""
    return _QUOTED.split(text)[::2]


def _prepared(text: str) -> str:
    """Return ``text`` for Python's parser: dashes in names become underscores, colons in references a letter."""
    pieces = _QUOTED.split(text)
    pieces[::2] = [
        REFERENCE.sub(rf"\1{_COLON}\2", _DASHED.sub(lambda match: match[0].replace("-", "_"), piece))
        for piece in pieces[::2]
    ]
    return "".join(pieces)


def _value(node: ast.expr, text: str) -> object:
    """Return the literal or the call that ``node`` is."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number = _value(operand, text)
            if isinstance(number, int | float):
                return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items):
            return [_value(item, text) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(k, text): _value(v, text) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.Name() | ast.Attribute():
            return Call(_unparsed(node), has_parentheses=False)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = _unparsed(function)
            if any(keyword.arg is None for keyword in keywords):
                raise ValueError(f"{text}: ** cannot be used here; write the arguments of {name} one by one.")
            named = tuple((str(keyword.arg), _value(keyword.value, text)) for keyword in keywords)
            return Call(name, tuple(_value(argument, text) for argument in arguments), named)
    raise ValueError(
        f"{text}: {_unparsed(node)} cannot be used here; values are numbers, texts, lists and calls of known names."
    )


def _unparsed(node: ast.expr) -> str:
    return ast.unparse(node).replace(_COLON, ":")
