"""Reading the notation: ``LocalSGD(period=Every(8))`` becomes the object, and nothing is ever evaluated.

The text is parsed by ``ast`` and only calls of registered names with literal arguments are followed;
``parse(str(spec)) == spec``.
"""

from __future__ import annotations

import ast
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tacit.core.specs import Spec, spell
from tacit.core.strategy import Strategy
from tacit.errors import nearest
from tacit.registry.aliases import Alias
from tacit.registry.families import REQUIRED, Argument, Named, find, find_alias, members_of

_DASHED: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)+")
_QUOTED: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_PHRASE: Final = re.compile(r"[A-Za-z][\w+ -]*")
_NUMBERS: Final = {"inf": math.inf, "nan": math.nan}
_PLAIN_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "True or False",
    types.NoneType: "None",
    torch.dtype: "a torch dtype",
    Sequence: "a list",
    Mapping: "a dict",
}


def parse(text: str, family: str | None = None) -> Any:
    """Return the object that ``text`` names: ``LocalSGD(period=Every(8))``; ``AllReduce`` stands for ``AllReduce()``.

    Names are found however they are cased or hyphenated. ``family`` says where the outermost name must come from. Where
    that is "strategies", papers' names are read too: ``DiLoCo`` is a ``LocalSGD`` (``tacit.registry.ALIASES``).
    Whatever is wrong becomes a ``ValueError`` that says what and what would be right.
    """
    if _PHRASE.fullmatch(text.strip()) and (alias := find_alias(text.strip(), family)) is not None:
        return parse(alias.stands_for, "strategies")  # names with blanks and plus signs are no Python
    try:
        tree = ast.parse(_underscored(text.strip()), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"{text!r} cannot be read ({reason}); write a call such as LocalSGD(period=Every(8))."
        ) from None
    if isinstance(tree, ast.Name):
        return _make(find(tree.id, family), [], {}, text)
    if isinstance(tree, ast.Call):
        return _call(tree, text, family)
    raise ValueError(f"{text!r} is not a name or a call; write one such as LocalSGD(period=Every(8)).")


def strategy(text: str) -> Strategy[Any]:
    """Return the strategy that ``text`` describes, e.g.

    ``LocalSGD(period=Every(8))``: the notation of the command line and of TOML files.
    """
    parsed: Strategy[Any] = parse(text, "strategies")
    return parsed


def _underscored(text: str) -> str:
    """Return ``text`` with dashes inside names turned into underscores, quoted text left alone."""
    pieces = _QUOTED.split(text)
    pieces[::2] = [_DASHED.sub(lambda match: match[0].replace("-", "_"), piece) for piece in pieces[::2]]
    return "".join(pieces)


def _call(node: ast.Call, text: str, family: str | None = None) -> object:
    if not isinstance(node.func, ast.Name):
        raise ValueError(f"{text}: {ast.unparse(node.func)} is not a name tacit knows; `tacit list` shows them all.")
    if (alias := find_alias(node.func.id, family)) is not None:
        return _aliased(alias, node, text)
    named = find(node.func.id, family)
    keywords: dict[str, object] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{text}: ** cannot be used here; write the arguments of {named.name} one by one.")
        keywords[keyword.arg] = _value(keyword.value, text)
    return _make(named, [_value(argument, text) for argument in node.args], keywords, text)


def _aliased(alias: Alias, node: ast.Call, text: str) -> object:
    """Return what the alias stands for, with the arguments of ``node`` in the place of its own."""
    tree = ast.parse(alias.stands_for, mode="eval").body
    assert isinstance(tree, ast.Call)
    given = {keyword.arg for keyword in node.keywords}
    tree.keywords = [keyword for keyword in tree.keywords if keyword.arg not in given] + node.keywords
    tree.args = node.args
    try:
        return _call(tree, text, "strategies")
    except ValueError as error:
        raise ValueError(f"{error} ({alias.name} stands for {alias.stands_for}.)") from error


def _value(node: ast.expr, text: str) -> object:
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
        case ast.Name(id=name):
            return parse(name)
        case ast.Call():
            return _call(node, text)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if isinstance(
            getattr(torch, name, None), torch.dtype
        ):
            return getattr(torch, name)
    raise ValueError(
        f"{text}: {ast.unparse(node)} cannot be used here; values are numbers, texts, lists and calls of known names."
    )


def _make(named: Named, positional: list[object], keywords: dict[str, object], text: str) -> object:
    """Call the constructor, its complaints put beside the text that was read."""
    arguments = {argument.name: argument for argument in named.arguments}
    for name in keywords:
        if name not in arguments:
            known = f" Its arguments are {_listed(named)}." if arguments else " It takes none."
            near = nearest(name, arguments).partition("; known")[0] if arguments else ""
            raise ValueError(f"{text}: {named.name} has no argument {name!r}{near or '.'}{known}")
    if len(positional) > len(named.positional):
        few = f"only {', '.join(named.positional)}" if named.positional else "no argument"
        raise ValueError(
            f"{text}: {named.name} takes {few} without its name; write {_with_names(named, positional, keywords)}"
        )
    given = {**dict(zip(named.positional, positional, strict=False)), **keywords}
    missing = [name for name, argument in arguments.items() if argument.default is REQUIRED and name not in given]
    if missing:
        raise ValueError(f"{text}: {named.name} needs {' and '.join(missing)}; its arguments are {_listed(named)}.")
    values = {name: _as_dtype(arguments[name], value) for name, value in given.items()}
    try:
        made = named.constructor(**values)
    except TypeError as error:
        raise ValueError(f"{text}: {_complaint(arguments, values, named) or error}") from error
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from error
    if complaint := _complaint(
        arguments, values, named
    ):  # the constructor's own words come first: they know the way out
        raise ValueError(f"{text}: {complaint}")
    return made


def _with_names(named: Named, positional: list[object], keywords: dict[str, object]) -> str:
    """Return the call with every argument named, the first ones in order, and which arguments there are."""
    free = [a.name for a in named.arguments if a.name not in keywords]
    if len(positional) > len(free):
        return f"{_listed(named)}."
    given = {**dict(zip(free, positional, strict=False)), **keywords}
    shown = ", ".join(f"{name}={spell(value)}" for name, value in given.items())
    return f"{named.name}({shown}). Its arguments are {_listed(named)}."


def _listed(named: Named) -> str:
    return ", ".join(f"{a} (required)" if a.default is REQUIRED else str(a) for a in named.arguments) or "none"


def _as_dtype(argument: Argument, value: object) -> object:
    """Return ``"float64"`` as torch.float64 where a dtype is wanted, anything else as it is."""
    if torch.dtype in _options(argument.hint) and isinstance(value, str):
        found = getattr(torch, value, None)
        return found if isinstance(found, torch.dtype) else value
    return value


def _complaint(arguments: Mapping[str, Argument], values: Mapping[str, object], named: Named) -> str | None:
    """Return which value does not fit its argument's type hint, and what would."""
    for name, value in values.items():
        options = _options(arguments[name].hint)
        if all(_is_checked(option) for option in options) and not any(_accepts(option, value) for option in options):
            wanted = " or ".join(_described(option) for option in options)
            return f"{name}={spell(value)} of {named.name} must be {wanted}."
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is_checked(option: Any) -> bool:
    """Whether a value can be judged by the hint alone. What a list holds is the constructor's to judge."""
    if option in (int, float, str, bool, types.NoneType, torch.dtype):
        return True
    if typing.get_origin(option) in (typing.Literal, Sequence, Mapping):
        return True
    return isinstance(option, type) and issubclass(option, Spec)


def _accepts(option: Any, value: object) -> bool:
    match typing.get_origin(option):
        case origin if origin is typing.Literal:
            return value in typing.get_args(option)
        case origin if origin is Sequence:
            return isinstance(value, list | tuple)
        case origin if origin is Mapping:
            return isinstance(value, dict)
    if option is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, option)


def _described(option: Any) -> str:
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(spell(choice) for choice in typing.get_args(option))
    if isinstance(option, type) and issubclass(option, Spec):
        return f"one of {', '.join(members_of(option))}"
    return _PLAIN_WORDS.get(typing.get_origin(option) or option, str(option))
