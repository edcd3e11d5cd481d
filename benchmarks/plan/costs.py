"""Part 6: predicted peak memory beside the measured one, and the cost of live numbers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.papers.common import table, target
from benchmarks.peers import ROOT, Failed
from benchmarks.plan import live_cost
from benchmarks.plan.kept import kept
from benchmarks.plan.recording import not_run
from tacit.planning.memory import memory_bytes
from tacit.strategies import Strategy
from tacit.strategies.local_sgd.outer import OuterSGD

WITHIN, LIVE_LIMIT = 0.25, 0.005
_HEADER: Final = ("strategy", "processes", "models", "peak (MB)", "predicted (MB)", "error", "error of its own part")
STRATEGIES: Final[tuple[Strategy[Any], ...]] = (
    tacit.AllReduce(),
    tacit.LocalSGD(period=tacit.Every(4)),
    tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=4)),
    tacit.LocalSGD(period=tacit.Every(4), outer=OuterSGD(lr=0.7, momentum=0.9, nesterov=True)),
    tacit.LocalSGD(period=tacit.Every(4), compressor=tacit.TopK(fraction=0.01)),
    tacit.LocalSGD(period=tacit.Every(4), compressor=tacit.QSGD(bits=8)),
    tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21()),
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=8)),
    tacit.SwarmSGD(local_steps=4),
    tacit.KAsync(k=1),
    tacit.KSync(k=1),
)


@dataclass(frozen=True)
class Setting:
    """Processes, width of the model, and optimizer."""

    name: str
    workers: int
    width: int
    optimizer: str

    @property
    def words(self) -> tuple[str, str]:
        return str(self.width), self.optimizer


CALIBRATED: Final = Setting("memory-calibration", 2, 3160, "SGD")
"""From its peaks come the numbers of ``tacit.profiles.strategy_memory``: 10,124,650 parameters."""
CHECKED: Final = Setting("memory-check", 4, 2200, "AdamW")
"""4,936,810 parameters."""
_SCRIPT: Final = Path(__file__).with_name("memory_script.py")
_PATIENCE_S: Final = 240.0
Found = dict[str, Any]


def costs(chosen: argparse.Namespace) -> Found:
    """Peak memory is predicted within 25 %; live numbers cost at most 0.5 % of a step of 20 ms."""
    measured = {one: memory(one, chosen) for one in (CALIBRATED, CHECKED)}
    live = kept("live_cost", chosen, lambda: live_cost.measured(is_quick=chosen.quick))
    missing = [one.name for one, found in measured.items() if found is None] + ["live numbers"] * (live is None)
    rows = [row for one, found in measured.items() if found is not None for row in _predicted(one, found, chosen)]
    claims = [
        *_memory_claims([row for row in rows if row["workers"] == CHECKED.workers]),
        *([] if live is None else _live_claims(live)),
        *not_run({}, missing),
    ]
    cells = [
        (
            one["strategy"],
            one["workers"],
            f"{one['models']:.1f}",
            *(f"{one[name] / 1e6:.0f}" for name in ("measured_bytes", "predicted_bytes")),
            *_shares(one),
        )
        for one in rows
    ]
    return {
        "memory": rows,
        "live": live,
        "targets": claims,
        "table": table(_HEADER, cells),
        "setting": "processes train an MLP for 20 steps; the peak is the largest resident set of any rank. Predicted from "
        "`tacit probe` of the same script. The own part is what exceeds the script's memory without a strategy, in models "
        "on the left. Two processes with 10,124,650 parameters and SGD gave the numbers of the prediction; four processes "
        "with 4,936,810 parameters and AdamW check them. Live numbers: two processes, 20 ms of sleep a step, turns with "
        "and without.",
    }


def memory(setting: Setting, chosen: argparse.Namespace) -> Found | None:
    """Return the kept peaks of all strategies; measure them if there are none. The profile is kept beside them."""

    def measure() -> Found:
        out = (chosen.folder / f"{setting.name}-profile").resolve()
        words = ["-m", "tacit", "probe", str(_SCRIPT), "--quiet", "--force", "--out", str(out)]
        _together(setting, [*words, "--", *setting.words, "AllReduce()"])
        wanted = STRATEGIES[: 2 if chosen.quick else None]
        with tempfile.TemporaryDirectory() as folder:
            return {"peaks": {str(one): _peaks(setting, one, Path(folder, "peaks")) for one in wanted}}

    return kept(setting.name, chosen, measure)


def _peaks(setting: Setting, strategy: Strategy[Any], file: Path) -> dict[str, int]:
    _together(setting, [str(_SCRIPT), *setting.words, str(strategy), str(file)])
    found: dict[str, int] = json.loads(file.read_text())
    print(f"    {setting.workers} processes, {strategy}: {max(found.values()) / 1e6:.0f} MB", flush=True)
    return found


def _together(setting: Setting, words: list[str]) -> None:
    """Run Python with the same words on all ranks of this machine."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    size = setting.workers
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ROOT}
    with tempfile.TemporaryFile("w+") as log:
        ranks = []
        for rank in range(size):
            variables = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            environment = {**os.environ, **variables}
            ranks.append(subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=log, stderr=log))
        try:
            codes = [rank.wait(_PATIENCE_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            log.seek(0)
            raise Failed(f"{' '.join(words)}: {log.read()[-800:]}")


def _predicted(setting: Setting, measured: Found, chosen: argparse.Namespace) -> list[Found]:
    """Return measured and predicted peaks of each strategy."""
    profile, rows = tacit.Profile.load(chosen.folder / f"{setting.name}-profile"), []
    script = max(profile.peak_memory_bytes.values())
    for strategy in STRATEGIES:
        predicted = memory_bytes(strategy, profile)
        if str(strategy) in measured["peaks"] and predicted is not None:
            peak = max(measured["peaks"][str(strategy)].values())
            rows.append({"workers": setting.workers, "strategy": str(strategy)})
            rows[-1] |= {"measured_bytes": peak, "predicted_bytes": predicted}
            rows[-1] |= {"error": predicted / peak - 1, "own_error": (predicted - script) / max(1, peak - script) - 1}
            rows[-1] |= {"models": (peak - script) / (profile.parameter_bytes or 1)}
    return rows


def _shares(one: Found) -> list[str]:
    return [f"{one['error']:+.0%}", f"{one['own_error']:+.0%}"]


def _memory_claims(rows: list[Found]) -> list[Found]:
    if not rows:
        return []
    errors = [(abs(one["error"]), one["strategy"]) for one in rows]
    within, (worst, where) = sum(error <= WITHIN for error, _ in errors), max(errors)
    own = sum(abs(one["own_error"]) <= WITHIN for one in rows)
    return [
        target(
            "memory",
            "predicted peak memory within 25 % for at least eight strategies",
            f"{within} of {len(rows)}; worst {worst:.0%} ({where})",
            within == len(rows) >= 8,
        ),
        target(
            "memory of a strategy",
            "its own part, without that of the script",
            f"{own} of {len(rows)} within 25 %",
            None,
        ),
    ]


def _live_claims(live: Found) -> list[Found]:
    low, _, high = (100 * share for share in live["cost_quartiles"])
    return [
        target(
            "live numbers",
            "live numbers cost at most 0.5 % of a step of 20 ms",
            f"{live['cost']:.2%} (quartiles of {live['turns']} turns: {low:.2f} to {high:.2f} %); the calls alone "
            f"{live['calls']:.2%}",
            live["cost"] <= LIVE_LIMIT,
        )
    ]
