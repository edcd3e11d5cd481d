"""Kill all workers at random moments while they write checkpoints, resume, and compare the end with an undisturbed run.

    OMP_NUM_THREADS=1 python -m benchmarks.kills [--kills 50] [--only LocalSGD] [--seed 0] [--folder build/kills]
    [--out benchmarks/results/kills.json]

Two processes train a network of 111,010 parameters, with dropout and momentum, for 60 steps, and write a checkpoint
after every second one, which takes most of their time. All are killed with SIGKILL at a moment that is drawn uniformly
from the first 1.3 s after they have attached. The next processes resume what is in the folder. When they reach the end,
their models are compared with those of an undisturbed run, bit for bit where that is promised, and the next run begins.

Each kill is a line in FOLDER/rows.jsonl: a benchmark that was stopped continues where it was. OUT is written after
every ten kills of a family. A run that takes longer than 180 s counts as hanging and is ended.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

import tacit
from tacit.session import checkpoint_files, checkpoints

WORKERS, STEPS, EVERY = 2, 60, 2
WIDTH = 1500
TURN = 10
"""Kills of a family before the next family's turn."""
LATEST_KILL_S, HANGS_S = 1.3, 180.0
SECONDS_PER_KILL = 3.0  # on two idle cores


@dataclass(frozen=True)
class Family:
    """A strategy, and whether a resumed run ends with the bits of an undisturbed one."""

    strategy: tacit.Strategy[Any]
    is_exact: bool = True
    has_dropout: bool = True  # its random state is in checkpoints of workers, not in those of servers


FAMILIES = {
    "LocalSGD": Family(tacit.LocalSGD(period=tacit.Every(5))),
    "VariancePeriod": Family(tacit.LocalSGD(period=tacit.VariancePeriod(initial=3))),
    "overlapped": Family(tacit.LocalSGD(period=tacit.Every(5), overlap_steps=2)),
    "compressed": Family(tacit.LocalSGD(period=tacit.Every(5), compressor=tacit.QSGD(bits=8))),
    "EF21": Family(tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21())),
    "server": Family(tacit.KAsync(k=1), is_exact=False),
    "shards": Family(tacit.KSync(k=2, shards=2), has_dropout=False),
    "SwarmSGD": Family(tacit.SwarmSGD(local_steps=2), is_exact=False),
}


# A worker.


def train(family: Family, folder: Path, pipe: int) -> None:
    """Train, resume what is there, write checkpoints; tell the pipe what happens."""
    rank = int(os.environ["RANK"])
    draw = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(512, 64, generator=draw), torch.randint(0, 10, (512,), generator=draw)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1 if family.has_dropout else 0.0),
        torch.nn.Linear(WIDTH, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    torch.manual_seed(rank)
    session = tacit.attach(model, optimizer, family.strategy, steps=STEPS)
    resumed = session.resume(folder) if checkpoints.step_of(folder) is not None else 0
    tell(pipe, "attached", rank, resumed)
    written = session.updates
    while not session.is_done:
        rows = torch.randint(0, 512, (32,), generator=torch.Generator().manual_seed(7919 * rank + session.updates))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        session.observe(loss)
        optimizer.step()
        if session.updates >= written + EVERY and not session.is_done:
            written = session.updates
            session.checkpoint(folder)
    session.close()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    tell(pipe, "done", rank, hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16])


def tell(pipe: int, *words: object) -> None:
    os.write(pipe, (json.dumps(words) + "\n").encode())


def start_worker(rank: int, port: int, family: Family, folder: Path, pipe: int) -> int:
    """Fork a worker; return its process."""
    if process := os.fork():
        return process
    code = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORKERS))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
        train(family, folder, pipe)
        code = 0
    except BaseException as error:  # noqa: BLE001 - told to the benchmark
        tell(pipe, "error", rank, f"{type(error).__name__}: {error}"[:400])
    finally:
        os._exit(code)


# A run, from its start to its end or to its death.


def run_until(family: Family, folder: Path, kill_after_s: float | None) -> tuple[list[list[Any]], bool]:
    """Return what the workers told, and whether they were killed."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reader, writer = os.pipe()
    left = {start_worker(rank, store.port, family, folder, writer) for rank in range(WORKERS)}
    os.close(writer)
    os.set_blocking(reader, False)
    told, begun_s, kill_s, was_killed = b"", time.monotonic(), None, False
    while left:
        told += read(reader)
        now_s = time.monotonic()
        if kill_s is None and kill_after_s is not None and told.count(b'"attached"') == WORKERS:
            kill_s = now_s + kill_after_s
        is_hanging = now_s - begun_s > HANGS_S
        if (kill_s is not None and now_s >= kill_s and not was_killed) or is_hanging:
            was_killed = True
            for process in left:
                os.kill(process, signal.SIGKILL)
        if is_hanging:
            told += (json.dumps(["error", -1, "hangs"]) + "\n").encode()
        left = {process for process in left if os.waitpid(process, os.WNOHANG)[0] == 0}
        time.sleep(0.002)
    told += read(reader)
    os.close(reader)
    return [json.loads(line) for line in told.decode().splitlines()], was_killed


def read(pipe: int) -> bytes:
    try:
        return os.read(pipe, 2**16)
    except BlockingIOError:
        return b""


def look(folder: Path) -> dict[str, Any]:
    """Return the step of the valid checkpoint and what was left half-written; raise if a file cannot be read."""
    step = checkpoints.step_of(folder)
    if step is None:
        return {"step": None, "half_written": len([*folder.glob("step-*/.*part*")])}
    place = folder / str(checkpoint_files.current_place(folder))
    files = sorted(place.glob("*.pt"))
    assert files, f"the checkpoint in {place} is empty"
    for file in files:
        torch.load(file, weights_only=True)
    others = [path for path in folder.glob("step-*") if path != place]
    return {"step": step, "half_written": len([*folder.glob("step-*/.*part*")]), "folders": 1 + len(others)}


def ends(told: list[list[Any]]) -> list[str]:
    return [words[2] for words in sorted(words for words in told if words[0] == "done")]


# The benchmark.


def measure(name: str, kills: int, seed: int, folder: Path) -> None:
    """Kill the runs of a family until it has ``kills``, and add a row of each to the file."""
    family, rows_file, run_folder = FAMILIES[name], folder / "rows.jsonl", folder / name
    rows = [row for row in rows_of(rows_file) if row["family"] == name]
    if not any(row["kind"] == "undisturbed" for row in rows):
        shutil.rmtree(run_folder, ignore_errors=True)
        told, _ = run_until(family, run_folder, None)
        add(rows_file, {"family": name, "kind": "undisturbed", "ends": ends(told), "errors": errors(told)})
        shutil.rmtree(run_folder, ignore_errors=True)
    reference = next(row for row in rows_of(rows_file) if row["family"] == name and row["kind"] == "undisturbed")[
        "ends"
    ]
    done = [row for row in rows if row["kind"] == "killed"]
    draw = random.Random(f"{seed} {name}")
    moments = [draw.uniform(0.0, LATEST_KILL_S) for _ in range(100 * kills)]
    tries, found, count = len([row for row in rows if row["kind"] != "undisturbed"]), None, len(done)
    while count < kills or found is not None:  # the last run goes to its end
        kill_after_s = moments[tries] if count < kills else None
        before = look(run_folder)["step"] if run_folder.exists() else None
        told, was_killed = run_until(family, run_folder, kill_after_s)
        tries += 1
        resumed = sorted({words[2] for words in told if words[0] == "attached"})
        row = {
            "family": name,
            "kind": "killed" if was_killed else "ended",
            "after_s": kill_after_s,
            "found": before,
            "resumed": resumed,
            "as_found": resumed == [before or 0],
            "errors": errors(told),
        }
        if was_killed:
            count, found = count + 1, look(run_folder) if run_folder.exists() else {}
            row["left"] = found
        else:
            row["ends"], row["is_equal"] = ends(told), ends(told) == reference
            shutil.rmtree(run_folder, ignore_errors=True)
            found = None
        add(rows_file, row)


def errors(told: list[list[Any]]) -> list[str]:
    return [words[2] for words in told if words[0] == "error"]


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add(file: Path, row: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rows of a family show."""
    family, killed = FAMILIES[name], [row for row in rows if row["kind"] == "killed"]
    ended = [row for row in rows if row["kind"] == "ended"]
    resumed = [row for row in [*killed, *ended] if row["found"] is not None]
    return {
        "strategy": str(family.strategy),
        "kills": len(killed),
        "kills_that_left_a_half_written_file": sum(bool(row["left"].get("half_written")) for row in killed),
        "resumed": len(resumed),
        "resumed_at_the_checkpoint_found": sum(row["as_found"] for row in resumed),
        "errors": [error for row in rows for error in row["errors"]],
        "runs_that_reached_the_end": len(ended),
        "ends_equal_to_the_undisturbed_run": sum(row["is_equal"] for row in ended) if family.is_exact else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", action="append", choices=FAMILIES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/kills"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or [*FAMILIES]
    rows = rows_of(options.folder / "rows.jsonl")
    missing = sum(
        max(0, options.kills - sum(row["family"] == name and row["kind"] == "killed" for row in rows)) for name in names
    )
    print(f"{missing} kills are left: about {missing * SECONDS_PER_KILL / 60:.0f} minutes on two cores.", flush=True)
    for kills in [*range(TURN, options.kills, TURN), options.kills]:  # in turns: a part of it has all families
        for name in names:
            measure(name, kills, options.seed, options.folder)
            own = [row for row in rows_of(options.folder / "rows.jsonl") if row["family"] == name]
            print(time.strftime("%H:%M:%S"), name, json.dumps(summary(name, own)), flush=True)
            if options.out is not None:
                write(options)


def write(options: argparse.Namespace) -> None:
    """Write the results so far, of all families in the folder."""
    rows = rows_of(options.folder / "rows.jsonl")
    names = [name for name in FAMILIES if any(row["family"] == name for row in rows)]
    result = {
        "command": f"python -m benchmarks.kills --kills {options.kills} --seed {options.seed}",
        "torch": torch.__version__,
        "tacit": tacit.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "workers": WORKERS,
        "steps": STEPS,
        "families": {name: summary(name, [row for row in rows if row["family"] == name]) for name in names},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
