"""The record of one worker: its losses and the user's evaluations, and the run made from all records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tacit.record.facts import merged_facts, model_facts, optimizer_text, step_time_quantiles
from tacit.record.merge import LossCurve, as_numbers, facts_of, merged, packed, row_at
from tacit.record.progress import ProgressWriter
from tacit.record.reaching import EVALUATED, OBSERVED
from tacit.record.run import Row, Run, Tally
from tacit.record.versions import versions
from tacit.session.backend import SessionBackend
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.plan_watch.watch import Measured, PlanWatch
from tacit.session.recording.logs import Log
from tacit.session.steps.observed_losses import LossMeter
from tacit.session.steps.optimizers import Optimizers


class Recorder:
    """Records one worker's losses and evaluations, and writes them to ``log`` during the run."""

    def __init__(self, backend: SessionBackend, log: Log, steps: int | None, optimizers: Optimizers) -> None:
        self._backend, self._log, self._steps, self._optimizers = backend, log, steps, optimizers
        self._weight, self._counted, self._has_samples = 0.0, 0, False  # of all steps
        self._curve, self._rows = LossCurve(steps), list[Row]()
        self._evaluated: Measured | None = None
        self._observed: Measured | None = None
        self.meter = LossMeter(backend.rank)  # losses since the last row of the curve
        self.watch: PlanWatch | None = None  # of a run that follows a plan, on rank 0
        self.updates: Callable[[], int] | None = None  # of the server, in server strategies
        self.progress: ProgressWriter | None = None  # of a run whose progress is kept on disk
        self.period: Callable[[], float | None] = lambda: None  # between rounds, as the strategy has noted it

    def observe(self, loss: float | Tensor, samples: float | None) -> None:
        """Add the loss of a mini-batch, or of one micro-batch, of ``samples`` samples."""
        self.meter.observe(loss, samples)
        self._has_samples = self._has_samples or samples is not None

    def end_step(self, step: int, weight: float, time_s: float) -> None:
        """Count step ``step``, which ended at ``time_s``."""
        self.meter.end_step(weight)
        if self._backend.step_ended is not None:
            self._backend.step_ended(step, time_s, self.meter.latest, weight)
        self._weight, self._counted = self._weight + weight, self._counted + 1
        if step % self._curve.every == 0:
            self.add_row(step, time_s)
        if self.progress is not None and self.progress.is_due:
            self._write_progress(self.progress, step, time_s)
        if self.watch is not None:
            done = step if self.updates is None else self.updates()
            self.watch.end_step(done, time_s, self._backend.live_round, self.latest_loss)

    def _write_progress(self, progress: ProgressWriter, step: int, time_s: float) -> None:
        updates = None if self.updates is None else self.updates()
        progress.add(step, time_s, updates=updates, period=self.period())

    def latest_loss(self) -> Measured | None:
        """Return the loss of the last evaluation; without evaluations, of the last row of the curve; and its step."""
        return self._evaluated or self._observed

    def _measured(self, step: int, loss: float | None) -> Measured | None:
        """Return ``loss`` with its step, or with a server the update; None without a loss."""
        return None if loss is None else (loss, step if self.updates is None else self.updates())

    def add_row(self, step: int, time_s: float) -> None:
        """Add the losses since the last row to the curve."""
        if self.meter.steps:
            seen = self.meter.take()
            self._curve.add(step, time_s, seen.loss, seen.weight)
            self._observed = self._measured(step, seen.loss) or self._observed
            self._log.write(step, {"training/loss": seen.loss, "time_s": time_s})
            if self.progress is not None:
                self.progress.observe(seen.loss)

    def add_evaluation(self, step: int, measured: Mapping[str, object]) -> None:
        """Add what the user measured to the history. If it includes losses, the history holds evaluations only."""
        numbers = as_numbers(measured)
        time_s = self._backend.now_s()
        self._rows.append({"step": step, "time_s": time_s, **numbers})
        self._evaluated = self._measured(step, numbers.get("loss")) or self._evaluated
        if self.progress is not None:
            self.progress.evaluated(step, time_s, numbers)
        self._log.write(step, {f"evaluation/{name}": value for name, value in numbers.items()})

    def packed(self) -> bytes:
        """Return trace and curve as bytes, for rank 0 or for a checkpoint."""
        return packed(self._backend.trace, self._curve, self._facts())

    def _facts(self) -> dict[str, Any]:
        """Return the facts of this worker's process, and its mean batch if the user gives ``samples``."""
        batch = {"batch": self._weight / self._counted} if self._has_samples and self._counted else {}
        return {"rank": self._backend.rank, **self._backend.facts(), **batch}

    def complete(self, run: Run, records: list[bytes], status: str, model: FlatModel, step: int) -> None:
        """Fill in ``run`` from the available records."""
        if self.watch is not None:
            self.watch.close()
        if self.progress is not None:
            self._write_progress(self.progress, step, self._backend.now_s())
            self.progress.end(status)
        trace, history = merged(records)
        tally = Tally(trace)
        logged = [row_at(tally, **row) for row in self._rows]
        is_evaluated = any("loss" in row for row in self._rows)
        if not is_evaluated:
            logged = sorted([*history, *logged], key=lambda row: (row["time_s"], row["step"]))
        run.trace, run.history, run.status = trace, logged, status
        run.steps, run.parameters = self._steps or step, model.copy()
        run.config = run.config or {
            "workload": run.workload,
            "strategy": run.strategy,
            "seed": run.seed,
            "steps": self._steps,
        }
        facts = [facts_of(record) for record in records]
        by_rank = {one.pop("rank"): one for one in facts}
        run.record = {
            **versions(),
            "device": str(model.device),
            "threads": torch.get_num_threads(),
            "world": self._backend.world,
            **model_facts(model.dimension, model.dtype, sum(p.numel() * p.element_size() for p in model.parameters)),
            "optimizer": optimizer_text(self._optimizers),
            **merged_facts(by_rank),
            **({"step_time_quantiles_s": step_time_quantiles(trace)} if self._backend.world == "processes" else {}),
            **({"drift": self.watch.drifts} if self.watch is not None and self.watch.drifts else {}),
            **({"losses": EVALUATED if is_evaluated else OBSERVED} if "window_batches" in run.predicted else {}),
            **run.record,  # what the caller knows better
        }

    def close(self) -> None:
        self._log.close()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        return {"curve": [list(row) for row in self._curve.rows], "rows": list(self._rows)}

    def load_state_dict(self, stored: Mapping[str, Any], step: int) -> None:
        """Continue after step ``step`` with what ``state_dict`` returned."""
        self._curve.rows, self._rows = [tuple(row) for row in stored["curve"]], list(stored["rows"])
        evaluated = [(row["loss"], row["step"]) for row in self._rows if row.get("loss") is not None]
        self._evaluated = evaluated[-1] if evaluated else None
        self.meter.step = step

    def join(self, step: int, time_s: float) -> None:
        """Record from step ``step`` on, at which this worker has joined the run."""
        self.meter.step = step
        self.continue_at(time_s)

    def continue_at(self, time_s: float) -> None:
        """Take note of the time at which the run continues."""
        if self.watch is not None:
            self.watch.continue_from(self.meter.step, time_s)
        if self.progress is not None:
            self.progress.continue_from(time_s)
