"""``--help`` teaches and ``tacit list`` shows everything that has a name."""

from __future__ import annotations

import importlib.metadata
import re
import shlex

import pytest

from tacit import __version__
from tacit.registry import FAMILIES
from tests.cli.command_line import Command


@pytest.mark.parametrize("command", ["compare", "simulate", "train", "probe", "report", "topology", "list"])
def test_every_command_has_examples_that_parse(tacit: Command, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    shown = tacit(command, "--help").output
    examples = re.findall(rf"^\W*(tacit {command}(?: .*?)?)[ │]*$", shown, re.MULTILINE)
    assert 2 <= len(examples) <= 5
    for example in examples:
        words = shlex.split(example)
        assert "No such option" not in tacit(*words[1:], "--help").errors


def test_help_names_units_and_defaults(tacit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    shown = " ".join(tacit("compare", "--help").output.split())
    for text in ("1Gbit/s, 100MB/s, or bytes per second", "[default: (500)]", "Simulated cluster", "Optimizer"):
        assert text in shown


def test_list_shows_everything(tacit: Command) -> None:
    shown = tacit("list").output
    for family in FAMILIES.values():
        assert f"{family.name} — {family.question}" in shown
        for named in family:
            assert f"  {named.name}(" in shown
    assert not re.search(r" +$", shown, re.MULTILINE)


def test_list_shows_one_family_or_one_name(tacit: Command) -> None:
    assert tacit("list", "delays").output.startswith("delays — ")
    assert "Pareto" not in tacit("list", "periods").output
    one = tacit("list", "variance-period").output
    assert one.startswith("VariancePeriod(initial=4, sampling_steps=None")
    assert "While sampling" in one
    answer = tacit("list", "dealys")
    assert (answer.exit_code, answer.errors) == (2, "error: unknown name 'dealys'; did you mean 'delays'?")


def test_version(tacit: Command) -> None:
    assert tacit("--version").output == f"tacit {__version__}\n"
    try:
        installed = importlib.metadata.version("tacit")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == __version__


def test_alone_it_helps(tacit: Command) -> None:
    assert "Start here" in tacit().output


def test_papers_names_are_listed_and_said_when_used(tacit: Command, tiny: Command) -> None:
    assert (
        "DiLoCo = LocalSGD(period=Every(50), outer=OuterSGD(lr=0.7, momentum=0.9, nesterov=True))"
        in tacit("list").output
    )
    assert "EF21-SGDM = CompressedGradient(" in tacit("list", "strategies").output
    assert tacit("list", "adpsgd").output.startswith("ADPSGD = LocalSGD(period=VariancePeriod(initial=4))")
    answer = tiny("compare", "-s", "ADPSGD", "-s", "DDP", "--out", "here")
    assert answer.exit_code == 0, answer.errors
    assert "note: ADPSGD stands for LocalSGD(period=VariancePeriod(initial=4)) (adaptive periods" in answer.output
    assert tiny("simulate", "-s", "ASGD(maximum_staleness=2)", "--out", "one").output.startswith(
        "note: ASGD stands for KAsync(k=1, maximum_staleness=2)"
    )
