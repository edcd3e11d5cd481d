"""Names and arguments in the texts of a run, such as ``KSync(k=2)``; no user module is imported."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeVar

from tacit.core.calls import Call, read_call
from tacit.errors import TacitError

Made = TypeVar("Made")


def call_in(text: str) -> Call | None:
    """Return the call that ``text`` is; None for a text that is none, such as the name of a script."""
    try:
        return read_call(text)
    except ValueError:
        return None


def plain_arguments(call: Call) -> dict[str, Any]:
    """Return the named arguments that are no calls."""
    return {name: value for name, value in call.keywords if not isinstance(value, Call)}


def made(call: Call, module: ModuleType, kind: type[Made]) -> Made | None:
    """Return the object that ``call`` makes with a class of ``module``; None unless that class is a ``kind``."""
    found = getattr(module, call.name, None)
    keywords = plain_arguments(call)
    has_calls = len(keywords) < len(call.keywords) or any(isinstance(value, Call) for value in call.arguments)
    if has_calls or not (isinstance(found, type) and issubclass(found, kind)):
        return None
    try:
        return found(*call.arguments, **keywords)
    except (ValueError, TypeError, TacitError):  # a file of edges that is missing, for example
        return None
