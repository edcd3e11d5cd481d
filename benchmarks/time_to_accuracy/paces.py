"""The pace of a strategy at a place, predicted from short real runs there.

As in the fidelity benchmark, a profile is made of runs of a few steps: uncompressed, Top-k and QSGD.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.fidelity.cells import CALIBRATED, METHODS
from benchmarks.time_to_accuracy.crews import Crews
from benchmarks.time_to_accuracy.places import Spot
from benchmarks.time_to_accuracy.setting import Setting
from tacit.planning.pace import Pace, pace
from tacit.strategies import Strategy

_STEPS: Final = 16
_SEED: Final = 99


def calibrated(setting: Setting) -> None:
    """Make the missing runs that paces are predicted from: first calls of a compressor take longer and are not kept."""
    for spot in setting.spots:
        left = [name for name in CALIBRATED if not _folder(setting, spot, name).exists()]
        if not left or setting.is_over:
            continue
        with Crews(setting, spot) as crews:
            for is_kept in (False, True):
                for name in left:
                    folder = _folder(setting, spot, name) if is_kept else None
                    crews.calibrate(str(METHODS[name].strategy), _STEPS, _SEED, folder)
        print(f"  {spot.key}: calibrated", flush=True)


def _folder(setting: Setting, spot: Spot, name: str) -> Path:
    return setting.folder / "calibration" / spot.key / name.replace(" ", "-").replace("%", "percent")


def is_calibrated(setting: Setting, spot: Spot) -> bool:
    return all(_folder(setting, spot, name).exists() for name in CALIBRATED)


def profile_of(setting: Setting, spot: Spot) -> tacit.Profile:
    """Return the profile of a place, from its calibration."""
    return _profile(tuple(_folder(setting, spot, name) for name in CALIBRATED))


@cache
def _profile(folders: tuple[Path, ...]) -> tacit.Profile:
    return tacit.Profile.of(*folders)


def pace_of(setting: Setting, spot: Spot, strategy: Strategy[Any], ranks: tuple[int, ...] | None = None) -> Pace:
    """Return the predicted pace of a strategy at a place."""
    profile = profile_of(setting, spot)
    chosen = profile if ranks is None else profile.of_ranks(ranks)
    return _pace(setting.workload, str(strategy), strategy, chosen.cluster())


_paces: dict[tuple[str, str, str], Pace] = {}


def _pace(workload: tacit.Workload, text: str, strategy: Strategy[Any], cluster: tacit.Cluster) -> Pace:
    key = str(workload), text, str(cluster)
    if key not in _paces:
        _paces[key] = pace(workload, strategy, cluster)
    return _paces[key]
