"""Names that installed packages register: found when unknown, listed, refused with a warning that names the package."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import tacit
from tacit.cli import app
from tacit.registry import EntryPointWarning, find, parse

MODULE = '''
from dataclasses import dataclass

import tacit
from tacit import workloads


@dataclass(frozen=True, kw_only=True)
class SlowSGD(tacit.LocalSGD):
    """LocalSGD of another package."""


@dataclass(frozen=True, kw_only=True)
class Half(tacit.TopK):
    """Top-k of another package."""

    fraction: float = 0.5


def toy(dimension: int = 3) -> workloads.Workload:
    """A small quadratic."""
    return workloads.quadratic(dimension=dimension)
'''
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package on the path: its dist-info with entry points, and a module."""
    site = tmp_path / "site-packages"
    site.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])

    def made(package: str, entry_points: str, module: str = MODULE) -> None:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        (site / f"{package}_module.py").write_text(module)

    yield made
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def tacit_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="tacit")


ENTRIES = """
[tacit.strategies]
SlowSGD = slow_module:SlowSGD

[tacit.compressors]
Half = slow_module:Half

[tacit.workloads]
toy = slow_module:toy
"""


def test_registered_names_are_listed_simulated_and_read_from_toml(install: Install) -> None:
    install("slow", ENTRIES)
    listed = tacit_command("list")
    assert listed.exit_code == 0, listed.stderr
    assert "SlowSGD(period=" in listed.stdout and "LocalSGD of another package. (package slow)" in listed.stdout
    assert "toy(dimension=3)" in tacit_command("list", "workloads").stdout
    assert tacit_command("list", "slow-sgd").stdout.startswith("SlowSGD(period=")

    options = ("--steps", "6", "--workers", "2", "--out")
    answer = tacit_command(
        "simulate", "-s", "slow-sgd(compressor=half)", "--workload", "toy(dimension=4)", *options, "one"
    )
    assert answer.exit_code == 0, answer.stderr
    run = tacit.Run.load("one")
    assert run.strategy == "slow_module:SlowSGD(period=Every(8), compressor=slow_module:Half())"
    assert tomllib.loads(Path("one/run.toml").read_text())["strategy"] == run.strategy
    assert tacit_command("simulate", "--config", "one/run.toml", "--out", "two").exit_code == 0
    assert tacit.Run.load("two").digest == run.digest

    Path("own.toml").write_text("strategy = 'SlowSGD(period=Every(2))'\nworkload = 'toy()'\n")
    assert tacit_command("simulate", "--config", "own.toml", *options, "three").exit_code == 0
    assert tacit.Run.load("three").strategy == "slow_module:SlowSGD(period=Every(2))"


def test_a_package_is_imported_only_when_its_name_is_used(install: Install) -> None:
    install("slow", ENTRIES)
    parse("LocalSGD(period=Every(8), compressor=TopK(k=1))", "strategies")
    with pytest.raises(ValueError, match=r"unknown strategy 'SlowSGDs'; did you mean 'SlowSGD'\?"):
        parse("SlowSGDs", "strategies")
    assert "slow_module" not in sys.modules
    assert find("SlowSGD").package == "slow"
    assert "slow_module" in sys.modules


@pytest.mark.parametrize(
    ("entries", "module", "message"),
    [
        (
            "Broken = slow_module:Missing",
            MODULE,
            "the package slow registers 'Broken' = slow_module:Missing in tacit.strategies, "
            "which is ignored: it cannot be loaded: AttributeError",
        ),
        (
            "Broken = slow_module:SlowSGD",
            "raise RuntimeError('no licence')",
            "cannot be loaded: RuntimeError: no licence",
        ),
        ("Broken = slow_module:Half", MODULE, "it is not a subclass of tacit.Strategy"),
        (
            "LocalSGD = slow_module:SlowSGD",
            MODULE,
            "LocalSGD is a name of tacit; the package must register another name",
        ),
        ("top-k = slow_module:SlowSGD", MODULE, "TopK is a name of tacit"),
        ("DiLoCo = slow_module:SlowSGD", MODULE, "DiLoCo is a name of tacit"),
    ],
)
def test_an_entry_that_cannot_be_used_is_a_warning_that_names_the_package(
    install: Install, entries: str, module: str, message: str
) -> None:
    install("slow", f"[tacit.strategies]\n{entries}\n", module)
    with pytest.warns(EntryPointWarning, match=message):
        listed = tacit_command("list", "strategies")
    assert listed.exit_code == 0 and "(package slow)" not in listed.stdout


def test_a_broken_entry_that_is_asked_for_is_unknown(install: Install) -> None:
    install("slow", "[tacit.periods]\nMine = slow_module:Missing\nLocalSGD = slow_module:SlowSGD\n")
    with (
        pytest.warns(EntryPointWarning, match="package slow"),
        pytest.raises(ValueError, match="unknown period 'Mine'"),
    ):
        parse("Mine", "periods")
    with (
        pytest.warns(EntryPointWarning, match="LocalSGD is a name of tacit"),
        pytest.raises(ValueError, match="LocalSGD is one of the strategies, not of the periods"),
    ):
        parse("LocalSGD", "periods")
    assert parse("LocalSGD", "strategies") == tacit.LocalSGD()


def test_a_name_that_two_packages_register_must_be_written_with_its_module(install: Install) -> None:
    install("slow", ENTRIES)
    install("other", "[tacit.strategies]\nSlowSGD = other_module:SlowSGD\n")
    with pytest.raises(
        ValueError, match="'SlowSGD' is registered by other and slow; write my_package.my_module:SlowSGD"
    ):
        parse("SlowSGD", "strategies")
    assert str(parse("other_module:SlowSGD", "strategies")) == "other_module:SlowSGD(period=Every(8))"
