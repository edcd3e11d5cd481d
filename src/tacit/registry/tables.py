"""Tables of TOML files: their values are checked, texts in the notation parsed, and clusters made."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tacit.cluster.cluster import Cluster
from tacit.errors import TacitError, nearest, require
from tacit.record.step_times import read_from_files
from tacit.registry.notation import parse
from tacit.registry.units import seconds

Table = dict[str, Any]
"""A table as TOML holds it: texts in the notation, numbers, lists and further tables."""

_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}

_EXAMPLES: Final = {
    "workloads": 'digits(model="mlp")',
    "strategies": "LocalSGD(period=Every(8))",
    "schedules": "Cosine()",
    "delays": "Exponential(mean_s=0.02)",
    "faults": "Crash(rank=3, at_s=2.0)",
    "cluster": "Link(latency_s=0.01)",
}


def read_toml(path: Path, option: str) -> Table:
    """Return the table in the TOML file that ``option`` names."""
    try:
        table: Table = read_from_files(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except OSError as error:
        raise TacitError(
            f"{option} {path} cannot be read: {error.strerror or error}; give the path of a TOML file."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"{option} {path} is not TOML: {error}.") from error
    return table


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` if it is of ``kind``; a whole number is accepted as a float."""
    if not isinstance(value, int | float if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name}={value!r} must be {_WORDS[kind]}.")
    return float(value) if kind is float else value


def check_keys(table: Mapping[str, Any], known: Any, where: str) -> None:
    unknown = next((key for key in table if key not in known), None)
    require(unknown is None, f"{where}: unknown key {unknown!r}{nearest(str(unknown), known)}")


def listed(table: Table, name: str) -> list[Any]:
    """Return the list that ``table`` has under ``name``."""
    return list(checked(name, table[name], list))


def keyed(table: Table, name: str) -> Iterable[tuple[str, Any]]:
    """Return the items of the table that ``table`` has under ``name``."""
    return list(checked(name, table[name], dict).items())


def parsed(name: str, text: Any, family: str) -> Any:
    """Return the object that ``text`` is the notation of; ``name``: of the setting."""
    if not isinstance(text, str):
        raise ValueError(f"{name}={text!r} must be a text such as {_EXAMPLES[family]!r}.")
    return parse(text, family)


def cluster_of(table: Table) -> Cluster:
    """Return the cluster of a TOML table."""
    return Cluster(**cluster_fields(table))


def cluster_fields(table: Table) -> dict[str, Any]:
    """Return the fields of a cluster from a TOML table, with texts in the notation parsed and ranks as numbers."""
    readers: Mapping[str, Callable[[Any], Any]] = {
        "compute": _compute,
        "faults": lambda _: [parsed("faults", text, "faults") for text in listed(table, "faults")],
        "speed": lambda _: {_rank("speed", r): checked("speed", v, float) for r, v in keyed(table, "speed")},
        "costs": lambda _: {name: _cost(value) for name, value in keyed(table, "costs")},
        "hosts": lambda value: value if isinstance(value, list) else checked("hosts", value, int),
        "collectives": _collectives,
        "nics": lambda _: {_rank("nics", r): parsed("nics", v, "cluster") for r, v in keyed(table, "nics")},
        "links": lambda _: {_pair(pair): parsed("links", v, "cluster") for pair, v in keyed(table, "links")},
    }
    kinds = {"workers": int, "cores": int, "min_workers": int, "cancel": str, "server": str}
    return {
        key: readers[key](value) if key in readers else checked(key, value, kinds.get(key, float))
        for key, value in table.items()
    }


def _cost(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else checked("costs", value, float)


def _compute(value: Any) -> Any:
    """Return the delay of a text, or the delays by rank of a list or table of texts."""
    if isinstance(value, list):
        return [_delay(text) for text in value]
    if isinstance(value, dict):
        return {_rank("compute", rank): _delay(text) for rank, text in value.items()}
    return _delay(value)


def _delay(text: Any) -> Any:
    """Return the delay of a call such as ``Constant(mean_s=0.03)``; ``30ms`` is a constant one."""
    is_time = isinstance(text, str) and text.strip()[:1] in tuple("0123456789.")
    if not is_time:
        return parsed("compute", text, "delays")
    try:
        return parse(f"Constant(mean_s={seconds(text)!r})", "delays")
    except ValueError as error:
        raise ValueError(f"compute={text!r}: {error}") from None


def _collectives(text: Any) -> Any:
    """Return the name of a library in lower case, or the object of a call such as ``Measured({1000: 0.0004})``."""
    is_name = isinstance(text, str) and "(" not in text
    return text.lower() if is_name else parsed("collectives", text, "cluster")


def _rank(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'{name}: {text!r} is not a rank; write {name} = {{ "3" = … }} for worker 3.') from None


def _pair(text: str) -> tuple[int, int]:
    source, _, target = text.partition(",")
    return _rank("links", source), _rank('links of two ranks such as "0,3"', target)
