"""A run on real processes that follows a plan: live numbers are on, and rank 0 tells what is not as planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.planning.files import read_plan
from tests.runtime.processes import together

LOCAL = tacit.LocalSGD(period=tacit.Every(2))
STEPS = 60


def follow(path: Path, shown: list[str]) -> tuple[dict[str, object], list[str]]:
    """Train with the plan; return the record of the run, and the lines that this rank has shown."""

    class Shown:
        every_s = None

        def progress(self, text: str) -> None:
            raise AssertionError("no progress is wanted")

        def drift(self, text: str) -> None:
            shown.append(text)

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, replace(read_plan(path), display=Shown()), steps=STEPS) as session:
        while not session.is_done:
            model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
    assert session.live_round is not None and session.live_round.steps == 2
    return dict(session.run.record), shown


@pytest.mark.processes
def test_times_that_are_not_as_planned_are_told_once_by_rank_0(tmp_path: Path) -> None:
    profile = tacit.Profile(workers=2, compute=tacit.Constant(mean_s=1000.0))  # no machine is that slow
    plan = tacit.plan(profile, tacit.workloads.quadratic(dimension=10), strategies=[LOCAL])
    best = next(row for row in plan.rows if row.strategy == LOCAL)
    path = replace(plan, best=best).save(tmp_path / "plan.toml")
    (first, shown), (_, nothing) = together(2, follow, path, [])
    [drift] = first["drift"]
    assert (drift["cause"], drift["planned_s"], drift["was_as_planned"]) == ("compute", 1000.0, False)
    assert drift["step"] == 24  # two rounds are left out, then two windows of five
    assert len(shown) == 1 and nothing == []
    assert "it computes faster" in shown[0] and shown[0].endswith("tacit plan --profile RUN")
    assert drift["replanned"] in shown[0]
    assert first["predicted"]["step_s"] == pytest.approx(1000.0, rel=0.01)
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1
