"""Keys of loss curves: all settings that decide losses by step, without cluster and number of steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tacit.record.versions import tacit_version
from tacit.registry import modules_in, parse
from tacit.strategies import Strategy
from tacit.workloads import Workload


@dataclass(frozen=True)
class Key:
    """The settings of a curve. ``stored``: the name of its files; None: the curve is kept in memory only."""

    values: tuple[tuple[str, object], ...]
    stored: str | None

    @property
    def described(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(self.values)


@dataclass(frozen=True, eq=False)
class _Identity:
    """An object that equals itself alone."""

    value: object

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


def key_of(workload: Workload, strategy: Strategy[Any], workers: int, settings: Mapping[str, Any]) -> Key:
    """Return the key of a curve with the training ``settings``.

    A specification of tacit stands for itself by its text, also in other processes. One of another module may change
    between processes. An object without a text that reads back (``custom``, a function) equals itself alone.
    """
    values = {**settings, "workload": workload, "strategy": strategy, "workers": workers}
    values |= {"threads": torch.get_num_threads(), "tacit": tacit_version(), "torch": torch.__version__}
    families = {"workload": "workloads", "strategy": "strategies", "schedule": "schedules"}
    is_stable = True
    for name, value in values.items():
        if value is None or isinstance(value, str | int | float):
            continue
        text = str(value)
        reads_back = name in families and _reads_back(text, value, families[name])
        values[name] = text if reads_back else value if _is_hashable(value) else _Identity(value)
        is_stable = is_stable and reads_back and not modules_in(text)
    ordered = tuple(sorted(values.items()))
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:32] if is_stable else None
    return Key(ordered, digest)


def _reads_back(text: str, spec: object, family: str) -> bool:
    try:
        read = parse(text, family)
    except (ValueError, TypeError):
        return False
    return type(read) is type(spec) and str(read) == text


def _is_hashable(spec: object) -> bool:
    try:
        hash(spec)
    except TypeError:
        return False
    return True
