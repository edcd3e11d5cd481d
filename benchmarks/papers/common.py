"""What the papers' benchmarks share: the command line, the data folder, the record of a target, and writing results."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import tacit
from tacit.record.trace import NOTE

RESULTS = Path(__file__).resolve().parents[1] / "results"

Part = Callable[[argparse.Namespace], dict[str, Any]]
"""Measures one numbered target; returns its numbers, with a list of targets under "targets"."""


def arguments(
    description: str,
    name: str,
    parts: Mapping[int, Part],
    needed: Mapping[int, str] | None = None,
    add: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """Read the command line that all benchmarks share; ``needed`` names the file of the data folder that a part reads.

    add: adds the options of one benchmark.
    """
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder that holds libsvm/a9a.bz2")
    parser.add_argument(
        "--quick", action="store_true", help="few seeds, short runs: shows that it works, proves nothing"
    )
    parser.add_argument(
        "--only", type=_numbers, default=sorted(parts), help="parts to run, such as 2,3; others in --out stay"
    )
    parser.add_argument("--out", type=Path, default=None, help="JSON to write; the Markdown goes beside it")
    if add is not None:
        add(parser)
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.only) - set(parts))
    if unknown:
        parser.error(f"--only: there is no part {unknown[0]}; the parts are {', '.join(map(str, sorted(parts)))}.")
    if chosen.out is None:  # only a whole run may replace the published numbers
        is_whole = not chosen.quick and chosen.only == sorted(parts)
        chosen.out = RESULTS / (f"{name}.json" if is_whole else f"{name}_partial.json")
    for number in chosen.only:
        if needed and number in needed:
            data_file(chosen.data, needed[number])
    return chosen


def data_file(folder: Path | None, relative: str) -> Path:
    """Return a file of the data folder, or say which one is missing and leave with status 2."""
    if folder is None:
        _leave(
            f"{relative} is needed; pass the folder that holds it, --data /path/to/data, or choose other parts: --only."
        )
    path = folder / relative
    if not path.is_file():
        _leave(
            f"{path} is missing; pass the folder that holds {relative}, --data /path/to/data, or choose other parts: --only."
        )
    return path


def target(number: str, stated: str, measured: str, holds: bool | None) -> dict[str, Any]:
    """Return one claim beside what was measured; ``holds`` None: reported, not required."""
    return {"target": number, "stated": stated, "measured": measured, "holds": holds}


def spread_of(values: Iterable[float]) -> dict[str, float]:
    """Return mean, standard error, least and largest of numbers, one per seed."""
    numbers = np.asarray(list(values), dtype=float)
    error = float(numbers.std(ddof=1) / np.sqrt(len(numbers))) if len(numbers) > 1 else 0.0
    return {
        "mean": float(numbers.mean()),
        "standard_error": error,
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def realised_periods(run: tacit.Run) -> list[int]:
    """Return the periods a run of LocalSGD really had, from its trace: what the rule said, the last one cut short by
    the end.
    """
    noted = [int(event.value) for event in run.trace if event.kind == NOTE and event.label == "period"]
    return [*noted[:-1], run.steps - sum(noted[:-1])]


def measure(
    title: str, name: str, parts: Mapping[int, Part], chosen: argparse.Namespace, package: str = "benchmarks.papers"
) -> None:
    """Run the chosen parts and write JSON and Markdown, after every part: an interrupted run leaves what it had."""
    torch.set_num_threads(1)  # the last bits depend on the number of threads
    results: dict[str, Any] = {
        "title": title,
        "command": shlex.join(["python", "-m", f"{package}.{name}", *_without_paths(sys.argv[1:])]),
        "quick": chosen.quick,
        "versions": _versions(),
        "parts": _kept_parts(chosen, parts),
    }
    for number in chosen.only:
        print(f"{name} part {number}: {(parts[number].__doc__ or '').splitlines()[0]}", flush=True)
        began_s = time.perf_counter()
        part = parts[number](chosen)
        part["seconds"] = round(time.perf_counter() - began_s, 1)
        results["parts"][str(number)] = part
        results["parts"] = dict(sorted(results["parts"].items(), key=lambda item: int(item[0])))
        for claim in part["targets"]:
            print(f"  {claim['target']}: {verdict(claim)}: {claim['measured']}", flush=True)
        print(f"  {part['seconds']} s", flush=True)
        _write(results, chosen.out)


def _kept_parts(chosen: argparse.Namespace, parts: Mapping[int, Part]) -> dict[str, Any]:
    """Return the parts that ``--out`` holds already and ``--only`` leaves out."""
    if chosen.quick or chosen.only == sorted(parts) or not chosen.out.is_file():
        return {}
    earlier = json.loads(chosen.out.read_text())
    is_whole = not earlier["quick"] and earlier["versions"] == _versions()
    return {n: part for n, part in earlier["parts"].items() if is_whole and int(n) not in chosen.only}


def verdict(claim: Mapping[str, Any]) -> str:
    return {True: "holds", False: "DOES NOT HOLD", None: "reported"}[claim["holds"]]


def _write(results: Mapping[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_rounded(results), indent=1, ensure_ascii=False)
    # Lists of numbers on one line each: a result should fit on a screen or two.
    text = re.sub(r"\[\n[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    out.write_text(text + "\n")
    out.with_suffix(".md").write_text(_markdown(results))


def _markdown(results: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    lines = [f"# {results['title']}", "", f"`{results['command']}`", "", versions, ""]
    if results["quick"]:
        lines += ["**A quick run: too few seeds and steps for the claims; their verdicts mean nothing.**", ""]
    lines += ["| target | stated | measured | verdict |", "|---|---|---|---|"]
    for part in results["parts"].values():
        for claim in part["targets"]:
            lines.append(f"| {claim['target']} | {claim['stated']} | {claim['measured']} | {verdict(claim)} |")
    lines.append("")
    for number, part in results["parts"].items():
        lines += [f"Part {number} ({part['seconds']} s): {part['setting']}", ""]
        lines += part.get("table", []) + ([""] if part.get("table") else [])
    return "\n".join(lines)


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    header = list(header)
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)]


def _rounded(value: Any) -> Any:
    """Return ``value`` with floats of six digits: results are read by people."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _versions() -> dict[str, str]:
    return {
        "tacit": tacit.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def _leave(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)


def _without_paths(words: list[str]) -> list[str]:
    """Return the command line with DATA, OUT and FOLDER in place of paths: where they lie on this machine is nobody's
    business.
    """
    shown = {"--data": "DATA", "--out": "OUT", "--folder": "FOLDER", "--predict-only": "FOLDER"}
    return [shown.get(before, word) for before, word in zip(["", *words], words, strict=False)]
