"""Reading the notation: ``LocalSGD(period=Every(8))`` becomes the object, and nothing is ever evaluated.

``tacit.core.calls`` reads the text as calls of names with literal arguments; ``parse(str(spec)) == spec``.
A name is one of tacit's, one that an installed package registers (``entry_points``), or a reference to a class of the
user's own module: ``my_package.my_module:MyStrategy(period=Every(4))``, here and wherever a name is nested.

Reading a reference imports its module, which runs the module's code. ``Run.load``, ``tacit report`` and
``--cluster FOLDER`` read no notation that names a strategy, and therefore import nothing.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tacit.core.calls import Call, read_call
from tacit.core.compatibility.renamed_fields import with_new_names
from tacit.core.specs import Spec, spell
from tacit.core.strategy import Strategy
from tacit.errors import nearest
from tacit.registry.aliases import Alias
from tacit.registry.families import REQUIRED, Argument, Named, base_name, find, find_alias, members_of
from tacit.registry.references import is_reference
from tacit.workloads.workload import Workload

_PHRASE: Final = re.compile(r"[A-Za-z][\w+ -]*")
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
    return _call(read_call(text), text, family)


def strategy(text: str) -> Strategy[Any]:
    """Return the strategy that ``text`` describes, e.g.

    ``LocalSGD(period=Every(8))``: the notation of the command line and of TOML files.
    """
    parsed: Strategy[Any] = parse(text, "strategies")
    return parsed


def _call(call: Call, text: str, family: str | None = None, bases: tuple[type, ...] = (), at: str = "") -> object:
    name = call.name
    if "." in name and not is_reference(name):
        way_out = f"a class of your own is {':'.join(name.rsplit('.', 1))}"
        raise ValueError(f"{text}: {name} is not a name tacit knows; `tacit list` shows them all; {way_out}.")
    if not name.replace(".", "").replace(":", "").isidentifier():
        raise ValueError(f"{text}: {name} is not a name tacit knows; `tacit list` shows them all.")
    if (alias := find_alias(name, family)) is not None:
        return _aliased(alias, call, text)
    named = _found(name, text, family, bases, at)
    hints = {argument.name: argument.hint for argument in named.arguments}

    def value(given: object, name: str) -> object:
        return _value(given, text, _bases(hints.get(name)), f"{name} of {named.name}")

    keywords = {name: value(given, name) for name, given in call.keywords}
    names = [*named.positional, *[""] * len(call.arguments)]
    return _make(named, [value(one, name) for one, name in zip(call.arguments, names, strict=False)], keywords, text)


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


def _aliased(alias: Alias, call: Call, text: str) -> object:
    """Return what the alias stands for, with the arguments of ``call`` in the place of its own."""
    meant, given = read_call(alias.stands_for), dict(call.keywords)
    own = tuple((name, value) for name, value in meant.keywords if name not in given)
    try:
        return _call(Call(meant.name, call.arguments, own + call.keywords), text, "strategies")
    except ValueError as error:
        raise ValueError(f"{error} ({alias.name} stands for {alias.stands_for}.)") from error


def _value(given: object, text: str, bases: tuple[type, ...] = (), at: str = "") -> object:
    """Return the object for a value that was read for the argument ``at`` of one of the types ``bases``."""
    match given:
        case list():
            return [_value(item, text) for item in given]
        case tuple():
            return tuple(_value(item, text) for item in given)
        case dict():
            return {_value(key, text): _value(value, text) for key, value in given.items()}
        case Call(name=name, has_parentheses=False) if "." in name and not is_reference(name):
            dtype = getattr(torch, name.removeprefix("torch."), None)
            if isinstance(dtype, torch.dtype):
                return dtype
            allowed = "values are numbers, texts, lists and calls of known names"
            raise ValueError(f"{text}: {name} cannot be used here; {allowed}.")
    return _call(given, text, None, bases, at) if isinstance(given, Call) else given


def _make(named: Named, positional: list[object], keywords: dict[str, object], text: str) -> object:
    """Call the constructor; its errors begin with the text that was read."""
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
    if complaint := _complaint(arguments, values, named):  # after the constructor's own errors, which say more
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
