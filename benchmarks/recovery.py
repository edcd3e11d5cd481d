"""Recovery of collectives: workers are killed, stopped and started again while they train; see ``make bench-recovery``.

    python -m benchmarks.recovery --strategy "LocalSGD(period=Every(4))" --seats 6 --faults 40
    python -m benchmarks.recovery --healthy      rounds without faults, with and without changes of members

Every round's model is hashed on every worker. Steps take 20 ms of sleep, the model has 100,000 numbers (0.4 MB).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tacit
from tests.runtime.launched_workers import Launched

STEP_S = 0.02
SETTLED_S = 60.0


def train(folder: str, strategy: str, numbers: int, step_s: float, steps: int) -> None:
    """Train for ``steps`` steps; write each step and each change of members to a file of this life."""
    torch.manual_seed(0)
    model = nn.Linear(numbers // 100, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(tacit.rank())
    name = f"{os.environ['RANK']}-{os.environ.get('TACIT_LIFE', '0')}.jsonl"
    session = tacit.attach(model, optimizer, tacit.strategy(strategy))
    with Path(folder, name).open("w", buffering=1) as file, session:
        membership, told = session._backend.membership, 0
        print(json.dumps({"joined": session.step, "t": time.monotonic()}), file=file)
        while session.step < steps:
            time.sleep(step_s)
            optimizer.zero_grad()
            model(torch.randn(2, numbers // 100, generator=draws)).square().mean().backward()
            begun_s = time.monotonic()
            optimizer.step()
            now_s = time.monotonic()
            digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()[:12]
            row = {"step": session.step, "t": now_s, "s": now_s - begun_s, "hash": digest}
            print(json.dumps({**row, "members": list(session.members)}), file=file)
            for change in membership.changes[told:] if membership is not None else ():
                print(json.dumps({"change": change["what"], **change}), file=file)
            told = 0 if membership is None else len(membership.changes)


class Faults:
    """Draws faults and makes them."""

    def __init__(self, run: Launched, seed: int) -> None:
        self._run, self._random = run, random.Random(seed)
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.made: list[dict[str, Any]] = []

    def one(self) -> None:
        alive = [seat for seat in range(self._run.seats) if seat not in self.dead | self.stopped]
        if len(alive) < 3:
            return
        kind = self._random.choice(["kill", "kill", "kill two", "stop"])
        seats = self._random.sample(alive, 2 if kind == "kill two" and len(alive) > 3 else 1)
        self.made.append({"kind": kind, "seats": seats, "t": time.monotonic()})
        for seat in seats:
            if kind == "stop":
                self._run.stop(seat)
                self.stopped.add(seat)
            else:
                self._run.kill(seat)
                self.dead.add(seat)

    def mend(self, probability: float) -> None:
        for seat in [*self.stopped]:
            if self._random.random() < probability:
                self._run.resume(seat)
                self.stopped.discard(seat)
        for seat in [*self.dead]:
            if self._random.random() < probability:
                self._run.processes[seat].join()
                self._run.start(seat)
                self.dead.discard(seat)


def disturbed(strategy: str, seats: int, faults: int, gap_s: float, seed: int, numbers: int) -> dict[str, Any]:
    """Run with faults; return what happened."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, strategy, numbers, STEP_S, 10**9)
        limit_s = 120.0 + 3 * gap_s * faults
        with Launched(seats, 1, train, *arguments, timeout_s=limit_s) as run:
            _wait_until(lambda: _last_step(folder, seats) > 40, 60.0)
            made = Faults(run, seed)
            for _ in range(faults):
                made.one()
                time.sleep(gap_s * made._random.uniform(0.6, 1.4))
                made.mend(0.6)
            made.mend(1.0)
            mended_s = time.monotonic()
            is_whole = _wait_until(lambda: run.members() == list(range(seats)), SETTLED_S)
            step = max(row["step"] for row in _rows(folder) if "step" in row)
            goes_on = _wait_until(lambda: _last_step(folder, seats) > step + 20, SETTLED_S)
            rows = _rows(folder)
        return {
            "strategy": strategy,
            "seats": seats,
            "numbers": numbers,
            "seed": seed,
            "faults": dict(Counter(fault["kind"] for fault in made.made)),
            "all members again": is_whole,
            "all go on": goes_on,
            "settled after s": round(time.monotonic() - mended_s, 2),
            **summary(rows, made.made),
        }


def summary(rows: list[dict[str, Any]], faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rounds, unequal models, and times of recovery."""
    period = 4 if any("step" in row for row in rows) else 1
    models = defaultdict(set)
    for row in rows:
        if "step" in row and row["step"] % period == 0:
            models[row["step"]].add(row["hash"])
    changes = [row for row in rows if "change" in row]
    recovered = []
    for fault in faults:
        if fault["kind"] == "stop" or not all(_took_part(rows, seat, fault["t"]) for seat in fault["seats"]):
            continue
        later = [row for row in changes if row["t"] > fault["t"] and set(fault["seats"]) <= set(row.get("lost", ()))]
        if later:
            number = min(row["generation"] for row in later)
            recovered.append(max(row["t"] for row in later if row["generation"] == number) - fault["t"])
    admitted = [row["s"] for row in changes if row["change"] == "regrouped" and row["admitted"]]
    ended = sorted(row["t"] for row in rows if "step" in row)
    return {
        "rounds": len(models),
        "unequal": sorted(step for step, hashes in models.items() if len(hashes) > 1),
        "death to training s": _quantiles(recovered),
        "letting a joiner in s": _quantiles(admitted),
        "failed regroupings": Counter(row["error"][:60] for row in changes if "error" in row),
        "longest pause of the run s": round(max(b - a for a, b in pairwise(ended)), 3),
    }


def _took_part(rows: list[dict[str, Any]], seat: int, at_s: float) -> bool:
    """Whether ``seat`` was a member at the time: it had ended a step shortly before."""
    return any(row["seat"] == seat and "step" in row and at_s - 0.5 < row["t"] <= at_s for row in rows)


def healthy(strategy: str, seats: int, steps: int, numbers: int, repetitions: int) -> dict[str, Any]:
    """Compare rounds without faults, with changes of members allowed and not, in turns."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * repetitions):
        is_elastic = number % 2 == 0
        with tempfile.TemporaryDirectory() as folder:
            arguments = (folder, strategy, numbers, 0.0, steps)
            with Launched(seats, 1, train, *arguments, timeout_s=300.0, is_elastic=is_elastic) as run:
                run.results()
            found[is_elastic].append(statistics.median(row["s"] for row in _rows(folder) if "step" in row))
    with_changes, without = (statistics.median(found[key]) for key in (True, False))
    return {
        "strategy": strategy,
        "seats": seats,
        "numbers": numbers,
        "median step ms, members may change": [round(1e3 * s, 3) for s in found[True]],
        "median step ms, a loss ends the run": [round(1e3 * s, 3) for s in found[False]],
        "difference ms": round(1e3 * (with_changes - without), 3),
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {"median": round(statistics.median(seconds), 3), "worst": round(max(seconds), 3), "count": len(seconds)}


def _rows(folder: str) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("}\n"):
                rows.append({"seat": int(path.name.split("-")[0]), **json.loads(line)})
    return rows


def _last_step(folder: str, seats: int) -> int:
    """Return the step that all seats have reached."""
    last = dict.fromkeys(range(seats), 0)
    for row in _rows(folder):
        last[row["seat"]] = max(last[row["seat"]], row.get("step", 0))
    return min(last.values())


def _wait_until(condition: Any, seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.2)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="LocalSGD(period=Every(4))")
    parser.add_argument("--seats", type=int, default=6)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--gap-s", type=float, default=2.0, help="mean time between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--healthy", action="store_true", help="measure rounds without faults")
    parser.add_argument("--out", type=Path, help="file to which the result is added")
    given = parser.parse_args()
    if given.healthy:
        result = healthy(given.strategy, given.seats, 300, given.numbers, 5)
    else:
        result = disturbed(given.strategy, given.seats, given.faults, given.gap_s, given.seed, given.numbers)
    result = {"load": round(os.getloadavg()[0], 1), "torch": torch.__version__, **result}
    print(json.dumps(result, indent=2))
    if given.out is not None:
        kept = json.loads(given.out.read_text()) if given.out.exists() else []
        given.out.write_text(json.dumps([*kept, result], indent=2) + "\n")


if __name__ == "__main__":
    main()
