"""Each layer imports only from the layers below it; a few foreign packages have one home each."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tacit.core.network import Network
from tacit.strategies import Strategy

SOURCE = Path(__file__).parents[1] / "src" / "tacit"
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"

LAYERS = (  # bottom first
    {"errors"},
    {"core"},
    {"training", "compression", "topology", "cluster", "record"},
    {"strategies", "theory", "workloads"},
    {"session"},
    {"simulation", "runtime"},
    {"profiles", "report", "registry", "compare", "watch"},
    {"planning", "chaos"},
    {"testing"},
    {"cli"},
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
NEVER = {  # beyond the order of the layers
    "simulation": {"runtime"},
    "runtime": {"simulation"},
    "report": {"simulation", "runtime", "registry", "compare", "planning", "profiles", "watch"},
    "registry": {"report", "compare", "planning", "profiles"},
}
FOR_TYPES_ONLY = {("errors", "record"), ("record", "workloads")}  # allowed under TYPE_CHECKING
HOMES = {
    "greenlet": "simulation/fibers.py",
    "plotly": "report",
    "typer": "cli",
    "zmq": "runtime/messaging",
    "triton": "compression/kernels/",
    "ray": "compare/ray_executor.py",
}


class Import(NamedTuple):
    path: Path
    line: int
    module: str
    for_types: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE.parents[1])}:{self.line} imports {self.module}"


def test_no_layer_reaches_upwards() -> None:
    wrong = []
    for found in _imports_of_tacit():
        mine, theirs = _component(found.path), found.module
        if theirs not in HEIGHT:
            continue  # the package itself: the next test but one
        if mine == "__init__":
            fine = theirs != "cli"
        elif (mine, theirs) in FOR_TYPES_ONLY:
            fine = found.for_types
        else:
            fine = HEIGHT[theirs] <= HEIGHT[mine] and theirs not in NEVER.get(mine, ())
        if not fine:
            wrong.append(str(found))
    assert not wrong, "\n".join(["a layer reaches upwards:", *wrong])


def test_every_module_has_a_layer() -> None:
    present = {_component(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert present <= set(HEIGHT), f"give {sorted(present - set(HEIGHT))} a place in LAYERS of {__file__}"


def test_nothing_below_imports_the_package_itself() -> None:
    """``from tacit import LocalSGD`` inside the package would load everything and hide which layer is meant."""
    wrong = [str(i) for i in _imports_of_tacit() if i.module not in HEIGHT and _component(i.path) != "__init__"]
    allowed = [w for w in wrong if w.endswith("imports __version__")]
    assert wrong == allowed, "\n".join(["import from the module that defines it:", *wrong])


def test_foreign_packages_stay_at_home() -> None:
    wrong = [
        f"{found}, which belongs in {home}"
        for found in _imports()
        if (home := HOMES.get(found.module.partition(".")[0])) and not _is_inside(found.path, home)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_architecture_page_shows_every_component() -> None:
    page = PAGE.read_text()
    picture, rows = page.split("```")[1], [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    remark = re.compile(r" {8,}[a-z].*")
    shown = [set(re.findall(r"[a-z_]+", remark.sub("", line.strip()))) for line in picture.splitlines()]
    exist = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    } & HEIGHT.keys()
    heights = {name: place for place, line in enumerate(reversed(shown)) for name in line}
    assert exist - heights.keys() == set(), "missing in the picture"
    by_height = sorted(exist, key=lambda name: heights[name])
    assert [HEIGHT[name] for name in by_height] == sorted(HEIGHT[name] for name in exist), (
        "the picture has another order"
    )
    described = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert exist - described == set(), "missing in the table"


def test_the_pages_name_every_call_of_the_port_and_every_hook() -> None:
    calls = [name for name, value in vars(Network).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert f"`Protocol` of {len(calls)} calls" in PAGE.read_text()
    strategies = (PAGE.parent / "how-to" / "write-a-strategy.md").read_text()
    table = "".join(
        line
        for line in strategies.partition("## Hooks")[2].partition("## The network")[0].splitlines(True)
        if line[0] == "|"
    )
    port = strategies.partition("## The network")[2].partition("\n## ")[0]
    assert [name for name in calls if f"`{name}" not in port] == []
    hooks = [name for name, value in vars(Strategy).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert [name for name in hooks if f"`{name}(" not in table] == []


def test_the_walk_sees_imports() -> None:
    """The other tests would pass on an empty list."""
    assert Import(SOURCE / "compare" / "workloads.py", 0, "report", False) in [
        i._replace(line=0) for i in _imports_of_tacit()
    ]


def _imports_of_tacit() -> Iterator[Import]:
    """Yield imports within the package, ``module`` being the component: ``tacit.report.page`` is report."""
    for found in _imports():
        root, _, rest = found.module.partition(".")
        if root == "tacit" and _component(found.path) != "__main__":
            yield found._replace(module=rest.partition(".")[0])


@functools.cache
def _imports() -> list[Import]:
    """Return all imports of the package. Six tests read them; the sources are parsed once."""
    return [found for path in sorted(SOURCE.rglob("*.py")) for found in _imports_of(path)]


def _imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(), str(path))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        for module in _modules(node, path):
            yield Import(path, getattr(node, "lineno", 0), module, id(node) in typing_only)


def _modules(node: ast.AST, path: Path) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(level=0, module="tacit", names=names):
            return [f"tacit.{alias.name}" for alias in names]
        case ast.ImportFrom(level=0, module=module):
            return [str(module)]
        case ast.ImportFrom():
            raise AssertionError(f"{path}:{node.lineno} imports relatively; write the module's full name")
    return []


def _component(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _is_inside(path: Path, home: str) -> bool:
    return path.relative_to(SOURCE).as_posix().startswith(home)


def test_importing_tacit_loads_no_package_for_figures_tables_or_messages_and_no_old_path() -> None:
    """``import tacit`` takes part in every start of a process; what only reports or messages need comes later."""
    heavy = ("plotly", "jinja2", "rich", "typer", "sklearn", "networkx", "zmq")
    code = f"""
import sys, tacit
print([name for name in {heavy} if name in sys.modules])
import tacit.cli.app
from tacit.core.compatibility.moved_modules import MOVED
print(MOVED.keys() & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\nset()\n", "")
