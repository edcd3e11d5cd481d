"""A run on this machine through ``tacit launch`` while the faults of a plan happen, and the same run without them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tacit.chaos.analysis import analyse
from tacit.chaos.disk import SmallDisk, small_disk
from tacit.chaos.hosts import HUB_ADDRESS, Hosts, hosts
from tacit.chaos.injector import Injector
from tacit.chaos.plan import RETURN_S, ChaosPlan
from tacit.chaos.records import have_attached, is_running, latest_updates, processes, read_lives, size_of
from tacit.chaos.report import counted, write_report
from tacit.chaos.worker import Job
from tacit.core.strategy import Strategy, shards_of
from tacit.errors import TacitError, require
from tacit.strategies import AllReduce, CompressedGradient, LocalSGD
from tacit.strategies.servers.strategy import ParameterServerStrategy

LAUNCHERS: Final = ("tacit launch", "torchrun")
_LOOK_S: Final = 0.02
_START_S: Final = 180.0
_HANGS_S: Final = 45.0
"""How long no worker takes a step before the run counts as hanging. Longer than any fault, and than any deadline."""
_LEFT_S: Final = 10.0
_TELL_S: Final = 30.0
"""Time between two lines about the progress."""
_DISK_MB: Final = 16


@dataclass(frozen=True, kw_only=True)
class ChaosRun:
    """What became of a run. exit_code: the launcher's; found: the numbers of the report."""

    plan: ChaosPlan
    strategy: str
    exit_code: int | None
    is_hanging: bool
    left_processes: int
    found: dict[str, Any] = field(default_factory=dict)
    undisturbed_loss: float | None = None

    @property
    def is_fine(self) -> bool:
        """Whether the run finished, with one model on all workers, and nothing is left of it."""
        is_equal = self.found["final_models"] == 1 and not self.found["unequal_rounds"]
        return self.exit_code == 0 and not self.is_hanging and is_equal and not self.left_processes


@dataclass(frozen=True, kw_only=True)
class Played:
    """How the processes of a run ended, and the faults that happened. exit_code: the launcher's."""

    exit_code: int | None
    is_hanging: bool
    left_processes: int
    faults: list[dict[str, Any]]


def run_chaos(
    plan: ChaosPlan,
    strategy: Strategy[Any],
    out: Path,
    *,
    seed: int = 0,
    step_s: float = 0.02,
    checkpoint_every: int = 0,
    undisturbed: bool = True,
    timeout_s: float | None = None,
    launcher: str = LAUNCHERS[0],
    say: Callable[[str], None] = print,
) -> ChaosRun:
    """Train with ``strategy`` while the faults of ``plan`` happen, and write the report into ``out``.

    step_s: the least time of a step; a run has as many steps as fit into ``plan.for_s``. checkpoint_every: steps
    between checkpoints; the faults of kind "fill" need them. undisturbed: whether the same run is made without faults.
    timeout_s: of ``tacit.attach``. launcher: "tacit launch", or "torchrun", which starts no worker again.
    """
    check_run(plan, strategy)
    kinds = {fault.kind for fault in plan.faults}
    require("fill" not in kinds or checkpoint_every > 0, "the plan fills the disk; give checkpoint_every as well.")
    require(launcher in LAUNCHERS, f"launcher={launcher!r} must be one of {', '.join(LAUNCHERS)}.")
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    steps = round(plan.for_s / step_s * updates_per_step(strategy, plan.workers))
    job = Job(
        strategy=str(strategy),
        steps=steps,
        seed=seed,
        step_s=step_s,
        records=str(out / "records"),
        checkpoints=str(out / "checkpoints"),
        checkpoint_every=checkpoint_every,
        timeout_s=timeout_s,
    )
    plan.write(out / "plan.toml")
    with _places(kinds, plan.workers, out) as (found_hosts, disk):
        if found_hosts is not None:
            job = replace(job, namespace=found_hosts.prefix)
        words = job.words(out / "job.json")
        last = steps - last_updates(strategy, plan.workers, steps, step_s)
        played = play(plan, words, out, found_hosts=found_hosts, disk=disk, launcher=launcher, say=say, last=last)
    run = reported(plan, str(strategy), played, out, None, compares_rounds=has_equal_models(strategy))
    if undisturbed and played.exit_code == 0:
        say(f"the report is in {out}; now the same run without faults, for its loss")
        own = out / "undisturbed"
        calm = replace(job, step_s=0.0, records=str(own / "records"), checkpoint_every=0, namespace=None)
        loss = play_undisturbed(plan, calm.words(own / "job.json"), own, say=say)
        run = replace(run, undisturbed_loss=loss)
        write_report(run, out)
    return run


def check_run(plan: ChaosPlan, strategy: Strategy[Any]) -> None:
    """Raise if ``strategy`` cannot train with the workers of ``plan``, or if a fault would end the run."""
    base, shards = getattr(strategy, "base", strategy), shards_of(strategy)
    if isinstance(base, ParameterServerStrategy):
        base.check_workers(plan.workers)
    require(
        shards <= plan.workers,
        f"shards={shards} must be at most workers={plan.workers}; use fewer shards or more workers.",
    )
    plan.check_hosts(shards)


def play_undisturbed(plan: ChaosPlan, words: Sequence[str], out: Path, *, say: Callable[[str], None]) -> float | None:
    """Run ``words`` without faults, and return the mean loss of its workers."""
    play(ChaosPlan(workers=plan.workers, for_s=plan.for_s), words, out, say=say)
    loss: float | None = analyse(read_lives(out / "records"), (), plan.workers, compares_rounds=False)["loss"]
    return loss


def reported(
    plan: ChaosPlan, strategy: str, played: Played, out: Path, loss: float | None, *, compares_rounds: bool
) -> ChaosRun:
    """Analyse the records in ``out``, and write the report. loss: of the undisturbed run."""
    run = ChaosRun(
        plan=plan,
        strategy=strategy,
        exit_code=played.exit_code,
        is_hanging=played.is_hanging,
        left_processes=played.left_processes,
        found=analyse(read_lives(out / "records"), played.faults, plan.workers, compares_rounds=compares_rounds),
        undisturbed_loss=loss,
    )
    write_report(run, out)
    return run


def has_equal_models(strategy: Strategy[Any]) -> bool:
    """Whether all workers have one model after every round."""
    if isinstance(strategy, LocalSGD):
        return not strategy.overlap_steps and getattr(strategy, "fragments", 1) == 1
    return isinstance(strategy, AllReduce | CompressedGradient)


def updates_per_step(strategy: Strategy[Any], workers: int) -> float:
    """Return how many updates the model makes while every worker takes one step."""
    base = getattr(strategy, "base", strategy)
    if isinstance(base, ParameterServerStrategy) and not base.cancels:
        return workers / base.k
    return 1.0


def last_updates(strategy: Strategy[Any], workers: int, steps: int, step_s: float) -> int:
    """Return the updates at the end in which no fault begins that had to wait: a killed worker could not come back."""
    return min(round(RETURN_S / step_s * updates_per_step(strategy, workers)), steps // 10)


@contextmanager
def _places(kinds: set[str], workers: int, out: Path) -> Iterator[tuple[Hosts | None, SmallDisk | None]]:
    """Make what the faults need: network namespaces, a small disk."""
    with ExitStack() as stack:
        made = stack.enter_context(hosts(workers)) if "cut" in kinds else None
        disk = stack.enter_context(small_disk(out / "checkpoints", _DISK_MB)) if "fill" in kinds else None
        yield made, disk


def play(
    plan: ChaosPlan,
    words: Sequence[str],
    out: Path,
    *,
    found_hosts: Hosts | None = None,
    disk: SmallDisk | None = None,
    launcher: str = LAUNCHERS[0],
    say: Callable[[str], None] = print,
    last: int | None = None,
) -> Played:
    """Let workers that run ``words`` train and write records into ``out``, while the faults of ``plan`` happen.

    last: the update after which no fault begins that had to wait.
    """
    records = out / "records"
    records.mkdir(parents=True)
    command = _command(plan, words, out, found_hosts, launcher)
    with (out / "launch.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    injector, faults = Injector(plan, records, found_hosts, disk, last=last), counted(len(plan.faults), "fault")
    try:
        _wait_for_start(process, records, plan.workers, out)
        say(f"training with {counted(plan.workers, 'worker')}; {faults} in {plan.for_s:g} s")
        injector.start()
        is_hanging = _follow(process, injector, records, plan, say)
    finally:
        injector.end()
        _end(process)
    left = _count_left(records)
    return Played(exit_code=process.returncode, is_hanging=is_hanging, left_processes=left, faults=injector.done)


def _command(plan: ChaosPlan, words: Sequence[str], out: Path, found_hosts: Hosts | None, launcher: str) -> list[str]:
    logs, address = str(out / "logs"), None if found_hosts is None else HUB_ADDRESS
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", f"{plan.workers}"]
        command += ["--rdzv-backend", "static", "--master-addr", address or "127.0.0.1"]
        command += ["--master-port", f"{_free_port()}", "--log-dir", logs, "--redirects", "3"]
    else:
        command = [sys.executable, "-m", "tacit", "launch", "--workers", f"{plan.workers}"]
        command += ["--min-workers", f"{plan.min_workers}", "--max-restarts", f"{plan.max_restarts}", "--logs", logs]
        command += [] if address is None else ["--host", address]
    command += words
    return command if found_hosts is None else found_hosts.command(command)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_start(launcher: subprocess.Popen[bytes], records: Path, workers: int, out: Path) -> None:
    until_s = time.monotonic() + _START_S
    while not have_attached(records, workers):
        if launcher.poll() is not None or time.monotonic() > until_s:
            tail = (out / "launch.txt").read_text()[-1500:]
            raise TacitError(f"the workers did not start: {tail.strip() or 'no output'} (see {out / 'logs'}).")
        time.sleep(_LOOK_S)


def _follow(
    launcher: subprocess.Popen[bytes],
    injector: Injector,
    records: Path,
    plan: ChaosPlan,
    say: Callable[[str], None],
) -> bool:
    """Apply faults until the run ends; return whether it hangs."""
    size, begun_s = 0, time.monotonic()
    grown_s, told_s, limit_s = begun_s, begun_s, begun_s + 4 * plan.for_s + 120.0
    while launcher.poll() is None:
        time.sleep(min(_LOOK_S, injector.poll()))
        now_s = time.monotonic()
        if (now_size := size_of(records)) != size:
            size, grown_s = now_size, now_s
        if now_s - told_s > _TELL_S:
            told_s, updates = now_s, latest_updates(records)
            done = f"{len(injector.done)} of {counted(len(plan.faults), 'fault')}"
            say(f"{now_s - begun_s:.0f} s, {done}, {counted(updates, 'update')}")
        if now_s - grown_s > _HANGS_S or now_s > limit_s:
            for process in processes(records):  # their logs then say where they wait
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGUSR1)
            time.sleep(1.0)
            return True
    return False


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its workers."""
    for number, patience_s in ((signal.SIGTERM, 45.0), (signal.SIGKILL, 10.0)):
        if launcher.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, number)
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(patience_s)


def _count_left(records: Path) -> int:
    """Return how many processes of the run are left after ten seconds; end them."""
    until_s = time.monotonic() + _LEFT_S
    while any(map(is_running, processes(records))) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    left = [process for process in processes(records) if is_running(process)]
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(left)
