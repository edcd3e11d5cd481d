"""The result of a simulated or real run: history, final model and trace, saved to a folder and loaded from it."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.parameter_layout import Layout
from tacit.core.randomness import Streams
from tacit.core.specs import current_text, current_texts
from tacit.errors import FolderExists, TacitError
from tacit.record.files import replacing_folder, toml_text
from tacit.record.step_times import moved_to_files, read_from_files
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, NOTE, SEND, WAIT, Trace

if TYPE_CHECKING:
    from tacit.workloads.workload import Workload

FORMAT: Final = 1
Row = dict[str, Any]
RECORDED: Final = ("time_s", "step", "round", "bytes_sent", "period")
"""Columns that every row of a history has in addition to the measured ones."""
_MEASURED: Final = ("loss", "gradient_norm_squared", "metric", "spread", "worst_loss", "worst_metric")


@dataclass(repr=False)
class Run:
    """The result of a run.

    ``history`` is a list of rows: ``time_s``, ``step``, ``round``, ``bytes_sent``, ``loss``, ``gradient_norm_squared``,
    ``metric``, ``spread`` (mean over workers of ‖x_i − x̄‖² before the round of that step) and ``period``. A number
    that was not measured is None. If workers keep different models, the last row also has ``worst_loss`` and
    ``worst_metric`` of the worst model. Rows of ``session.log(name=…)`` also have the logged names;
    ``summary()["logged"]`` is the last value of each.
    """

    workload: str
    strategy: str
    workers: int
    steps: int
    seed: int
    history: list[Row] = field(default_factory=list)
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))
    trace: Trace = field(default_factory=Trace)
    metric_name: str | None = None
    cluster: str = ""
    status: str = "finished"  # or "interrupted", or "failed: …"
    config: Mapping[str, Any] = field(default_factory=dict)  # settings that reproduce the run: the content of run.toml
    record: Mapping[str, Any] = field(default_factory=dict)  # versions, engine, host, threads
    server: list[dict[str, Any]] = field(default_factory=list)  # by shard: state of the server without its model
    module: nn.Module | None = field(default=None, compare=False)  # the trained module, maybe with its loss; not saved
    model_path: str = ""  # path of the model within ``module``

    def __repr__(self) -> str:
        last = next((row for row in reversed(self.history) if row["loss"] is not None), None)
        result = "no loss measured" if last is None else f"loss {last['loss']:.4g} after {last['time_s']:.4g} s"
        what = f"{self.strategy} on {self.workload}, {self.workers} workers, seed {self.seed}"
        return f"<Run {what}: {result}, {self.status}>"

    @property
    def digest(self) -> str:
        """SHA-256 of trace, history and final model: equal for equal seeds, engines and thread counts."""
        digest = hashlib.sha256(self.trace.digest.encode())
        digest.update(json.dumps(self.history, sort_keys=True).encode())
        digest.update(self.parameters.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def predicted(self) -> Mapping[str, Any]:
        """The prediction of the plan that the run follows; empty without a plan."""
        found: Mapping[str, Any] = self.record.get("predicted", {})
        return found

    @property
    def missing_workers(self) -> list[int]:
        """The workers of a run on processes that the trace has no events of: they could not report at its end."""
        present = set(np.unique(self.trace.unordered(("rank",))[0]).tolist())
        if self.record.get("world") != "processes" or not any(rank >= 0 for rank in present):
            return []
        return [rank for rank in range(self.workers) if rank not in present]

    def summary(self) -> dict[str, Any]:
        """Return the main figures of the run."""
        of = self.trace.unordered
        times_s, ranks = of(("time_s", "rank"))
        sent_bytes, (exchanged_bytes, rounds) = of(("size_bytes",), SEND)[0], of(("size_bytes", "round"), EXCHANGE)
        computed, cancelled, blocked, hooks = (self._seconds(k) for k in (COMPUTE, CANCELLED, WAIT, HOOK))
        finished = self._seconds_after_the_last_step() if len(sent_bytes) else 0.0
        updates, staleness = (of(("value",), NOTE, name)[0] for name in ("update", "staleness"))
        time_s, learners = float(times_s.max(initial=0.0)), int(np.unique(ranks[ranks >= 0]).size) or self.workers
        last = next((row for row in reversed(self.history) if row["loss"] is not None), {})
        missing = self.missing_workers
        return {
            "status": self.status,
            **({"missing_workers": missing} if missing else {}),
            "time_s": time_s,
            "steps": int((updates if len(updates) else of(("step",), COMPUTE)[0]).max(initial=0)),
            "gradients": len(gradient_times_s(self.trace)),
            "rounds": int(rounds.max(initial=0)),
            "messages": len(sent_bytes),
            "bytes_sent": int(sent_bytes.sum() + exchanged_bytes.sum()),
            "loss": last.get("loss"),
            "gradient_norm_squared": last.get("gradient_norm_squared"),
            "metric": last.get("metric"),
            "spread": last.get("spread"),
            **{name: last[name] for name in ("worst_loss", "worst_metric") if name in last},
            **({"logged": logged} if (logged := self.logged()) else {}),
            **({"target": self.record["target"]} if "target" in self.record else {}),
            "computing": computed / (learners * time_s) if time_s else 0.0,
            "idle": (blocked - finished) / (learners * time_s) if time_s else 0.0,
            "hooks": hooks / (learners * time_s) if time_s else 0.0,
            "finished": finished / (learners * time_s) if time_s else 0.0,
            "cancelled": cancelled / (computed + cancelled) if cancelled else 0.0,
            "staleness": float(staleness.mean()) if len(staleness) else None,
            "events": len(self.trace),
        }

    def logged(self) -> dict[str, float]:
        """Return the last number of each name that the user passed to ``session.log``."""
        rows = ((name, value) for row in self.history for name, value in row.items() if value is not None)
        return {name: value for name, value in rows if name not in (*RECORDED, *_MEASURED)}

    def _seconds(self, kind: str) -> float:
        """Return the seconds that workers spent on events of one kind; the result does not depend on their order."""
        ranks, ends_s, starts_s = self.trace.unordered(("rank", "time_s", "start_s"), kind)
        return float(np.sort((ends_s - starts_s)[ranks >= 0]).sum())

    def _seconds_after_the_last_step(self) -> float:
        """Return the seconds that workers waited for others after their last step."""
        names, kinds = ("rank", "start_s", "time_s"), (COMPUTE, CANCELLED, WAIT, EXCHANGE, SEND)
        parts = [self.trace.unordered(names, kind) for kind in kinds]  # faster than sorting a long trace
        columns = {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}
        columns["kind"] = np.repeat(kinds, [len(part[0]) for part in parts])
        return float(np.sort((columns["time_s"] - columns["start_s"])[waits_of_the_finished(columns)]).sum())

    def first_reaching(self, loss: float) -> Row | None:
        """Return the first row of the history whose loss is at most ``loss``, or None."""
        return first_row_reaching(self.history, loss)

    def model(self, workload: Workload | None = None) -> nn.Module:
        """Return a new module with the reported parameters, on the CPU and in evaluation mode.

        A run that was loaded from a folder has no architecture: pass the ``workload`` that it trained. Buffers, such as
        statistics of BatchNorm, are then those of an untrained model, because run folders contain parameters only.
        """
        module, path = self.module, self.model_path
        if workload is not None:
            problem = workload.open(self.workers, Streams(self.seed))
            module, path = problem.module, problem.model_path
        if module is None:
            raise TacitError(
                f"this run holds parameters but no architecture; "
                f"pass the workload it trained, {self.workload}: run.model(workload)."
            )
        copy = deepcopy(module).cpu().eval()
        layout, named = Layout.of(copy), dict(copy.named_parameters())
        if layout.dimension != self.parameters.numel():
            raise TacitError(
                f"the run has {self.parameters.numel()} parameters and this model {layout.dimension}; "
                f"pass the workload that the run trained."
            )
        with torch.no_grad():
            for name, value in layout.split(self.parameters).items():
                named[name].copy_(value)
        return copy.get_submodule(path)

    def toml(self) -> str:
        """Return the text of run.toml, which ``tacit simulate --config`` or ``tacit train --config`` reads."""
        return self._toml(self.config)

    def _toml(self, config: Mapping[str, Any]) -> str:
        texts = {name: value for name, value in self.config.items() if isinstance(value, str)}
        missing = [name for name, text in texts.items() if "<" in text or text.startswith("custom(")]
        command = "train" if self.record.get("world") == "processes" else "simulate"
        comment = f"tacit {command} --config run.toml repeats this run."
        if missing:
            comment = f"Not enough to repeat this run: {', '.join(missing)} came from a script, shown as <…>."
        return toml_text(config, comment=comment)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the run into ``folder`` atomically, and return the path of the folder."""
        target = Path(folder)
        if target.exists() and any(target.iterdir()) and not overwrite:
            raise FolderExists(target, "choose another name, or pass overwrite=True (--force on the command line).")
        try:
            with replacing_folder(target, last="run.json") as part:
                self._write_files(part)
        except OSError as error:
            raise TacitError(
                f"could not write the run to {target}: {error.strerror or error}; nothing there was changed. "
                f"Free some space or choose another folder."
            ) from error
        return target

    def _write_files(self, folder: Path) -> None:
        config = moved_to_files(dict(self.config), folder)
        described = {
            "format": FORMAT,
            "workload": self.workload,
            "strategy": self.strategy,
            "workers": self.workers,
            "steps": self.steps,
            "seed": self.seed,
            "cluster": moved_to_files(self.cluster, folder),
            "metric_name": self.metric_name,
            "status": self.status,
            "config": config,
            "record": dict(self.record),
        }
        text = json.dumps({**described, "digest": self.digest, "summary": self.summary()}, indent=1)
        (folder / "run.json").write_text(text)
        (folder / "run.toml").write_text(self._toml(config), encoding="utf-8")
        (folder / "history.json").write_text(json.dumps(self.history))
        np.save(folder / "parameters.npy", self.parameters.detach().cpu().numpy(), allow_pickle=False)
        self.trace.save(folder / "trace.npz")
        if self.server:
            torch.save(self.server, folder / "server.pt")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a run that ``save`` wrote, without unpickling."""
        source = Path(folder)
        try:
            described = json.loads((source / "run.json").read_text())
            history = json.loads((source / "history.json").read_text())
            parameters = torch.from_numpy(np.load(source / "parameters.npy", allow_pickle=False))
            trace = Trace.load(source / "trace.npz")
            kept = source / "server.pt"
            server = torch.load(kept, weights_only=True) if kept.exists() else []
        except FileNotFoundError as error:
            raise TacitError(f"{source} is not a run folder: it has no {Path(error.filename).name}.") from None
        if described.pop("format") != FORMAT:
            raise TacitError(f"{source} was written by another version of tacit; run it again from its run.toml.")
        for derived in ("digest", "summary"):
            described.pop(derived)
        described["strategy"] = current_text(described["strategy"])
        described["config"] = read_from_files(current_texts(described.get("config", {})), source)
        described["cluster"] = read_from_files(described.get("cluster", ""), source)
        return cls(history=history, parameters=parameters, trace=trace, server=server, **described)


class Tally:
    """Rounds, bytes sent and the current period at any time of a trace."""

    def __init__(self, trace: Trace) -> None:
        exchanged_s, exchanged_bytes, rounds = trace.unordered(("time_s", "size_bytes", "round"), EXCHANGE)
        sent_s, sent_bytes = trace.unordered(("time_s", "size_bytes"), SEND)
        in_order = np.argsort(exchanged_s, kind="stable")
        self._rounds_s, self._rounds = exchanged_s[in_order], np.maximum.accumulate(rounds[in_order])
        times_s = np.concatenate((exchanged_s, sent_s))
        in_order = np.argsort(times_s, kind="stable")
        self._sent_s, self._sent = times_s[in_order], np.cumsum(np.concatenate((exchanged_bytes, sent_bytes))[in_order])
        noted_s, ranks, periods = trace.unordered(("time_s", "rank", "value"), NOTE, "period")
        in_order = np.lexsort((periods, ranks, noted_s))
        self._noted_s, self._periods = noted_s[in_order], periods[in_order]

    def at(self, time_s: float) -> Row:
        """Return ``round``, ``bytes_sent`` and ``period`` at ``time_s``."""
        begun, sent, noted = (
            int(np.searchsorted(t, time_s, "right")) for t in (self._rounds_s, self._sent_s, self._noted_s)
        )
        return {
            "round": int(self._rounds[begun - 1]) if begun else 0,
            "bytes_sent": int(self._sent[sent - 1]) if sent else 0,
            "period": float(self._periods[noted - 1]) if noted else None,
        }


def first_row_reaching(history: Sequence[Row], loss: float) -> Row | None:
    """Return the first row whose loss is at most ``loss``, or None."""
    return next((row for row in history if row["loss"] is not None and row["loss"] <= loss), None)


def target_facts(history: Sequence[Row], loss: float) -> dict[str, Any]:
    """Return whether, at which step and when a run with ``until_loss`` reached it, or its best loss."""
    reached = first_row_reaching(history, loss)
    best = reached or min((row for row in history if row["loss"] is not None), key=_loss, default={})
    facts = {"loss": loss, "is_reached": reached is not None, "best_loss": best.get("loss")}
    return {**facts, "step": best.get("step"), "time_s": best.get("time_s")}


def _loss(row: Row) -> float:
    return float(row["loss"])


def gradient_times_s(trace: Trace) -> np.ndarray:
    """Return the sorted times at which gradients were used: by updates of the server, else at the ends of steps."""
    (updates,) = trace.unordered(("time_s",), NOTE, "update")
    if len(updates):
        ranks, times_s = trace.unordered(("rank", "time_s"), NOTE, "staleness")  # one for each gradient of an update
        return np.sort(times_s[ranks < 0])
    ranks, times_s = trace.unordered(("rank", "time_s"), COMPUTE)
    return np.sort(times_s[ranks >= 0])


def has_rounds(columns: Mapping[str, np.ndarray]) -> bool:
    """Whether workers train in rounds of collectives.

    Strategies with a server and gossip send messages instead; gossip uses collectives only at the end of the run.
    """
    sends = (columns["kind"] == SEND) & (columns["rank"] >= 0)
    if not sends.any():
        return True
    exchanges = (columns["kind"] == EXCHANGE) & (columns["rank"] >= 0)
    return bool((columns["start_s"][exchanges] < _last_steps_s(columns)[columns["rank"][exchanges]]).any())


def waits_of_the_finished(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the waits of workers after their last step.

    In runs with rounds the mask is empty: such a wait belongs to the last round.
    """
    ranks = columns["rank"]
    is_wait = (columns["kind"] == WAIT) & (ranks >= 0)
    if not is_wait.any() or has_rounds(columns):
        return np.zeros(len(ranks), bool)
    last_s = _last_steps_s(columns)
    last_s[last_s == -np.inf] = np.inf  # a worker without steps only waits
    return np.asarray(is_wait & (columns["start_s"] >= last_s[np.where(is_wait, ranks, 0)]))


def _last_steps_s(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the end of each rank's last step."""
    kinds, ranks = columns["kind"], columns["rank"]
    is_step = ((kinds == COMPUTE) | (kinds == CANCELLED)) & (ranks >= 0)
    last_s = np.full(int(ranks.max(initial=0)) + 1, -np.inf)
    np.maximum.at(last_s, ranks[is_step], columns["time_s"][is_step])
    return last_s


def number(value: float | None) -> float | None:
    """Return ``value`` as a JSON number; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else float(value)
