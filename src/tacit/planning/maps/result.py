"""The result of a map: the fastest candidate in each cell, its gain over DDP, and whether the two can be told apart."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.errors import TacitError
from tacit.planning.maps.axes import UNITS, Axis
from tacit.planning.plan import GAIN, Row
from tacit.planning.results import Interval
from tacit.record.files import write_text

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of a map.

    - ``fastest``, ``time_s``: the candidate with the shortest median time, as a row of a plan, and that time here.
    - ``baseline_s``: the time of DDP on all workers; None if it does not reach the target.
    - ``second``, ``second_s``: the next candidate.
    """

    place: Mapping[str, float]
    workers: int
    fastest: Row
    time_s: Interval
    baseline_s: Interval | None
    second: Row | None = None
    second_s: Interval | None = None

    @property
    def is_ddp(self) -> bool:
        """Whether DDP on all workers is the fastest."""
        return str(self.fastest.strategy) == "DDP()" and len(self.fastest.ranks) == self.workers

    @property
    def gain(self) -> float | None:
        """The share of DDP's time that the fastest candidate saves: 0.75 is four times as fast.

        0 if DDP is the fastest; None without a time of DDP.
        """
        return None if self.baseline_s is None else 1 - self.time_s.median / self.baseline_s.median

    @property
    def is_clear(self) -> bool:
        """Whether a plan would recommend the fastest: 10 % faster than DDP, and their ranges do not overlap."""
        if self.is_ddp or self.baseline_s is None or self.gain is None:
            return self.baseline_s is None
        return self.gain >= GAIN and not self.time_s.overlaps(self.baseline_s)

    def table(self) -> dict[str, Any]:
        """Return the cell as a table of map.json."""
        return {
            "place": dict(self.place),
            "workers": self.workers,
            "strategy": str(self.fastest.strategy),
            "ranks": list(self.fastest.ranks),
            "time_s": asdict(self.time_s),
            "ddp_time_s": None if self.baseline_s is None else asdict(self.baseline_s),
            "gain": self.gain,
            "is_ddp": self.is_ddp,
            "is_clear": self.is_clear,
            "second": None
            if self.second is None or self.second_s is None
            else {
                "strategy": str(self.second.strategy),
                "ranks": list(self.second.ranks),
                "time_s": asdict(self.second_s),
            },
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanMap:
    """Which strategy is fastest where: ``cells[row][column]``, rows along the second axis, columns along the first.

    ``simulated``: number of paces that were simulated. A cell is None if no candidate reaches the target there.
    """

    axes: tuple[Axis, Axis]
    cells: Sequence[Sequence[Cell | None]]
    target_loss: float | None
    workload: str
    warnings: tuple[str, ...] = ()
    simulated: int = 0

    def __repr__(self) -> str:
        across, up = self.axes
        return f"<PlanMap: {across.name} × {up.name}, {len(across.values)} × {len(up.values)} cells>"

    def as_json(self) -> dict[str, Any]:
        """Return the map as the table of map.json."""
        return {
            "format": FORMAT,
            "workload": self.workload,
            "target_loss": self.target_loss,
            "axes": [{"name": axis.name, "unit": UNITS[axis.name], "values": list(axis.values)} for axis in self.axes],
            "cells": [[None if cell is None else cell.table() for cell in row] for row in self.cells],
            "warnings": list(self.warnings),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page of the map to ``path``, an HTML file, and its numbers beside it as JSON of the same name."""
        from tacit.report.plans.map_page import write_map_page  # it loads plotly

        target = Path(path)
        if target.suffix != ".html":
            raise TacitError(f"{target} must end in .html; try {target.with_suffix('.html')}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        table = self.as_json()
        write_text(target.with_suffix(".json"), json.dumps(table, indent=1) + "\n")
        return write_map_page(table, target)
