"""References: ``my_package.my_module:MyStrategy`` names a class of another package.

The module is imported when the reference is read, with the current directory importable as ``python -m`` makes it.
Nothing of the module is called before the registry has checked that the class has the expected base.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from tacit.core.calls import REFERENCE, unquoted
from tacit.errors import nearest


def is_reference(name: str) -> bool:
    """Whether ``name`` names a module: ``my_module:MyStrategy``."""
    return ":" in name


def modules_in(text: str) -> list[str]:
    """Return the modules that reading ``text`` would import, each once; nothing is imported here."""
    return list(dict.fromkeys(match[1] for piece in unquoted(text) for match in REFERENCE.finditer(piece)))


def load(reference: str) -> object:
    """Import the module of ``reference`` and return what it names there."""
    if not REFERENCE.fullmatch(reference):
        raise ValueError(f"{reference!r} is not a reference; write one such as my_package.my_module:MyStrategy.")
    module_name, _, path = reference.partition(":")
    found: object = _imported(module_name, reference)
    for name in path.split("."):
        if not hasattr(found, name):
            known = [n for n, value in vars(found).items() if inspect.isclass(value) and not n.startswith("_")]
            raise ValueError(f"{reference}: {module_name} has no {name!r}{nearest(name, known) if known else '.'}")
        found = getattr(found, name)
    return found


def _imported(name: str, reference: str) -> ModuleType:
    searched = _searched()
    importlib.invalidate_caches()  # the file may be newer than this process
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):  # the module exists and imports one that does not
            raise ValueError(f"{reference}: {name} cannot be imported: {error}.") from error
        raise ValueError(f"{reference}: {_not_found(missing, searched)}") from None
    except Exception as error:  # whatever the user's module raises
        raise ValueError(f"{reference}: {name} cannot be imported: {type(error).__name__}: {error}") from error


def _searched() -> str:
    """Make modules of the current directory importable, and return in words where modules are searched."""
    folder = str(Path.cwd())
    if sys.flags.safe_path:
        return "the installed packages (not the current directory, which PYTHONSAFEPATH or -P excludes)"
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    return f"the current directory {folder} and the installed packages"


def _not_found(missing: str, searched: str) -> str:
    parent, _, last = missing.rpartition(".")
    if parent:
        folders = getattr(sys.modules.get(parent), "__path__", None)
        known = [module.name for module in pkgutil.iter_modules(folders)] if folders is not None else []
        return f"the package {parent} has no module {last!r}{nearest(last, known) if known else '.'}"
    return (
        f"there is no module {missing!r}; searched {searched}. "
        f"Run the command in the folder that holds {missing}, or install the package."
    )
