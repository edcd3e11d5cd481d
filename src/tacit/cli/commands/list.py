"""``tacit list``: all names of the notation."""

from __future__ import annotations

import inspect
import textwrap
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tacit.cli import options
from tacit.cli.exit_messages import explained
from tacit.cli.screens.terminal import console
from tacit.errors import nearest
from tacit.registry import ALIASES, FAMILIES, Alias, Family, Named, find, find_alias, installed


@explained
def list_command(
    name: Annotated[
        str | None, typer.Argument(help="Family, such as periods, or one name.", show_default="all")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """List strategies, periods, workloads and so on, with their arguments and defaults.

    Names are written as Python calls on the command line, in TOML files and
    in Python: LocalSGD(period=Every(8)). Installed packages may add names.
    A class in a module of your own is written module:Class.

    [bold]Examples[/]

    \b
      tacit list
      tacit list periods
      tacit list VariancePeriod
      tacit list my_package.my_module:MyStrategy
    """
    screen = console(quiet=False)
    if name is None:
        for family in FAMILIES.values():
            _print_family(family, screen)
    elif name.lower() in FAMILIES:
        _print_family(FAMILIES[name.lower()], screen)
    elif (alias := find_alias(name)) is not None:
        _print_alias(alias, screen, indent=0)
    else:
        _print_one(_found(name), screen)


def _found(name: str) -> Named:
    try:
        return find(name)
    except ValueError:
        if ":" in name:
            raise
        named = (named.name for family in FAMILIES.values() for named in family)
        known = [*FAMILIES, *named, *(alias.name for alias in ALIASES)]
        raise ValueError(f"unknown name {name!r}{nearest(name, known)}") from None


def _print_family(family: Family, screen: Console) -> None:
    screen.print(Text(f"{family.name} — {family.question}", style="bold"))
    for named in [*family, *installed(family.name)]:
        screen.print(_call(named, screen, indent=2))
        source = f" (package {named.package})" if named.package else ""
        screen.print(_wrapped(f"{_plain(named.meaning)}{source}", screen, indent=6), style="dim")
    screen.print()
    if family.name == "strategies":
        screen.print(Text("papers' names — Which call does a paper's name stand for?", style="bold"))
        for alias in ALIASES:
            _print_alias(alias, screen, indent=2)
        screen.print()


def _print_alias(alias: Alias, screen: Console, *, indent: int) -> None:
    text = _wrapped(f"{alias.name} = {alias.stands_for}", screen, indent=indent)
    text.stylize("bold cyan", indent, indent + len(alias.name))
    screen.print(text)
    screen.print(_wrapped(alias.source, screen, indent=indent + 4), style="dim")


def _print_one(named: Named, screen: Console) -> None:
    screen.print(_call(named, screen, indent=0))
    for line in _plain(inspect.cleandoc(named.constructor.__doc__ or "")).splitlines():
        screen.print(_wrapped(line, screen, indent=4))


def _call(named: Named, screen: Console, *, indent: int) -> Text:
    arguments = ", ".join(str(argument) for argument in named.arguments)
    text = _wrapped(f"{named.name}({arguments})", screen, indent=indent)
    text.stylize("bold cyan", indent, indent + len(named.name))
    return text


def _wrapped(line: str, screen: Console, *, indent: int) -> Text:
    """Return ``line`` wrapped to the width of the screen, without trailing blanks."""
    margin = " " * indent
    return Text("\n".join(textwrap.wrap(line, screen.width, initial_indent=margin, subsequent_indent=margin)))


def _plain(docstring: str) -> str:
    return docstring.replace("``", "")
