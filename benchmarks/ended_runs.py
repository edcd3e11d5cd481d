"""Runs that a lost worker ends, as under torchrun: how soon each survivor learns of it, and when nothing is left.

    OMP_NUM_THREADS=1 python -m benchmarks.ended_runs [--only LocalSGD] [--repeat 3] [--workers 4]
    [--out benchmarks/results/ended_runs.json]

A worker, worker 0, or two workers at once are killed in the middle of a run, or worker 0 raises an error. *Learned*:
seconds from the end of the last of them until the slowest survivor's script has the error, its checkpoint written.
*Last process*: until no process of the run is left. The checks do not depend on time: the names in the error of every
survivor, and a checkpoint that can be loaded. The times hold for the machine and its load, which the result names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

import tacit
from tacit.record.versions import versions
from tacit.session import checkpoints
from tests.runtime.launched_workers import Launched
from tests.runtime.small_runs import batches, learn, network, sgd

FAMILIES: Final[dict[str, tacit.Strategy[Any]]] = {
    "AllReduce": tacit.AllReduce(),
    "LocalSGD": tacit.LocalSGD(period=tacit.Every(4)),
    "EF21": tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.25), feedback=tacit.EF21()),
    "DPSGD": tacit.DPSGD(),
    "SGP": tacit.SGP(),
    "CHOCO": tacit.CHOCO(),
    "KAsync": tacit.KAsync(k=1),
    "KSync": tacit.KSync(k=2),
    "shards": tacit.KAsync(k=1, shards=2),
}
FAULTS: Final = {"a worker is killed": (2,), "rank 0 is killed": (0,), "two are killed at once": (1, 2)}
RAISES: Final = "an exception on rank 0"
LEARNED_S, LAST_PROCESS_S = 2.0, 10.0
"""The goals."""
_KEPT_AT: Final = 10
_LIMIT_S: Final = 90.0


def cases(family: str) -> list[str]:
    """Return the faults that end a run of the family: with a server only those of its process."""
    has_server = FAMILIES[family].has_server
    return ["rank 0 is killed", RAISES] if has_server else [*FAULTS, RAISES]


def train(folder: str, family: str, raises: bool) -> None:
    """Train until the run ends; write the time and the text of its error to a file of this rank."""
    torch.set_num_threads(1)
    model, rank = network(), tacit.rank()
    optimizer = sgd(model, 0.01)
    strategy, kept = FAMILIES[family], Path(folder, "kept")
    try:
        with tacit.attach(model, optimizer, strategy, rescue_folder=kept, timeout_s=60.0) as session:
            while True:
                learn(model, optimizer, batches(rank, 1), session)
                time.sleep(0.005)
                if session.step == _KEPT_AT and strategy.has_server:
                    session.checkpoint(kept)
                if session.step == 2 * _KEPT_AT:
                    Path(folder, f"ready-{rank}").touch()
                if raises and rank == 0 and Path(folder, "raise").exists():
                    Path(folder, "raised").write_text(repr(time.monotonic()))
                    raise ZeroDivisionError("a bug in the loop")
    except (tacit.TacitError, ZeroDivisionError) as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        Path(folder, f"error-{rank}").write_text(json.dumps({"time_s": time.monotonic(), "text": text}))
        raise


def measure(family: str, fault: str, workers: int) -> dict[str, Any]:
    """Let ``fault`` end one run; return the times and what has been found."""
    hit = FAULTS.get(fault, (0,))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Launched(
            workers, workers, train, name, family, fault == RAISES, timeout_s=_LIMIT_S, is_elastic=False
        ) as run:
            run.until(lambda: all((folder / f"ready-{rank}").exists() for rank in range(workers)))
            if fault == RAISES:
                (folder / "raise").touch()
                run.until((folder / "raised").exists)
                begun_s = float((folder / "raised").read_text())
            else:
                run.kill(*hit)
                run.until(lambda: all((rank, 1) in run.ended_s for rank in hit))
                begun_s = max(run.ended_s[rank, 1] for rank in hit)
            run.until(lambda: len(run.ended_s) == workers)
            ended_s = max(run.ended_s.values())
        survivors = [rank for rank in range(workers) if rank not in hit]
        told = {rank: json.loads((folder / f"error-{rank}").read_text()) for rank in survivors}
        return {
            "survivors": len(survivors),
            "right names": sum(_is_right(told[rank]["text"], family, fault, hit) for rank in survivors),
            "learned after s": round(max(one["time_s"] for one in told.values()) - begun_s, 3),
            "last process ended after s": round(ended_s - begun_s, 3),
            "checkpoint": _loadable(folder / "kept", family, workers),
        }


def _is_right(text: str, family: str, fault: str, hit: tuple[int, ...]) -> bool:
    """Whether the first sentence of an error names who was lost; beside a server its worker may be named too."""
    named = re.match(r"(.*?) (?:was|were) lost at ", text)
    found = set() if named is None else set(re.findall(r"\d+|server", named[1]))
    if FAMILIES[family].has_server and fault != RAISES:
        return found - {str(rank) for rank in hit} == {"server"}
    return found == {str(rank) for rank in hit}


def _loadable(folder: Path, family: str, workers: int) -> str:
    """Return what has been kept, and was loaded: a step, or an update of the server."""
    try:
        if FAMILIES[family].has_server:
            checkpoints.read_server(folder)
        else:
            checkpoints.read(folder, 0, workers)
        return f"at {checkpoints.step_of(folder)}"
    except (OSError, tacit.TacitError) as error:
        return f"none: {error}"


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst of several runs."""
    return {
        "runs": len(rows),
        "survivors": sum(row["survivors"] for row in rows),
        "right names": sum(row["right names"] for row in rows),
        "learned after s": max(row["learned after s"] for row in rows),
        "last process ended after s": max(row["last process ended after s"] for row in rows),
        "checkpoint": next((row["checkpoint"] for row in rows if row["checkpoint"].startswith("none")), "loaded"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=FAMILIES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path, help="file to which the result is written")
    given = parser.parse_args()
    rows = {}
    for family in given.only or FAMILIES:
        for fault in cases(family):
            rows[f"{family}, {fault}"] = row = worst(
                [measure(family, fault, given.workers) for _ in range(given.repeat)]
            )
            is_right = row["right names"] == row["survivors"] and row["checkpoint"] == "loaded"
            is_soon = row["learned after s"] <= LEARNED_S and row["last process ended after s"] <= LAST_PROCESS_S
            print(f"{family}, {fault}: {json.dumps(row)}{'' if is_right and is_soon else ' MISSED'}", flush=True)
    result = {
        "command": " ".join(["python -m benchmarks.ended_runs", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "goals": {"learned after s": LEARNED_S, "last process ended after s": LAST_PROCESS_S},
        "versions": versions(),
        "rows": rows,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
