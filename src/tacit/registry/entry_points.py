"""Names that installed packages register, through entry points: one group for each family.

A package declares in its ``pyproject.toml``::

    [project.entry-points."tacit.strategies"]
    RandomSGD = "my_package.my_module:RandomSGD"

The groups are ``tacit.strategies``, ``tacit.periods``, ``tacit.compressors``, ``tacit.feedbacks``,
``tacit.topologies``, ``tacit.rates``, ``tacit.outer``, ``tacit.workloads``, ``tacit.schedules`` and ``tacit.delays``.
An entry is loaded when its name is used and is not one of tacit's; ``tacit list`` loads all. The name is a shorthand:
what prints, and what is saved, is ``my_package.my_module:RandomSGD(…)``, which needs no registration to be read.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "tacit."


class EntryPointWarning(UserWarning):
    """An installed package registers a name that cannot be used."""


@dataclass(frozen=True)
class Entry:
    """A name that an installed package registers."""

    name: str
    family: str
    package: str
    point: importlib.metadata.EntryPoint

    def load(self) -> object | None:
        """Import what the name stands for; None, with a warning, where that fails."""
        try:
            found: object = self.point.load()
        except Exception as error:  # noqa: BLE001 - whatever the package raises
            self.refuse(f"it cannot be loaded: {type(error).__name__}: {error}")
            return None
        return found

    def refuse(self, reason: str) -> None:
        """Warn that the entry is not used."""
        text = f"the package {self.package} registers {self.name!r} = {self.point.value} in {PREFIX}{self.family}"
        warnings.warn(f"{text}, which is ignored: {reason.rstrip('.')}.", EntryPointWarning, stacklevel=2)


def entries(families: Iterable[str]) -> list[Entry]:
    """Return what installed packages register in ``families``; nothing is imported."""
    return [
        Entry(point.name, family, point.dist.name if point.dist is not None else "unknown", point)
        for family in families
        for point in importlib.metadata.entry_points(group=f"{PREFIX}{family}")
    ]
