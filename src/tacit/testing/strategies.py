"""Checks of a strategy: ``check_strategy(mine)`` tests what every strategy must hold, in the simulator.

    from tacit.testing import check_strategy

    def test_mine_is_a_strategy():
        check_strategy(Mine(k=2))

``CHECKS`` are the single checks; each takes a ``Row``. The conformance table of tacit itself uses them.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tacit import workloads
from tacit.cluster import Cluster
from tacit.cluster.delays import Pareto
from tacit.cluster.faults import Crash, Fault
from tacit.core.strategy import RunsAhead, Strategy
from tacit.core.worker import Worker
from tacit.errors import MisplacedCall, PeerLost
from tacit.record.run import Run
from tacit.registry import parse
from tacit.simulation import simulate
from tacit.simulation.scripts.run import simulate_script
from tacit.strategies import may_send

QUADRATIC: Final = workloads.quadratic(dimension=7, heterogeneity=0.5)
WORKERS: Final = 5
_CRASH: Final = Crash(rank=3, at_s=0.2)
_RUNS: Final[dict[tuple[type, str], Run]] = {}
_MOST_RUNS: Final = 100
_SCRIPT: Final = """
import sys
import tacit, torch

folder, resumes = sys.argv[1], sys.argv[2] == "resume"
torch.manual_seed(0)
model = torch.nn.Linear(3, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
session = tacit.attach(model, optimizer, tacit.AllReduce(), steps=16)
begin = session.resume(folder) if resumes else 0
for step in range(begin, 16):
    generator = torch.Generator().manual_seed(10 * step + tacit.rank())
    inputs = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs[:, :2]).square().mean()
    loss.backward()
    session.observe(loss)
    optimizer.step()
    if step == 8 and not resumes:
        session.checkpoint(folder)
session.close()
"""


@dataclass(frozen=True)
class Row:
    """A strategy to check, and what is known about it."""

    strategy: Strategy[Any]
    depends_on_data: bool = False  # whether the times or sizes of messages depend on gradients
    survives_a_crash: bool = False  # whether the others finish when one worker crashes
    is_asynchronous: bool = False  # whether the model depends on the order of messages
    fewest_workers: int = 1

    def __str__(self) -> str:
        return str(self.strategy)


def check_strategy(
    strategy: Strategy[Any],
    *,
    depends_on_data: bool = False,
    survives_a_crash: bool = False,
    is_asynchronous: bool = False,
    fewest_workers: int = 1,
) -> None:
    """Run all ``CHECKS`` on ``strategy``; raise ``AssertionError`` at the first promise that it breaks.

    depends_on_data: whether the times or the sizes of its messages depend on gradients.
    survives_a_crash: whether the other workers finish when one crashes; else the run must end with ``PeerLost``.
    is_asynchronous: whether the final model depends on the order in which messages arrive.
    fewest_workers: the smallest number of workers it accepts.
    """
    row = Row(strategy, depends_on_data, survives_a_crash, is_asynchronous, fewest_workers)
    for check in CHECKS:
        check(row)


def check_notation(row: Row) -> None:
    """Check that the strategy prints as the call that makes it, so that run folders and TOML files can name it."""
    try:
        read = parse(str(row.strategy), "strategies")
    except ValueError as error:
        raise AssertionError(f"{row} does not read back what it prints: {error}") from error
    assert read == row.strategy, f"{row} prints as a call that makes {read!r}."


def check_learning(row: Row) -> None:
    """Check that 40 steps of three workers on handwritten digits halve the loss."""
    workers, steps = max(3, row.fewest_workers), 40
    run = _simulated(row.strategy, workloads.digits(), workers=workers, steps=steps, lr=0.3, evaluate_every=steps)
    first, last = run.history[0]["loss"], run.history[-1]["loss"]
    assert run.status == "finished" and run.summary()["steps"] == steps, f"{row}: the run {run.status}."
    assert last < 0.5 * first, f"{row}: the loss on digits went from {first:.4g} to {last:.4g} only in {steps} steps."


def check_determinism(row: Row) -> None:
    """Check that equal seeds give equal runs, whether greenlets or threads host the workers, and other seeds others."""
    first, threads = _default_run(row).digest, _simulated(row.strategy, host="thread").digest
    if first != threads:
        again = _simulated(row.strategy).digest
        assert first == again, (
            f"{row}: two runs from one seed differ; draw from worker.random or worker.shared_random only."
        )
        raise AssertionError(f"{row}: the run depends on the host; keep what changes in the state, not in globals.")
    assert _simulated(row.strategy, seed=3).digest != first, f"{row}: another seed gives the same run."


def check_finish(row: Row) -> None:
    """Check that all ranks end with the reported model."""
    ends: dict[int, Tensor] = {}

    def finish(self: Strategy[Any], worker: Worker, state: Any) -> None:
        type(row.strategy).finish(self, worker, state)
        ends[worker.rank] = worker.parameters.clone()

    run = _simulated(_altered(row.strategy, finish=finish))
    for rank, model in ends.items():
        distance = float((model - run.parameters).abs().max())
        assert distance <= 1e-12, f"{row}: rank {rank} ends {distance:.3g} away from the reported model; see finish()."
    expected = 0 if row.strategy.has_server else WORKERS  # a server's last update ends the run
    assert len(ends) == expected, f"{row}: finish() ran on {len(ends)} ranks of {expected}."


def check_hook_free_steps(row: Row) -> None:
    """Check that running steps ahead changes nothing: those of ``hook_free_steps`` and of ``untouched_steps``."""
    if not isinstance(row.strategy, RunsAhead):
        return
    none = lambda self, worker, state: 0  # noqa: E731
    stepwise = _simulated(_altered(row.strategy, hook_free_steps=none, untouched_steps=none))
    ahead = _default_run(row)
    assert ahead.trace.digest == stepwise.trace.digest, f"{row}: hook_free_steps() counts a step that communicates."
    torch.testing.assert_close(ahead.parameters, stepwise.parameters, rtol=1e-9, atol=1e-12)


def check_times(row: Row) -> None:
    """Check that losses by step are equal on clusters of other speeds, unless the strategy says ``depends_on_time``.

    The spread of the models is compared as well: on a quadratic, the mean of the models does not depend on rounds.
    """
    if row.strategy.depends_on_time:
        return
    slow = Cluster(
        workers=WORKERS, compute=Pareto(minimum_s=0.01, shape=1.5), bandwidth_bytes_per_s=2e4, speed={1: 0.3}
    )
    run = _default_run(row)
    there = simulate(QUADRATIC, row.strategy, cluster=slow, steps=run.steps, seed=run.seed)
    for here, other in zip(run.history, there.history, strict=True):
        for name in ("loss", "spread"):
            value, limit = here[name] or 0.0, 1e-9 * abs(here["loss"])
            assert abs(value - (other[name] or 0.0)) <= limit, (
                f"{row}: the {name} at step {here['step']} depends on the cluster; "
                f"set depends_on_time = True in the class."
            )


def check_messages(row: Row) -> None:
    """Check that real processes open a message endpoint for a strategy that sends messages."""
    sends = bool(_default_run(row).trace.of("send"))
    assert may_send(row.strategy) or not sends, f"{row}: sends messages, but may_send() is False for it."


def check_bytes(row: Row) -> None:
    """Check that times and bytes are those of a run without models, unless they depend on data."""
    try:
        timed = _simulated(row.strategy, timing_only=True)
    except MisplacedCall:
        assert row.depends_on_data, f"{row}: a timing-only run asks for data; is depends_on_data=True missing?"
        return
    if not row.depends_on_data:
        trace = _default_run(row).trace
        assert trace.digest == timed.trace.digest, f"{row}: times or bytes depend on data; say depends_on_data=True."


def check_crash(row: Row) -> None:
    """Check that a crash is survived, or ends the run with ``PeerLost`` and what there is of the run."""
    try:
        run = _simulated(row.strategy, faults=(_CRASH,))
    except PeerLost as error:
        assert not row.survives_a_crash, f"{row}: does not survive a crash: {error}"
        assert error.run is not None and error.run.history, f"{row}: {error} carries no run."
        assert "worker 3 was lost at 0.2 s" in str(error), f"{row}: {error} names another worker."
        return
    assert row.survives_a_crash and run.status == "finished", f"{row}: a crash left a run that {run.status}."


def check_one_worker(row: Row) -> None:
    """Check that a single worker trains without sending, but to a server; or that too few workers are refused."""
    if row.fewest_workers > 1:
        try:
            _simulated(row.strategy, workers=1)
        except ValueError as error:
            assert re.search(r"(workers|P) ?= ?1\b", str(error)), f"{row}: {error} does not name the number of workers."
            return
        raise AssertionError(f"{row}: takes one worker, but fewest_workers={row.fewest_workers}.")
    run = _simulated(row.strategy, workers=1)
    sent = run.summary()["bytes_sent"]
    assert run.status == "finished", f"{row}: with one worker the run {run.status}."
    assert (sent == 0) != row.strategy.has_server, f"{row}: one worker sent {sent} bytes."


def check_checkpoint(row: Row) -> None:
    """Check that a run resumed from a checkpoint ends with the model of the run that was not interrupted.

    Messages under way are not in a checkpoint: a strategy that sends any must only resume and finish.
    """
    with tempfile.TemporaryDirectory() as name:
        script, folder = Path(name) / "train.py", str(Path(name) / "kept")
        script.write_text(_SCRIPT, encoding="utf-8")
        cluster = Cluster(workers=max(3, row.fewest_workers))
        whole, resumed = (
            simulate_script(script, [folder, word], cluster=cluster, strategy=row.strategy)
            for word in ("begin", "resume")
        )
    assert resumed.status == "finished", f"{row}: resumed from a checkpoint, the run {resumed.status}."
    if whole.trace.of("send"):
        return
    distance = float((whole.parameters - resumed.parameters).abs().max())
    assert distance <= 1e-12, f"{row}: a resumed run ends {distance:.3g} away; keep all that changes in the state."


CHECKS: Final[tuple[Callable[[Row], None], ...]] = (
    check_notation,
    check_determinism,
    check_finish,
    check_hook_free_steps,
    check_times,
    check_messages,
    check_bytes,
    check_crash,
    check_one_worker,
    check_checkpoint,
    check_learning,
)


def _default_run(row: Row) -> Run:
    """Return the run of ``row`` with the default arguments, which several checks only read."""
    key = type(row.strategy), str(row)
    if key not in _RUNS:
        if len(_RUNS) >= _MOST_RUNS:
            _RUNS.clear()
        _RUNS[key] = _simulated(row.strategy)
    return _RUNS[key]


def _simulated(
    strategy: Strategy[Any],
    workload: workloads.Workload = QUADRATIC,
    *,
    workers: int = WORKERS,
    faults: tuple[Fault, ...] = (),
    steps: int = 19,
    seed: int = 2,
    **rest: Any,
) -> Run:
    return simulate(workload, strategy, cluster=Cluster(workers=workers, faults=faults), steps=steps, seed=seed, **rest)


def _altered(strategy: Strategy[Any], **hooks: object) -> Strategy[Any]:
    """Return ``strategy`` with some hooks replaced."""
    fields = dataclasses.fields(strategy)  # type: ignore[arg-type]
    values = {field.name: getattr(strategy, field.name) for field in fields if field.init}
    made: Strategy[Any] = type(type(strategy).__name__, (type(strategy),), hooks)(**values)
    return made
