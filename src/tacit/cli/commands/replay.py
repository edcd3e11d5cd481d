"""``tacit replay``: a real run again in the simulator, in the order in which its messages came."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from tacit.cli import options
from tacit.cli import run_folders as folders
from tacit.cli.exit_messages import FAILED, complain, explained
from tacit.cli.save_run import keep
from tacit.cli.settings import Settings, import_notes, read_file, settle
from tacit.cli.terminal import Screen, console, print_notes
from tacit.errors import TacitError
from tacit.record.run import Run
from tacit.simulation import simulate
from tacit.simulation.replay import check_replay


@explained
def replay_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of a run that tacit train has finished.")
    ],
    tolerance: Annotated[
        float,
        typer.Option(metavar="NUMBER", help="How far the models may be apart, in parts of the largest parameter."),
    ] = 1e-3,
    out: options.Out = None,
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Play a real run again in the simulator, message by message.

    What an asynchronous strategy reaches depends on who came first. The
    trace of a run on real processes says who did; this follows it, on one
    core and without a network, compares the models that both reach, and
    leaves a run like any other: to look into, or to change a line of a
    strategy and see from where on things go another way.

    [bold]Examples[/]

    \b
      tacit train -s 'SwarmSGD(local_steps=4)' --workers 4 --out runs/real
      tacit replay runs/real
      tacit report runs/real runs/replay-20260102-120000 --out both.html
    """
    run, settings = Run.load(folder), _settings(folder, console(quiet))
    check_replay(settings.strategies[0], run)
    if json_file is not None:
        folders.writable(json_file)
    target = folders.claim(out, command="replay", force=force)
    screen = console(quiet)
    with folders.removed_if_unused(target), Screen(screen, total=1) as watcher:
        again = _play(run, settings, watcher)
    keep(again, target, screen, json_file, way_back=f"tacit replay {folder}")
    apart = _apart(run, again)
    screen.print(
        f"The model of {folder} is reached to within {apart:.2g} of its largest parameter.",
        highlight=False,
        soft_wrap=True,
    )
    if apart > tolerance:
        complain(
            f"the models are {apart:.2g} of the largest parameter apart, more than --tolerance {tolerance:g}: "
            f"something computes otherwise than it did then."
        )
        raise typer.Exit(FAILED)


def _settings(folder: Path, screen: Console) -> Settings:
    path = folder / "run.toml"
    if not path.exists():
        raise TacitError(f"{folder} has no run.toml, which says what was run; give a folder that tacit train wrote.")
    print_notes(import_notes(path), screen)
    return settle(read_file(path, single=True))


def _play(run: Run, settings: Settings, watcher: Screen) -> Run:
    [strategy], [seed] = settings.strategies, settings.seeds
    torch.set_num_threads(settings.threads)
    watcher.begin(str(strategy), seed, settings.lr, tuning=False)
    training = settings.training()
    del training["cluster"]
    return simulate(settings.workload, strategy, seed=seed, progress=watcher.step, replay=run, **training)


def _apart(run: Run, again: Run) -> float:
    largest = float(run.parameters.abs().max()) or 1.0
    return float((again.parameters - run.parameters).abs().max()) / largest
