"""The papers on CIFAR-10 with ResNet-20, trained in the simulator on one GPU: `make bench-papers-cuda`, or

    python -m benchmarks.papers_cuda --data FOLDER --rows rows.jsonl [--seconds 540] [--parts 1,3,4,2] [--jobs 4]
        [--cost] [--quick] [--summary benchmarks/results/papers_cuda.json]

1  ADPSGD's table (arXiv 2007.06134): 16 workers, shuffled and Dirichlet(0.3)
3  EF21's figure (arXiv 2106.05203): n = 5, Top 5 %
4  Slow and Stale (arXiv 1803.01113): P = 8, exponential and Pareto times, AdaSync
2  SwarmSGD's table (arXiv 1910.12308): 16 and 64 nodes

20,000 pictures, crops and flips; ``parts.py`` has methods, lengths and rates. Every method gets the same search: learning
rates on seed 100, and one more beyond an edge while the best rate lies on it. Then three other seeds run at that rate.

Each run appends a line to --rows. Runs in that file are not made again, so the benchmark can be stopped and continued:
after --seconds no further run starts. It needs torch, numpy, greenlet and tomli-w.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from benchmarks.papers_cuda.parts import GROUPS, SEEDS, quick_groups
from benchmarks.papers_cuda.search import Rows, Search
from benchmarks.papers_cuda.summary import write_summary
from benchmarks.papers_cuda.trainings import Pictures, Training, make_run, read_rows


def say_cost(search: Search, missing: dict[str, int]) -> None:
    """Print the runs that are missing and their cost on an H200 before any starts."""
    for group in search.groups:
        name = f"part {group.part}, {group.name}"
        whole = len(group.methods) * (group.tried + len(search.seeds))
        share = missing[name] / max(1, whole)
        print(f"{name}: {missing[name]} of {whole} runs or more are missing, about {share * group.cost_s() / 60:.0f} of {group.cost_s() / 60:.0f} min", flush=True)  # fmt: skip
    print(f"all: about {sum(group.cost_s() for group in search.groups) / 60:.0f} min of an H200, rates beyond an edge not counted", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder that holds cifar10-train20000.xz; without it: random pictures"
    )
    parser.add_argument("--rows", type=Path, required=True, help="file of one JSON line for each run")
    parser.add_argument("--seconds", type=float, default=7200.0, help="no further run starts after this time")
    parser.add_argument("--parts", default="1,3,4,2", help="parts to run")
    parser.add_argument("--cost", action="store_true", help="print what is missing and what it costs; make no run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--quick", action="store_true", help="few small random pictures, a linear model: shows that it works"
    )
    parser.add_argument("--summary", type=Path, help="make no run; write this JSON and its Markdown from --rows")
    chosen = parser.parse_args()
    parts, rows = {int(part) for part in chosen.parts.split(",")}, read_rows(chosen.rows)
    groups = [group for group in (quick_groups(GROUPS) if chosen.quick else GROUPS) if group.part in parts]
    if chosen.summary is not None:
        write_summary(rows, chosen.summary, groups)
        return
    pictures = Pictures(None, 512, 8, "softmax") if chosen.quick else Pictures(chosen.data)
    search = Search(groups, SEEDS[:1] if chosen.quick else SEEDS)
    print(f"{len(rows)} runs are in {chosen.rows.name}; no run starts after {chosen.seconds:.0f} s", flush=True)
    say_cost(search, search.missing(rows))
    if not chosen.cost:
        make_runs(search, rows, pictures, chosen)


class _Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def make_runs(search: Search, rows: Rows, pictures: Pictures, chosen: argparse.Namespace) -> None:
    """Make the missing runs, ``chosen.jobs`` at a time, each in a process of its own if they are several."""
    begun_s = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with _Here() if chosen.jobs == 1 else ProcessPoolExecutor(chosen.jobs, mp_context=spawn) as executor:
        running: dict[Future[dict[str, Any]], Training] = {}
        while True:
            ready = [one for one in search.ready(rows) if one not in running.values()]
            if time.perf_counter() - begun_s >= chosen.seconds:
                ready = []
            elif not ready and not running:
                print("all runs are made", flush=True)
            for one in ready[: chosen.jobs - len(running)]:
                running[executor.submit(make_run, one, pictures, chosen.device, chosen.quick)] = one
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                training = running.pop(future)
                row = rows[training] = future.result()
                with chosen.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    f"part {training.part}, {training.group}, {training.method}, lr {training.lr:g}, seed {training.seed}: accuracy {row['accuracy']}, "
                    f"{row['rounds']} rounds, {row['bytes_sent'] / 1e9:.2f} GB, {row['wall_s']} s, {row['engine']}, {row['status'][:80]}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
