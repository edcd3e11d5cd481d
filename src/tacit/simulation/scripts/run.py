"""``tacit simulate train.py``: run a user's script, unchanged, on a simulated cluster."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from tacit.cluster.cluster import Cluster
from tacit.cluster.joins import check_script_joins
from tacit.core.randomness import Streams
from tacit.core.specs import with_python_numbers
from tacit.core.strategy import Strategy
from tacit.errors import Interrupted, RunError, TacitError, nearest, require
from tacit.record.run import Run, Tally
from tacit.record.versions import versions
from tacit.simulation.evaluation import Progress
from tacit.simulation.fibers import HOSTS, default_host
from tacit.simulation.scripts.following import Follower
from tacit.simulation.scripts.frameworks import one_process_each
from tacit.simulation.scripts.guards import guarded
from tacit.simulation.scripts.process_state import Interpreter, environment_of
from tacit.simulation.scripts.world import Script, ScriptWorld

_logger: Final = logging.getLogger("tacit")


@with_python_numbers
def simulate_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    cluster: Cluster | None = None,
    strategy: Strategy[Any] | None = None,
    seed: int = 0,
    measured: bool = False,
    host: str | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run the script ``path`` on every worker of a simulated ``cluster`` and return the run of its last session.

    strategy: used by every session instead of the strategy that the script passes to ``attach``; None: the script's.
    measured: a step takes the time it takes on this machine, divided by the worker's speed, instead of a time from
        ``cluster.compute``. Such runs are not reproducible bit for bit.
    progress: called regularly with step, steps, virtual time and None.

    An error in the run, and Ctrl-C, has the part of the run up to it as ``error.run``.
    """
    return simulate_compiled(
        compiled(path, arguments),
        cluster=Cluster() if cluster is None else cluster,
        strategy=strategy,
        seed=seed,
        measured=measured,
        host=host,
        progress=progress,
    )


def simulate_compiled(
    script: Script,
    *,
    cluster: Cluster,
    strategy: Strategy[Any] | None,
    seed: int,
    measured: bool,
    host: str | None = None,
    progress: Progress | None = None,
    follower: Follower | None = None,
) -> Run:
    """Run a compiled script, as ``simulate_script`` does.

    follower: called after each step of the first session; where it returns True, the run ends, with status "stopped".
    """
    check_script_joins(cluster)
    require(host is None or host in HOSTS, f"host={host!r} is unknown{nearest(str(host), HOSTS)}")
    interpreter = Interpreter(script.path.parent, Streams(seed))
    world = ScriptWorld(
        script,
        cluster,
        interpreter,
        seed=seed,
        host=host or default_host(),
        measured=measured,
        progress=progress,
        strategy=strategy,
        follower=follower,
    )
    try:
        with (
            interpreter,
            guarded(lambda: interpreter.shows_output, script.line),
            one_process_each([*environment_of(0, 1)]),
        ):
            world.run()
    except RunError as error:
        error.run = _run_of(world, f"failed: {error}")
        raise
    except KeyboardInterrupt as error:
        interrupted = Interrupted(f"interrupted at {world.agenda.now_s:.6g} s")
        interrupted.run = _run_of(world, "interrupted")
        raise interrupted from error
    return _run_of(world, "stopped" if world.agenda.is_stopped else None)


def compiled(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> Script:
    """Return the script at ``path``, read and compiled."""
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise TacitError(f"the script {path} cannot be read: {error.strerror or error}.") from error
    whole = path.resolve()
    try:
        code = compile(source, str(whole), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise TacitError(f"the script {path}{where} is not Python: {error}.") from error
    return Script(whole, tuple(arguments), code, hashlib.sha256(source).hexdigest())


def _run_of(world: ScriptWorld, status: str | None) -> Run:
    """Return the run of rank 0's last session with the events of all workers; status None: that of the session."""
    run, trace = Run("", "", world.cluster.workers, 0, world.seed), world.trace
    for number, (session, channel) in enumerate(attached := world.workers[0].context.attached, 1):
        run, trace = session.run, channel.trace
        if number < len(attached):
            sent = Tally(trace).at(world.agenda.now_s)
            _logger.warning(
                "session %d of %d, %s: %d rounds, %d bytes sent; the run that is returned is that of the last session.",
                number,
                len(attached),
                session.strategy,
                sent["round"],
                sent["bytes_sent"],
            )
    if status is not None:
        run.status = status
        trace.cut(world.agenda.now_s)
    run.trace = trace
    if status is not None:  # the session has only its own events
        tally = Tally(run.trace)
        run.history = [{**row, **tally.at(row["time_s"])} for row in run.history]
    run.workload, run.seed, run.cluster = world.script.path.name, world.seed, str(world.cluster)
    if not run.strategy and world.strategy is not None:  # the script ended before its first session
        run.strategy = str(world.strategy)
    run.config = script_configuration(
        world.script, cluster=world.cluster, strategy=world.strategy, seed=world.seed, measured=world.is_measured
    )
    run.record = {**run.record, **_record(world)}
    return run


def script_configuration(
    script: Script, *, cluster: Cluster, strategy: Strategy[Any] | None, seed: int, measured: bool
) -> dict[str, Any]:
    """Return the settings that reproduce the run, as ``tacit simulate --config`` reads them."""
    table = cluster.table()
    if measured:
        table["compute"] = "measured"
    given = {} if strategy is None else {"strategy": str(strategy)}
    return {
        "script": str(script.path),
        "arguments": list(script.arguments),
        **given,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "cluster": table,
    }


def _record(world: ScriptWorld) -> dict[str, Any]:
    return {
        **versions(),
        **({} if world.cluster.cores is None else {"compute_slowdown": world.cluster.slowdowns}),
        "host": world.host,
        "world": "simulated",
        "engine": "script",
        "script_sha256": world.script.sha256,
        "strategies": [str(session.strategy) for session, _ in world.workers[0].context.attached],
        **({"own_strategies": world.workers[0].context.own_strategies} if world.strategy is not None else {}),
        **({"script_modules": _own_modules(world)} if world.follower is not None else {}),
    }


def _own_modules(world: ScriptWorld) -> dict[str, str]:
    """Return the files in the folder of the script that workers have imported, with their digests."""
    modules = {name: one for worker in world.workers for name, one in worker.process_state.modules.items()}
    paths = sorted({Path(one.__file__) for one in modules.values() if one.__file__})
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
