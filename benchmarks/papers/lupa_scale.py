"""LUPA-SGD and ADA-LUPA at the size of their paper (Haddadpour et al., NeurIPS 2019, arXiv 1910.13598).

    python -m benchmarks.papers.lupa_scale --data /path/to/data [--quick] [--only 2] [--out
    benchmarks/results/lupa_scale.json]

Logistic regression on a set of epsilon's shape (400,000 × 2,000, drawn here, 3.2 GB), a9a and MNIST (0 to 4 against 5
to 9). Reads DATA/libsvm/a9a.bz2 and DATA/mnist. Every method gets the same search: learning rates on seed 100, then
seeds 0, 1 and 2 at the best. Runs are kept beside --out and not made again.

1  loss against rounds: every step, the theorem's τ, the paper's τ = 91, one average at the end
2  speed-up to a fixed loss with 1, 4 and 16 workers, in steps and in virtual time
3  ADA-LUPA, linear and by loss, against a constant period with as many rounds
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

import tacit
from benchmarks.papers import prepared
from benchmarks.papers.common import arguments, data_file, measure, table, target
from benchmarks.papers.drawing import Curve, draw
from benchmarks.papers.rows import Case, Row, Rows, Search, Tuned, mnist_file, rows_of, say_cost, shown
from tacit.strategies.local_sgd.periods import Period

WORKERS, PAPER_PERIOD, PAPER_STEPS, ROUNDS = 4, 91, 5469, 10
SEARCH = Search(rates=(0.25, 0.5, 1.0))
COUNTS = (1, 4, 16)
CLUSTER = {"compute": tacit.Constant(mean_s=1e-3), "latency_s": 1e-4, "bandwidth_bytes_per_s": 1.25e9}
SETTING_OF_TIME = "1 ms a step, latency 0.1 ms, 10 Gbit/s"


@dataclass
class Set:
    """A data set, read when a run needs it, and its constants, which the rows keep."""

    title: str
    load: Callable[[], prepared.Regression]
    rows: Rows
    steps: int  # T; 5,469 are the paper's, seven epochs of epsilon
    budget: int  # steps of one worker in part 2; p workers have budget/p
    seconds: float  # of a run of part 1, for the cost

    @property
    def is_large(self) -> bool:
        """Whether a run takes so long that fewer of them are made."""
        return self.title.startswith("epsilon")

    @cached_property
    def workload(self) -> prepared.Regression:
        return self.load()

    @cached_property
    def constants(self) -> Row:
        """L, μ, κ, F*, F of the start and at the optimum on the samples of evaluations in a run."""
        return self.rows.get({"constants": self.title}, self._find_constants)

    def _find_constants(self) -> Row:
        problem = self.workload
        optimum = problem.minimum().to(problem.x.dtype)
        smoothness = problem.smoothness()
        return {
            "samples": len(problem.y),
            "features": problem.x.shape[1],
            "batch": problem.batch_size,
            "mu": problem.strength,
            "L": smoothness,
            "kappa": smoothness / problem.strength,
            "F_star": problem.loss(optimum),
            "F_star_evaluated": problem.loss(optimum, problem.evaluated),
            "F_start": math.log(2),
            "accuracy": float(((problem.x @ optimum) * problem.y > 0).double().mean()),
        }

    @property
    def offset(self) -> float:
        """a = 8 κ; every τ here but one-shot's is shorter."""
        return 8 * float(self.constants["kappa"])

    def period(self, steps: int, workers: int) -> int:
        """Return the theorem's τ = ⌈T^{2/3} / (pB)^{1/3}⌉."""
        return math.ceil(steps ** (2 / 3) / (workers * self.constants["batch"]) ** (1 / 3))

    def train(
        self,
        period: Period,
        multiple: float,
        seed: int,
        *,
        steps: int,
        workers: int = WORKERS,
        split: str = "shuffled",
        every: int | None = None,
        until: float | None = None,
    ) -> Row:
        """Run LUPA-SGD with ``multiple`` of the theorem's step 4/(μ(t + a)); the score is F − F* at the end.

        until: F − F* on the evaluated samples at which the run ends; the score is then the number of steps.
        """
        constants, problem = self.constants, replace(self.workload, split=split)
        least = constants["F_star_evaluated"]
        row: Row = {"gap": None, "steps": None, "score": None, "rounds": None}
        try:
            run = tacit.simulate(
                problem,
                tacit.LocalSGD(period=period),
                cluster=tacit.Cluster(workers=workers, **CLUSTER),
                steps=steps,
                seed=seed,
                lr=multiple * 4 / (problem.strength * self.offset),
                schedule=tacit.InverseTime(offset=self.offset),
                evaluate_every=every or max(1, steps // 24),
                until_loss=None if until is None else least + until,
            )
        except tacit.NotFinite:
            return row
        summary = run.summary()
        gap = problem.loss(run.parameters.to(problem.x.dtype)) - constants["F_star"]
        row |= {"gap": gap, "rounds": summary["rounds"], "time_s": summary["time_s"], "score": gap}
        row["curve"] = [[entry["round"], entry["loss"] - least] for entry in run.history]
        if until is not None:
            reached = run.history[-1]["loss"] <= least + until
            row |= {"score": run.history[-1]["step"] if reached else None, "steps": run.history[-1]["step"]}
        return row


def sets(chosen: argparse.Namespace) -> list[Set]:
    rows = rows_of(chosen)

    def epsilon() -> prepared.Regression:
        samples, features = (512, 40) if chosen.quick else (400_000, 2000)
        x, y = prepared.epsilon_like(samples, features)
        return prepared.Regression("epsilon's shape", x, y, 1e-4, 16 if chosen.quick else 128)

    def adult() -> prepared.Regression:
        x, y = prepared.read_adult(data_file(chosen.data, "libsvm/a9a.bz2"))
        return prepared.Regression("a9a", x, y, 1e-2, 32)

    def pictures() -> prepared.Regression:
        x, y, _, _ = prepared.read_pictures(mnist_file(chosen.data).parent.parent)
        return prepared.Regression("MNIST", prepared.unit_rows(x), torch.where(y < 5, -1.0, 1.0), 1e-3, 32)

    found = [
        Set("a9a", adult, rows, 2000, 8000, 3),
        Set("MNIST", pictures, rows, 2000, 8000, 3),
        Set("epsilon's shape", epsilon, rows, 5469, 16_000, 20),
    ]
    if chosen.quick:
        found = [replace(one, steps=20, budget=40) for one in (found[0], found[2])]
    return [one for one in found if chosen.sets is None or one.title.split("'")[0] in chosen.sets]


def searched(chosen: argparse.Namespace) -> Search:
    return replace(SEARCH, rates=(1.0,), most=1, seeds=(0,)) if chosen.quick else SEARCH


def rounds_to_loss(chosen: argparse.Namespace) -> dict[str, Any]:
    """Loss against rounds at the theorem's τ, beside every step, τ = 91 and one-shot."""
    search, everything = searched(chosen), sets(chosen)
    say_cost("part 1", ((one.title, 4 * search.least_runs, one.seconds) for one in everything))
    part: dict[str, Any] = {"targets": [], "constants": {}, "runs": {}}
    panels, labels, rows = {}, {}, []
    for one in everything:
        steps, tau = one.steps, one.period(one.steps, WORKERS)
        periods: dict[str, Period] = {
            "τ = 1": tacit.Every(1),
            f"τ = {tau}, the theorem's": tacit.Every(tau),
            "τ = 91, the paper's": tacit.Every(PAPER_PERIOD),
        }
        if not one.is_large:
            periods["one-shot"] = tacit.OneShot()
        found = {name: _tuned(one, 1, name, period, search, steps) for name, period in periods.items()}
        every, theorem, printed, *once = found.values()
        part["constants"][one.title] = one.constants
        part["runs"][one.title] = {name: tuned.numbers("gap", "rounds", "time_s") for name, tuned in found.items()}
        rows += [(one.title, name, f"{t.rate:g}", t.rows[0]["rounds"], shown(t.of("gap"))) for name, t in found.items()]
        for name, tuned in (("the theorem's τ", theorem), ("τ = 91", printed)):
            share = _share(tuned, every)
            part["targets"].append(
                target(
                    "§5",
                    f"{one.title}: {name} ends within 5 % of F − F* of τ = 1",
                    f"{share:.3f} of it, with {tuned.rows[0]['rounds']} rounds instead of {every.rows[0]['rounds']}",
                    share <= 1.05,
                )
            )
        part["targets"] += [
            target("§5", f"({one.title}: one-shot: reported)", f"{_share(last, every):.3f} of F − F* of τ = 1", None)
            for last in once
        ]
        title = f"{one.title}: F − F* against rounds"
        panels[title], labels[title] = _curves(found), "rounds"
    draw(chosen.out.with_suffix(".svg"), panels, labels, floor=_floor(panels))
    header = ("data", "period", "rate, of the theorem's", "rounds", "F − F*, 3 seeds")
    part["table"] = [f"![curves]({chosen.out.with_suffix('.svg').name})", "", *table(header, rows)]
    part["setting"] = f"p = {WORKERS}, shuffled. {_constants(everything)}"
    return part


def speed_up(chosen: argparse.Namespace) -> dict[str, Any]:
    """Steps and virtual time to a fixed loss with 1, 4 and 16 workers, τ of the theorem tied to their number."""
    counts, search = COUNTS[:2] if chosen.quick else COUNTS, searched(chosen)
    everything = sets(chosen)
    say_cost(
        "part 2", ((one.title, (3 if one.is_large else 4) * search.least_runs, one.seconds / 2) for one in everything)
    )
    part: dict[str, Any] = {"targets": [], "runs": {}}
    rows = []
    for one in everything:
        level = (0.5 if chosen.quick else 0.005) * (one.constants["F_start"] - one.constants["F_star"])
        first: dict[str, float] = {}
        for p in counts:
            steps = one.budget // p
            for name, period in {"theorem": one.period(steps, p), "τ = 1": 1}.items():
                if name == "τ = 1" and (p != counts[-1] or one.is_large):
                    continue
                tuned = _tuned(
                    one, 2, f"{name}, p = {p}", tacit.Every(period), search, steps,
                    workers=p, until=level, every=max(1, steps // 100),
                )  # fmt: skip
                steps_to, time_s = (
                    float(np.mean([math.inf if row["score"] is None else row[key] for row in tuned.rows]))
                    for key in ("steps", "time_s")
                )
                if p == 1:
                    first = {"steps": steps_to, "time_s": time_s}
                gains = first["steps"] / steps_to, first["time_s"] / time_s
                key = f"{one.title}, {name}, p = {p}"
                part["runs"][key] = tuned.numbers("steps", "time_s", "rounds", "score") | {
                    "tau": period, "speed_up_steps": gains[0], "speed_up_time": gains[1],
                }  # fmt: skip
                rounds = float(np.mean([row["rounds"] for row in tuned.rows]))
                rows.append(
                    (one.title, p, period, f"{tuned.rate:g}", f"{steps_to:.0f}", f"{rounds:.0f}", *(f"{g:.2f}" for g in gains))
                )  # fmt: skip
                if name == "theorem" and p == counts[-1]:
                    part["targets"].append(
                        target(
                            "§5",
                            f"{one.title}: near-linear speed-up in workers: at least half of p = {p}, in time to the loss",
                            f"{gains[1]:.1f} in time, {gains[0]:.1f} in steps",
                            gains[1] >= p / 2,
                        )
                    )
        part["runs"][f"{one.title}, level"] = level
    header = ("data", "p", "τ", "rate", "steps", "rounds", "speed-up in steps", "speed-up in time")
    part["table"] = table(header, rows)
    part["setting"] = (
        f"To F − F* of 0.5 % of its start on at most {prepared.EVALUATED} fixed samples, looked at 100 times in as many steps as {', '.join(f'{one.budget:,}/p' for one in everything)}. Rates "
        f"tuned for each p by the number of steps. Virtual time: {SETTING_OF_TIME}."
    )
    return part


def equal_rounds(chosen: argparse.Namespace) -> dict[str, Any]:
    """ADA-LUPA, by its linear schedule and by loss, against constant periods with as many rounds."""
    search, everything = searched(chosen), sets(chosen)
    splits = {"a9a": ("sorted",), "MNIST": ("sorted",)}  # the large set is shuffled
    splits = {one.title: splits.get(one.title, ("shuffled",)) for one in everything}
    say_cost(
        "part 3",
        (
            (one.title, (2 if one.is_large else 4 * len(splits[one.title])) * search.least_runs, one.seconds)
            for one in everything
        ),
    )
    part: dict[str, Any] = {"targets": [], "runs": {}}
    rows = []
    for one in everything:
        steps, tau = one.steps, one.period(one.steps, WORKERS)
        first = max(1, round(PAPER_PERIOD * steps / PAPER_STEPS))  # as a share of T, the paper's
        for split in splits[one.title]:
            adaptive: dict[str, Period] = {f"linear, E = {ROUNDS}": tacit.LinearPeriod(initial=first, rounds=ROUNDS)}
            if not one.is_large:
                adaptive[f"by loss, τ₀ = {tau}"] = tacit.LossPeriod(initial=tau)
            for name, period in adaptive.items():
                ours = _tuned(one, 3, f"{name}, {split}", period, search, steps, split=split)
                rounds = round(float(np.mean([row["rounds"] for row in ours.rows])))
                theirs = _tuned(
                    one, 3, f"constant, {rounds} rounds, {split}", _even(steps, rounds), search, steps, split=split
                )
                share = _share(ours, theirs)
                part["runs"][f"{one.title}, {split}, {name}"] = ours.numbers("gap", "rounds")
                part["runs"][f"{one.title}, {split}, constant, {rounds} rounds"] = theirs.numbers("gap", "rounds")
                rows.append((one.title, split, name, rounds, f"{ours.rate:g}, {theirs.rate:g}", shown(ours.of("gap")), shown(theirs.of("gap")), f"{share:.3f}"))  # fmt: skip
                part["targets"].append(
                    target(
                        "§4",
                        f"{one.title}, {split}: ADA-LUPA {name.partition(',')[0]} is not worse than a constant period at {rounds} rounds (5 %)",
                        f"{share:.3f} of its F − F*",
                        share <= 1.05,
                    )
                )
    header = ("data", "split", "ADA-LUPA", "rounds", "rates", "F − F*", "constant period", "ratio")
    part["table"] = table(header, rows)
    part["setting"] = (
        f"p = {WORKERS}, T as in part 1; τ₀ of the linear schedule is 91/5469 of T; constant periods have equal lengths but for rounding. Rates of both in this order."
    )
    return part


def _tuned(one: Set, part: int, name: str, period: Period, search: Search, steps: int, **rest: Any) -> Tuned:
    case = Case(part, one.title, name)
    return search.run(one.rows, case, lambda rate, seed: one.train(period, rate, seed, steps=steps, **rest))


def _share(one: Tuned, other: Tuned) -> float:
    return one.of("gap")["mean"] / other.of("gap")["mean"]


def _even(steps: int, rounds: int) -> Period:
    """Return ``rounds`` periods of nearly equal length."""
    ends = np.round(np.arange(rounds + 1) * steps / rounds).astype(int)
    return tacit.PeriodList(np.diff(ends).tolist())


def _curves(found: dict[str, Tuned]) -> list[Curve]:
    curves = []
    for name, tuned in found.items():
        drawn = [row["curve"] for row in tuned.rows]
        points = [
            (float(same[0][0]), float(np.mean([gap for _, gap in same])))
            for same in zip(*drawn, strict=True)
            if same[0][0] > 0
        ]
        last = {at: gap for at, gap in points if gap > 0}  # one value for each round
        if last:
            curves.append(Curve(name.partition(",")[0], name, list(last), list(last.values()), True))
    return curves


def _floor(panels: dict[str, list[Curve]]) -> float:
    return 0.7 * min(y for curves in panels.values() for curve in curves for y in curve.y)


def _constants(everything: Sequence[Set]) -> str:
    def said(one: Set) -> str:
        c = one.constants
        return (
            f"{one.title}: {c['samples']} × {c['features']}, T = {one.steps}, B = {c['batch']}, μ = {c['mu']:g}, L = {c['L']:.4g}, a = 8 κ = {8 * c['kappa']:.0f}, "
            f"F* = {c['F_star']:.5f}, accuracy there {c['accuracy']:.3f}"
        )

    return "; ".join(said(one) for one in everything) + (
        ". Epsilon's shape: Gaussian features with variances proportional to 1/i, i = 1 … 2,000, in rows of unit length, "
        "labels of a logistic model with margins of deviation 4. MNIST: rows of unit length, labels 0–4 against 5–9. Step: the "
        "theorem's 4/(μ(t + a)) times the tuned rate."
    )


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", type=lambda text: text.split(","), default=None, help="such as a9a,MNIST,epsilon")


PARTS = {1: rounds_to_loss, 2: speed_up, 3: equal_rounds}
NEEDED = dict.fromkeys(PARTS, "libsvm/a9a.bz2")

if __name__ == "__main__":
    measure(
        "LUPA-SGD and ADA-LUPA at the paper's size", "lupa_scale", PARTS, arguments(__doc__, "lupa_scale", PARTS, NEEDED, _add)
    )  # fmt: skip
