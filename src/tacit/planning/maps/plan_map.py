"""``tacit.plan_map`` and ``Plan.map``: which strategy is fastest where, over two properties of a cluster."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tacit.core.specs import with_python_numbers
from tacit.errors import TacitError, require
from tacit.planning.maps.axes import WORKERS, Axis, axes_of, profile_at
from tacit.planning.maps.cells import Base, Place, Times, base_of, coarse_to_fine, step_s_on
from tacit.planning.maps.result import Cell, PlanMap
from tacit.planning.plan import Plan, Row
from tacit.planning.planner import plan
from tacit.profiles.profile import Profile
from tacit.workloads.workload import Workload

_DECREASING = ("bandwidth",)  # axes along which larger values make runs faster


@with_python_numbers
def plan_map(
    profile: Profile,
    workload: Workload,
    axes: Mapping[str, Sequence[float]] | Sequence[Axis],
    *,
    target_loss: float,
    budget_s: float = 300.0,
    seeds: Sequence[int] = (0,),
    tune: bool = False,
    cache: str | None = None,
    **options: Any,
) -> PlanMap:
    """Return which strategy reaches ``target_loss`` first in each cell of a map of two axes.

    axes: ``{"workers": (2, 64), "bandwidth": (1.25e6, 1.25e9)}``: low, high and maybe a count, in steps of equal
    ratio. Names: workers, bandwidth (bytes/s), latency (s), compute (factor of all compute times), slow (factor of the
    compute times of the last worker).

    For each number of workers, plans are made in the middle of the other axis and at its ends; loss curves of
    strategies with rounds are simulated once. In all cells only paces are simulated. budget_s: of all plans together.
    Other arguments are as in ``tacit.plan``.
    """
    across, up = axes_of(axes)
    others = [axis for axis in (across, up) if axis.name != WORKERS]
    sizes = next((axis.values for axis in (across, up) if axis.name == WORKERS), (float(profile.workers),))
    found: dict[tuple[float, ...], Cell] = {}
    warnings: list[str] = []
    simulated = 0
    with _curve_cache(cache) as folder:
        for workers in sizes:
            fixed = {WORKERS: workers} if len(others) < 2 else {}
            references = _references(others)
            plans = [
                plan(
                    profile_at(profile, fixed | place),
                    workload,
                    target_loss=target_loss,
                    budget_s=budget_s / (len(sizes) * len(references)),
                    seeds=seeds,
                    tune=tune,
                    cache=folder,
                    **options,
                )
                for place in references
            ]
            warnings += [warning for one in plans for warning in one.warnings]
            grid = _Grid(profile, workload, others, fixed, plans)
            found |= grid.cells()
            simulated += grid.simulated
    return _result((across, up), found, target_loss, str(workload), warnings, simulated)


def map_of_plan(made: Plan, axes: Mapping[str, Sequence[float]] | Sequence[Axis]) -> PlanMap:
    """Return a map from the simulations of one plan; see ``Plan.map``."""
    across, up = axes_of(axes)
    require(
        WORKERS not in (across.name, up.name),
        "a plan has one number of workers; for an axis of workers use tacit.plan_map(…).",
    )
    if all(row.shortest_s is None for row in made.rows):
        raise TacitError("this plan has no times to a target; make it with target_loss=….")
    grid = _Grid(made.profile, made.workload, [across, up], {}, [made])
    found = grid.cells()
    return _result((across, up), found, made.target_loss, str(made.workload), made.warnings, grid.simulated)


class _Grid:
    """The cells of one number of workers, over one or two other axes."""

    def __init__(
        self,
        profile: Profile,
        workload: Workload,
        axes: Sequence[Axis],
        fixed: Mapping[str, float],
        plans: Sequence[Plan],
    ) -> None:
        self._workload, self._fixed, self._axes = workload, fixed, axes
        self._slow_last = [
            tuple(reversed(axis.values)) if axis.name in _DECREASING else axis.values for axis in axes
        ]  # so that indices grow with slowness
        self.shape = (len(self._slow_last[0]), len(self._slow_last[1]) if len(axes) > 1 else 1)
        self._profiles = {at: profile_at(profile, {**fixed, **self._place(at)}) for at in coarse_to_fine(self.shape)}
        self._bases = _bases(plans, workload)
        self._workers = next(iter(self._profiles.values())).workers
        self.simulated = 0

    def _place(self, at: Place) -> dict[str, float]:
        return {axis.name: values[i] for axis, values, i in zip(self._axes, self._slow_last, at, strict=False)}

    def cells(self) -> dict[tuple[float, ...], Cell]:
        """Return the cells by their values, in the order of the axes' names."""
        baseline = next((i for i, base in enumerate(self._bases) if self._is_baseline(base.row)), None)
        times = Times(self._bases, self.shape, self._step_s, baseline)
        made = {at: self._cell(times, at, baseline) for at in self._profiles if self._bases}
        self.simulated = times.simulated
        return {_key(cell.place): cell for cell in made.values()}

    def _cell(self, times: Times, at: Place, baseline: int | None) -> Cell:
        first, *rest = times.best_two(at)
        return Cell(
            place={**self._fixed, **self._place(at)},
            workers=self._workers,
            fastest=self._bases[first].row,
            time_s=times.interval(first, at),
            baseline_s=None if baseline is None else times.interval(baseline, at),
            second=self._bases[rest[0]].row if rest else None,
            second_s=times.interval(rest[0], at) if rest else None,
        )

    def _step_s(self, index: int, at: Place) -> float:
        return step_s_on(self._bases[index].row, self._workload, self._profiles[at])

    def _is_baseline(self, row: Row) -> bool:
        return str(row.strategy) == "DDP()" and len(row.ranks) == self._workers


def _bases(plans: Sequence[Plan], workload: Workload) -> list[Base]:
    """Return each candidate once, from the first plan in which it reached the target."""
    found: dict[tuple[str, tuple[int, ...]], Base] = {}
    for one in plans:
        for row in one.rows:
            key = (str(row.strategy), row.ranks)
            if row.shortest_s is not None and key not in found:
                found[key] = base_of(row, workload, one.profile)
    return list(found.values())


def _references(axes: Sequence[Axis]) -> list[dict[str, float]]:
    """Return the places at which plans are made: the middle of all axes, and their slow and fast ends."""
    ends = []
    for axis in axes:
        values = list(reversed(axis.values)) if axis.name in _DECREASING else list(axis.values)
        ends.append((axis.name, values[len(values) // 2], values[-1], values[0]))
    places = [{name: chosen[kind] for name, *chosen in ends} for kind in range(3)]
    return [place for number, place in enumerate(places) if place not in places[:number]]


@contextmanager
def _curve_cache(folder: str | None) -> Iterator[str]:
    """Yield the folder of loss curves; None: one that is removed afterwards."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tacit-curves-") as made:
        yield made


def _key(place: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(place[name] for name in sorted(place))


def _result(
    axes: tuple[Axis, Axis],
    found: Mapping[tuple[float, ...], Cell],
    target_loss: float | None,
    workload: str,
    warnings: Sequence[str],
    simulated: int,
) -> PlanMap:
    across, up = axes
    places = [[_key({across.name: x, up.name: y}) for x in across.values] for y in up.values]
    cells = [[found.get(key) for key in row] for row in places]
    if not any(itertools.chain.from_iterable(cells)):
        raise TacitError("no candidate reached the target in any cell; ask for a higher loss, or allow more steps.")
    return PlanMap(
        axes=axes,
        cells=cells,
        target_loss=target_loss,
        workload=workload,
        warnings=tuple(dict.fromkeys(warnings)),
        simulated=simulated,
    )
