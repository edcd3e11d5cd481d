"""Reading the notation: ``LocalSGD(period=Every(8))`` becomes the object, and nothing is ever evaluated.

The text is parsed by ``ast`` and only calls of names with literal arguments are followed; ``parse(str(spec)) == spec``.
A name is one of tacit's, one that an installed package registers (``entry_points``), or a reference to a class of the
user's own module: ``my_package.my_module:MyStrategy(period=Every(4))``, here and wherever a name is nested.

Reading a reference imports its module, which runs the module's code. ``Run.load``, ``tacit report`` and
``--cluster FOLDER`` read no notation that names a strategy, and therefore import nothing.
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

from tacit.core.renamed_fields import with_new_names
from tacit.core.specs import Spec, spell
from tacit.core.strategy import Strategy
from tacit.errors import nearest
from tacit.registry.aliases import Alias
from tacit.registry.families import REQUIRED, Argument, Named, base_name, find, find_alias, members_of
from tacit.registry.references import REFERENCE, is_reference
from tacit.workloads.workload import Workload

_DASHED: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:-[A-Za-z_]\w*)+")
_QUOTED: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_COLON: Final = "\u02d0"
"""A letter that looks like a colon: with it in the colon's place, a reference is a name to Python's parser."""
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
    that is "strategies", papers' names are read too: ``DiLoCo`` is a ``LocalSGD`` (``tacit.registry.ALIASES``). A class
    of another package is named with its module, which is imported: ``my_package.my_module:MyStrategy(k=2)``. Whatever
    is wrong becomes a ``ValueError`` that says what and what would be right.
    """
    if _PHRASE.fullmatch(text.strip()) and (alias := find_alias(text.strip(), family)) is not None:
        return parse(alias.stands_for, "strategies")  # names with blanks and plus signs are no Python
    try:
        tree = ast.parse(_prepared(text.strip()), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"{text!r} cannot be read ({reason}); write a call such as LocalSGD(period=Every(8))."
        ) from None
    if (name := _name(tree)) is not None:
        return _make(find(name, family), [], {}, text)
    if isinstance(tree, ast.Call):
        return _call(tree, text, family)
    raise ValueError(f"{text!r} is not a name or a call; write one such as LocalSGD(period=Every(8)).")


def strategy(text: str) -> Strategy[Any]:
    """Return the strategy that ``text`` describes, e.g.

    ``LocalSGD(period=Every(8))``: the notation of the command line and of TOML files.
    """
    parsed: Strategy[Any] = parse(text, "strategies")
    return parsed


def _prepared(text: str) -> str:
    """Return ``text`` for Python's parser: dashes in names become underscores, colons in references a letter."""
    pieces = _QUOTED.split(text)
    pieces[::2] = [
        REFERENCE.sub(rf"\1{_COLON}\2", _DASHED.sub(lambda match: match[0].replace("-", "_"), piece))
        for piece in pieces[::2]
    ]
    return "".join(pieces)


def _name(node: ast.expr) -> str | None:
    """Return the name or the reference that ``node`` is; None where it is something else."""
    if isinstance(node, ast.Name | ast.Attribute) and is_reference(spelled := _unparsed(node)):
        return spelled
    return node.id if isinstance(node, ast.Name) else None


def _unparsed(node: ast.expr) -> str:
    return ast.unparse(node).replace(_COLON, ":")


def _call(node: ast.Call, text: str, family: str | None = None, bases: tuple[type, ...] = (), at: str = "") -> object:
    name = _name(node.func)
    if name is None:
        shown = _unparsed(node.func)
        way_out = f"; a class of your own is {':'.join(shown.rsplit('.', 1))}" if "." in shown else ""
        raise ValueError(f"{text}: {shown} is not a name tacit knows; `tacit list` shows them all{way_out}.")
    if (alias := find_alias(name, family)) is not None:
        return _aliased(alias, node, text)
    named = _found(name, text, family, bases, at)
    arguments = {argument.name: argument for argument in named.arguments}

    def value(node: ast.expr, name: str) -> object:
        expected = _bases(arguments[name].hint) if name in arguments else ()
        return _value(node, text, expected, f"{name} of {named.name}")

    keywords: dict[str, object] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{text}: ** cannot be used here; write the arguments of {named.name} one by one.")
        keywords[keyword.arg] = value(keyword.value, keyword.arg)
    names = [*named.positional, *[""] * len(node.args)]
    return _make(named, [value(one, name) for one, name in zip(node.args, names, strict=False)], keywords, text)


def _found(name: str, text: str, family: str | None, bases: tuple[type, ...], at: str) -> Named:
    """Return what ``name`` stands for; a reference must be a subclass of one of ``bases``, which ``at`` takes."""
    try:
        named = find(name, family)
    except ValueError as error:
        raise ValueError(
            f"{text}: {error}" if is_reference(name) and not text.startswith(name) else str(error)
        ) from error
    kind = named.constructor
    if is_reference(name) and bases and not (isinstance(kind, type) and issubclass(kind, bases)):
        wanted = " or ".join(map(base_name, bases))
        raise ValueError(f"{text}: {name} is not a subclass of {wanted}, which {at} must be.")
    return named


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


def _value(node: ast.expr, text: str, bases: tuple[type, ...] = (), at: str = "") -> object:
    """Return the value of ``node``, which is given for the argument ``at`` of one of the types ``bases``."""
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
        case ast.Name() | ast.Attribute() if is_reference(name := _name(node) or ""):
            return _make(_found(name, text, None, bases, at), [], {}, text)
        case ast.Name(id=name):
            return parse(name)
        case ast.Call():
            return _call(node, text, None, bases, at)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if isinstance(
            getattr(torch, name, None), torch.dtype
        ):
            return getattr(torch, name)
    raise ValueError(
        f"{text}: {_unparsed(node)} cannot be used here; values are numbers, texts, lists and calls of known names."
    )


def _make(named: Named, positional: list[object], keywords: dict[str, object], text: str) -> object:
    """Call the constructor, its complaints put beside the text that was read."""
    arguments = {argument.name: argument for argument in named.arguments}
    try:
        keywords = with_new_names(named.constructor, keywords)
    except TypeError as error:
        raise ValueError(f"{text}: {error}") from None
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
    if named.family == "workloads" and not isinstance(made, Workload):
        raise ValueError(f"{text}: {named.name} returned a {type(made).__name__}; it must return a tacit.Workload.")
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


def _bases(hint: Any) -> tuple[type, ...]:
    """Return the abstract bases among the types that ``hint`` allows."""
    return tuple(option for option in _options(hint) if isinstance(option, type) and issubclass(option, Spec))


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
