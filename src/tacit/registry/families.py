"""Families of names: the constructor of a name, its meaning in one line, and its arguments.

A family is read off its module: every public frozen dataclass there, or for workloads every public function, has a
name. A new class is registered by being public there (in ``__all__`` of the family's package). A family with a ``base``
also takes classes of other packages: by reference (``references``) or by a name that an installed package registers
(``entry_points``).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Final

from tacit import cluster, compression, strategies, topology, workloads
from tacit.cluster import delays, faults
from tacit.compression import feedback
from tacit.core.compatibility.deprecation import DEPRECATED, SECOND_NAMES, warn_renamed
from tacit.core.specs import Spec, spell
from tacit.errors import nearest
from tacit.registry import entry_points
from tacit.registry.aliases import ALIASES, Alias, alias_of
from tacit.registry.references import is_reference, load
from tacit.strategies.local_sgd import outer, periods
from tacit.strategies.servers import rates
from tacit.strategies.swarm import local_steps
from tacit.training import schedules

REQUIRED: Final = inspect.Parameter.empty


@dataclass(frozen=True)
class Argument:
    """One argument of a named thing. ``default`` is ``REQUIRED`` where it must be given."""

    name: str
    default: object
    hint: Any

    def __str__(self) -> str:
        return self.name if self.default is REQUIRED else f"{self.name}={_spell_default(self.default)}"


@dataclass(frozen=True)
class Named:
    """A constructor, by its name."""

    name: str
    family: str
    constructor: Callable[..., object]
    package: str = ""  # the installed package that registers the name; empty: this one

    @property
    def meaning(self) -> str:
        """The first line of the docstring: a definition."""
        return inspect.cleandoc(self.constructor.__doc__ or "").partition("\n")[0]

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Its arguments, in order."""
        try:
            hints = typing.get_type_hints(self.constructor)
        except NameError:  # a hint that another package imports for type checkers only
            hints = {}
        return tuple(Argument(p.name, _default(self.constructor, p), hints.get(p.name, Any)) for p in self._parameters)

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """The arguments that may be given without their names."""
        return tuple(p.name for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    @property
    def _parameters(self) -> Iterable[inspect.Parameter]:
        return inspect.signature(self.constructor).parameters.values()


@dataclass(frozen=True)
class Family:
    """Names of one kind, which answer one question."""

    name: str
    question: str
    members: Mapping[str, Named]
    base: type | None = None  # what classes of other packages must be subclasses of; None: there are none

    def __iter__(self) -> Iterator[Named]:
        return iter(self.members.values())


def find(name: str, family: str | None = None) -> Named:
    """Return what ``name`` stands for, however it is cased or hyphenated; ``family`` None looks in all of them.

    ``my_package.my_module:MyStrategy`` imports the module. An unknown name is looked up among installed packages.
    """
    places = tuple(FAMILIES.values()) if family is None else (FAMILIES[family],)
    if is_reference(name):
        return _referenced(name, places)
    for named in _all(places):
        if simplify(named.name) == simplify(name):
            return named
    found = [_loaded(entry) for entry in _entries(places) if simplify(entry.name) == simplify(name)]
    installed = [named for named in found if named is not None]
    if len(installed) > 1:
        packages = " and ".join(sorted(named.package for named in installed))
        raise ValueError(f"{name!r} is registered by {packages}; write my_package.my_module:{name} to choose one.")
    if installed:
        return installed[0]
    for old, new in {**DEPRECATED, **SECOND_NAMES}.items():
        if simplify(old) == simplify(name) and any(simplify(named.name) == simplify(new) for named in _all(places)):
            if old in DEPRECATED:
                warn_renamed(old, new)
            return find(new, family)
    raise ValueError(_unknown(name, family, places))


def _all(places: Iterable[Family]) -> Iterator[Named]:
    return (named for place in places for named in place)


def _unknown(name: str, family: str | None, places: Iterable[Family]) -> str:
    if family is not None and (elsewhere := _elsewhere(name)) is not None:
        members = ", ".join(FAMILIES[family].members)
        return f"{elsewhere.name} is one of the {elsewhere.family}, not of the {family}; those are {members}."
    what = "name" if family is None else _SINGULAR[family]
    known = [named.name for named in _all(places)]
    known += [entry.name for entry in _entries(places) if simplify(entry.name) != simplify(name)]
    suggestion = nearest(name, known + [alias.name for alias in ALIASES] * (family in (None, "strategies")))
    if family is None and not suggestion.startswith("; did you mean"):
        suggestion = "; `tacit list` shows them all."
    return f"unknown {what} {name!r}{suggestion}"


def installed(family: str) -> list[Named]:
    """Load and return what installed packages register in ``family``; warn about entries that cannot be used."""
    loaded = (_loaded(entry) for entry in _entries([FAMILIES[family]]))
    return [named for named in loaded if named is not None]


def fits(value: object, family: Family) -> bool:
    """Whether ``value`` may be called as a member of ``family``: a subclass of its base, or a function -> Workload."""
    if family.base is None:
        return False
    if inspect.isclass(value):
        return issubclass(value, family.base)
    if family.name != "workloads" or not inspect.isfunction(value):
        return False
    try:
        returned = inspect.signature(value, eval_str=True).return_annotation
    except NameError:  # an annotation that another package imports for type checkers only
        return False
    return inspect.isclass(returned) and issubclass(returned, family.base)


def base_name(base: type) -> str:
    """Return where users import ``base`` from."""
    is_public = any(family.base is base for family in FAMILIES.values()) and base is not rates.Rate
    return f"tacit.{base.__name__}" if is_public else f"{base.__module__}.{base.__name__}"


_USES: Final = {
    "periods": "write LocalSGD(period={}(…))",
    "compressors": "write CompressedGradient(compressor={}(…), feedback=EF21())",
    "feedbacks": "write CompressedGradient(compressor=TopK(…), feedback={}(…))",
    "outer": "write LocalSGD(outer={}(…))",
    "topologies": "write SwarmSGD(topology={}(…))",
}
"""How a class of another family is used in a strategy."""


def _referenced(name: str, places: Iterable[Family]) -> Named:
    bases = [place.base for place in places if place.base is not None]
    if not bases:
        raise ValueError(f"{name}: {', '.join(_SINGULAR[place.name] for place in places)} cannot come from a module.")
    value = load(name)
    family = next((place for place in places if fits(value, place)), None)
    wanted = " or ".join(map(base_name, bases))
    if family is None:
        also = " (or a function with the annotation -> Workload)" if bases == [workloads.Workload] else ""
        elsewhere = next((place for place in FAMILIES.values() if fits(value, place)), None)
        if elsewhere is not None:
            use = _USES.get(elsewhere.name, "use it as an argument")
            raise ValueError(f"{name} is one of the {elsewhere.name}, not a {wanted}; {use.format(name)}.")
        raise ValueError(f"{name} is not a subclass of {wanted}{also}; derive it from that class.")
    if inspect.isclass(value) and not dataclasses.is_dataclass(value):
        raise ValueError(f"{name} is not a dataclass; write @dataclass(frozen=True, kw_only=True) above the class.")
    return Named(name, family.name, typing.cast(Callable[..., object], value))


def _entries(places: Iterable[Family]) -> list[entry_points.Entry]:
    return entry_points.entries(place.name for place in places if place.base is not None)


def _loaded(entry: entry_points.Entry) -> Named | None:
    """Return the named thing that an installed package registers; None, with a warning, where it cannot be used."""
    taken = _elsewhere(entry.name) or (alias_of(entry.name) if entry.family == "strategies" else None)
    if taken is not None:
        entry.refuse(f"{taken.name} is a name of tacit; the package must register another name")
        return None
    value = entry.load()
    if value is None:
        return None
    family = FAMILIES[entry.family]
    if not fits(value, family):
        entry.refuse(f"it is not a subclass of {base_name(family.base or Spec)}")
        return None
    return Named(entry.name, entry.family, typing.cast(Callable[..., object], value), entry.package)


def find_alias(name: str, family: str | None = None) -> Alias | None:
    """Return the alias that ``name`` is where a strategy is expected, unless something there has that name itself."""
    if family not in (None, "strategies"):
        return None
    own = FAMILIES.values() if family is None else (FAMILIES[family],)
    if any(simplify(named.name) == simplify(name) for place in own for named in place):
        return None
    return alias_of(name)


def members_of(kind: type[Spec]) -> list[str]:
    """Return the names of everything that is a ``kind``, such as all periods."""
    constructors = ((n.name, n.constructor) for family in FAMILIES.values() for n in family)
    return [name for name, made in constructors if isinstance(made, type) and issubclass(made, kind)]


def simplify(name: str) -> str:
    """Return ``name`` without case, dashes and underscores."""
    return name.lower().replace("_", "").replace("-", "")


def _elsewhere(name: str) -> Named | None:
    return next((n for place in FAMILIES.values() for n in place if simplify(n.name) == simplify(name)), None)


def _default(constructor: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return the default as a value: dataclasses show a factory's default as a placeholder."""
    if parameter.default is REQUIRED or not dataclasses.is_dataclass(constructor):
        return parameter.default
    field = next(f for f in dataclasses.fields(constructor) if f.name == parameter.name)
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else parameter.default


def _spell_default(value: object) -> str:
    return value.__name__ if inspect.isclass(value) or inspect.isfunction(value) else spell(value)


def _read(
    family: str, question: str, module: ModuleType, is_member: Callable[[Any], bool], base: type | None = None
) -> Family:
    """Return the family of what ``module`` shows and made itself, in its own order."""
    members = {
        name: Named(name, family, value)
        for name in getattr(module, "__all__", vars(module))
        if not name.startswith("_")
        and is_member(value := getattr(module, name))
        and value.__module__.startswith(module.__name__)
    }
    return Family(family, question, members, base)


def _is_spec(value: object) -> bool:
    is_spec = inspect.isclass(value) and issubclass(value, Spec) and dataclasses.is_dataclass(value)
    return is_spec and not inspect.isabstract(value)


def _is_workload(value: object) -> bool:
    return inspect.isfunction(value) and value.__name__.islower()


FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        _read("strategies", "How do workers communicate?", strategies, _is_spec, strategies.Strategy),
        _read("periods", "How many steps does LocalSGD take between rounds?", periods, _is_spec, periods.Period),
        _read("compressors", "How is a vector compressed?", compression, _is_spec, compression.Compressor),
        _read("feedbacks", "How is the compression error corrected?", feedback, _is_spec, feedback.Feedback),
        _read("topologies", "With which workers does a worker exchange?", topology, _is_spec, topology.Topology),
        _read(
            "rates",
            "How does the learning rate depend on a gradient's staleness or its learner's speed?",
            rates,
            _is_spec,
            rates.Rate,
        ),
        _read("local_steps", "How many local steps does a node take between two exchanges?", local_steps, _is_spec),
        _read("outer", "How does LocalSGD apply the mean of a round?", outer, _is_spec, outer.Outer),
        _read("workloads", "What is trained, on which data?", workloads, _is_workload, workloads.Workload),
        _read("schedules", "How does the learning rate change over a run?", schedules, _is_spec, schedules.Schedule),
        _read("delays", "How long does the computation of a step take?", delays, _is_spec, delays.Delay),
        _read("faults", "Which fault occurs, where and when?", faults, _is_spec),
        _read("cluster", "On which machines and links?", cluster, _is_spec),
    )
}
_SINGULAR: Final = {
    "strategies": "strategy",
    "periods": "period",
    "compressors": "compressor",
    "feedbacks": "feedback",
    "topologies": "topology",
    "outer": "outer optimizer",
    "workloads": "workload",
    "schedules": "schedule",
    "delays": "delay",
    "faults": "fault",
    "cluster": "part of a cluster",
    "local_steps": "number of local steps",
    "rates": "rate",
}
