"""Everything that has a name, and the one notation for it: Python calls, in options, in TOML and in reports."""

from tacit.registry.families import FAMILIES, Argument, Family, Named, find
from tacit.registry.notation import parse

__all__ = ["FAMILIES", "Argument", "Family", "Named", "find", "parse"]
