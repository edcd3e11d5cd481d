"""Everything that has a name, and the one notation for it: Python calls, in options, in TOML and in reports."""

from tacit.registry.aliases import ALIASES, Alias
from tacit.registry.families import FAMILIES, Argument, Family, Named, find, find_alias
from tacit.registry.notation import parse, strategy

__all__ = ["ALIASES", "FAMILIES", "Alias", "Argument", "Family", "Named", "find", "find_alias", "parse", "strategy"]
