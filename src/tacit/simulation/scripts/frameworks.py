"""Support for accelerate, and for libraries that use it (Hugging Face Trainer), in simulated scripts.

accelerate reads torchrun's variables and opens a process group when it finds them. Scripts read them too, so they stay
set and are hidden only while accelerate makes its state. That state is a singleton, and workers share one interpreter:
each worker has a copy, which is installed while the worker runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

from tacit.session import rank

_MODULE: Final = "accelerate.state"
_SINGLETONS: Final = ("PartialState", "AcceleratorState", "GradientState")

Singletons = list[dict[str, Any]]


@contextmanager
def one_process_each(variables: Sequence[str]) -> Iterator[None]:
    """Make accelerate treat each worker as a single process; ``variables``: hidden from it."""
    undo: list[Callable[[], None]] = []

    def change(module: ModuleType) -> None:
        kind = module.PartialState
        init = kind.__init__

        def alone(self: Any, *given: Any, **named: Any) -> None:
            with _hidden(variables):
                init(self, *given, **named)
            self.process_index = rank()  # so that only rank 0 logs and saves; the number of processes stays 1

        kind.__init__ = alone
        undo.append(lambda: setattr(kind, "__init__", init))

    finder = _AfterImport(change)
    if _MODULE in sys.modules:
        change(sys.modules[_MODULE])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for step in undo:
            step()


def singletons_exist() -> bool:
    """Whether accelerate is imported."""
    return _MODULE in sys.modules


def take_singletons() -> Singletons:
    """Return copies of accelerate's singletons; empty if it is not imported."""
    return [dict(state) for state in _states()]


def put_singletons(kept: Singletons) -> None:
    """Restore accelerate's singletons from ``kept``; empty ones if it was not imported then."""
    for number, state in enumerate(_states()):
        state.clear()
        state.update(kept[number] if number < len(kept) else {})


def _states() -> list[dict[str, Any]]:
    module = sys.modules.get(_MODULE)
    kinds: list[Any] = [getattr(module, name, None) for name in _SINGLETONS]
    return [kind._shared_state for kind in kinds if hasattr(kind, "_shared_state")]


class _AfterImport(MetaPathFinder):
    """Calls ``change`` with accelerate's module right after it is imported."""

    def __init__(self, change: Callable[[ModuleType], None]) -> None:
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


@contextmanager
def _hidden(variables: Sequence[str]) -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
