"""Choose where the runs of a comparison are made, and carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from tacit.compare.execution import Execution, NotSendable, Plan, Runner
from tacit.compare.runners import SerialRunner, open_runner
from tacit.compare.tasks import Work, torch_threads
from tacit.compare.watcher import Watcher
from tacit.record.run import Run


def executed(
    work: Work,
    plan: Plan,
    watcher: Watcher,
    earlier: Sequence[Run],
    *,
    executor: str | Executor,
    jobs: int | None,
    device: str,
    runs: int | None,
) -> tuple[Execution, list[str]]:
    """Carry out ``plan`` and return its results, and notes on how; ``runs``: how many there are, None: not known.

    Work that cannot be sent to other processes is done in this one.
    """
    execution, notes = Execution(work, watcher, earlier), list[str]()
    with torch_threads(work.threads):
        try:
            runner = open_runner(work, executor, jobs, watcher, device=device, runs=runs)
            _carry_out(execution, plan, runner)
        except NotSendable as error:
            notes.append(
                f"the runs were made one after the other, because other processes cannot receive them "
                f"({error.reason}); define the classes and functions of the workload in a module that can be imported, "
                f"or use executor='ray'."
            )
            _carry_out(execution, plan, SerialRunner(work, watcher))
    return execution, notes


def _carry_out(execution: Execution, plan: Plan, runner: Runner) -> None:
    try:
        execution.carry_out(plan, runner)
    finally:
        runner.close()
