"""EF21 against classic error feedback, in the authors' own protocol (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021,
arXiv 2106.05203).

    python -m benchmarks.papers.ef21 --data /path/to/data [--quick] [--only 2,3] [--out benchmarks/results/ef21.json]

All parts read DATA/libsvm/a9a.bz2 and DATA/libsvm/mushrooms.bz2. Logistic regression with the nonconvex regularizer, λ
= 0.1; 20 workers with contiguous blocks in file order, the remainder with the last; Top-k; full gradients; x⁰ from
RandomState(0).randn(d). A step is a multiple of the theoretical one: of 1/(L + L̃ √(β/θ)) for EF and EF21, of the PL
formula with μ = λ for EF21+ (as in the authors' code), of 1/L for GD. Estimates start compressed, bits included, unless
a row says full.

The runs of a part are columns of one direct loop, because a simulation of each would take an hour; part 6 shows that
``tacit.simulate`` takes the same steps.

1  the constants of both data sets
2  ‖∇f‖² after 6250 steps: EF levels off at a height that grows with the step, EF21 goes on
3  bits to ‖∇f‖² = 1e-6 on mushrooms with k = 2, and the start's part in it
4  the theorem's bound at every step, with the theoretical step
5  ‖∇f‖² against bits as the paper counts them and against true bytes, GD, EF, EF21 and EF21+
6  the direct loop and the library take the same steps
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

import tacit
from benchmarks.papers.common import arguments, data_file, measure, table, target
from benchmarks.papers.drawing import Curve, draw
from tacit import theory, workloads
from tacit.core.randomness import Streams

WORKERS, STRENGTH, STEPS = 20, 0.1, 6250
SETS = ("mushrooms", "a9a")
MULTIPLES = (1, 16, 64, 256, 1024)
LEVELS = (1e-2, 1e-4, 1e-6, 1e-8)
PRINTED = {  # §3.5: N_i, d, L, L̃, least and largest L_i, √(β/θ), γ
    "mushrooms": (406, 112, 2.78621, 3.49323, 2.848, 4.086, 222.499, 1.2820e-3),
    "a9a": (1628, 123, 1.77192, 1.77307, 1.757, 1.787, 244.499, 2.2973e-3),
}
SEEN = {  # §3.6(1): medians over the last tenth
    ("mushrooms", "EF"): (0.21, 2.0e-3, 1.0e-3, 1.2e-2, 9.6e-2),
    ("mushrooms", "EF21"): (0.21, 2.9e-3, 3.0e-7, 6e-23, 5e-33),
    ("a9a", "EF"): (0.12, 1.3e-6, 1.6e-5, 1.7e-4, 1.8e-3),
    ("a9a", "EF21"): (0.12, 1.2e-20, 4e-32, 2e-33, 1e-34),
}
DIRECT = {"EF": tacit.ErrorFeedback(), "EF21": tacit.EF21(), "EF21+": tacit.EF21Plus()}


@dataclass(frozen=True)
class Plan:
    """One column of the loop."""

    method: str  # "GD", "EF", "EF21", "EF21+"
    multiple: float
    k: int = 1
    init: str = "compressed"
    base: str | None = None  # "PL" or "nonconvex"; None: the authors' choice
    seed: int = 0

    def __str__(self) -> str:
        k = "" if self.method == "GD" else f" k={self.k}"
        base = ("" if self.base is None else f" of the {self.base} step") + (f" start {self.seed}" if self.seed else "")
        return f"{self.method}{k} {self.multiple:g}x{base}" + (" full start" if self.init == "full" else "")


class Blocks:
    """Logistic regression whose samples lie in one block per worker; f is the mean of the workers' losses."""

    def __init__(self, path: Path) -> None:
        self.data = str(path)
        problem = workloads.logistic(
            self.data, regularizer="nonconvex", strength=STRENGTH, split="contiguous", batch_size=None
        ).open(1, Streams(0))
        self.x, self.y = problem.training.x, problem.training.y
        self.samples, self.dimension = self.x.shape
        each = self.samples // WORKERS
        self.lengths = [each] * (WORKERS - 1) + [self.samples - each * (WORKERS - 1)]  # the remainder to the last
        self._keep(self.lengths)
        split = torch.split(self.x, self.lengths)
        self.worker_smoothness = curvatures = [self._curvature(block) for block in split]
        self.smoothness = self._curvature(self.x)
        self.mean_smoothness = math.sqrt(sum(c**2 for c in curvatures) / WORKERS)

    def _keep(self, lengths: Sequence[int]) -> None:
        """Take blocks of these lengths as the workers' samples.

        Features are sparse, which saves four fifths of the time.
        """
        kept = sum(lengths)
        owner = np.repeat(np.arange(WORKERS), lengths)
        self._rows = sparse.csr_matrix(self.x[:kept].numpy())
        entries = self._rows.tocoo()
        places = (owner[entries.row] * self.dimension + entries.col, entries.row)
        self._columns = sparse.csr_matrix((entries.data, places), shape=(WORKERS * self.dimension, kept))
        self._signs = self.y[:kept, None].numpy()
        self._shares = 1 / np.asarray(lengths)[owner][:, None]

    def even(self) -> Blocks:
        """Return the same with the samples left out that make the last block longer: f is then the mean over all
        samples.
        """
        other = copy.copy(self)
        other._keep([self.lengths[0]] * WORKERS)
        return other

    def _curvature(self, rows: Tensor) -> float:
        return float(torch.linalg.eigvalsh(rows.T @ rows)[-1]) / (4 * len(rows)) + 2 * STRENGTH

    def step_size(self, plan: Plan) -> float:
        """Return γ: a multiple of the authors' base for this method."""
        if plan.method == "GD":
            return plan.multiple / self.smoothness
        pl = STRENGTH if (plan.base or ("PL" if plan.method == "EF21+" else "nonconvex")) == "PL" else None
        constants = {"smoothness": self.smoothness, "mean_smoothness": self.mean_smoothness}
        return plan.multiple * theory.ef21_step_size(**constants, contraction=plan.k / self.dimension, pl=pl)

    def gradients(self, models: Tensor) -> Tensor:
        """Return ∇f_i of each column of ``models`` ([d, columns]) as [workers, d, columns]."""
        with np.errstate(over="ignore"):  # e^∞ gives a weight of 0
            weights = self._signs * self._shares / (1 + np.exp(self._signs * (self._rows @ models.numpy())))
        fitted = torch.from_numpy((self._columns @ weights).reshape(WORKERS, self.dimension, -1))
        return 2 * STRENGTH * models / (1 + models.square()).square() - fitted

    def loss(self, models: Tensor) -> Tensor:
        losses = np.logaddexp(0, -self._signs * (self._rows @ models.numpy())) * self._shares
        return torch.from_numpy(losses.sum(0) / WORKERS) + STRENGTH * (models.square() / (1 + models.square())).sum(0)

    def start(self, seed: int) -> Tensor:
        return torch.from_numpy(np.random.RandomState(seed).randn(self.dimension))


@dataclass(frozen=True)
class Outcome:
    """What the loop left of each column: ‖∇f(x^t)‖² for t = 0 … T, the distortion G⁰ after the first message, the last
    models.
    """

    norms: np.ndarray  # [steps + 1, columns]
    first_distortion: np.ndarray
    models: Tensor


def top(values: Tensor, k: int) -> Tensor:
    """Return the k numbers of largest magnitude along the second dimension of [workers, d, columns], zeros elsewhere."""
    places = values.abs().topk(k, dim=1).indices if k > 1 else values.abs().argmax(1, keepdim=True)
    return torch.zeros_like(values).scatter_(1, places, values.gather(1, places))


class Problem(Protocol):
    """What ``descend`` needs of a problem: gradients and starts of [d, columns] models, and a plan's step size."""

    def start(self, seed: int) -> Tensor: ...

    def step_size(self, plan: Plan) -> float: ...

    def gradients(self, models: Tensor) -> Tensor: ...


def descend(
    problem: Problem, plans: tuple[Plan, ...], steps: int, observe: Callable[[Tensor, Tensor], None] | None = None
) -> Outcome:
    """Run all plans at once, one column each.

    observe: called in every step with the models and the distortion G = (1/n) Σ ‖g_i − ∇f_i‖² of each column.
    """
    models = torch.stack([problem.start(plan.seed) for plan in plans], 1)
    rates = torch.tensor([problem.step_size(plan) for plan in plans], dtype=models.dtype)
    memory = models.new_zeros(WORKERS, *models.shape)  # g_i, or e_i
    keys = sorted({(plan.method, plan.k) for plan in plans})
    groups = [(m, k, torch.tensor([i for i, p in enumerate(plans) if (p.method, p.k) == (m, k)])) for m, k in keys]
    is_full = torch.tensor([plan.init == "full" for plan in plans])
    norms, first = np.empty((steps + 1, len(plans))), np.zeros(len(plans))
    for step in range(steps + 1):
        gradients = problem.gradients(models)
        norms[step] = gradients.mean(0).square().sum(0).numpy()
        if step == steps:
            break
        moves = torch.empty_like(models)
        for method, k, columns in groups:
            own, gamma = gradients[:, :, columns], rates[columns]
            known, said = _say(method, k, own, memory[:, :, columns], gamma)
            if step == 0 and method.startswith("EF21"):
                full = is_full[columns]
                known[:, :, full], said[:, :, full] = own[:, :, full], own[:, :, full]
                first[columns.numpy()] = (said - own).square().sum(1).mean(0).numpy()
            memory[:, :, columns] = known
            moves[:, columns] = said.mean(0) * (1.0 if method == "EF" else gamma)
        if observe is not None:
            observe(models, (memory - gradients).square().sum(1).mean(0))
        models -= moves
    return Outcome(norms, first, models)


def _say(method: str, k: int, gradient: Tensor, memory: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new memory and what everybody follows; EF's is in model units."""
    match method:
        case "GD":
            return memory, gradient
        case "EF":
            owed = memory + gamma * gradient
            said = top(owed, k)
            return owed - said, said
        case "EF21":
            estimate = memory + top(gradient - memory, k)
            return estimate, estimate
        case _:
            fresh, estimate = top(gradient, k), memory + top(gradient - memory, k)
            is_nearer = (fresh - gradient).square().sum(1, keepdim=True) < (estimate - gradient).square().sum(
                1, keepdim=True
            )
            estimate = torch.where(is_nearer, fresh, estimate)
            return estimate, estimate


@cache
def blocks(folder: Path, name: str) -> Blocks:
    return Blocks(data_file(folder, f"libsvm/{name}.bz2"))


@cache
def long_runs(folder: Path, name: str, steps: int) -> tuple[tuple[Plan, ...], Outcome]:
    """The runs that parts 2, 4 and 5 share."""
    plans = [Plan(method, multiple) for method in ("EF", "EF21", "EF21+") for multiple in MULTIPLES]
    if name == "mushrooms":
        plans += [Plan("EF21+", 4096, base=base, seed=seed) for base in (None, "nonconvex") for seed in (0, 1, 2)]
    plans += [Plan("GD", multiple) for multiple in (1, 4)]
    return tuple(plans), descend(blocks(folder, name), tuple(plans), steps)


def constants(chosen: argparse.Namespace) -> dict[str, Any]:
    """L, L̃, √(β/θ) and the theoretical step, beside those of §3.5."""
    part: dict[str, Any] = {"targets": [], "setting": "Top-1, λ = 0.1, 20 workers, file order."}
    rows = []
    for name in SETS:
        problem = blocks(chosen.data, name)
        alpha, least, largest = 1 / problem.dimension, min(problem.worker_smoothness), max(problem.worker_smoothness)
        root = math.sqrt(theory.ef21_beta(alpha) / theory.ef21_theta(alpha))
        found = (
            problem.lengths[0],
            problem.dimension,
            problem.smoothness,
            problem.mean_smoothness,
            least,
            largest,
            root,
            problem.step_size(Plan("EF21", 1)),
        )
        rows.append((name, problem.samples, *(f"{number:.6g}" for number in found)))
        part[name] = list(found)
        agrees = all(abs(a - b) <= 2e-4 * abs(b) for a, b in zip(found, PRINTED[name], strict=True))
        part["targets"].append(
            target(
                "3.5",
                f"{name}: L {PRINTED[name][2]}, L̃ {PRINTED[name][3]}, γ {PRINTED[name][7]:.4e}",
                f"{name}: L {found[2]:.5f}, L̃ {found[3]:.5f}, γ {found[7]:.4e}",
                agrees,
            )
        )
    part["table"] = table(("data", "N", "N_i", "d", "L", "L̃", "least L_i", "largest", "√(β/θ)", "γ 1x"), rows)
    return part


def levels(chosen: argparse.Namespace) -> dict[str, Any]:
    """Medians of ‖∇f‖² over the last tenth, by method and multiple: the table of §3.6(1)."""
    steps = 30 if chosen.quick else STEPS
    part: dict[str, Any] = {
        "targets": [],
        "medians": {},
        "setting": f"Top-1, {steps} steps, compressed start; in brackets what was seen before.",
    }
    rows = []
    for name in SETS:
        plans, outcome = long_runs(chosen.data, name, steps)
        tail = np.median(outcome.norms[-max(1, steps // 10) :], axis=0)
        found = {
            (p.method, p.multiple, p.base): float(value) for p, value in zip(plans, tail, strict=True) if not p.seed
        }
        largest = {
            base: [float(v) for p, v in zip(plans, tail, strict=True) if (p.multiple, p.base) == (4096, base)]
            for base in (None, "nonconvex")
        }
        part["medians"][name] = {str(plan): float(value) for plan, value in zip(plans, tail, strict=True)}
        for method in ("EF", "EF21", "EF21+"):
            seen = SEEN.get((name, method), (None,) * 5)
            cells = [found[method, m, None] for m in MULTIPLES]
            rows.append(
                (
                    f"{name} {method}",
                    *(f"{c:.1e}" + (f" ({s:.1e})" if s else "") for c, s in zip(cells, seen, strict=True)),
                )
            )
        part["targets"] += _level_claims(name, found)
        if name == "mushrooms":
            own, other = ([f"{value:.1e}" for value in largest[base]] for base in (None, "nonconvex"))
            part["targets"].append(
                target(
                    "3.6(1)",
                    "mushrooms EF21+: 4096x of its own PL base converges, 4096x of EF21's base does not",
                    f"three starts: {', '.join(own)} and {', '.join(other)} after {steps} steps",
                    max(largest[None]) < 1e-6 < min(largest["nonconvex"]),
                )
            )
    part["table"] = table(("", *(f"{m}x" for m in MULTIPLES)), rows)
    return part


def _level_claims(name: str, found: dict[tuple[str, float, str | None], float]) -> list[dict[str, Any]]:
    ef, ef21 = ([found[method, m, None] for m in MULTIPLES] for method in ("EF", "EF21"))
    first_on = {"mushrooms": 2, "a9a": 1}[name]  # from 64x, from 16x
    rises = ef[-3:] == sorted(ef[-3:])
    return [
        target(
            "3.6(1)",
            f"{name}: EF and EF21 indistinguishable at 1x",
            f"{ef[0]:.3g} and {ef21[0]:.3g}",
            abs(ef[0] / ef21[0] - 1) < 0.05,
        ),
        target(
            "3.6(1)",
            f"{name}: EF levels off, higher for larger steps",
            f"64x, 256x, 1024x: {', '.join(f'{v:.1e}' for v in ef[-3:])}",
            rises and min(ef) > 1e-7,
        ),
        target(
            "3.6(1)",
            f"{name}: EF21 goes on from {MULTIPLES[first_on]}x",
            ", ".join(f"{v:.1e}" for v in ef21[first_on:]),
            max(ef21[first_on:]) < 1e-6 and max(ef21[first_on + 1 :]) < 1e-15,
        ),
        target(
            "3.6(1)",
            f"{name}: every cell within a factor of three (above 1e-10) of what was seen before",
            "largest factors: "
            + ", ".join(f"{m} {_factor(SEEN[name, m], values):.2f}" for m, values in (("EF", ef), ("EF21", ef21))),
            all(_factor(SEEN[name, m], values) < 3 for m, values in (("EF", ef), ("EF21", ef21))),
        ),
    ]


def _factor(seen: tuple[float, ...], values: list[float]) -> float:
    """Return the largest ratio, either way, among cells that are not down at rounding."""
    return max((max(s / v, v / s) for s, v in zip(seen, values, strict=True) if s > 1e-10), default=1.0)


def bits_to_accuracy(chosen: argparse.Namespace) -> dict[str, Any]:
    """Bits per worker, 32 k t as the paper counts them, until ‖∇f‖² < 1e-6: mushrooms, k = 2, three starts, both inits."""
    problem, seeds = blocks(chosen.data, "mushrooms"), (0, 1, 2)
    kinds = [
        Plan("EF21", 256, 2),
        Plan("EF21", 1024, 2),
        Plan("EF21", 256, 2, "full"),
        Plan("EF21", 1024, 2, "full"),
        Plan("EF", 64, 2),
    ]
    plans = tuple(replace(kind, seed=seed) for kind in kinds for seed in seeds)
    outcome = descend(problem, plans, 60 if chosen.quick else 200_000 // 64)
    reached = {
        str(kind): [_bits(outcome.norms[:, i], 2) for i, p in enumerate(plans) if replace(p, seed=0) == kind]
        for kind in kinds
    }

    def text(kind: Plan) -> str:
        return f"{kind}: " + ", ".join(
            "never" if bits is None else f"{bits / 1000:.1f}k" for bits in reached[str(kind)]
        )

    slow, fast, full_slow, full_fast, ef = kinds
    return {
        "bits": reached,
        "setting": "mushrooms, k = 2, RandomState(0), (1), (2), at most 200,000 bits; a full start's left out, as in the paper.",
        "table": table(
            ("", *(f"start {s}" for s in seeds)),
            [(k, *("never" if b is None else str(b) for b in v)) for k, v in reached.items()],
        ),
        "targets": [
            target(
                "3.6(2)",
                "compressed start, 1024x: 14k–29k bits (to 5 %)",
                text(fast),
                _within(reached[str(fast)], 14e3, 29e3),
            ),
            target(
                "3.6(2)",
                "compressed start, 256x: 31k–46k bits (to 5 %)",
                text(slow),
                _within(reached[str(slow)], 31e3, 46e3),
            ),
            target(
                "3.6(2)",
                "full start: 1024x fails within 200k bits, 256x works",
                f"{text(full_fast)}; {text(full_slow)}",
                all(b is None for b in reached[str(full_fast)]) and None not in reached[str(full_slow)],
            ),
            target("3.6(2)", "EF 64x never gets there", text(ef), all(b is None for b in reached[str(ef)])),
        ],
    }


def _bits(norms: np.ndarray, k: int) -> int | None:
    steps = _steps_to(norms, 1e-6)
    return None if steps is None else 32 * k * steps


def _within(bits: list[int | None], least: float, most: float) -> bool:
    return all(b is not None and 0.95 * least <= b <= 1.05 * most for b in bits)


def bound(chosen: argparse.Namespace) -> dict[str, Any]:
    """The running mean of ‖∇f‖² against 2(f(x⁰) − f_inf)/(γT) + G⁰/(θT), at every T, with the theoretical step."""
    steps = 30 if chosen.quick else STEPS
    part: dict[str, Any] = {
        "targets": [],
        "setting": "EF21 at 1x. f_inf is taken as the least f that any run came to (a smaller one would only raise the bound).",
    }
    for name in SETS:
        problem = blocks(chosen.data, name)
        plans, outcome = long_runs(chosen.data, name, steps)
        place, alpha = plans.index(Plan("EF21", 1)), 1 / problem.dimension
        finite = outcome.models[:, torch.from_numpy(np.isfinite(outcome.norms[-1]))]
        gap = float(problem.loss(problem.start(0)[:, None])[0]) - float(problem.loss(finite).min())
        gamma = problem.step_size(plans[place])
        means = np.cumsum(outcome.norms[:-1, place]) / np.arange(1, steps + 1)
        bounds = [
            theory.ef21_gradient_bound(
                gap=gap, step_size=gamma, steps=t, contraction=alpha, distortion=outcome.first_distortion[place]
            )
            for t in range(1, steps + 1)
        ]
        share = float((means / np.array(bounds)).max())
        part[name] = {"largest_share": share, "gap": gap, "first_distortion": float(outcome.first_distortion[place])}
        part["targets"].append(
            target(
                "3.6(3)",
                f"{name}: below the bound at every T (at most .24 of it seen)",
                f"at most {share:.3f} of it",
                share <= 1,
            )
        )
    return part


def against_bits(chosen: argparse.Namespace) -> dict[str, Any]:
    """Bits and true bytes a worker sends until ‖∇f‖² falls below 1e-2, 1e-4, 1e-6, 1e-8, each method at its best
    multiple.
    """
    steps = 30 if chosen.quick else STEPS
    places = np.unique(np.geomspace(1, steps, 40).astype(int))
    part: dict[str, Any] = {"targets": [], "curves": {}, "message_bytes": {}}
    rows, panels, labels = [], {}, {}
    for name in SETS:
        problem = blocks(chosen.data, name)
        plans, outcome = long_runs(chosen.data, name, steps)
        sizes = {method: message_bytes(problem, feedback) for method, feedback in DIRECT.items()} | {
            "GD": 4.0 * problem.dimension
        }
        part["message_bytes"][name] = sizes
        shown = [(plan, outcome.norms[:, i]) for i, plan in enumerate(plans) if not plan.seed]
        rows += [(name, plan, *_costs(plan, norms, problem.dimension, sizes)) for plan, norms in shown]
        best = {
            method: min(
                ((p, n) for p, n in shown if p.method == method),
                key=lambda pn: (_steps_to(pn[1], 1e-6) or steps, pn[1].min()),
            )
            for method in ("GD", "EF", "EF21", "EF21+")
        }
        part["targets"] += _bit_claims(name, best, problem.dimension, sizes)
        part["curves"][name] = {"steps": places.tolist()} | {str(plan): norms[places].tolist() for plan, norms in shown}
        for unit, label in (
            ("bits", "bits a worker, as the paper counts them"),
            ("bytes", "true bytes a worker, headers and indices included"),
        ):
            title = f"{name}: squared gradient norm against {unit}"
            labels[title] = label
            panels[title] = [
                Curve(
                    plan.method,
                    str(plan),
                    (places * _cost(plan, unit, problem.dimension, sizes)).tolist(),
                    norms[places].tolist(),
                    plan == best[plan.method][0],
                )
                for plan, norms in shown
            ]
    draw(chosen.out.with_suffix(".svg"), panels, labels, floor=1e-16)
    part["table"] = [
        f"![curves]({chosen.out.with_suffix('.svg').name})",
        "",
        *table(("data", "run", *(f"{level:.0e}" for level in LEVELS)), rows),
    ]
    part["setting"] = (
        "Bits as the paper counts them (32 k t, no indices) / true bytes of the packed messages, headers, weight and indices included (GD: 4 d, "
        "no header). Each is what a worker would send to a master; an all-gather among 20 sends every message 19 times."
    )
    return part


def _steps_to(norms: np.ndarray, level: float) -> int | None:
    below = np.flatnonzero(norms < level)
    return int(below[0]) if len(below) else None


def _cost(plan: Plan, unit: str, dimension: int, sizes: dict[str, float]) -> float:
    """Return what a step costs a worker."""
    return sizes[plan.method] if unit == "bytes" else 32.0 * (dimension if plan.method == "GD" else plan.k)


def _costs(plan: Plan, norms: np.ndarray, dimension: int, sizes: dict[str, float]) -> list[str]:
    bits, size = (_cost(plan, unit, dimension, sizes) for unit in ("bits", "bytes"))
    steps = [_steps_to(norms, level) for level in LEVELS]
    return ["never" if t is None else f"{bits * t / 1000:.4g}k / {size * t / 1000:.4g} kB" for t in steps]


def _bit_claims(
    name: str, best: dict[str, tuple[Plan, np.ndarray]], dimension: int, sizes: dict[str, float]
) -> list[dict[str, Any]]:
    claims = []
    for unit, stated in (
        ("bits", f"{name}: EF21 or EF21+ needs the fewest bits to 1e-6"),
        ("bytes", f"({name}: true bytes to 1e-6)"),
    ):
        needed = {
            method: (plan, t * _cost(plan, unit, dimension, sizes))
            for method, (plan, norms) in best.items()
            if (t := _steps_to(norms, 1e-6)) is not None
        }
        told = ", ".join(f"{plan} {cost / 1000:.1f}k" for plan, cost in needed.values())
        never = ", ".join(method for method in best if method not in needed)
        fewest = min(needed, key=lambda method: needed[method][1], default="")
        holds = fewest.startswith("EF21") if unit == "bits" else None
        claims.append(target("3.5", stated, f"{told or 'nobody gets there'}; never: {never or 'nobody'}", holds))
    return claims


def message_bytes(problem: Blocks, feedback: tacit.feedback.Feedback) -> float:
    """Return the mean size of a worker's message in a short run of the library, in float32."""
    run = simulate(problem, feedback, 20, 1e-3, torch.float32)
    return float(run.summary()["bytes_sent"]) / (WORKERS * (WORKERS - 1) * 20)


def simulate(
    problem: Blocks, feedback: tacit.feedback.Feedback, steps: int, gamma: float, dtype: torch.dtype = torch.float64
) -> tacit.Run:
    """Take the same steps by way of the library, without the samples that make the last block longer: f is then the
    mean over all samples.
    """
    whole = WORKERS * problem.lengths[0]
    workload = workloads.logistic(
        (problem.x[:whole], problem.y[:whole]),
        regularizer="nonconvex",
        strength=STRENGTH,
        split="contiguous",
        batch_size=None,
        dtype=dtype,
    )
    strategy = tacit.CompressedGradient(compressor=tacit.TopK(k=1), feedback=feedback)
    return tacit.simulate(
        workload,
        strategy,
        cluster=tacit.Cluster(workers=WORKERS),
        steps=steps,
        lr=gamma,
        start=problem.start(0).to(dtype),
        evaluate_every=steps,
    )


def same_steps(chosen: argparse.Namespace) -> dict[str, Any]:
    """EF, EF21 and EF21+ on mushrooms at 64x through tacit.simulate and through the direct loop: the same model."""
    problem, steps = blocks(chosen.data, "mushrooms"), 20 if chosen.quick else 200
    plans = tuple(Plan(method, 64) for method in DIRECT)
    outcome = descend(problem.even(), plans, steps)
    differences = {}
    for i, plan in enumerate(plans):
        run = simulate(problem, DIRECT[plan.method], steps, problem.step_size(plan))
        differences[str(plan)] = float((run.parameters - outcome.models[:, i]).abs().max())
    return {
        "largest_differences": differences,
        "setting": f"mushrooms, {steps} steps, float64, blocks of equal length.",
        "targets": [
            target(
                "3.6",
                "the library takes the same steps",
                ", ".join(f"{p}: {d:.1e}" for p, d in differences.items()),
                max(differences.values()) < 1e-9,
            )
        ],
    }


PARTS = {1: constants, 2: levels, 3: bits_to_accuracy, 4: bound, 5: against_bits, 6: same_steps}
NEEDED = dict.fromkeys(PARTS, "libsvm/mushrooms.bz2")

if __name__ == "__main__":
    measure("EF21", "ef21", PARTS, arguments(__doc__, "ef21", PARTS, NEEDED))
