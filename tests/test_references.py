"""Classes of the user's own modules in the notation: read and printed by reference, imported only when needed."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.cli.settings import read_cluster
from tacit.core.specs import Spec
from tacit.registry import find, modules_in, parse

PACKAGE = '''
from __future__ import annotations

from dataclasses import dataclass


import tacit
from tacit import workloads
from tacit.compression.feedback import EF21
from tacit.strategies.local_sgd.outer import OuterSGD
from tacit.strategies.local_sgd.periods import Period, PeriodState


@dataclass(frozen=True, kw_only=True)
class MyStrategy(tacit.LocalSGD):
    """LocalSGD with one more argument."""

    k: int = 1

    class Inner:
        pass


@dataclass(frozen=True)
class Doubling(Period):
    n: int = 1

    def init(self, steps):
        return PeriodState(self.n)


@dataclass(frozen=True, kw_only=True)
class MyTop(tacit.TopK):
    pass


@dataclass(frozen=True, kw_only=True)
class MyFeedback(EF21):
    pass


@dataclass(frozen=True)
class MyRing(tacit.Ring):
    pass


@dataclass(frozen=True, kw_only=True)
class MyDelay(tacit.Constant):
    pass


@dataclass(frozen=True, kw_only=True)
class MyOuter(OuterSGD):
    pass


@dataclass(frozen=True, kw_only=True)
class MySchedule(tacit.Cosine):
    pass


@dataclass(frozen=True, kw_only=True)
class MyRate(tacit.InverseStaleness):
    pass


class Plain(tacit.Strategy):
    """A strategy without @dataclass."""


def problem(dimension: int = 3) -> workloads.Workload:
    return workloads.quadratic(dimension=dimension)


def wrong(dimension: int = 3) -> workloads.Workload:
    return dimension


def without_annotation(path):
    raise AssertionError("a function without the annotation was called")
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder that holds my_package; forget the modules and the path afterwards."""
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "things.py").write_text(PACKAGE)
    (folder / "broken.py").write_text("import a_module_that_is_missing\n")
    (folder / "raising.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


CALLS = [
    ("my_package.things:MyStrategy(period=Every(4), k=2)", "strategies"),
    ("my_package.things:MyStrategy", "strategies"),
    ("LocalSGD(period=my_package.things:Doubling(2))", "strategies"),
    ("LocalSGD(period=Every(4), outer=my_package.things:MyOuter(lr=0.5))", "strategies"),
    (
        "CompressedGradient(compressor=my_package.things:MyTop(k=2), feedback=my_package.things:MyFeedback)",
        "strategies",
    ),
    ("DPSGD(topology=my_package.things:MyRing)", "strategies"),
    ("KAsync(k=1, rate=my_package.things:MyRate())", "strategies"),
    ("AdaSync(KAsync(k=1, rate=my_package.things:MyRate()))", "strategies"),
    ("my_package.things:Doubling(3)", "periods"),
    ("my_package.things:MyTop(fraction=0.5)", "compressors"),
    ("Chain(my_package.things:MyTop(k=3), Sign())", "compressors"),
    ("my_package.things:MyFeedback()", "feedbacks"),
    ("my_package.things:MyRing()", "topologies"),
    ("my_package.things:MyDelay(mean_s=0.5)", "delays"),
    ("my_package.things:MyOuter(lr=0.5)", "outer"),
    ("my_package.things:MySchedule(warmup_steps=3)", "schedules"),
    ("my_package.things:problem(dimension=4)", "workloads"),
    ("Cluster(workers=2, compute=my_package.things:MyDelay(mean_s=0.5))", None),
    ("SlowSpells(compute=my_package.things:MyDelay(mean_s=0.5))", "delays"),
]


@pytest.mark.parametrize(("text", "family"), CALLS)
def test_a_reference_is_read_wherever_a_name_is(package: Path, text: str, family: str | None) -> None:
    made = parse(text, family)
    assert parse(str(made), family) == made
    module = importlib.import_module("my_package.things")
    assert "my_package.things:" in str(made) or made == module.problem(4)


def test_a_reference_prints_with_the_module_that_defines_the_class(package: Path) -> None:
    (package / "__init__.py").write_text("from my_package.things import MyStrategy\n")
    made = parse("my_package:MyStrategy(period=Every(4), k=2)", "strategies")
    assert str(made) == "my_package.things:MyStrategy(period=Every(4), k=2)"
    assert tacit.simulate(tacit.workloads.quadratic(dimension=3), made, steps=4).strategy == str(made)


def test_classes_that_no_other_process_can_import_print_by_their_name() -> None:
    @dataclass(frozen=True)
    class Local(tacit.Ring):
        pass

    script = type("Script", (Spec,), {"__module__": "__main__"})
    assert str(Local()) == "Local()"
    assert str(script()) == "Script()"
    assert str(tacit.Every(3)) == "Every(3)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nowhere.things:X()",
            r"nowhere.things:X: there is no module 'nowhere'; searched the current directory {cwd} and "
            r"the installed packages. Run the command in the folder that holds nowhere, or install",
        ),
        ("my_package.thing:X()", r"the package my_package has no module 'thing'; did you mean 'things'\?"),
        ("my_package.things:MyStrateg()", r"my_package.things has no 'MyStrateg'; did you mean 'MyStrategy'\?"),
        (
            "my_package.things:MyRing()",
            r"my_package.things:MyRing is one of the topologies, not a tacit.Strategy; write SwarmSGD",
        ),
        ("my_package.things:MyStrategy.Inner()", r"MyStrategy.Inner is not a subclass of tacit.Strategy"),
        ("my_package.things:Plain()", r"Plain is not a dataclass; write @dataclass\(frozen=True, kw_only=True\)"),
        (
            "my_package.things:MyStrategy(kk=2)",
            r"things:MyStrategy has no argument 'kk'; did you mean 'k'\? Its arguments",
        ),
        ("my_package.things:MyStrategy(k='x')", r'k="x" of my_package.things:MyStrategy must be a whole number'),
        ("my_package.things:MyStrategy(2)", r"takes no argument without its name; write my_package.things:MyStrategy"),
        ("my_package.broken:X()", r"my_package.broken cannot be imported: No module named 'a_module_that_is_missing'"),
        ("my_package.raising:X()", r"my_package.raising cannot be imported: RuntimeError: no licence"),
        (
            "LocalSGD(period=my_package.things:MyRing())",
            r"my_package.things:MyRing is not a subclass of tacit.Period, which period of LocalSGD must be",
        ),
        ("KAsync(k=1, rate=my_package.things:MyRing)", r"is not a subclass of tacit\.[\w.]*Rate, which rate of KAsync"),
        ("LocalSGD(period=shutil:rmtree('x'))", r"shutil:rmtree is not a subclass of"),
        (
            "my_package.things.MyStrategy()",
            r"is not a name tacit knows.* a class of your own is my_package.things:MyStrategy",
        ),
        ("my_package.things: MyStrategy()", "cannot be read"),
    ],
)
def test_a_wrong_reference_says_the_way_out(package: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{cwd}", str(Path.cwd()))):
        parse(text, "strategies")


def test_functions_are_called_only_where_they_say_that_they_return_a_workload(package: Path) -> None:
    for text in ("my_package.things:without_annotation('x')", "shutil:rmtree('x')", "os:system('true')"):
        with pytest.raises(
            ValueError, match=r"is not a subclass of tacit.Workload \(or a function with the annotation"
        ):
            parse(text, "workloads")
    with pytest.raises(ValueError, match=r"things:wrong returned a int; it must return a tacit.Workload"):
        parse("my_package.things:wrong()", "workloads")
    with pytest.raises(ValueError, match="fault cannot come from a module"):
        parse("my_package.things:MyRing()", "faults")


def test_a_safe_path_leaves_the_current_directory_out(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safe = SimpleNamespace(flags=SimpleNamespace(safe_path=True), path=sys.path, modules=sys.modules)
    monkeypatch.setattr("tacit.registry.references.sys", safe)
    with pytest.raises(
        ValueError, match="searched the installed packages .not the current directory, which PYTHONSAFE"
    ):
        parse("my_package.things:MyStrategy()")


def test_the_modules_of_a_text_are_told_without_importing_them() -> None:
    text = 'nowhere.a:X(period=other:Y.Z(3), path="C:data", links={0:1, (0, 1): Link()}, again=nowhere.a:W)'
    assert modules_in(text) == ["nowhere.a", "other"]
    assert modules_in("LocalSGD(period=Every(8))") == []


def test_names_of_references_are_found_with_their_arguments(package: Path) -> None:
    named = find("my_package.things:MyStrategy", "strategies")
    assert named.meaning == "LocalSGD with one more argument."
    assert "k=1" in [str(argument) for argument in named.arguments]


def test_a_saved_run_is_loaded_and_reported_without_importing_what_it_names(package: Path) -> None:
    """A run folder may come from anywhere: only commands that run its strategy import the module, and they say so."""
    quadratic = tacit.workloads.quadratic(dimension=3)
    run = tacit.simulate(quadratic, tacit.AllReduce(), steps=4)
    text = "my_package.raising:Trap(period=Every(4))"
    run.strategy, run.config, run.record = text, {**run.config, "strategy": text}, {**run.record, "world": "processes"}
    run.save("comparison/runs/one")
    Path("comparison/compare.toml").write_text(
        f"strategies = [{json.dumps(text)}]\nworkload = 'my_package.raising:w()'\n"
    )

    assert tacit.Run.load("comparison/runs/one").strategy == text
    assert read_cluster(Path("comparison/runs/one"))["workers"] == run.workers
    for folder in ("comparison/runs/one", "comparison"):
        answer = CliRunner().invoke(app, ["report", folder], prog_name="tacit")
        assert (answer.exit_code, answer.stderr) == (0, "")
    answer = CliRunner().invoke(app, ["replay", "comparison/runs/one"], prog_name="tacit")
    assert "run.toml names modules outside tacit, which are imported: my_package.raising." in answer.stdout
    assert "RuntimeError: no licence" in answer.stderr
    for command in ("compare", "train"):
        (Path("comparison") / "run.toml").write_text(run.toml())
        answer = CliRunner().invoke(app, [command, "--resume", "comparison"], prog_name="tacit")
        assert "names modules outside tacit, which are imported: my_package.raising." in answer.stdout
        assert "RuntimeError: no licence" in answer.stderr
