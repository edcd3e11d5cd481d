"""Servers that wait for K of P (Dutta, Joshi, Ghosh, Dube & Nagpurkar, AISTATS 2018, arXiv 1803.01113; AdaSync: arXiv
2003.10579).

    python -m benchmarks.papers.servers [--quick] [--only 1,7] [--out benchmarks/results/servers.json]

Everything through ``tacit.simulate``: times in timing-only runs, errors with gradients. Computing times have mean 1 s
unless a row says otherwise, and messages cost nothing, as in the paper.

1  seconds per update of the four kinds against the closed forms (§4.2), and the freshness of gradients
2  least squares: the floor is proportional to η/(K m), the distance to the optimum shrinks by 1 − ηc an update
3  error against time on least squares and on digits: Async against Sync, and who gets where first
4  rates that look at staleness, where a constant one diverges
5  AdaSync against fixed K
6  the simulator's speed, from 8 to 4,096 learners
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tacit
from benchmarks.papers.common import arguments, measure, spread_of, table, target
from benchmarks.papers.drawing import Curve, draw
from tacit import theory, workloads
from tacit.record.trace import NOTE
from tacit.strategies import Strategy

KINDS = {
    "k-sync": tacit.KSync,
    "k-batch-sync": tacit.KBatchSync,
    "k-async": tacit.KAsync,
    "k-batch-async": tacit.KBatchAsync,
}
DELAYS = {
    "exp": tacit.Exponential(mean_s=1.0),
    "1 + exp": tacit.ShiftedExponential(shift_s=1.0, tail_mean_s=1.0),
}
CELLS = ((8, 1), (8, 2), (8, 4), (8, 8), (40, 10), (40, 40))
HEAVY = tacit.HyperExponential(means_s=(0.1, 10.0), weights=(0.9, 0.1))


def simulate(strategy: Strategy, workload: workloads.Workload, workers: int, steps: int, **rest: Any) -> tacit.Run:
    compute = rest.pop("compute", DELAYS["exp"])
    cluster = tacit.Cluster(workers=workers, compute=compute, latency_s=0.0, bandwidth_bytes_per_s=math.inf)
    return tacit.simulate(workload, strategy, cluster=cluster, steps=steps, **rest)


def timed(strategy: Strategy, workers: int, updates: int, compute: tacit.cluster.delays.Delay) -> tacit.Run:
    smallest = workloads.quadratic(dimension=1)
    return simulate(strategy, smallest, workers, updates, compute=compute, timing_only=True, evaluate_every=updates)


# 1


def times(chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds per update against the closed forms, and how often gradients are fresh."""
    updates = 200 if chosen.quick else 100_000
    rows, errors, within, fresh = [], [], [], []
    for workers, k in CELLS[:2] if chosen.quick else CELLS:
        for kind, make in KINDS.items():
            for name, compute in DELAYS.items():
                run = timed(make(k=k), workers, updates, compute)
                mean_s = run.summary()["time_s"] / updates
                low_s, high_s = theory.update_time_bounds(kind, k=k, workers=workers, compute=compute)
                if low_s == high_s:
                    errors.append(abs(mean_s / low_s - 1))
                    said, off = f"{low_s:.4f}", f"{100 * (mean_s / low_s - 1):+.2f} %"
                else:
                    within.append(0.99 * low_s <= mean_s <= 1.01 * high_s)
                    said, off = f"{low_s:.4f} … {high_s:.4f}", "between" if within[-1] else "outside"
                rows.append((workers, k, kind, name, said, f"{mean_s:.4f}", off))
                if name == "exp":
                    ages = _notes(run, "staleness")
                    expected = theory.fresh_probability(kind, k=k, workers=workers, compute=compute)
                    fresh.append((workers, k, kind, float((ages == 0).mean()), expected))
    heavy = {
        kind: timed(KINDS[kind](k=4), 8, updates, HEAVY).summary()["time_s"] / updates for kind in ("k-sync", "k-async")
    }
    shifted = {r[2]: float(r[5]) for r in rows if r[:2] == (8, 2) and r[3] == "1 + exp"}
    heavy_said = theory.update_time("k-async", k=4, workers=8, compute=HEAVY)
    fresh_off = max(abs(measured - expected) for *_, measured, expected in fresh)
    shown = {
        f"{kind} {k} of {workers}": (m, e)
        for workers, k, kind, m, e in fresh
        if (workers, k) in ((8, 1), (8, 4)) and "async" in kind
    }
    return {
        "setting": f"{updates} updates in each row, seed 0, means of 1 s (exp) and 2 s (1 + exp).",
        "freshness": {key: list(pair) for key, pair in shown.items()},
        "table": table(("P", "K", "kind", "times", "closed form", "simulated", "off by"), rows),
        "targets": [
            target(
                "4.7(1)",
                "within 1 % of the closed form, wherever there is one",
                f"at most {100 * max(errors):.2f} % off in {len(errors)} rows",
                max(errors) < 0.01,
            ),
            target(
                "4.7(1)",
                "K-async between its bounds where there is none",
                f"{sum(within)} of {len(within)} rows",
                all(within),
            ),
            target(
                "4.7(1)",
                "K-async ≤ K-sync for shifted exponential times",
                f"P = 8, K = 2: {shifted['k-async']:.4f} and {shifted['k-sync']:.4f} s",
                shifted["k-async"] <= shifted["k-sync"],
            ),
            target(
                "4.7(1)",
                "K-async > K-sync is possible with heavy tails",
                f"hyper-exponential, P = 8, K = 4: {heavy['k-async']:.4f} (theory {heavy_said:.4f}) and {heavy['k-sync']:.4f} s",
                heavy["k-async"] > heavy["k-sync"] and abs(heavy["k-async"] / heavy_said - 1) < 0.02,
            ),
            target(
                "4.7(2)",
                "fresh gradients: Async exp P = 8 0.125; K-async K = 4, P = 8 0.5",
                "; ".join(f"{key} {m:.4f} ({e:.4f})" for key, (m, e) in shown.items())
                + f"; at most {fresh_off:.4f} off in all rows",
                fresh_off < 0.005,
            ),
        ],
    }


def _notes(run: tacit.Run, name: str) -> np.ndarray:
    return run.trace.unordered(("value",), NOTE, name)[0]


# 2


def regression(samples: int, dimension: int = 10) -> workloads.Workload:
    """Return least squares with curvature from 0.2 to 1 and residuals of deviation 1."""
    draw_ = np.random.default_rng(0)
    x = torch.from_numpy(draw_.standard_normal((samples, dimension)) * np.sqrt(np.geomspace(0.2, 1.0, dimension)))
    y = x @ torch.ones(dimension, dtype=torch.float64) + torch.from_numpy(draw_.standard_normal(samples))
    return _with_batches(x, y, 1)


def _with_batches(x: torch.Tensor, y: torch.Tensor, batch_size: int | None) -> workloads.Workload:
    return workloads.least_squares((x, y), batch_size=batch_size)


def floors(chosen: argparse.Namespace) -> dict[str, Any]:
    """K-sync on least squares: the level that the error settles at, and how fast it gets there."""
    updates, samples = (60, 512) if chosen.quick else (6000, 65_536)
    base = regression(samples)
    x, y = base.load()
    optimum = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    least = float(0.5 * (x @ optimum - y).square().mean())
    c = float(torch.linalg.eigvalsh(x.T @ x / samples)[0])
    settings = [(0.05, 4, 4), (0.05, 1, 16), (0.05, 2, 4), (0.1, 4, 4), (0.1, 4, 16), (0.1, 8, 16)]
    rows, ratios = [], []
    for eta, k, batch in settings[1:3] if chosen.quick else settings:
        workload = _with_batches(x, y, batch)
        run = simulate(tacit.KSync(k=k), workload, 8, updates, lr=eta, engine="loop", start=optimum, evaluate_every=10)
        tail = [row["loss"] - least for row in run.history[len(run.history) // 10 :]]
        level = float(np.mean(tail))
        ratios.append(level / (eta / (k * batch)))
        rows.append((eta, k, batch, f"{level:.3e}", f"{ratios[-1]:.3f}"))
    eta = 0.1
    quiet = simulate(
        tacit.KSync(k=8),
        _with_batches(x, y, None),
        8,
        60 if chosen.quick else 200,
        lr=eta,
        engine="loop",
        evaluate_every=1,
    )
    shrinkage = _last_shrinkage(quiet, least)
    scales = [eta / (k * batch) for eta, k, batch, *_ in rows]
    exponent = float(np.polyfit(np.log(scales), np.log(np.array(scales) * ratios), 1)[0])
    return {
        "setting": f"P = 8, {samples} samples, 10 features, curvature {c:.3f} to 1, {updates} updates from the optimum, the first tenth left out; "
        f"the floor is the mean of F − F* over the rest.",
        "table": table(("η", "K", "m", "floor", "floor / (η/(K m))"), rows),
        "targets": [
            target(
                "4.7(3)",
                "the floor of K-sync is proportional to η/(K m)",
                f"floor ~ (η/(K m))^{exponent:.3f}; floor/(η/(K m)) between {min(ratios):.3f} and {max(ratios):.3f}",
                abs(exponent - 1) < 0.1,
            ),
            target(
                "4.7(3)",
                f"slope 1 − ηc = {1 - eta * c:.4f} of the distance to the optimum (full gradients)",
                f"{shrinkage:.4f} an update",
                abs(shrinkage - (1 - eta * c)) < 0.002,
            ),
        ],
    }


def _last_shrinkage(run: tacit.Run, least: float) -> float:
    """Return by what ‖w − w*‖ is multiplied in an update, late in a run without noise: the root of what F − F* is
    multiplied by.
    """
    gaps = np.array([row["loss"] - least for row in run.history])
    gaps = gaps[gaps > 1e-11]
    return float((gaps[-1] / gaps[len(gaps) // 2]) ** (0.5 / (len(gaps) - 1 - len(gaps) // 2)))


# 3


def race(
    strategies: dict[str, tuple[Strategy, float]],
    workload: workloads.Workload,
    horizon_s: float,
    seeds: int,
    least: float,
    **rest: Any,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return moments and, by name, the mean over seeds of the loss above ``least`` at each; strategies come with their
    seconds per update.
    """
    at_s = np.geomspace(horizon_s / 300, horizon_s, 60)
    curves = {}
    for name, (strategy, per_update_s) in strategies.items():
        seen = []
        for seed in range(seeds):
            steps = max(4, math.ceil(1.15 * horizon_s / per_update_s))
            run = _until(strategy, workload, horizon_s, steps, seed=seed, **rest)
            times_s, losses = (np.array([row[key] for row in run.history]) for key in ("time_s", "loss"))
            places = np.searchsorted(times_s, at_s, "right") - 1
            seen.append(losses[places] - least)
        curves[name] = np.mean(seen, axis=0)
    return at_s, curves


def _until(
    strategy: Strategy, workload: workloads.Workload, horizon_s: float, steps: int, workers: int = 8, **rest: Any
) -> tacit.Run:
    """Run for at least ``horizon_s``; how many updates that takes is not known where k changes."""
    while True:
        run = simulate(strategy, workload, workers, steps, evaluate_every=max(1, steps // 400), engine="loop", **rest)
        if run.summary()["time_s"] >= horizon_s:
            return run
        steps *= 2


def _rivals(workers: int, k: int) -> dict[str, tuple[Strategy, float]]:
    per_update_s = {kind: theory.update_time(kind, k=k, workers=workers, compute=DELAYS["exp"]) for kind in KINDS}
    return {
        "Sync": (tacit.KSync(k=workers), theory.update_time("sync", workers=workers, compute=DELAYS["exp"])),
        "K-sync": (tacit.KSync(k=k), per_update_s["k-sync"]),
        "Async": (tacit.KAsync(k=1), 1 / workers),
        "K-async": (tacit.KAsync(k=k), per_update_s["k-async"]),
        "K-batch-async": (tacit.KBatchAsync(k=k), per_update_s["k-batch-async"]),
    }


def crossover(chosen: argparse.Namespace) -> dict[str, Any]:
    """Error against time, same learning rate: Async is below Sync early and above it late."""
    seeds = 1 if chosen.quick else 5
    base = regression(512 if chosen.quick else 4096)
    x, y = base.load()
    optimum = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    least = float(0.5 * (x @ optimum - y).square().mean())
    problems = {
        "least squares": (_with_batches(x, y, 4), 3.0 if chosen.quick else 600.0, least, {"lr": 0.05}),
        "digits": (workloads.digits(model="softmax", batch_size=4), 1.5 if chosen.quick else 250.0, 0.0, {"lr": 0.7}),
    }
    part: dict[str, Any] = {"targets": [], "curves": {}}
    panels, labels, rows = {}, {}, []
    for name, (workload, horizon_s, floor, rest) in problems.items():
        at_s, curves = race(_rivals(8, 4), workload, horizon_s, seeds, floor, **rest)
        part["curves"][name] = {"time_s": at_s.tolist()} | {key: values.tolist() for key, values in curves.items()}
        early, late = len(at_s) // 5, slice(-5, None)
        ahead = curves["Async"][early] < curves["Sync"][early]
        behind = curves["Async"][late].mean() > curves["Sync"][late].mean()
        crossing = next(
            (
                float(t)
                for t, a, s in zip(at_s[early:], curves["Async"][early:], curves["Sync"][early:], strict=True)
                if a > s
            ),
            None,
        )
        part["targets"].append(
            target(
                "4.7(4)",
                f"{name}: Async below Sync early, above late",
                f"at {at_s[early]:.3g} s {curves['Async'][early]:.3g} and {curves['Sync'][early]:.3g}, at the end "
                f"{curves['Async'][late].mean():.3g} and {curves['Sync'][late].mean():.3g}"
                + (f"; they cross at {crossing:.3g} s" if crossing else ""),
                bool(ahead and behind),
            )
        )
        first = float(curves["Sync"][0])
        ends = {key: float(values[late].mean()) for key, values in curves.items()}
        levels = {
            "early": (first * ends["Async"]) ** 0.5,
            "mid": (ends["Async"] * ends["K-batch-async"]) ** 0.5,
            "late": 1.1 * min(ends.values()),
        }
        for label, level in levels.items():
            reached = {key: _first_below(at_s, values, level) for key, values in curves.items()}
            rows.append(
                (name, label, f"{level:.3g}", *("never" if t is None else f"{t:.3g}" for t in reached.values()))
            )
            if label == "mid":
                found = {key: t for key, t in reached.items() if t is not None}
                part["targets"].append(
                    target(
                        "4.7(4)",
                        f"{name}: K-batch-async is first at mid accuracy",
                        f"loss {level:.3g}: " + ", ".join(f"{key} {t:.3g} s" for key, t in found.items()),
                        bool(found) and min(found, key=lambda key: found[key]) == "K-batch-async",
                    )
                )
        title = f"{name}: loss above its least"
        labels[title] = "time (s)"
        panels[title] = [Curve(key, key, at_s.tolist(), values.tolist(), True) for key, values in curves.items()]
    draw(chosen.out.with_suffix(".svg"), panels, labels, floor=1e-3)
    part["table"] = [
        f"![curves]({chosen.out.with_suffix('.svg').name})",
        "",
        *table(("problem", "accuracy", "loss above least", *(f"{name} (s)" for name in _rivals(8, 4))), rows),
    ]
    part["setting"] = (
        f"P = 8, K = 4, exp(1) times, {seeds} seeds; least squares as in part 2, m = 4, η 0.05; digits: softmax, m = 4, η 0.7. The times at "
        "which the mean loss first falls below a level: between the first loss and Async's last (early), between Async's last and "
        "K-batch-async's last (mid, geometric means), and 1.1 times the lowest last one (late)."
    )
    return part


def _first_below(at_s: np.ndarray, values: np.ndarray, level: float) -> float | None:
    below = np.flatnonzero(values <= level)
    return float(at_s[below[0]]) if len(below) else None


# 4


def rates(chosen: argparse.Namespace) -> dict[str, Any]:
    """Async with a constant rate, 1/(1 + staleness), and C/‖w_j − w_τ‖², where the constant one diverges."""
    seeds = 1 if chosen.quick else 5
    quadratic = workloads.quadratic(dimension=20, condition=10.0)
    digits = workloads.digits()
    problems: list[tuple[str, workloads.Workload, int, float, float, int]] = [  # with C/η_max and updates
        ("quadratic", quadratic, 40, 0.5, 0.005, 4000),
        ("quadratic", quadratic, 8, 1.0, 0.005, 2000),
        ("digits", digits, 40, 0.5, 0.05, 3000),
    ]
    rows, claims = [], []
    for name, workload, workers, eta, share, updates in problems[:2] if chosen.quick else problems:
        steps = 40 if chosen.quick else updates
        found = {}
        rules = {
            "constant": None,
            "1/(1 + staleness)": tacit.InverseStaleness(),
            "C/‖w_j − w_τ‖²": tacit.StalenessRate(c=share * eta),
        }
        for label, rule in rules.items():
            strategy = tacit.KAsync(k=1, rate=rule)
            settled = [_settled(strategy, workload, workers, steps, eta, seed) for seed in range(seeds)]
            with np.errstate(invalid="ignore"):  # infinity has no deviation
                found[label] = spread_of(settled)
        rows.append((name, workers, eta, f"{share:g} η", *(_shown(value) for value in found.values())))
        constant, kept = found["constant"]["mean"], found["C/‖w_j − w_τ‖²"]["mean"]
        claims.append(
            target(
                "4.7(5,7)",
                f"{name}, P = {workers}, η = {eta:g}: the constant rate is lost, C = {share:g} η_max settles",
                f"{_shown(found['constant'])} and {_shown(found['C/‖w_j − w_τ‖²'])}",
                kept < 1 and not constant < 2,
            )
        )
    return {
        "targets": claims,
        "setting": f"Async (K = 1), exp(1) times, {seeds} seeds: mean loss over the last fifth of the run, «diverges» where it passes 1e6. "
        "The quadratic has 20 dimensions, curvature 0.1 to 1, noise 0.1; digits: mlp, batches of 32. What §4.7(7) saw, in other settings: "
        "quadratic 0.035 (P = 40) and 0.068 (P = 8); digits 2.31 constant, 0.028 with C.",
        "table": table(("problem", "P", "η", "C", "constant", "1/(1 + staleness)", "C/‖w_j − w_τ‖²"), rows),
    }


def _settled(
    strategy: Strategy, workload: workloads.Workload, workers: int, steps: int, eta: float, seed: int
) -> float:
    try:
        run = simulate(strategy, workload, workers, steps, lr=eta, seed=seed, engine="loop")
    except tacit.NotFinite:
        return math.inf
    losses = [row["loss"] for row in run.history]
    if any(loss is None or loss > 1e6 for loss in losses):
        return math.inf
    return float(np.mean(losses[-len(losses) // 5 :]))


def _shown(value: dict[str, float]) -> str:
    if value["min"] == math.inf:
        return "diverges"
    return f"{value['mean']:.3g}" if value["max"] < math.inf else f"{value['min']:.3g}, or diverges"


# 5


def adasync(chosen: argparse.Namespace) -> dict[str, Any]:
    """AdaSync from K = 1 against fixed K, on a quadratic with F* = 0 and on digits."""
    seeds = 1 if chosen.quick else 5
    horizon_s = 2.0 if chosen.quick else 400.0
    problems = {
        "quadratic": (workloads.quadratic(dimension=20, condition=10.0, noise=0.3), horizon_s, {"lr": 0.12}),
        "digits": (workloads.digits(batch_size=8), horizon_s / 2, {"lr": 0.12}),
    }
    part: dict[str, Any] = {"targets": [], "curves": {}}
    panels, labels, rows = {}, {}, []
    for name, (workload, until_s, rest) in problems.items():
        for kind in ("k-async", "k-batch-async"):
            make = KINDS[kind]
            fixed = {
                f"K = {k}": (make(k=k), theory.update_time(kind, k=k, workers=8, compute=DELAYS["exp"]))
                for k in (1, 2, 4, 8)
            }
            adaptive = {
                "AdaSync, 20 updates": (tacit.AdaSync(make(k=1), every=20), 0.3),
                "AdaSync, 5 s": (tacit.AdaSync(make(k=1), every_s=5.0), 0.3),
            }
            at_s, curves = race({**fixed, **adaptive}, workload, until_s, seeds, 0.0, **rest)
            title = f"{name}, {kind}"
            labels[title], panels[title] = (
                "time (s)",
                [Curve(key, key, at_s.tolist(), v.tolist(), True) for key, v in curves.items()],
            )
            part["curves"][title] = {"time_s": at_s.tolist()} | {key: values.tolist() for key, values in curves.items()}
            final = {key: float(values[-6:].mean()) for key, values in curves.items()}
            is_bound = name == "quadratic"  # F* = 0 there
            best = min(final[key] for key in fixed)
            envelope = np.min([curves[key] for key in fixed], axis=0)
            worst = {key: float((curves[key] / envelope).max()) for key in adaptive}
            ratios = (f"{final[key] / best:.2f}, {worst[key]:.2f}" for key in adaptive)
            rows.append((title, *(f"{value:.3g}" for value in final.values()), *ratios))
            for key in adaptive:
                part["targets"].append(
                    target(
                        "4.7(6)",
                        f"{title}, {key}: final error at most 1.2 times that of the best fixed K{'' if is_bound else ' (no threshold)'}",
                        f"{final[key] / best:.2f}; along the way up to {worst[key]:.2f} times the lower envelope",
                        final[key] <= 1.2 * best if is_bound else None,
                    )
                )
    draw(chosen.out.with_name(chosen.out.stem + "_adasync.svg"), panels, labels, floor=1e-3)
    figure = chosen.out.with_name(chosen.out.stem + "_adasync.svg").name
    part["table"] = [
        f"![curves]({figure})",
        "",
        *table(("run", *final, *(f"{key}: over best, over envelope at most" for key in adaptive)), rows),
    ]
    part["setting"] = (
        f"P = 8, exp(1) times, {seeds} seeds, K chosen every 20 updates or every 5 s, from F_0 = F(w_0); final: mean of the last six of sixty "
        "moments, log-spaced up to the horizon."
    )
    return part


# 6


def speed(chosen: argparse.Namespace) -> dict[str, Any]:
    """Timing-only updates a second, and the cost of an event as learners grow."""
    updates = 300 if chosen.quick else 100_000
    rows, claims = [], []
    for k in (1, 10, 40):
        for kind, make in KINDS.items():
            seconds, run = _clocked(lambda make=make, k=k: timed(make(k=k), 40, updates, DELAYS["exp"]))
            rows.append((40, k, kind, updates, f"{seconds:.1f}", f"{1e6 * seconds / len(run.trace):.2f}"))
            limit_s = 30 if k <= 10 else 100
            claims.append((k, kind, seconds, limit_s))
    per_event: dict[str, list[float]] = {}
    sizes = (8, 64) if chosen.quick else (8, 64, 512, 4096)
    for kind, make in KINDS.items():
        for workers in sizes:
            steps = 100 if chosen.quick else max(100, 1_000_000 // workers) if make.cancels else 125_000
            seconds, run = _clocked(
                lambda make=make, workers=workers, steps=steps: timed(make(k=8), workers, steps, DELAYS["exp"])
            )
            per_event.setdefault(kind, []).append(1e6 * seconds / len(run.trace))
            rows.append((workers, 8, kind, steps, f"{seconds:.1f}", f"{per_event[kind][-1]:.2f}"))
    slowest = {limit_s: max((c for c in claims if c[3] == limit_s), key=lambda c: c[2]) for limit_s in (30, 100)}
    growth = {kind: values[-1] / values[0] for kind, values in per_event.items()}
    return {
        "per_event_us": per_event,
        "setting": "Timing-only, free network, exp(1) times; one run of each, on a shared machine. An event is a line of the trace.",
        "table": table(("P", "K", "kind", "updates", "seconds", "µs an event"), rows),
        "targets": [
            *(
                target(
                    "point 4",
                    f"P = 40: {updates} updates with K {'≤ 10' if limit_s == 30 else '= 40'} within {limit_s} s",
                    f"at most {worst[2]:.1f} s ({worst[1]}, K = {worst[0]})",
                    worst[2] <= limit_s,
                )
                for limit_s, worst in slowest.items()
            ),
            target(
                "point 4",
                f"the cost of an event stays flat from {sizes[0]} to {sizes[-1]} learners, but for the heap's logarithm",
                ", ".join(f"{kind} ×{value:.2f}" for kind, value in growth.items()),
                max(growth.values()) <= math.log2(sizes[-1]) / math.log2(sizes[0]),
            ),
        ],
    }


def _clocked(run: Callable[[], tacit.Run]) -> tuple[float, tacit.Run]:
    began_s = time.perf_counter()
    done = run()
    return time.perf_counter() - began_s, done


PARTS = {1: times, 2: floors, 3: crossover, 4: rates, 5: adasync, 6: speed}

if __name__ == "__main__":
    measure("Servers that wait for K of P", "servers", PARTS, arguments(__doc__, "servers", PARTS))
