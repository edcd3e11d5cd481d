"""Old module paths of version 0.1: they import for one version, with a warning that names the new path.

Only modules that users import are listed. Internal modules of ``cli``, ``session``, ``runtime``, ``simulation`` and
``theory`` moved without an alias.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from tacit.core.compatibility.deprecation import DEPRECATED, warn_renamed

MOVED: Final[dict[str, str]] = {
    f"tacit.{old}": f"tacit.{new}"
    for old, new in {
        "compare_scripts": "compare.scripts",
        "compression.bits": "compression.coding.bits",
        "compression.kit": "testing.compressors",
        "compression.places": "compression.coding.indices",
        "compression.splitting": "compression.coding.ranges",
        "compression.sums": "compression.coding.sparse_sum",
        "compression.whole": "compression.dense",
        "delays": "cluster.delays",
        "faults": "cluster.faults",
        "feedback": "compression.feedback",
        "feedback.classic": "compression.feedback.error_feedback",
        "feedback.ef21": "compression.feedback.ef21",
        "feedback.ef21_plus": "compression.feedback.ef21_plus",
        "feedback.feedback": "compression.feedback.feedback",
        "fields": "core.message_fields",
        "layout": "core.parameter_layout",
        "messages": "core.messages",
        "network": "core.network",
        "optimizers": "training.optimizers",
        "outer": "strategies.local_sgd.outer",
        "periods": "strategies.local_sgd.periods",
        "randomness": "core.randomness",
        "run": "record.run",
        "runtime.training": "runtime.train",
        "schedules": "training.schedules",
        "simulation.cluster": "cluster.cluster",
        "simulation.joins": "cluster.joins",
        "specs": "core.specs",
        "strategies.strategy": "core.strategy",
        "trace": "record.trace",
        "wire": "core.collective_bytes",
        "worker": "core.worker",
        "workloads.files": "workloads.data.files",
        "workloads.image_files": "workloads.data.image_files",
        "workloads.libsvm": "workloads.data.libsvm",
        "workloads.samples": "workloads.data.samples",
        "workloads.sampling": "workloads.data.sampling",
        "workloads.splits": "workloads.data.splits",
    }.items()
}
_MEMBERS: Final[dict[str, str]] = {"check": "check_compressor"}
"""Members that were renamed when their module moved."""


class MovedModules(MetaPathFinder, Loader):
    """Imports an old path as a module with the names of the new one; asked only for paths that no file has."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=name == "tacit.feedback") if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = importlib.import_module(MOVED[module.__name__])
        warn_renamed(f"the module {module.__name__}", new.__name__)
        vars(module).update({name: value for name, value in vars(new).items() if not name.startswith("__")})
        members = {**DEPRECATED, **_MEMBERS}

        def getattribute(name: str) -> Any:
            return getattr(new, members.get(name, name))

        vars(module)["__getattr__"] = getattribute


def install() -> None:
    """Let old module paths be imported; a second call changes nothing."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
