"""Specifications: frozen dataclasses that print as the call that constructs them.

``str(spec)`` contains only arguments that differ from their defaults. It is used in tables, legends and TOML files, and
``tacit.registry.parse`` reads it. A class of this package prints by its name, any other class with its module:
``my_package.my_module:MyStrategy(k=2)``. numpy numbers become Python numbers and numpy arrays lists on construction, so
that equal specifications print, compare and digest equally. Old names of renamed fields are accepted
(``renamed_fields.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, ParamSpec, Self, TypeVar

import numpy as np

from tacit.core.compatibility.renamed_fields import accept_old_names, text_with_new_names

ALWAYS_SPELLED: Final = {"always_spelled": True}
"""Metadata of a field that is printed even if it has its default value."""

_PACKAGE: Final = __name__.partition(".")[0]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def python_number(value: Any) -> Any:
    """Return ``value`` with numpy numbers converted to Python numbers, also in lists, tuples and dicts; not arrays."""
    if isinstance(value, np.generic):
        return value.item()
    kind = type(value)
    if kind is dict:
        return {python_number(key): python_number(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind(map(python_number, value))
    return value


def with_python_numbers(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate ``function`` to convert numpy numbers in its arguments to Python numbers."""

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        named = {name: python_number(value) for name, value in kwargs.items()}
        return function(*map(python_number, args), **named)

    return called


class Parameters:
    """A frozen dataclass that converts numpy numbers and arrays to Python numbers before its ``__post_init__``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        accept_old_names(cls)  # here, because ``dataclass`` writes the constructor after ``__init_subclass__``
        return super().__new__(cls)

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        own = vars(cls).get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def converted(self: Parameters) -> None:
            Parameters.__post_init__(self)
            own(self)

        cls.__post_init__ = converted  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name) if field.init else None
            if isinstance(value, np.ndarray):
                object.__setattr__(self, field.name, value.tolist())
            elif (number := python_number(value)) is not value:
                object.__setattr__(self, field.name, number)


class Spec(Parameters):
    """A frozen dataclass that holds, checks and prints parameters."""

    def __str__(self) -> str:
        return f"{spell_class(type(self))}({spell_fields(self)})"


def spell_class(kind: type) -> str:
    """Return ``kind`` in the notation: ``Every`` for a class of this package, ``module:Class`` for any other.

    A class that other processes cannot import, because a script or a function defines it, prints by its name alone.
    """
    module = kind.__module__
    is_own = module.startswith(f"{_PACKAGE}.") and not module.startswith(f"{_PACKAGE}.testing")
    if is_own or module in ("__main__", "__mp_main__"):
        return kind.__name__
    found: object = sys.modules.get(module)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return f"{module}:{kind.__qualname__}" if found is kind else kind.__name__


def current_text(text: str) -> str:
    """Return the text of a specification that an earlier version stored, with the new names of classes and fields."""
    return text_with_new_names(text, {cls.__name__: cls for cls in _subclasses(Spec)})


def first_difference_of(stored: str, own: str) -> str:
    """Return the first argument in which two texts of specifications differ; an empty text if they are equal."""
    if stored == own:
        return ""
    (stored_name, _, stored_rest), (own_name, _, own_rest) = stored.partition("("), own.partition("(")
    if stored_name != own_name:
        return f"{stored_name} there, {own_name} here"
    there, here = _arguments_in(stored_rest), _arguments_in(own_rest)
    for argument in [*there, *here]:
        if (argument in there) != (argument in here):
            name = argument.partition("=")[0]
            values = [next((one for one in many if one.partition("=")[0] == name), "") for many in (there, here)]
            default = f"{name} left out"
            return f"{values[0] or default} there, {values[1] or default} here"
    return "the same arguments in another order"


def _arguments_in(text: str) -> list[str]:
    """Return the arguments of a text like ``a=1, b=f(2, 3))``, which ends with the closing bracket."""
    arguments, depth = [""], 0
    for letter in text.rstrip()[:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += letter
    return [argument.strip() for argument in arguments if argument.strip()]


def current_texts(value: Any) -> Any:
    """Return ``value`` with ``current_text`` of each text in it, also inside lists and dicts."""
    if isinstance(value, str):
        return current_text(value)
    if isinstance(value, dict):
        return {key: current_texts(item) for key, item in value.items()}
    return [current_texts(item) for item in value] if isinstance(value, list) else value


def _subclasses(cls: type) -> Iterator[type]:
    below: list[type] = cls.__subclasses__()
    for one in below:
        yield one
        yield from _subclasses(one)


def spell_fields(spec: object) -> str:
    """Return the arguments of ``spec`` that differ from their defaults, in Python notation."""
    parts = []
    for field in dataclasses.fields(spec) if dataclasses.is_dataclass(spec) else ():
        value = getattr(spec, field.name)
        if not field.init or (_is_default(field, value) and not field.metadata.get("always_spelled")):
            continue
        parts.append(spell(value) if not field.kw_only else f"{field.name}={spell(value)}")
    return ", ".join(parts)


def spell(value: object) -> str:
    """Return ``value`` in Python notation."""
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
