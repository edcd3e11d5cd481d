"""A cache of loss curves, in memory and in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.cluster import Cluster
from tacit.cluster.delays import Constant
from tacit.compare.curves.curve import Curve
from tacit.compare.curves.keys import Key, key_of
from tacit.core.specs import with_python_numbers
from tacit.errors import RunError, require
from tacit.record.files import write_text
from tacit.record.run import Run
from tacit.simulation import simulate
from tacit.strategies import Strategy
from tacit.training.optimizers import Factory
from tacit.training.schedules import Schedule, factors
from tacit.workloads import Workload

_FORMAT: Final = 1


@dataclass(frozen=True)
class _Entry:
    """A curve of a run of ``length`` steps, which is complete up to step ``covered``."""

    curve: Curve
    length: int
    covered: int

    def answer(self, steps: int, until_loss: float | None) -> Curve | None:
        """Return the curve of ``steps`` steps, up to the first loss of at most ``until_loss``; None: not known."""
        reached = None if until_loss is None else self.curve.first_step_reaching(until_loss)
        if reached is not None and reached <= steps:
            return _up_to(self.curve, reached)
        if steps <= self.covered:
            return _up_to(self.curve, steps)
        return self.curve if self.curve.status != "finished" and steps >= self.length else None


class LossCurves:
    """Loss curves by step, each simulated once: for strategies with rounds they do not depend on the network.

    folder: keeps curves in small JSON files, also for other processes; None: in memory only. Files are keyed by the
    texts of workload and strategy, the training settings, and the versions of tacit and torch. Use another folder after
    a change of the data behind a path, or of the code of tacit itself. Curves of workloads and strategies of your own
    code are kept in memory only.

    >>> import tacit
    >>> from tacit.compare import LossCurves, time_to_loss
    >>> curves, task = LossCurves(), tacit.workloads.quadratic(dimension=10)
    >>> strategy = tacit.LocalSGD(period=tacit.Every(4))
    >>> curve = curves.curve(task, strategy, workers=4, steps=100)
    >>> for bandwidth in (1e4, 1e6):
    ...     cluster = tacit.Cluster(workers=4, bandwidth_bytes_per_s=bandwidth)
    ...     run = tacit.simulate(task, strategy, cluster=cluster, steps=100, timing_only=True)
    ...     print(f"{time_to_loss(curve, run, loss=curve.loss[0] / 10):.2f} s")
    1.30 s
    1.15 s
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._entries: dict[Key, list[_Entry]] = {}
        self.simulated = 0
        """Number of runs that were simulated because no curve was known."""

    @staticmethod
    def is_network_free(strategy: Strategy[Any]) -> bool:
        """Return whether ``strategy`` has a curve: its models by step do not depend on time."""
        return not strategy.depends_on_time

    @with_python_numbers
    def curve(
        self,
        workload: Workload,
        strategy: Strategy[Any],
        *,
        workers: int,
        steps: int,
        seed: int = 0,
        optimizer: str | Factory = "sgd",
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        schedule: Schedule | Callable[[int], float] | None = None,
        evaluate_every: int = 5,
        until_loss: float | None = None,
        engine: str = "auto",
        device: str = "cpu",
    ) -> Curve:
        """Return the curve of a run of ``steps`` steps, up to the first loss of at most ``until_loss``.

        A known curve of a longer run answers if its length makes no difference to schedule and strategy. The answer
        does not depend on what is known. Evaluations are those of the reported model at multiples of
        ``evaluate_every``. If the length makes a difference, the last one is that of the final model.
        """
        require(
            self.is_network_free(strategy),
            f"strategy={strategy} has no loss curve of its own: its models depend on the times of computation and "
            f"messages; use tacit.simulate(…, until_loss=…) on each cluster.",
        )
        require(isinstance(steps, int) and steps >= 1, f"steps={steps} must be a whole number, at least 1.")
        settings: dict[str, Any] = {
            "seed": seed,
            "optimizer": optimizer,
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "schedule": schedule,
            "evaluate_every": evaluate_every,
            "engine": engine,
            "device": device,
        }
        key = key_of(workload, strategy, workers, settings)

        def is_alike(length: int) -> bool:
            return length == steps or _begin_alike(strategy, schedule, *sorted((steps, length)))

        for entry in self._known(key):
            if is_alike(entry.length) and (answer := entry.answer(steps, until_loss)) is not None:
                return answer
        self.simulated += 1
        settings |= {"until_loss": until_loss, "cluster": Cluster(workers=workers, compute=Constant(mean_s=1.0))}
        entry = _simulated(workload, strategy, steps, settings, is_open=is_alike(steps + 1))
        self._store(key, entry)
        answer = entry.answer(steps, until_loss)
        assert answer is not None
        return answer

    def _known(self, key: Key) -> Iterator[_Entry]:
        """Yield the entries of ``key`` in memory, then those in the folder."""
        yield from list(self._entries.get(key, ()))
        if self._folder is None or key.stored is None:
            return
        for path in sorted(self._folder.glob(f"{key.stored}-*.json")):
            entry = _read(path)
            if entry is not None:
                self._remember(key, entry)
                yield entry

    def _remember(self, key: Key, entry: _Entry) -> None:
        """Keep ``entry`` in the place of one of the same length."""
        others = [one for one in self._entries.get(key, ()) if one.length != entry.length]
        self._entries[key] = [*others, entry]

    def _store(self, key: Key, entry: _Entry) -> None:
        self._remember(key, entry)
        if self._folder is not None and key.stored is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            content = {"format": _FORMAT, "settings": key.described, **asdict(entry)}
            write_text(self._folder / f"{key.stored}-{entry.length}.json", json.dumps(content) + "\n")


def _simulated(
    workload: Workload, strategy: Strategy[Any], steps: int, settings: dict[str, Any], *, is_open: bool
) -> _Entry:
    """Return the entry of a run of ``steps`` steps. is_open: simulate a step more, whose evaluation is left out.

    The last evaluation of a run is that of its final model, after a last round.
    """
    try:
        run = simulate(workload, strategy, steps=steps + is_open, **settings)
    except RunError as error:
        if error.run is None:
            raise
        run = error.run
    rows = [row for row in run.history if row["step"] <= steps]
    curve = Curve(
        strategy=run.strategy,
        workers=run.workers,
        steps=tuple(row["step"] for row in rows),
        loss=tuple(row["loss"] for row in rows),
        metric=tuple(row["metric"] for row in rows),
        status=run.status,
    )
    is_whole = run.status == "finished" and not _ended_early(run)
    return _Entry(curve, steps, steps if is_whole else max(curve.steps, default=0))


def _ended_early(run: Run) -> bool:
    return bool(run.history) and run.history[-1]["step"] < run.steps


def _begin_alike(
    strategy: Strategy[Any], schedule: Schedule | Callable[[int], float] | None, steps: int, longer: int
) -> bool:
    """Return whether a run of ``longer`` steps begins with the steps of a run of ``steps`` steps."""
    if not strategy.begins_like(steps, longer):
        return False
    one, other = factors(schedule, steps), factors(schedule, longer)
    return not isinstance(schedule, Schedule) or all(one(step) == other(step) for step in range(steps))


def _up_to(curve: Curve, step: int) -> Curve:
    """Return the part of ``curve`` up to ``step``."""
    count = sum(one <= step for one in curve.steps)
    return Curve(
        strategy=curve.strategy,
        workers=curve.workers,
        steps=curve.steps[:count],
        loss=curve.loss[:count],
        metric=curve.metric[:count],
    )


def _read(path: Path) -> _Entry | None:
    """Return the entry in a file; None if the file was removed meanwhile or has another format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            return None
        curve = content["curve"]
        curve |= {name: tuple(value) for name, value in curve.items() if isinstance(value, list)}
        return _Entry(Curve(**curve), content["length"], content["covered"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
