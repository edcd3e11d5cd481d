"""Scripts in the style of other people's, each run on real processes and under the simulator."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import torch

import tacit
from tacit.simulation.scripts.run import simulate_script
from tests.runtime.processes import together

PREAMBLE = """
import sys
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit import EF21, AllReduce, CompressedGradient, Every, KAsync, KSync, LocalSGD, SwarmSGD, TopK

rank, size, FOLDER = tacit.rank(), tacit.size(), Path(__file__).parent
draws = torch.Generator().manual_seed(100 + rank)
torch.manual_seed(0)


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch():
    return torch.randn(5, 4, generator=draws)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def tell(**results):
    torch.save(results, FOLDER / f"{sys.argv[1]}-{rank}.pt")

"""


@dataclass(frozen=True)
class Outcome:
    """What the ranks of a script told, in either world, and the simulated run."""

    real: list[dict[str, Any]]
    simulated: list[dict[str, Any]]
    run: tacit.Run

    @property
    def everybody(self) -> list[dict[str, Any]]:
        return [*self.real, *self.simulated]


def play_for_real(path: str) -> None:
    sys.argv = [path, "real"]
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    runpy.run_path(path, run_name="__main__")


def play_in_both(folder: Path, text: str, size: int) -> Outcome:
    """Play a script on real processes and under the simulator, and return what its ranks told."""
    path = folder / "train.py"
    path.write_text(PREAMBLE + dedent(text))
    together(size, play_for_real, str(path))
    run = simulate_script(path, ["simulated"], cluster=tacit.Cluster(workers=size))
    real, simulated = (
        [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(size)]
        for world in ("real", "simulated")
    )
    return Outcome(real, simulated, run)
