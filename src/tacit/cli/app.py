"""The command line: all commands in one application."""

from __future__ import annotations

from typing import Annotated

import typer

from tacit import __version__
from tacit.cli.commands.chaos import chaos_command
from tacit.cli.commands.compare import compare_command
from tacit.cli.commands.launch import launch_command
from tacit.cli.commands.list import list_command
from tacit.cli.commands.plan import plan_command
from tacit.cli.commands.probe import probe_command
from tacit.cli.commands.replay import replay_command
from tacit.cli.commands.report import report_command
from tacit.cli.commands.serve import serve_command
from tacit.cli.commands.simulate import simulate_command
from tacit.cli.commands.topology import topology_command
from tacit.cli.commands.train import train_command
from tacit.cli.commands.watch import watch_command

app = typer.Typer(
    name="tacit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(compare_command)
app.command("simulate")(simulate_command)
app.command("plan")(plan_command)
app.command("train")(train_command)
app.command("launch", context_settings={"allow_interspersed_args": False})(launch_command)
app.command("probe")(probe_command)
app.command("serve")(serve_command)
app.command("chaos")(chaos_command)
app.command("replay")(replay_command)
app.command("watch")(watch_command)
app.command("report")(report_command)
app.command("topology")(topology_command)
app.command("list")(list_command)


def main() -> None:
    """Run the command line."""
    app()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Distributed training with little communication.

    Compare communication strategies (how often workers exchange, what they
    send, with whom, how long they wait) on a simulated cluster with a
    virtual clock. Then run the same strategy code on real processes.

    [bold]Start here[/]

    \b
      tacit compare                      compare four strategies on real data
      tacit compare --help               show all options, with examples
      tacit plan --profile FOLDER        predict which strategy is fastest
      tacit train --workers 2            run one strategy on real processes
      tacit watch FOLDER                 follow a run while it goes on
      tacit list                         list all strategies, periods, workloads, …
    """
