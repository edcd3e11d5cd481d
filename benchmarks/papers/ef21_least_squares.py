"""EF21 on least squares, where its linear rate applies, and at the settings its authors printed (arXiv 2106.05203).

    python -m benchmarks.papers.ef21_least_squares --data /path/to/data [--quick] [--only 2] [--out
    benchmarks/results/ef21_least_squares.json]

As in the authors' code: 20 workers with contiguous blocks in file order, Top-k, full gradients, bits counted as 32 k t. f is
½ mean (aᵀx − y)², half of theirs; labels ±1. A step is a multiple of the PL theorem's, with μ the least eigenvalue of
the Hessian above 1e-9 of the largest: theirs has a μ that is not divided by N, so multiples cannot be compared.

Reads DATA/libsvm/a9a.bz2 and mushrooms.bz2; phishing.bz2 and w8a.bz2, of which the paper's figures are too, if they are there.

1  the linear rate at the theorem's step: Ψ^t ≤ (1 − γμ)^t Ψ⁰ at every t
2  f − f* against bits at multiples tuned on one start, three other starts: EF, EF21, EF21+, GD
3  logistic regression at the printed multiples: ‖∇f‖² at equal bits
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.common import arguments, data_file, measure, spread_of, table, target
from benchmarks.papers.drawing import Curve, draw
from benchmarks.papers.ef21 import WORKERS, Outcome, Plan, blocks, descend
from benchmarks.papers.rows import TUNING_SEED, any_file, say_cost
from tacit import theory
from tacit.workloads.data.libsvm import read_libsvm

SQUARES = ("a9a", "mushrooms", "w8a")
METHODS = ("EF", "EF21", "EF21+")
MULTIPLES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
GD_MULTIPLES = (0.5, 1.0, 1.5)
BITS = 300_000
STARTS = (0, 1, 2)
ZERO = 1e-9  # of the largest eigenvalue
PRINTED = {  # the poster's settings and bits
    "mushrooms": ((Plan("EF", 64, 2), Plan("EF21", 1024, 2), Plan("EF21+", 4096), Plan("GD", 4)), 200_000),
    "phishing": ((Plan("EF", 16), Plan("EF21", 16), Plan("EF21+", 256), Plan("GD", 1)), 20_000),
}


class Squares:
    """Least squares with one block of samples for each worker; f is the mean of the workers' losses."""

    def __init__(self, path: Path) -> None:
        x, y = read_libsvm(path)
        target_ = torch.from_numpy(np.where(y == y.max(), 1.0, -1.0))
        each = len(y) // WORKERS
        lengths = [each] * (WORKERS - 1) + [len(y) - each * (WORKERS - 1)]
        parts = list(zip(torch.split(torch.from_numpy(x), lengths), torch.split(target_, lengths), strict=True))
        self.hessians = torch.stack([a.T @ a / len(a) for a, _ in parts])
        self.fitted = torch.stack([a.T @ b / len(a) for a, b in parts])
        self.hessian = self.hessians.mean(0)
        self.dimension = x.shape[1]
        eigenvalues, vectors = torch.linalg.eigh(self.hessian)
        is_kept = eigenvalues > ZERO * eigenvalues[-1]
        self.smoothness, self.curvature = float(eigenvalues[-1]), float(eigenvalues[is_kept][0])
        self.rank = int(is_kept.sum())
        kept = vectors[:, is_kept]
        self.optimum = kept @ ((kept.T @ self.fitted.mean(0)) / eigenvalues[is_kept])
        worst = torch.linalg.eigvalsh(self.hessians)[:, -1]
        self.mean_smoothness = math.sqrt(float(worst.square().mean()))

    def step_size(self, plan: Plan) -> float:
        if plan.method == "GD":
            return plan.multiple / self.smoothness
        constants = {"smoothness": self.smoothness, "mean_smoothness": self.mean_smoothness, "pl": self.curvature}
        return plan.multiple * theory.ef21_step_size(**constants, contraction=plan.k / self.dimension)

    def gradients(self, models: Tensor) -> Tensor:
        return self.hessians @ models - self.fitted[:, :, None]

    def gap(self, models: Tensor) -> Tensor:
        """Return f − f* of each column, without cancellation."""
        away = models - self.optimum[:, None]
        return 0.5 * (away * (self.hessian @ away)).sum(0)

    def start(self, seed: int) -> Tensor:
        return torch.from_numpy(np.random.RandomState(seed).randn(self.dimension))


@cache
def squares(folder: Path, name: str) -> Squares:
    path = any_file(folder, [f"libsvm/{name}{ending}" for ending in (".bz2", "")])
    return Squares(path or data_file(folder, f"libsvm/{name}.bz2"))


def found_sets(chosen: argparse.Namespace, names: Sequence[str]) -> list[str]:
    return [name for name in names if any_file(chosen.data, [f"libsvm/{name}.bz2", f"libsvm/{name}"])]


def _observed(problem: Squares, plans: tuple[Plan, ...], steps: int) -> tuple[Outcome, np.ndarray, np.ndarray]:
    """Run the plans; return also f − f* and G of every step, one column each."""
    gaps, distortions = [], []

    def observe(models: Tensor, distortion: Tensor) -> None:
        gaps.append(problem.gap(models).numpy())
        distortions.append(distortion.numpy())

    with np.errstate(all="ignore"):  # steps that are too long diverge
        outcome = descend(problem, plans, steps, observe)
    return outcome, np.array(gaps), np.array(distortions)


def linear_rate(chosen: argparse.Namespace) -> dict[str, Any]:
    """The Lyapunov function Ψ = f − f* + (γ/θ) G of EF21 against (1 − γμ)^t Ψ⁰, with the PL theorem's step."""
    steps = 30 if chosen.quick else BITS // 32
    names = found_sets(chosen, SQUARES)
    say_cost("part 1", [(name, 1, 10) for name in names])
    part: dict[str, Any] = {"targets": [], "setting": f"EF21, Top-1, compressed start, {steps} steps, start 0."}
    rows = []
    for name in names:
        problem = squares(chosen.data, name)
        plan = Plan("EF21", 1)
        _, gaps, distortions = _observed(problem, (plan,), steps)
        gamma, theta = problem.step_size(plan), theory.ef21_theta(1 / problem.dimension)
        psi = gaps[:, 0] + gamma / theta * distortions[:, 0]
        rate = theory.ef21_pl_rate(step_size=gamma, pl=problem.curvature)
        share = float((psi / (psi[0] * rate ** np.arange(len(psi)))).max())
        measured = float((psi[-1] / psi[0]) ** (1 / (len(psi) - 1)))
        rows.append((name, problem.dimension, problem.rank, f"{problem.smoothness:.5g}", f"{problem.mean_smoothness:.5g}", f"{problem.curvature:.3g}", f"{gamma:.4g}", f"{1 - rate:.3g}", f"{1 - measured:.3g}"))  # fmt: skip
        part[name] = {"largest_share": share, "theory": 1 - rate, "measured": 1 - measured}
        part["targets"].append(
            target(
                "Theorem 2", f"{name}: Ψ^t ≤ (1 − γμ)^t Ψ⁰ at every t", f"at most {share:.4f} of it, after {steps} steps {psi[-1] / psi[0]:.3g} Ψ⁰",
                share <= 1 + 1e-9,
            )
        )  # fmt: skip
    part["table"] = table(("data", "d", "rank", "L", "L̃", "μ", "γ", "γμ", "1 − (Ψ^T/Ψ⁰)^{1/T}"), rows)
    return part


def tuned(chosen: argparse.Namespace) -> dict[str, Any]:
    """f − f* against bits, the multiple of each method tuned on start 100, three other starts."""
    bits = 32 * 40 if chosen.quick else BITS
    steps, names = bits // 32, found_sets(chosen, SQUARES)
    say_cost("part 2", [(name, 3, 20) for name in names])
    part: dict[str, Any] = {"targets": [], "runs": {}}
    panels, labels, rows = {}, {}, []
    for name in names:
        problem = squares(chosen.data, name)
        found = {method: _tune(problem, method, steps) for method in (*METHODS, "GD")}
        best = tuple(Plan(method, found[method][0], seed=seed) for method in found for seed in STARTS)
        _, gaps, _ = _observed(problem, best, steps)
        curves = {m: gaps[:, [i for i, p in enumerate(best) if p.method == m]] for m in found}
        last = {
            m: [float(_at_bits(curves[m][:, i], m, problem.dimension, bits)) for i in range(len(STARTS))] for m in found
        }
        part["runs"][name] = {m: {"multiple": found[m][0], "tried": found[m][1], "gaps": last[m]} for m in found}
        for method in found:
            at = [spread_of(_at_bits(curves[method][:, i], method, problem.dimension, b) for i in range(len(STARTS)))["mean"] for b in (bits // 10, bits // 3, bits)]  # fmt: skip
            rows.append(
                (name, f"{method} {found[method][0]:g}x", len(found[method][1]), *(f"{value:.3g}" for value in at))
            )
        means = {m: float(np.mean(values)) for m, values in last.items()}
        said = ", ".join(f"{m} {found[m][0]:g}x {value:.3g}" for m, value in means.items())
        part["targets"] += [
            target("§5", f"{name}: EF21 and EF21+ end below EF at {bits // 1000}k bits, all tuned", said, max(means["EF21"], means["EF21+"]) < means["EF"]),
            target("§5", f"{name}: EF21 ends below GD at equal bits", said, means["EF21"] < means["GD"]),
        ]  # fmt: skip
        title = f"{name}: f − f* against bits"
        labels[title] = "bits a worker, as the paper counts them"
        places = np.unique(np.geomspace(1, steps - 1, 120).astype(int))
        panels[title] = [_curve(m, found[m][0], curves[m], places, problem.dimension, bits) for m in found]
    draw(
        chosen.out.with_suffix(".svg"),
        panels,
        labels,
        floor=0.7 * min(y for c in panels.values() for one in c for y in one.y),
    )
    part["table"] = [f"![curves]({chosen.out.with_suffix('.svg').name})", "", *table(("data", "method", "multiples tried", *(f"f − f* at {b // 1000}k bits" for b in (bits // 10, bits // 3, bits))), rows)]  # fmt: skip
    part["setting"] = (
        f"Top-1, {bits} bits, compressed starts; multiples from 1 to 4096 in factors of 4, then both neighbours of the best in factors of 2 until it lies between two (GD: 0.5, 1 and 1.5 of 1/L), on start {TUNING_SEED}; means of starts 0, 1, 2."
    )
    return part


def _tune(problem: Squares, method: str, steps: int) -> tuple[float, list[float]]:
    """Return the multiple with the least f − f* at the last bit, and all that were tried."""
    bits, finals = 32 * steps, dict[float, float]()
    wanted: tuple[float, ...] = GD_MULTIPLES if method == "GD" else MULTIPLES
    while wanted:
        plans = tuple(Plan(method, multiple, seed=TUNING_SEED) for multiple in wanted)
        _, gaps, _ = _observed(problem, plans, _steps(method, problem.dimension, bits))
        for i, plan in enumerate(plans):
            gap = float(gaps[-1, i])
            finals[plan.multiple] = gap if math.isfinite(gap) else math.inf
        best = min(finals, key=lambda multiple: finals[multiple])
        around = () if method == "GD" else (best / 2, best * 2)
        wanted = tuple(multiple for multiple in around if multiple not in finals)
    return best, sorted(finals)


def _steps(method: str, dimension: int, bits: int) -> int:
    return max(2, bits // (32 * (dimension if method == "GD" else 1)))


def _at_bits(gaps: np.ndarray, method: str, dimension: int, bits: int) -> float:
    return float(gaps[min(_steps(method, dimension, bits), len(gaps)) - 1])


def _curve(method: str, multiple: float, gaps: np.ndarray, places: np.ndarray, dimension: int, bits: int) -> Curve:
    cost = 32 * (dimension if method == "GD" else 1)
    kept = [place for place in places if place * cost <= bits]
    mean = gaps[kept].mean(1)
    return Curve(method, f"{method} {multiple:g}x", [float(place * cost) for place in kept], mean.tolist(), True)


def printed_settings(chosen: argparse.Namespace) -> dict[str, Any]:
    """Logistic regression with the nonconvex regularizer at the multiples that the authors' poster prints."""
    names = found_sets(chosen, list(PRINTED))
    say_cost("part 3", [(name, 1, 40) for name in names])
    part: dict[str, Any] = {"targets": [], "runs": {}}
    rows = []
    for name in names:
        kinds, bits = PRINTED[name]
        bits = 32 * 20 if chosen.quick else bits
        problem = blocks(chosen.data, name)
        plans = tuple(Plan(kind.method, kind.multiple, kind.k, seed=seed) for kind in kinds for seed in STARTS)
        outcome = descend(problem, plans, bits // 32)
        norms: dict[str, list[float]] = {}
        for i, plan in enumerate(plans):
            cost = 32 * (problem.dimension if plan.method == "GD" else plan.k)
            norms.setdefault(plan.method, []).append(float(outcome.norms[bits // cost, i]))
        part["runs"][name] = norms
        medians = {method: float(np.median(values)) for method, values in norms.items()}
        for kind in kinds:
            rows.append((name, f"{bits // 1000}k", str(kind), *(f"{value:.2g}" for value in norms[kind.method])))
        part["targets"].append(
            target(
                "§5", f"{name}: EF21 and EF21+ below EF at {bits // 1000}k bits, printed multiples",
                ", ".join(f"{m} {value:.2g}" for m, value in medians.items()) + " (medians)",
                max(medians["EF21"], medians["EF21+"]) < medians["EF"],
            )
        )  # fmt: skip
    part["table"] = table(("data", "bits", "method", *(f"‖∇f‖², start {seed}" for seed in STARTS)), rows)
    missing = [name for name in PRINTED if name not in names]
    part["setting"] = "λ = 0.1, 20 workers, file order, compressed starts; EF21+ at multiples of its own PL base." + (
        f" Not in DATA: {', '.join(missing)}." if missing else ""
    )
    return part


PARTS = {1: linear_rate, 2: tuned, 3: printed_settings}
NEEDED = {1: "libsvm/a9a.bz2", 2: "libsvm/a9a.bz2", 3: "libsvm/mushrooms.bz2"}

if __name__ == "__main__":
    measure(
        "EF21 on least squares", "ef21_least_squares", PARTS, arguments(__doc__, "ef21_least_squares", PARTS, NEEDED)
    )
