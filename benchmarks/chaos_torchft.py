"""torchft's LocalSGD under the faults of a plan, started, killed and recorded like the workers of ``tacit chaos``.

Every process is a replica group of its own, with ``init_sync=False``. ``tacit launch`` starts the processes, and those
that were killed again, so that both libraries wait equally long for them. The lighthouse is never hit.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.chaos import ChaosPlan, ChaosRun
from tacit.chaos.run import play, play_undisturbed, reported
from tacit.chaos.worker import Job
from tacit.errors import TacitError

ROOT = Path(__file__).resolve().parents[1]
START = ROOT / "benchmarks" / "peer_loops" / "torchft_start.py"
REPLICA = "benchmarks.peer_loops.torchft_replica"


def python_of(environments: Path) -> Path | None:
    """Return the Python that has torchft; None if its environment has not been made."""
    path = (environments / "torchft" / "bin" / "python").absolute()
    return path if path.exists() else None


def run_torchft(
    plan: ChaosPlan, out: Path, python: Path, *, period: int, seed: int, step_s: float, say: Callable[[str], None]
) -> ChaosRun:
    """Train with torchft's LocalSGD under ``plan``, write the report into ``out``, and return it."""
    out = out.absolute()
    same = Job(
        strategy="LocalSGD of torchft",
        steps=period * math.ceil(plan.for_s / step_s / period),  # the last step ends with a round
        seed=seed,
        step_s=step_s,
        records=str(out / "records"),
        checkpoints="",
        checkpoint_every=0,
    )
    shared = {"period": period, "workers": plan.workers, "hidden": same.hidden, "lr": same.lr, "batch": same.batch}
    job: dict[str, Any] = {**shared, "steps": same.steps, "seed": seed, "step_s": step_s, "records": same.records}
    out.mkdir(parents=True, exist_ok=True)
    plan.write(out / "plan.toml")
    with lighthouse(python, out) as address:
        words = words_of({**job, "lighthouse": address}, out / "job.json", python)
        played = play(plan, words, out, say=say)
    loss = None
    if played.exit_code == 0:
        say("the same run without faults")
        calm = {**job, "step_s": 0.0, "records": str(out / "undisturbed" / "records")}
        own = out / "undisturbed"
        with lighthouse(python, own) as address:
            words = words_of({**calm, "lighthouse": address}, own / "job.json", python)
            loss = play_undisturbed(plan, words, own, say=say)
    return reported(plan, f"LocalSGD of torchft, sync_every={period}", played, out, loss, compares_rounds=True)


def words_of(job: dict[str, Any], path: Path, python: Path) -> list[str]:
    """Write the job; return what ``tacit launch`` runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(job))
    return [str(START), str(python), str(ROOT), str(path)]


@contextmanager
def lighthouse(python: Path, folder: Path) -> Iterator[str]:
    """Run a lighthouse, which writes what it does into ``folder``; yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [python, "-m", REPLICA, "lighthouse"]
    with (
        (folder / "lighthouse.txt").open("w") as log,
        subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise TacitError(f"torchft's lighthouse did not start: see {folder / 'lighthouse.txt'}.")
            yield address
        finally:
            process.kill()
