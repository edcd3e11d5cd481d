"""``tacit replay``: repeat a real run in the simulator, in the recorded order of its messages."""

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
from tacit.cli.screens.terminal import Screen, console, print_notes
from tacit.cli.settings import Settings, import_notes, read_file, settle
from tacit.errors import TacitError
from tacit.record.run import Run
from tacit.simulation import simulate
from tacit.simulation.replay import check_replay


@explained
def replay_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a finished run of tacit train.")],
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", help="Largest allowed difference of the two models, relative to the largest parameter."
        ),
    ] = 1e-3,
    out: options.Out = None,
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Repeat a run on real processes in the simulator, message by message.

    The result of an asynchronous strategy depends on the order of its
    messages. The trace of a run on real processes records that order. This
    command repeats it on one core without a network, compares the two final
    models, and saves the simulated run. Use it to debug a run, or to see
    where a changed strategy first differs from the record.

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
    with folders.removed_if_unused(target), Screen(screen) as watcher:
        again = _replay(run, settings, watcher)
    keep(again, target, screen, json_file, way_back=f"tacit replay {folder}")
    difference = _difference(run, again)
    screen.print(
        f"The models differ by at most {difference:.2g} of the largest parameter of {folder}.",
        highlight=False,
        soft_wrap=True,
    )
    if difference > tolerance:
        complain(
            f"the models differ by {difference:.2g} of the largest parameter, more than --tolerance {tolerance:g}; "
            f"use the torch version, tacit version, strategy and device of the real run, or a larger --tolerance."
        )
        raise typer.Exit(FAILED)


def _settings(folder: Path, screen: Console) -> Settings:
    path = folder / "run.toml"
    if not path.exists():
        raise TacitError(f"{folder} must hold a run, and it has no run.toml; give a folder that tacit train wrote.")
    print_notes(import_notes(path), screen)
    return settle(read_file(path, single=True))


def _replay(run: Run, settings: Settings, watcher: Screen) -> Run:
    [strategy], [seed] = settings.strategies, settings.seeds
    torch.set_num_threads(settings.threads)
    watcher.begin(f"{strategy} · seed {seed}")
    training = settings.training()
    del training["cluster"]
    return simulate(settings.workload, strategy, seed=seed, progress=watcher.step, replay=run, **training)


def _difference(run: Run, again: Run) -> float:
    largest = float(run.parameters.abs().max()) or 1.0
    return float((again.parameters - run.parameters).abs().max()) / largest
