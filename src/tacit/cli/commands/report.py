"""``tacit report``: write the report page of saved runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import options
from tacit.cli.exit_messages import explained
from tacit.cli.screens.terminal import console, print_line
from tacit.cli.settings import DEFAULTS, Settings, parsed_strategy, read_file, settle
from tacit.compare.rates import RateResults, all_entries, best_entry, by_rate
from tacit.errors import TacitError, require
from tacit.planning.files import read_plan
from tacit.record.run import Run
from tacit.registry import modules_in
from tacit.report import Comparison, Entry, print_table, write_report
from tacit.report.planned.page_parts import planned_runs
from tacit.report.prediction import is_real


@explained
def report_command(
    paths: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders of runs or comparisons.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="HTML file to write.", show_default="FOLDER/report.html, or ./report.html"
        ),
    ] = None,
    target: options.Target = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Plan of the runs: show what it predicts next to what was measured.",
            show_default="the plan that a run itself followed",
        ),
    ] = None,
    all_rates: options.AllRates = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Write report.html from saved runs, simulated or real.

    For one folder of `tacit compare`, `tacit simulate` or `tacit train`,
    write its page again. For several folders, write one page that compares
    them, measured runs with simulated ones too.

    [bold]Examples[/]

    \b
      tacit report runs/compare-20260102-120000
      tacit report demo --target 0.2
      tacit report runs/real runs/simulated --out both.html
      tacit report runs/real --plan plan.toml
    """
    runs = [(path, Run.load(path)) for folder in paths for path in _run_folders(folder)]
    if plan is not None:
        _add_prediction([run for _, run in runs], plan)
    comparison = _comparison(runs, paths, target, all_rates)
    page = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    write_report(comparison, page)
    screen = console(quiet)
    print_table(comparison, screen)
    for found in planned_runs([run for _, run in runs]):
        print_line(screen, f"{found.run.strategy}: {found}")
    screen.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def _add_prediction(runs: list[Run], path: Path) -> None:
    """Put the prediction of a plan into the record of the real runs of its strategy."""
    planned = read_plan(path)
    chosen = [run for run in runs if run.strategy == str(planned.strategy) and is_real(run)]
    others = ", ".join(dict.fromkeys(run.strategy for run in runs))
    require(
        bool(chosen),
        f"--plan {path} is for a run of {planned.strategy} on real processes, and the folders hold {others}; "
        f"give the folder of a run of that strategy.",
    )
    for run in chosen:
        run.record = {**run.record, "predicted": dict(planned.predicted)}


def _run_folders(folder: Path) -> list[Path]:
    """Return the run folders in ``folder``: itself, or those of a comparison."""
    if (folder / "run.json").exists():
        return [folder]
    found = sorted(path.parent for path in (folder / "runs").glob("*/run.json"))
    if not found:
        what = "does not exist" if not folder.exists() else "holds neither run.json nor runs/*/run.json"
        raise TacitError(f"{folder} {what}; give a folder that tacit compare, simulate or train wrote.")
    return found


def _comparison(
    runs: list[tuple[Path, Run]], paths: list[Path], target: float | None, shows_all_rates: bool
) -> Comparison:
    if len(paths) > 1 or not (paths[0] / "compare.toml").exists():
        return Comparison.of(_entries(runs, {}), target)
    reproduce = (paths[0] / "compare.toml").read_text(encoding="utf-8")
    labels, settings = _planned(paths[0] / "compare.toml")
    target = settings.target if target is None else target
    planned = [(label, seed) for label in labels for seed in settings.seeds]
    place = {run: i for i, run in enumerate(planned)}
    runs = sorted(runs, key=lambda found: place.get((found[1].strategy, found[1].seed), len(planned)))
    if len(settings.rates) == 1:
        return Comparison.of(_entries(runs, _notes(paths[0] / "compare.json")), target, reproduce)
    entries: list[Entry] = []
    for label in dict.fromkeys(run.strategy for _, run in runs):
        groups = by_rate([run for _, run in runs if run.strategy == label], settings.rates)
        best = best_entry(label, groups, RateResults.of(groups, settings.seeds))
        entries += all_entries(label, groups) if shows_all_rates else [best]
    return Comparison.of(entries, target, reproduce)


def _planned(path: Path) -> tuple[list[str], Settings]:
    """Return the texts of the strategies, and seeds, target and learning rates; import no user module."""
    table = read_file(path, single=False)
    settings = settle({name: table[name] for name in ("seeds", "target", "lr") if name in table})
    texts = [str(text) for text in table.get("strategies", DEFAULTS["strategies"])]
    return [text if modules_in(text) else str(parsed_strategy(text)) for text in texts], settings


def _entries(runs: Iterable[tuple[Path, Run]], notes: Mapping[str, str]) -> list[Entry]:
    """Return the runs by strategy and world; a repeated seed gets the name of its folder in the label."""
    by_label: dict[str, list[Run]] = {}
    runs = list(runs)
    has_both = len({is_real(run) for _, run in runs}) > 1
    for path, run in runs:
        label = run.strategy
        if has_both:
            label += " measured" if is_real(run) else " simulated"
        if any(run.seed == other.seed for other in by_label.get(label, ())):
            label = f"{label} ({path.parent.parent.name if path.parent.name == 'runs' else path.name})"
        by_label.setdefault(label, []).append(run)
    return [Entry(label, group, notes.get(label, "")) for label, group in by_label.items()]


def _notes(path: Path) -> dict[str, str]:
    try:
        return {row["label"]: row["note"] for row in json.loads(path.read_text())["strategies"]}
    except (OSError, ValueError, KeyError):
        return {}
