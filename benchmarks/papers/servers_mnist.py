"""K of P servers on MNIST, as in their paper (Dutta et al., AISTATS 2018, arXiv 1803.01113; AdaSync: arXiv 2003.10579).

    python -m benchmarks.papers.servers_mnist --data /path/to/data [--quick] [--only 2] [--out
    benchmarks/results/servers_mnist.json]

Logistic regression with ten classes on DATA/mnist, P = 8 learners, mini-batches of one picture, compute times of mean 1 s:
exponential, and Pareto of infinite variance; free messages. Error against time up to a horizon. Rates are searched on
seed 100 by the loss at the horizon, then seeds 0, 1 and 2 run at the best. Runs are kept beside --out and not made again.

1  error against time at the paper's rate, η = 0.01 for all
2  the same with the rate of each method tuned
3  staleness rate tuned against a tuned constant rate
4  AdaSync against fixed K, rates tuned
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

import tacit
from benchmarks.papers import prepared
from benchmarks.papers.common import arguments, measure, table, target
from benchmarks.papers.drawing import Curve, draw
from benchmarks.papers.horizon import simulate_until
from benchmarks.papers.rows import (
    Case,
    Row,
    Rows,
    Search,
    Tuned,
    key_of,
    mnist_file,
    rows_of,
    say_cost,
    score_of,
    shown,
)
from tacit.cluster.delays import Delay
from tacit.strategies import Strategy

LEARNERS, K, PAPER_RATE = 8, 4, 0.01
OF_K = ("K-sync", "K-batch-sync", "K-async", "K-batch-async")
DELAYS: dict[str, Delay] = {
    "exponential": tacit.Exponential(mean_s=1.0),
    "Pareto": tacit.Pareto(minimum_s=0.5, shape=2.0),
}
METHODS: dict[str, Strategy[Any]] = {
    "Sync": tacit.KSync(k=LEARNERS),
    "K-sync": tacit.KSync(k=K),
    "K-batch-sync": tacit.KBatchSync(k=K),
    "Async": tacit.KAsync(k=1),
    "K-async": tacit.KAsync(k=K),
    "K-batch-async": tacit.KBatchAsync(k=K),
}
FIXED = {  # the rivals of AdaSync: the part whose runs they are, and the name there
    "K = 1": (2, "Async", METHODS["Async"]),
    "K = 2": (4, "K = 2", tacit.KAsync(k=2)),
    "K = 4": (2, "K-async", METHODS["K-async"]),
    "K = 8": (2, "Sync", METHODS["Sync"]),
}
SHARES = (0.005, 0.05)  # C/η_max; the paper's is 0.005
STALE = (("exponential", 8), ("exponential", 40))  # times and number of learners of part 3
SEARCH = Search(rates=(0.003, 0.01, 0.03, 0.1), factor=10**0.5, most=7)
FINE = Search(rates=tuple(0.003 * 10 ** (i / 3) for i in range(6)), factor=10 ** (1 / 3), most=8)
COARSE = Search(rates=(0.01, 0.03, 0.1), factor=10**0.5, most=4)
MOMENTS = 40
SECONDS = 3.0  # processor time of a run, for the cost


@dataclass
class Bench:
    """What the parts share: the pictures, the rows, the horizon."""

    chosen: argparse.Namespace
    rows: Rows = field(init=False)
    horizon_s: float = field(init=False)
    search: Search = field(init=False)

    def __post_init__(self) -> None:
        is_quick = self.chosen.quick
        self.rows, self.horizon_s = rows_of(self.chosen), 8.0 if is_quick else 1000.0
        self.search = replace(SEARCH, rates=(0.01,), most=1, seeds=(0,)) if is_quick else SEARCH

    @cached_property
    def workload(self) -> prepared.Softmax:
        return prepared.Softmax(prepared.read_pictures(mnist_file(self.chosen.data).parent.parent), 1)

    def train(self, strategy: Strategy[Any], delay: str, rate: float, seed: int, learners: int = LEARNERS) -> Row:
        """Run until the horizon; the score is the mean loss at the last four of forty moments."""
        horizon_s = self.horizon_s * LEARNERS / learners  # as many gradients

        row: Row = {"score": None, "error": None, "updates": None, "losses": None}
        cluster = tacit.Cluster(workers=learners, compute=DELAYS[delay], latency_s=0.0, bandwidth_bytes_per_s=math.inf)
        try:
            run = simulate_until(horizon_s, MOMENTS, self.workload, strategy, cluster=cluster, seed=seed, lr=rate)
        except tacit.NotFinite:
            return row
        timed = [entry for entry in run.history if entry["loss"] is not None and entry["time_s"] > 0][:MOMENTS]
        if len(timed) < MOMENTS or not all(math.isfinite(entry["loss"]) for entry in timed):
            return row
        losses = [entry["loss"] for entry in timed]
        return row | {
            "score": float(np.mean(losses[-4:])),
            "error": 1 - float(np.mean([entry["metric"] for entry in timed[-4:]])),
            "updates": timed[-1]["step"],
            "times_s": [entry["time_s"] for entry in timed],
            "losses": losses,
        }


def fixed_rate(chosen: argparse.Namespace) -> dict[str, Any]:
    """Error against time at η = 0.01 for all six methods, exponential and Pareto times."""
    bench = Bench(chosen)
    say_cost("part 1", [("MNIST", len(DELAYS) * len(METHODS) * len(bench.search.seeds), SECONDS)])
    found = {delay: {name: _at_rate(bench, 1, delay, name, PAPER_RATE) for name in METHODS} for delay in DELAYS}
    part = _comparison(chosen, bench, found, "η = 0.01", "fixed")
    part["setting"] = f"η = {PAPER_RATE} for all, the paper's. {_setting(bench)}"
    return part


def tuned_rates(chosen: argparse.Namespace) -> dict[str, Any]:
    """Error against time, the rate of each method tuned for the loss at the horizon."""
    bench = Bench(chosen)
    say_cost("part 2", [("MNIST", len(DELAYS) * len(METHODS) * bench.search.least_runs, SECONDS)])
    found = {delay: {name: _tuned(bench, 2, delay, name, METHODS[name]) for name in METHODS} for delay in DELAYS}
    part = _comparison(chosen, bench, found, "tuned", "tuned")
    part["setting"] = f"Rates tuned. {_setting(bench)}"
    return part


def _comparison(
    chosen: argparse.Namespace, bench: Bench, found: dict[str, dict[str, Tuned]], which: str, suffix: str
) -> dict[str, Any]:
    part: dict[str, Any] = {"targets": [], "runs": {}}
    panels, labels, rows = {}, {}, []
    for delay, methods in found.items():
        part["runs"][delay] = {name: tuned.numbers("score", "error", "updates") for name, tuned in methods.items()}
        level = max(tuned.of("score")["mean"] for tuned in methods.values())
        times = {name: _time_to(tuned, level) for name, tuned in methods.items()}
        early = {
            name: float(np.mean([row["losses"][1] for row in tuned.rows]))
            for name, tuned in methods.items()
            if _all(tuned)
        }
        for name, tuned in methods.items():
            updates = np.mean([row["updates"] or 0 for row in tuned.rows])
            rows.append((delay, name, f"{tuned.rate:.3g}", f"{updates:.0f}", f"{early.get(name, math.inf):.4f}", shown(tuned.of("score")), f"{100 * tuned.of('error')['mean']:.2f} %", "never" if times[name] is None else f"{times[name]:.0f}"))  # fmt: skip
        order = sorted((time_s, name) for name, time_s in times.items() if time_s is not None)
        said = ", ".join(f"{name} {time_s:.0f} s" for time_s, name in order)
        first = next((name for _, name in order if name in OF_K), "none")
        last = min(methods, key=lambda name: methods[name].of("score")["mean"])
        part["targets"] += [
            target("§5", f"{delay}, {which}: of the four kinds with K = {K}, K-batch-async is the first at loss {level:.3f}, which all reach", said, first == "K-batch-async"),
            target("§5", f"({delay}, {which}: lowest loss at the horizon: reported)", f"{last}, {shown(methods[last].of('score'))}", None),
            target(
                "§5", f"{delay}, {which}: Async is below Sync early (at {2 * bench.horizon_s / MOMENTS:.0f} s)",
                f"{early.get('Async', math.inf):.4f} and {early.get('Sync', math.inf):.4f}",
                early.get("Async", math.inf) < early.get("Sync", math.inf),
            ),
            target(
                "§5", f"{delay}, {which}: Async is above Sync at the horizon",
                f"{shown(methods['Async'].of('score'))} and {shown(methods['Sync'].of('score'))}",
                methods["Async"].of("score")["mean"] > methods["Sync"].of("score")["mean"],
            ),
        ]  # fmt: skip
        title = f"{delay}, {which}: training loss"
        panels[title], labels[title] = _curves(methods), "time (s)"
    figure = chosen.out.with_name(f"{chosen.out.stem}_{suffix}.svg")
    draw(figure, panels, labels, floor=_floor(panels))
    header = (
        "times",
        "method",
        "η",
        "updates",
        "loss early",
        "loss at the horizon",
        "test error",
        "s to the loss all reach",
    )
    part["table"] = [f"![curves]({figure.name})", "", *table(header, rows)]
    return part


def staleness(chosen: argparse.Namespace) -> dict[str, Any]:
    """Async with η = min(C/‖w_j − w_τ‖², η_max), C and η_max tuned, against a tuned constant rate; P = 8 and 40."""
    bench, cases, shares, fine, coarse = Bench(chosen), STALE, SHARES, FINE, COARSE
    if chosen.quick:
        cases, shares = STALE[:1], SHARES[:1]
        fine = coarse = bench.search
    runs = len(cases) * (fine.least_runs + len(shares) * len(coarse.rates) + len(fine.seeds))
    say_cost("part 3", [("MNIST", runs, SECONDS)])
    part: dict[str, Any] = {"targets": [], "runs": {}}
    rows = []
    for delay, learners in cases:
        constant = fine.run(
            bench.rows,
            Case(3, delay, f"constant, P = {learners}"),
            lambda rate, seed, d=delay, p=learners: bench.train(tacit.KAsync(k=1), d, rate, seed, p),
        )
        ruled, share, tried = _best_staleness(bench, coarse, shares, delay, learners)
        part["runs"][f"{delay}, P = {learners}"] = {
            "constant": constant.numbers("score", "error"),
            "staleness": ruled.numbers("score", "error") | {"share": share},
        }
        rows.append(
            (
                *(delay, learners, f"{constant.rate:.3g}", shown(constant.of("score"))),
                *(f"{ruled.rate:.3g}, C = {share:g} η", shown(ruled.of("score")), f"{len(constant.tried)}, {tried}"),
            )
        )
        ratio = ruled.of("score")["mean"] / constant.of("score")["mean"]
        part["targets"].append(
            target(
                "§4",
                f"{delay}, P = {learners}: the staleness rate, tuned, ends below a tuned constant rate",
                f"{ratio:.3f} of its loss: {shown(ruled.of('score'))} and {shown(constant.of('score'))}",
                ratio < 1,
            )
        )
    part["table"] = table(("times", "P", "η", "constant", "η_max", "staleness rate", "trials"), rows)
    part["setting"] = (
        f"Async (K = 1). As many gradients for P = 40: a fifth of the horizon. Six constant rates in factors of 10^(1/3); for the rule C/η_max in "
        f"{' and '.join(f'{share:g}' for share in SHARES)} with three η_max each, √10 apart; more beyond an edge. {_setting(bench)}"
    )
    return part


def _best_staleness(
    bench: Bench, search: Search, shares: tuple[float, ...], delay: str, learners: int
) -> tuple[Tuned, float, int]:
    """Search η_max for each C/η_max; return the runs of the best pair, its C/η_max, and the number of pairs tried."""

    def case(share: float) -> Case:
        return Case(3, delay, f"staleness, C = {share:g} η, P = {learners}")

    def train(share: float, rate: float, seed: int) -> Row:
        rule = tacit.StalenessRate(c=share * rate)
        return bench.train(tacit.KAsync(k=1, rate=rule), delay, rate, seed, learners)

    best: dict[float, tuple[float, float]] = {}
    count = 0
    for share in shares:
        rate, tried = search.best_rate(bench.rows, case(share), lambda r, s, c=share: train(c, r, s))
        row = bench.rows.get(key_of(case(share), rate, 100), lambda c=share, r=rate: train(c, r, 100))
        best[share] = (score_of(row), rate)
        count += len(tried)
    share = min(best, key=lambda one: best[one][0])
    return search.run(bench.rows, case(share), lambda r, s: train(share, r, s)), share, count


def adasync(chosen: argparse.Namespace) -> dict[str, Any]:
    """AdaSync on K-async from K = 1 against K = 1, 2, 4 and 8, rates tuned."""
    bench = Bench(chosen)
    every_s = bench.horizon_s / 100
    say_cost("part 4", [("MNIST", len(DELAYS) * 2 * bench.search.least_runs, SECONDS)])
    part: dict[str, Any] = {"targets": [], "runs": {}}
    panels, labels, rows = {}, {}, []
    for delay in DELAYS:
        found = {name: _tuned(bench, run[0], delay, *run[1:]) for name, run in FIXED.items()}
        found["AdaSync"] = _tuned(bench, 4, delay, "AdaSync", tacit.AdaSync(tacit.KAsync(k=1), every_s=every_s))
        part["runs"][delay] = {name: tuned.numbers("score", "error", "updates") for name, tuned in found.items()}
        rows += [(delay, name, f"{t.rate:.3g}", f"{np.mean([row['updates'] or 0 for row in t.rows]):.0f}", shown(t.of("score")), f"{100 * t.of('error')['mean']:.2f} %") for name, t in found.items()]  # fmt: skip
        best = min(FIXED, key=lambda name: found[name].of("score")["mean"])
        ratio = found["AdaSync"].of("score")["mean"] / found[best].of("score")["mean"]
        part["targets"].append(
            target("§5", f"{delay}: AdaSync ends within 5 % of the best fixed K", f"{ratio:.3f} of {best}'s loss", ratio <= 1.05)
        )  # fmt: skip
        if all(_all(tuned) for tuned in found.values()):
            curves = {name: np.mean([row["losses"] for row in tuned.rows], axis=0) for name, tuned in found.items()}
            envelope = np.min([curves[name] for name in FIXED], axis=0)
            worst = float((curves["AdaSync"] / envelope).max())
            part["targets"].append(
                target("§5", f"({delay}: largest distance to the lower envelope on the way: reported)", f"{worst:.2f} times", None)
            )  # fmt: skip
        title = f"{delay}, AdaSync: training loss"
        panels[title], labels[title] = _curves(found), "time (s)"
    figure = chosen.out.with_name(f"{chosen.out.stem}_adasync.svg")
    draw(figure, panels, labels, floor=_floor(panels))
    header = ("times", "method", "η", "updates", "loss at the horizon", "test error")
    part["table"] = [f"![curves]({figure.name})", "", *table(header, rows)]
    part["setting"] = f"K-async; AdaSync chooses K every {every_s:g} s from K = 1. Rates tuned. {_setting(bench)}"
    return part


def _tuned(bench: Bench, part: int, delay: str, name: str, strategy: Strategy[Any]) -> Tuned:
    return bench.search.run(
        bench.rows, Case(part, delay, name), lambda rate, seed: bench.train(strategy, delay, rate, seed)
    )


def _at_rate(bench: Bench, part: int, delay: str, name: str, rate: float) -> Tuned:
    case = Case(part, delay, name)
    found = tuple(
        bench.rows.get(key_of(case, rate, seed), lambda s=seed: bench.train(METHODS[name], delay, rate, s))
        for seed in bench.search.seeds
    )
    return Tuned(rate, (rate,), found)


def _all(tuned: Tuned) -> bool:
    return all(row["losses"] is not None for row in tuned.rows)


def _time_to(tuned: Tuned, level: float) -> float | None:
    """Return the time from which the mean loss stays at most ``level``, interpolated between moments."""
    if not _all(tuned):
        return None
    losses = [math.log(10), *np.mean([row["losses"] for row in tuned.rows], axis=0)]
    times_s = [0.0, *tuned.rows[0]["times_s"]]
    places = np.flatnonzero(np.array(losses) > level)
    if not len(places):
        return 0.0
    above = int(places[-1])
    if above + 1 == len(times_s):
        return None
    share = (losses[above] - level) / (losses[above] - losses[above + 1])
    return float(times_s[above] + share * (times_s[above + 1] - times_s[above]))


def _curves(methods: dict[str, Tuned]) -> list[Curve]:
    return [
        Curve(name, name, tuned.rows[0]["times_s"], np.mean([row["losses"] for row in tuned.rows], axis=0).tolist(), True)
        for name, tuned in methods.items()
        if _all(tuned)
    ]  # fmt: skip


def _floor(panels: dict[str, list[Curve]]) -> float:
    return 0.9 * min(y for curves in panels.values() for curve in curves for y in curve.y)


def _setting(bench: Bench) -> str:
    return (
        f"P = {LEARNERS}, K = {K}, m = 1, horizon {bench.horizon_s:g} s, forty moments; compute times of mean 1 s: exp(1), and Pareto with minimum "
        f"0.5 s and shape 2. Pixels from 0 to 1. Loss on {bench.workload.evaluated} fixed training pictures, error on the 10,000 test pictures, both means "
        f"of the last four moments; «early» is the second moment. «To the loss all reach»: the highest loss at the horizon among the methods, from "
        f"when a curve stays below it. Rates in factors of √10 from 0.003 to 0.1, more beyond an edge."
    )


PARTS = {1: fixed_rate, 2: tuned_rates, 3: staleness, 4: adasync}

if __name__ == "__main__":
    measure("K of P servers on MNIST", "servers_mnist", PARTS, arguments(__doc__, "servers_mnist", PARTS))
