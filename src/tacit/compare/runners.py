"""Where the runs of a comparison are made: in this process, in worker processes, or by a user's executor."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from tacit.compare.execution import Runner
from tacit.compare.process_pool import ProcessRunner
from tacit.compare.process_worker import encoded
from tacit.compare.ray_executor import RayExecutor
from tacit.compare.tasks import Outcome, Task, Work, attempt, attempt_remotely
from tacit.compare.watcher import Watcher
from tacit.errors import TacitError, require

LOCAL: Final = "local"
RAY: Final = "ray"
QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Limit of a container on Linux: processor time and period, in microseconds."""
_NOTICED_S: Final = 0.2
"""Time between two looks at Ctrl-C."""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use: by its affinity and by the limit of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota_us, period_us = QUOTA.read_text().split()
        return max(1, min(cores, int(quota_us) // int(period_us)))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or no limit: «max 100000»
        return cores


def default_jobs(threads: int, device: str) -> int:
    """Return the number of runs at once: all usable cores, by the threads of a run; one on a GPU, whose memory and
    compute units they would share.
    """
    return max(1, usable_cores() // threads) if device.startswith("cpu") else 1


def check_executor(executor: str | Executor, jobs: int | None) -> None:
    """Raise an error unless ``executor`` and ``jobs`` can make runs."""
    require(jobs is None or jobs >= 1, f"jobs={jobs} must be at least 1.")
    if isinstance(executor, ThreadPoolExecutor):
        raise TypeError(
            "executor=ThreadPoolExecutor(…) must use processes, as runs share torch's settings; use jobs=2."
        )
    if not isinstance(executor, str | Executor):
        raise TypeError(f"executor={executor!r} must be 'local', 'ray', 'ray://HOST:PORT', or an Executor.")
    if isinstance(executor, str):
        require(
            executor in (LOCAL, RAY) or executor.startswith("ray://"),
            f"executor={executor!r} must be 'local', 'ray' (RAY_ADDRESS names a cluster) or 'ray://HOST:PORT'.",
        )


def open_runner(
    work: Work, executor: str | Executor, jobs: int | None, watcher: Watcher, *, device: str, runs: int | None
) -> Runner:
    """Return the runner for ``executor`` with ``jobs`` runs at once; None: one here, any number elsewhere.

    runs: how many there are; None: not known.
    """
    if isinstance(executor, Executor):
        return FuturesRunner(work, executor, jobs, watcher)
    if executor != LOCAL:
        address = None if executor == RAY else executor
        ray = RayExecutor(address, threads=work.threads, has_gpu=not device.startswith("cpu"))
        return FuturesRunner(work, ray, jobs, watcher, is_own=True)
    if jobs is None or jobs == 1 or runs == 1:
        return SerialRunner(work, watcher)
    start_method = None if device.startswith("cpu") else "spawn"
    return ProcessRunner(work, jobs, watcher, runs=runs, start_method=start_method)


class SerialRunner:
    """Makes one run after the other in this process."""

    def __init__(self, work: Work, watcher: Watcher) -> None:
        self.capacity: int | None = 1
        self._work, self._watcher = work, watcher
        self._task: Task | None = None

    def submit(self, task: Task) -> None:
        self._task = task
        self._watcher.begin(task)

    def next(self) -> tuple[Task, Outcome]:
        task = self._task
        assert task is not None

        def progress(step: int, steps: int, time_s: float, loss: float | None) -> None:
            self._watcher.step(task, step, steps, time_s, loss)

        return task, attempt(self._work, task, progress)

    def interrupt(self) -> list[tuple[Task, Outcome]]:
        return []

    def close(self) -> None:
        pass


class FuturesRunner:
    """Makes runs with an executor of ``concurrent.futures``; ``is_own``: it is shut down at the end."""

    def __init__(
        self, work: Work, executor: Executor, jobs: int | None, watcher: Watcher, *, is_own: bool = False
    ) -> None:
        self.capacity: int | None = jobs
        self._executor, self._watcher, self._is_own = executor, watcher, is_own
        put: Callable[[Work], Any] = getattr(executor, "put", lambda work: work)
        self._work = put(work)
        self._futures: dict[Future[bytes], Task] = {}

    def submit(self, task: Task) -> None:
        self._futures[self._executor.submit(_make, self._work, task)] = task

    def next(self) -> tuple[Task, Outcome]:
        done: set[Future[bytes]] = set()
        while not done:
            done, _ = wait(self._futures, timeout=_NOTICED_S, return_when=FIRST_COMPLETED)
        future = next(future for future in self._futures if future in done)  # in the order of submission
        task = self._futures.pop(future)
        self._watcher.begin(task)
        try:
            outcome = pickle.loads(future.result())
        except Exception as error:  # noqa: BLE001 - of the executor: a process that was killed, a machine that is gone
            what = str(error).strip().split("\n")[0]
            outcome = Outcome(None, TacitError(f"the executor lost it: {type(error).__name__}: {what}"))
        return task, outcome

    def interrupt(self) -> list[tuple[Task, Outcome]]:
        found = []
        while any(future.done() for future in self._futures):
            found.append(self.next())
        for future in self._futures:
            future.cancel()
        return found

    def close(self) -> None:
        if self._is_own:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _make(work: Work, task: Task) -> bytes:
    return encoded(attempt_remotely(work, task))
