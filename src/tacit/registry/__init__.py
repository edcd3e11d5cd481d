"""Names and their notation: Python calls, in options, TOML files and reports.

A name comes from one of three places:

- tacit itself: ``LocalSGD(period=Every(8))`` (``families``), or a paper's name for such a call (``aliases``);
- the user's own module, by reference: ``my_package.my_module:MyStrategy(k=2)`` (``references``);
- an installed package that registers the name in an entry-point group such as ``tacit.strategies`` (``entry_points``).
"""

from tacit.registry.aliases import ALIASES, Alias
from tacit.registry.entry_points import EntryPointWarning
from tacit.registry.families import FAMILIES, Argument, Family, Named, find, find_alias, installed
from tacit.registry.notation import parse, strategy
from tacit.registry.references import modules_in

__all__ = [
    "ALIASES",
    "FAMILIES",
    "Alias",
    "Argument",
    "EntryPointWarning",
    "Family",
    "Named",
    "find",
    "find_alias",
    "installed",
    "modules_in",
    "parse",
    "strategy",
]
