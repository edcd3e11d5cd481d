"""A cache of the loss curves of scripts, in memory and in a folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tacit.record.files import write_text
from tacit.record.versions import tacit_version
from tacit.simulation.scripts.world import Script

_FORMAT: Final = 1
_DIGITS: Final = 7


@dataclass(frozen=True)
class ScriptCurve:
    """Running mean losses of a script by step, up to step ``done``.

    times_s, bytes_sent: where time was simulated together with the gradients. status: of the run: "finished", "failed:
    …", or "stopped: …" by the budget. is_whole: the script ended its loop itself. files: the script's own modules, with
    their digests.
    """

    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()
    done: int = 0
    status: str = "finished"
    is_whole: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    def answer(self, until_loss: float | None, most_steps: int | None) -> ScriptCurve | None:
        """Return the curve up to the target or ``most_steps``; None: it is not known that far."""
        limit = self.done if most_steps is None else min(most_steps, self.done)
        target = -math.inf if until_loss is None else until_loss
        step = next((step for step, loss in zip(self.steps, self.losses, strict=True) if loss <= target), None)
        if step is not None and step <= limit:
            return self._up_to(step)
        if most_steps is not None and most_steps <= self.done:
            return self._up_to(most_steps)
        return self if self.is_whole or self.status.startswith("failed") else None

    def _up_to(self, step: int) -> ScriptCurve:
        count = sum(one <= step for one in self.steps)
        return ScriptCurve(
            steps=self.steps[:count],
            losses=self.losses[:count],
            times_s=self.times_s[:count],
            bytes_sent=self.bytes_sent[:count],
            done=step,
        )


class ScriptCurves:
    """Curves by script digest, arguments, strategy, workers and seed; with times also by cluster.

    The digests of modules in the folder of the script are compared too. Data that a script reads is not: use another
    folder after a change of it.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._known: dict[str, ScriptCurve] = {}

    def get(self, key: str, until_loss: float | None, most_steps: int | None) -> ScriptCurve | None:
        """Return the curve of ``key``; None: it must be simulated."""
        for curve in (self._known.get(key), self._read(key)):
            if curve is not None and (found := curve.answer(until_loss, most_steps)) is not None:
                self._known[key] = curve
                return found
        return None

    def put(self, key: str, described: Mapping[str, Any], curve: ScriptCurve) -> None:
        """Keep a curve, unless a longer one is known."""
        known = self._known.get(key)
        if known is not None and known.done > curve.done:
            return
        self._known[key] = curve
        if self._folder is not None and not curve.status.startswith("failed"):
            self._folder.mkdir(parents=True, exist_ok=True)
            content = {"format": _FORMAT, "settings": described, "curve": asdict(curve)}
            write_text(self._path(key), json.dumps(content) + "\n")

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"script-{key}.json"

    def _read(self, key: str) -> ScriptCurve | None:
        """Return the curve in the folder; None if there is none, or if a module of the script has changed."""
        if self._folder is None:
            return None
        try:
            content = json.loads(self._path(key).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                return None
            table: dict[str, Any] = {
                name: tuple(v) if isinstance(v, list) else v for name, v in content["curve"].items()
            }
            is_same = all(digest_of(Path(path)) == digest for path, digest in table["files"].items())
            return ScriptCurve(**table) if is_same else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def key_of(
    script: Script, strategy: str, workers: int, seed: int, cluster: Mapping[str, Any] | None, least: int
) -> tuple[str, dict[str, Any]]:
    """Return the key of a curve, and what it stands for.

    cluster: of a run whose losses depend on times. least: mini-batches in the window of the running mean, at least.
    """
    described = {
        "script": script.path.name,
        "script_sha256": script.sha256,
        "arguments": list(script.arguments),
        "strategy": strategy,
        "workers": workers,
        "seed": seed,
        "least": least,
        "threads": torch.get_num_threads(),
        "tacit": tacit_version(),
        "torch": torch.__version__,
        **({} if cluster is None else {"cluster": dict(cluster)}),
    }
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:32], described


def digest_of(path: Path) -> str:
    """Return the digest of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def rounded(values: list[float]) -> tuple[float, ...]:
    """Return numbers with seven digits, as files keep them."""
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
