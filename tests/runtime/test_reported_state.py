"""Buffers, optimizer state, and the reported model in mid-run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, close, flat, learn, network, sgd, tacit_run


def batch_norm_run(policy: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = sgd(model)
    data = [x + 3 * tacit.rank() for x in batches(tacit.rank(), 6)]
    calibration = [torch.cat([batches(r, 1)[0] + 3 * r for r in range(tacit.size())])]
    arguments = {"calibration": calibration} if policy == "recalibrate" else {}
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), buffers=policy, **arguments)
    learn(model, optimizer, data[:3])
    before = model[1].running_mean.clone()
    learn(model, optimizer, data[3:4])  # the second round
    after = model[1].running_mean.clone()
    with session.reported_model():
        reported = model[1].running_mean.clone()
    kept = model[1].running_mean.clone()
    learn(model, optimizer, data[4:])
    session.close()
    model.eval()
    return {
        "before": before,
        "after": after,
        "reported": reported,
        "kept": kept,
        "end": model[1].running_mean,
        "count": model[1].num_batches_tracked,
        "output": model(torch.ones(2, 4)).detach(),
        "bytes": session.run.summary()["bytes_sent"],
        "rounds": session.run.summary()["rounds"],
    }


def test_batch_norm_statistics_are_averaged_with_the_models_in_the_same_message():
    a, b = together(2, batch_norm_run, "average")
    assert (a["before"] - b["before"]).abs().max() > 0.1  # their data differ
    close(a["after"], b["after"])
    close(a["end"], b["end"])
    close(a["output"], b["output"])
    assert int(a["count"]) == 6  # counters stay each rank's own
    assert torch.equal(a["kept"], a["after"])  # evaluation leaves no trace


def test_batch_norm_statistics_are_kept_where_asked():
    a, b = together(2, batch_norm_run, "keep")
    assert (a["after"] - b["after"]).abs().max() > 0.1 and (a["end"] - b["end"]).abs().max() > 0.1


def test_batch_norm_statistics_are_measured_again_if_asked():
    a, b = together(2, batch_norm_run, "recalibrate")
    close(a["reported"], b["reported"])
    close(a["output"], b["output"])
    assert (a["after"] - b["after"]).abs().max() > 0.1  # in between each has its own


def moments_run(policy: str) -> list[torch.Tensor]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(3)), optimizer_state=policy)
    learn(model, optimizer, batches(tacit.rank(), 3))
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters() if p in optimizer.state]
    learn(model, optimizer, batches(tacit.rank(), 3, first=3))
    session.close()
    return moments


def moments_runs() -> list[list[torch.Tensor]]:
    return [moments_run(policy) for policy in ("keep", "average", "reset")]


def test_moments_are_kept_averaged_or_reset():
    (a, averaged, reset), (b, averaged_b, reset_b) = together(2, moments_runs)
    assert (a[0] - b[0]).abs().max() > 1e-4
    close(averaged[0], averaged_b[0])
    close(averaged[0], (a[0] + b[0]) / 2)
    assert reset == reset_b == []


def evaluating_run() -> dict[str, torch.Tensor]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(5)), steps=9) as session:
        learn(model, optimizer, batches(tacit.rank(), 3))
        own = flat(model)
        with session.reported_model() as reported:
            seen = flat(reported)
        assert torch.equal(flat(model), own)
        learn(model, optimizer, batches(tacit.rank(), 6, first=3))
    return {"own": own, "seen": seen, "end": flat(model)}


def test_the_reported_model_is_the_mean_and_looking_changes_nothing():
    a, b = together(2, evaluating_run)
    close(a["seen"], (a["own"] + b["own"]) / 2)
    assert torch.equal(a["seen"], b["seen"])
    assert torch.equal(a["end"], together(2, tacit_run, tacit.LocalSGD(period=tacit.Every(5)), 9)[0])


def evaluating_after_a_round(strategy: tacit.LocalSGD) -> dict[str, torch.Tensor]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=9) as session:
        learn(model, optimizer, batches(tacit.rank(), 5))
        after_the_round = flat(model)
        learn(model, optimizer, batches(tacit.rank(), 2, first=5))
        own = flat(model)
        with session.reported_model() as reported:
            seen = flat(reported)
        learn(model, optimizer, batches(tacit.rank(), 2, first=7))
    return {"round": after_the_round, "own": own, "seen": seen, "end": flat(model)}


@pytest.mark.parametrize(
    "rules",
    [{"compressor": tacit.TopK(fraction=0.2)}, {"outer": tacit.OuterSGD(lr=0.7, momentum=0.9, nesterov=True)}],
    ids=str,
)
def test_between_rounds_that_bring_no_mean_the_last_rounds_model_is_reported(rules: dict):
    strategy = tacit.LocalSGD(period=tacit.Every(5), **rules)
    a, b = together(2, evaluating_after_a_round, strategy)
    close(a["seen"], a["round"])
    assert torch.equal(a["seen"], b["seen"])
    assert not torch.equal(a["own"], b["own"])
    assert torch.equal(a["end"], together(2, tacit_run, strategy, 9)[0])
