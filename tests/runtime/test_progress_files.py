"""The progress that real processes write into the folder of their run."""

from __future__ import annotations

from pathlib import Path

import pytest

import tacit
from tacit.record.run import Run
from tacit.watch.followed_run import FollowedRun
from tacit.watch.progress_reader import progress_of
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, learn, network, sgd

STEPS = 12
STRATEGIES = [
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.KAsync(k=1),
    tacit.SwarmSGD(local_steps=2, blocking=True),
]


def train(folders: list[Path]) -> list[Run]:
    runs = []
    for strategy, folder in zip(STRATEGIES, folders, strict=True):
        model = network()
        optimizer = sgd(model)
        steps = None if strategy.has_server else STEPS
        session = tacit.attach(model, optimizer, strategy, steps=steps, progress_folder=folder)
        learn(model, optimizer, batches(tacit.rank(), STEPS), session)
        runs.append(session.close())
    return runs


@pytest.mark.processes
def test_each_worker_leaves_the_progress_that_the_trace_confirms(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(len(STRATEGIES))]
    runs, _ = together(2, train, folders)
    for folder, run in zip(folders, runs, strict=True):
        followed = FollowedRun(folder)
        followed.read()
        assert followed.state == "finished"
        for live, saved in zip(followed.workers, progress_of(run), strict=True):
            assert live.slices[-1].step == STEPS
            for name in ("steps", "sent_bytes"):
                totals = [sum(getattr(one, name) for one in worker.slices) for worker in (live, saved)]
                assert totals[0] == totals[1], (run.strategy, live.rank, name)
            for name in ("compute_s", "hook_s"):
                totals = [sum(getattr(one, name) for one in worker.slices) for worker in (live, saved)]
                assert totals[0] == pytest.approx(totals[1], abs=1e-6), (run.strategy, live.rank, name)
            elapsed_s = sum(one.elapsed_s for one in live.slices)
            assert elapsed_s == pytest.approx(live.slices[-1].time_s)
        assert followed.workers[0].header["parameters"] == 49
