"""torchft's LocalSGD under the faults of a plan, started, killed and recorded like the workers of ``tacit chaos``.

Every process is a replica group of its own, with ``init_sync=False``. ``tacit launch`` starts the processes, and those
that were killed again, so that both libraries wait equally long for them. The lighthouse is never hit.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.chaos import ChaosPlan, ChaosRun
from tacit.chaos.run import play, play_undisturbed, reported
from tacit.chaos.worker import Job

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
    own = Job(
        strategy="LocalSGD of torchft",
        steps=round(plan.for_s / step_s),
        seed=seed,
        step_s=step_s,
        records=str(out / "records"),
        checkpoints="",
        checkpoint_every=0,
    )
    shared = {"period": period, "workers": plan.workers, "hidden": own.hidden, "lr": own.lr, "batch": own.batch}
    job: dict[str, Any] = {**shared, "steps": own.steps, "seed": seed, "step_s": step_s, "records": own.records}
    plan_file = out / "plan.toml"
    out.mkdir(parents=True, exist_ok=True)
    plan.write(plan_file)
    with lighthouse(python) as address:
        words = words_of({**job, "lighthouse": address}, out / "job.json", python)
        played = play(plan, words, out, say=say)
    loss = None
    if played.exit_code == 0:
        say("the same run without faults")
        calm = {**job, "step_s": 0.0, "records": str(out / "undisturbed" / "records")}
        with lighthouse(python) as address:
            words = words_of({**calm, "lighthouse": address}, out / "undisturbed" / "job.json", python)
            loss = play_undisturbed(plan, words, out / "undisturbed", say=say)
    return reported(plan, f"LocalSGD of torchft, sync_every={period}", played, out, loss, compares_rounds=True)


def words_of(job: dict[str, Any], path: Path, python: Path) -> list[str]:
    """Write the job; return what ``tacit launch`` runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(job))
    return [str(START), str(python), str(ROOT), str(path)]


@contextmanager
def lighthouse(python: Path) -> Iterator[str]:
    """Run a lighthouse; yield its address."""
    words = [python, "-m", REPLICA, "lighthouse"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
