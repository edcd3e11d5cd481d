"""LUPA-SGD and ADA-LUPA-SGD against their claims (Haddadpour et al., NeurIPS 2019, arXiv 1910.13598).

    python -m benchmarks.papers.local_sgd --data /path/to/data [--quick] [--only 2,3] [--out
    benchmarks/results/local_sgd.json]

Parts 1, 2 and 4 read DATA/libsvm/a9a.bz2 (LIBSVM's a9a); parts 3, 5 and 6 need no data. All comparisons are paired:
same seed, same mini-batches.

1  the error falls as 1/T when tau grows as T^(2/3)
2  91 local steps, and ten rounds of growing length, cost nothing on a convex problem
3  where longer periods do cost: a small network at a constant rate
4  linear speed-up in the number of workers
5  the linear schedule has the printed lengths and exactly ten rounds
6  the loss rules, ADA-LUPA's and AdaComm's, follow the loss at the averaged model
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tacit
from benchmarks.papers.common import arguments, data_file, measure, realised_periods, spread_of, table, target
from benchmarks.papers.replicas import equals_plain_run, run_replicas
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.strategies.local_sgd.periods import Period
from tacit.workloads.workload import Workload

MU, BATCH, STEPS = 1e-2, 32, 5469  # 5469 steps are the paper's seven epochs of its own data set
PRINTED = (91, 190.4, 289.9, 389.3, 488.7, 588.2, 687.6, 787.1, 886.5, 985.9)  # τ_i for E = 10, T = 5469, τ₀ = 91
SAMPLING = {False: "reshuffled epochs of each worker's shard", True: "independent draws from all data"}


class Adult:
    """L2-regularised logistic regression on a9a: the workload, its constants and its exact minimum."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        settings = {"regularizer": "l2", "strength": MU, "split": "shuffled", "batch_size": BATCH}
        problem = workloads.logistic(data_file(chosen.data, "libsvm/a9a.bz2"), **settings).open(1, Streams(0))
        self.x, self.y = problem.training.x, problem.training.y
        self.workload: Workload = workloads.logistic((self.x, self.y), **settings)  # read once, opened for every seed
        self.smoothness = problem.smoothness
        self.minimum = self._minimum()

    def loss(self, models: Tensor) -> Tensor:
        """Return F of each row of ``models``."""
        margins = (models @ self.x.T) * self.y
        return -torch.nn.functional.logsigmoid(margins).mean(1) + 0.5 * MU * models.square().sum(1)

    def rates(self, longest: int) -> dict[str, Any]:
        """Return η_t = 4/(μ(t + a)) with a = max(8 κ, τ + 4) as arguments of ``simulate``."""
        a = max(8 * self.smoothness / MU, longest + 4)
        return {"lr": 4 / (MU * a), "schedule": tacit.InverseTime(offset=a)}

    def gaps(self, period: Period, longest: int, **settings: Any) -> tuple[np.ndarray, int]:
        """Return F − F* at the end, one number per seed, and the rounds of a run."""
        outcome = run_replicas(self.workload, period, **self.rates(longest), **settings)
        return (self.loss(outcome.models) - self.minimum).numpy(), outcome.rounds

    def constants(self) -> dict[str, float]:
        return {"mu": MU, "L": self.smoothness, "kappa": self.smoothness / MU, "F_star": self.minimum}

    def _minimum(self) -> float:
        """Return F* by Newton's method from zero, to a gradient of 1e-12."""
        w = torch.zeros(self.x.shape[1], dtype=self.x.dtype)
        for _ in range(50):
            weight = torch.sigmoid(-self.y * (self.x @ w))
            gradient = -(self.x.T @ (self.y * weight)) / len(self.y) + MU * w
            if float(gradient.norm()) < 1e-12:
                return float(self.loss(w[None])[0])
            curved = self.x * (weight * (1 - weight) / len(self.y))[:, None]
            w = w - torch.linalg.solve(self.x.T @ curved + MU * torch.eye(len(w), dtype=w.dtype), gradient)
        raise RuntimeError("Newton's method did not reach a gradient of 1e-12 in 50 iterations.")


def tied_period(steps: int, workers: int) -> int:
    """Return τ = ⌈T^{2/3} / (pB)^{1/3}⌉, the longest for which the theory keeps the O(1/(pBT)) error."""
    return math.ceil(steps ** (2 / 3) / (workers * BATCH) ** (1 / 3))


def rate_in_steps(chosen: argparse.Namespace) -> dict[str, Any]:
    """a9a, four workers: log-log slope of E[F − F*] against T with tau = T^(2/3)/(pB)^(1/3)."""
    adult, workers = Adult(chosen), 4
    lengths, seeds = ((30, 60), range(4)) if chosen.quick else ((1000, 2000, 4000, 8000, 16000), range(64))
    check = equals_plain_run(adult.workload, tacit.Every(7), workers=workers, seed=3, steps=100, **adult.rates(7))
    part: dict[str, Any] = {
        "seeds": list(seeds),
        **adult.constants(),
        "replica_against_plain_run": check,
        "targets": [],
    }
    rows, a = [], 8 * adult.smoothness / MU
    for is_independent, sampling in SAMPLING.items():
        errors = np.array([_tied(adult, steps, workers, seeds, is_independent) for steps in lengths])
        part[sampling], claims = _rate(sampling, np.array(lengths), errors, a)
        part["targets"] += claims
        rows += [
            (sampling, steps, tied_period(steps, workers), float(error.mean()), float(error.mean() * steps * workers))
            for steps, error in zip(lengths, errors, strict=True)
        ]
    noise = [t * (t + 2 * a) / (t + a) ** 3 for t in lengths]
    part["slope_of_the_bound"] = float(np.polyfit(np.log(lengths), np.log(noise), 1)[0])
    part["table"] = table(("mini-batches", "T", "τ", "E[F−F*]", "E[F−F*]·p·T"), rows)
    part["setting"] = (
        f"a9a shuffled, p={workers}, B={BATCH}, mu={MU}, eta_t = 4/(mu(t+a)), a = 8 kappa = {a:.0f}, {len(seeds)} replicas; a replica "
        f"differs from the plain simulate() of its seed by {check:.1e} (relative). T is not far above a: the noise term of Theorem 1, "
        f"T(T+2a)/(T+a)³, itself has slope {part['slope_of_the_bound']:.2f} over these T, so the slope against T+a is shown too."
    )
    return part


def _rate(
    sampling: str, lengths: np.ndarray, errors: np.ndarray, a: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return slopes of the error against T and T + a, and the claims about them."""
    slope, deviation = _slope(lengths, errors)
    shifted, shifted_deviation = _slope(lengths + a, errors)
    local = np.diff(np.log(errors.mean(1))) / np.diff(np.log(lengths))
    numbers = {
        "slope": slope,
        "slope_standard_error": deviation,
        "slopes_between": local.tolist(),
        "slope_against_T_plus_a": shifted,
        "gaps": {str(steps): spread_of(error) for steps, error in zip(lengths, errors, strict=True)},
        "gaps_per_seed": {str(steps): error.tolist() for steps, error in zip(lengths, errors, strict=True)},
    }
    between = ", ".join(f"{s:.2f}" for s in local)
    return numbers, [
        target(
            "1.6(1)",
            "slope of log E[F−F*] against log T in −0.8 … −1.2",
            f"{sampling}: {slope:.2f} ± {deviation:.2f} ({between} between neighbours)",
            -1.2 <= slope <= -0.8,
        ),
        target(
            "1.6(1)", "(against log(T + a): reported)", f"{sampling}: {shifted:.2f} ± {shifted_deviation:.2f}", None
        ),
    ]


def _tied(adult: Adult, steps: int, workers: int, seeds: range, is_independent: bool) -> np.ndarray:
    tau = tied_period(steps, workers)
    settings = {"workers": workers, "seeds": seeds, "steps": steps, "with_replacement": is_independent}
    gaps, _ = adult.gaps(tacit.Every(tau), tau, **settings)
    print(f"    T={steps} p={workers} tau={tau} {SAMPLING[is_independent]}: {gaps.mean():.3e}", flush=True)
    return gaps


def _slope(lengths: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Return the slope of log mean error against log length, and its deviation when replicas are drawn again."""
    rng, logs = np.random.default_rng(0), np.log(lengths)
    draws = (rng.integers(errors.shape[1], size=errors.shape[1]) for _ in range(1000))
    again = [np.polyfit(logs, np.log(errors[:, some].mean(1)), 1)[0] for some in draws]
    return float(np.polyfit(logs, np.log(errors.mean(1)), 1)[0]), float(np.std(again))


def convex_periods(chosen: argparse.Namespace) -> dict[str, Any]:
    """a9a, T = 5469: tau = 91 against tau = 1, and ten growing rounds against tau = 91."""
    adult, seeds = Adult(chosen), range(2 if chosen.quick else 32)
    steps, common = (80 if chosen.quick else STEPS), 1100  # one a for all: no τ_i but one-shot's is longer
    periods = {
        "tau=1": tacit.Every(1),
        "tau=91": tacit.Every(91),
        "linear E=10": tacit.LinearPeriod(initial=91, rounds=10),
        "one-shot": tacit.OneShot(),
    }
    gaps, rounds = {}, {}
    for name, period in periods.items():
        gaps[name], rounds[name] = adult.gaps(period, common, workers=4, seeds=seeds, steps=steps)
        print(f"    {name}: {rounds[name]} rounds, {gaps[name].mean():.4e}", flush=True)

    def claim(one: str, other: str, stated: str, holds: bool | None = True) -> dict[str, Any]:
        paired, mean = gaps[one] / gaps[other], gaps[one].mean() / gaps[other].mean()
        text = f"{mean:.4f} of means, {paired.min():.4f} … {paired.max():.4f} by seed ({rounds[one]} and {rounds[other]} rounds)"
        return target("1.6(2)", stated, text, holds and bool(abs(mean - 1) <= 0.05))

    return {
        "seeds": list(seeds),
        **adult.constants(),
        "rounds": rounds,
        "gaps": {name: spread_of(gap) for name, gap in gaps.items()},
        "gaps_per_seed": {name: gap.tolist() for name, gap in gaps.items()},
        "targets": [
            claim("tau=91", "tau=1", "gap(tau=91) / gap(tau=1) within 5 %"),
            claim("linear E=10", "tau=91", "gap(linear, 10 rounds) / gap(tau=91, 60 rounds) within 5 %"),
            claim("one-shot", "tau=91", "(one-shot ties on shuffled data: it proves little)", None),
        ],
        "table": table(("period", "rounds", "mean F−F*"), ((n, rounds[n], float(gaps[n].mean())) for n in gaps)),
        "setting": f"a9a shuffled, p=4, B={BATCH}, T={steps}, one step size for all (a = 8 kappa), {len(seeds)} seeds. "
        "5469 = 60·91 + 9: the closing round makes 61.",
    }


def network_periods(chosen: argparse.Namespace) -> dict[str, Any]:
    """Digits, one hidden layer, constant rate, T = 5469: the order of the final training losses."""
    seeds, steps, tau = (range(1), 60, 5) if chosen.quick else (range(5), STEPS, 91)
    fixed = f"tau={tau}"
    periods = {
        "tau=1": tacit.Every(1),
        fixed: tacit.Every(tau),
        "linear E=10": tacit.LinearPeriod(initial=tau, rounds=10),
        "growth in the last round": tacit.PeriodList([tau] * 9 + [steps - 9 * tau]),
        "one-shot": tacit.OneShot(),
    }
    loss: dict[str, list[float]] = {name: [] for name in periods}
    rounds = {}
    for name, period in periods.items():
        for seed in seeds:
            run = _digits(period, steps, seed)
            loss[name].append(run.history[-1]["loss"])
            rounds[name] = run.summary()["rounds"]
        print(f"    {name}: {rounds[name]} rounds, {np.mean(loss[name]):.4e}", flush=True)
    means = {name: float(np.mean(values)) for name, values in loss.items()}
    order = ["tau=1", fixed, "linear E=10", "one-shot"]
    in_order = [all(loss[a][i] < loss[b][i] for a, b in pairwise(order)) for i in range(len(seeds))]
    last, last_by_seed = _ratio(loss, "growth in the last round", "linear E=10")
    shot, shot_by_seed = _ratio(loss, "one-shot", fixed)
    return {
        "seeds": list(seeds),
        "rounds": rounds,
        "losses": {n: spread_of(v) for n, v in loss.items()},
        "losses_per_seed": loss,
        "targets": [
            target(
                "1.6(3)",
                f"final training loss: {' < '.join(order)}",
                " < ".join(f"{means[n]:.3e}" for n in order)
                + f" in means; this order on {sum(in_order)} of {len(seeds)} seeds",
                all(means[a] < means[b] for a, b in pairwise(order)),
            ),
            target(
                "1.6(3)", f"one-shot at least 2 x {fixed}", f"{shot:.2f} x in means ({shot_by_seed} by seed)", shot >= 2
            ),
            target(
                "1.6(3)",
                "all growth in the last round visibly worse than linear growth, both 10 rounds",
                f"{last:.2f} x in means ({last_by_seed} by seed)",
                last > 1.05,
            ),
        ],
        "table": table(("period", "rounds", "mean final loss"), ((n, rounds[n], means[n]) for n in periods)),
        "setting": f"digits MLP, p=4, B={BATCH}, lr=0.1 constant, T={steps}, {len(seeds)} seeds; «visibly» read as 5 %.",
    }


def _digits(
    period: Period, steps: int, seed: int, split: str = "shuffled", workers: int = 4, **settings: Any
) -> tacit.Run:
    return tacit.simulate(
        workloads.digits(model="mlp", batch_size=BATCH, split=split),
        tacit.LocalSGD(period=period),
        cluster=tacit.Cluster(workers=workers, compute=tacit.Constant(mean_s=0.02)),
        steps=steps,
        seed=seed,
        lr=0.1,
        **{"evaluate_every": steps, **settings},
    )


def _ratio(values: dict[str, list[float]], one: str, other: str) -> tuple[float, str]:
    """Return the ratio of means, and the range of ratios by seed as text."""
    paired = np.array(values[one]) / np.array(values[other])
    return float(np.mean(values[one]) / np.mean(values[other])), f"{paired.min():.2f} … {paired.max():.2f}"


def speed_up(chosen: argparse.Namespace) -> dict[str, Any]:
    """a9a: error·p·T for p = 1, 2, 4, 8 with tau tied to p."""
    adult, counts = Adult(chosen), (1, 2, 4, 8)
    steps, seeds = (30, range(4)) if chosen.quick else (4000, range(64))
    part: dict[str, Any] = {"seeds": list(seeds), "steps": steps, **adult.constants(), "targets": []}
    rows = []
    for is_independent, sampling in SAMPLING.items():
        errors = {p: _tied(adult, steps, p, seeds, is_independent) for p in counts}
        scaled = {p: float(error.mean() * p * steps) for p, error in errors.items()}
        middle = np.mean(list(scaled.values()))
        off = max(abs(value / middle - 1) for value in scaled.values())
        part[sampling] = {
            "scaled": {str(p): value for p, value in scaled.items()},
            "largest_deviation": float(off),
            "gaps": {str(p): spread_of(error) for p, error in errors.items()},
            "gaps_per_seed": {str(p): error.tolist() for p, error in errors.items()},
        }
        numbers = ", ".join(f"{value:.3g}" for value in scaled.values())
        text = f"{sampling}: {numbers}; at most {off:.0%} off their mean, {max(scaled.values()) / min(scaled.values()):.2f} x apart"
        part["targets"].append(
            target("1.6(4)", "error·p·T constant within 25 % for p = 1, 2, 4, 8", text, bool(off <= 0.25))
        )
        rows += [
            (
                sampling,
                p,
                tied_period(steps, p),
                float(errors[p].mean()),
                float(errors[p].std(ddof=1) / len(seeds) ** 0.5),
                scaled[p],
            )
            for p in counts
        ]
    part["table"] = table(("mini-batches", "p", "τ", "E[F−F*]", "its standard error", "E[F−F*]·p·T"), rows)
    part["setting"] = f"a9a shuffled, B={BATCH}, mu={MU}, a = 8 kappa, T={steps}, tau tied to p, {len(seeds)} replicas."
    return part


def linear_schedule(chosen: argparse.Namespace) -> dict[str, Any]:
    """ADA-LUPA's linear schedule: the printed lengths, and ten rounds in a real run."""
    period = tacit.LinearPeriod(initial=91, rounds=10)
    lengths = period.schedule(STEPS)
    run = _digits(period, STEPS, seed=0, timing_only=chosen.quick)
    realised, rounds = realised_periods(run), run.summary()["rounds"]
    growth = lengths[1] / lengths[0] - 1
    return {
        "seeds": [0],
        "printed": list(PRINTED),
        "schedule": lengths,
        "alpha": growth,
        "realised": realised,
        "rounds": rounds,
        "targets": [
            target(
                "1.6(5)",
                f"tau_i = {', '.join(map(str, PRINTED))}; alpha = 1.09",
                f"{', '.join(f'{x:.1f}' for x in lengths)}; alpha = {growth:.4f}",
                all(abs(x - printed) <= 0.05 for x, printed in zip(lengths, PRINTED, strict=True)),
            ),
            target(
                "1.6(5)",
                "10 rounds, not 11: the last absorbs the remainder",
                f"{rounds} rounds: {', '.join(map(str, realised))} (sum {sum(realised)})",
                rounds == 10 and sum(realised) == STEPS and len(realised) == 10,
            ),
        ],
        "setting": f"LinearPeriod(initial=91, rounds=10), T={STEPS}, read from the trace of a digits run with p=4.",
    }


LOSS_RULES = {
    "ADA-LUPA": (tacit.LossPeriod(initial=16), lambda ratio: math.ceil(ratio ** (-1 / 3)) * 16),
    "AdaComm": (tacit.AdaCommPeriod(initial=32), lambda ratio: math.ceil(math.sqrt(ratio) * 32)),
}  # by name: the period rule, and the paper's formula for τ from F(x̄)/F(x̄₀)


def loss_rules(chosen: argparse.Namespace) -> dict[str, Any]:
    """ADA-LUPA's loss rule and AdaComm, digits shuffled and label-sorted: periods against the papers' formulas at F(x̄)
    on all data.
    """
    seeds, steps, workers = (range(1), 80, 8) if chosen.quick else (range(3), 1000, 8)
    part: dict[str, Any] = {"seeds": list(seeds), "steps": steps, "targets": [], "runs": {}}
    rows = []
    for (name, (period, formula)), split in product(LOSS_RULES.items(), ("shuffled", "sorted")):
        runs = [_digits(period, steps, seed, split=split, workers=workers, evaluate_every=1) for seed in seeds]
        found = [_against_formula(run, formula) for run in runs]
        off = np.concatenate([one["period"] / one["by_formula"] for one in found])
        rounds = [run.summary()["rounds"] for run in runs]
        losses = [run.history[-1]["loss"] for run in runs]
        constant = [
            _digits(_even(steps, n), steps, seed, split=split, workers=workers).history[-1]["loss"]
            for n, seed in zip(rounds, seeds, strict=True)
        ]
        part["runs"][f"{name}, {split}"] = {
            "rounds": rounds,
            "losses": losses,
            "losses_of_constant_periods": constant,
            "periods": [one["period"].tolist() for one in found],
            "periods_by_formula": [one["by_formula"].tolist() for one in found],
            "losses_at_averages": [one["losses"].tolist() for one in found],
        }
        text = f"{split}: {off.mean():.3f} in the mean, {off.min():.2f} … {off.max():.2f}; equal in {np.mean(off == 1):.0%} of {len(off)} rounds"
        stated = f"{name}: τ over the paper's τ at F(x̄) of one round before: 1 within 5 % in the mean"
        part["targets"].append(target("1.4(a)", stated, text, bool(abs(off.mean() - 1) <= 0.05)))
        lag = np.concatenate([one["period"] / one["without_lag"] for one in found])
        part["targets"].append(
            target(
                "1.4(a)",
                f"({name}: over the τ at F(x̄) of the same round: reported)",
                f"{split}: {lag.mean():.3f} in the mean",
                None,
            )
        )
        rows.append((name, split, ", ".join(map(str, rounds)), float(np.mean(losses)), float(np.mean(constant))))
        print(f"    {name} {split}: {rounds} rounds, {np.mean(losses):.4e}", flush=True)
    part["table"] = table(
        ("rule", "split", "rounds by seed", "mean final loss", "constant period, as many rounds"), rows
    )
    part["setting"] = (
        f"digits MLP, p={workers}, B={BATCH}, lr=0.1 constant, T={steps}, {len(seeds)} seeds; LossPeriod(initial=16), AdaCommPeriod(initial=32). "
        f"F(x̄) is measured on all training data; the rules estimate it from one mini-batch a worker, taken in the first step after an averaging."
    )
    return part


def _against_formula(run: tacit.Run, formula: Callable[[float], int]) -> dict[str, np.ndarray]:
    """Return, for each period but the first and the last, its length and the paper's, at F(x̄) one round before and at
    its begin.
    """
    loss = {row["step"]: row["loss"] for row in run.history}
    periods = realised_periods(run)
    at = np.array([loss[step] for step in (0, *np.cumsum(periods[:-2]).tolist())])  # the start, then round by round
    by_formula = np.array([formula(value / at[0]) for value in at])
    return {
        "losses": at,
        "period": np.array(periods[1:-1]),
        "by_formula": by_formula[:-1],
        "without_lag": by_formula[1:],
    }


def _even(steps: int, rounds: int) -> Period:
    """Return ``rounds`` periods of nearly equal length."""
    ends = np.round(np.arange(rounds + 1) * steps / rounds).astype(int)
    return tacit.PeriodList(np.diff(ends).tolist())


PARTS = {1: rate_in_steps, 2: convex_periods, 3: network_periods, 4: speed_up, 5: linear_schedule, 6: loss_rules}
NEEDED = dict.fromkeys((1, 2, 4), "libsvm/a9a.bz2")

if __name__ == "__main__":
    measure("LUPA-SGD and ADA-LUPA-SGD", "local_sgd", PARTS, arguments(__doc__, "local_sgd", PARTS, NEEDED))
