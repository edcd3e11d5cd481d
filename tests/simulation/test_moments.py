"""Optimizer moments in the simulator: averaged in rounds, on periods of their own, or reset."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads

ADAM = {"optimizer": "adam", "lr": 0.05, "steps": 12, "seed": 1}
EVERY = tacit.LocalSGD(period=tacit.Every(4))


def run(strategy: tacit.Strategy = EVERY, workers: int = 3, **settings: object) -> tacit.Run:
    return tacit.simulate(
        workloads.quadratic(dimension=7, heterogeneity=0.5),
        strategy,
        cluster=tacit.Cluster(workers=workers),
        **{**ADAM, **settings},
    )


def sent(**settings: object) -> int:
    return run(**settings).summary()["bytes_sent"]


def test_averaged_moments_are_those_of_a_worker_that_sees_all_gradients_where_all_are_equal():
    """Equal workers have equal moments: averaging them changes nothing but bytes."""
    equal = workloads.quadratic(dimension=7, noise=0.0)
    runs = [
        tacit.simulate(equal, EVERY, cluster=tacit.Cluster(workers=3), **ADAM, optimizer_state=policy)
        for policy in ("keep", "average")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters)
    assert runs[1].summary()["bytes_sent"] > runs[0].summary()["bytes_sent"]


def by_hand(every: dict[str, int]) -> torch.Tensor:
    """Return the mean model of Adam on three workers with constant gradients, after three rounds of four steps."""
    models = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3)]
    optimizers = [torch.optim.Adam([model], lr=0.05) for model in models]
    for step in range(1, 13):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            model.grad = model.detach() - CENTERS[rank]
            optimizer.step()
        if step % 4 == 0:
            with torch.no_grad():
                held = [{"model": m, **o.state[m]} for m, o in zip(models, optimizers, strict=True)]
                due = ["model", *(name for name, rounds in every.items() if step // 4 % rounds == 0)]
                for name in due:
                    mean = torch.stack([one[name] for one in held]).mean(0)
                    for one in held:
                        one[name].copy_(mean)
    return models[0].detach()


CENTERS = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 4.0]], dtype=torch.float64)


class Point(nn.Module):
    """The same point for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.point + 0.0 * x


def half_square(point: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
    return (point - center).square().sum(1).mean() / 2


@pytest.mark.parametrize("every", [{"exp_avg": 1, "exp_avg_sq": 1}, {"exp_avg": 2, "exp_avg_sq": 3}], ids=str)
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_each_moment_is_averaged_on_its_own_period(every, engine):
    """DES-LOC: the first and the second moment of Adam, beside the same computed by hand."""
    data = (torch.zeros_like(CENTERS), CENTERS)
    workload = workloads.custom(Point(), half_square, data=data, split="contiguous", batch_size=None)
    settings = {**ADAM, "optimizer_state": "average", "moments_every": every, "engine": engine}
    found = tacit.simulate(workload, EVERY, cluster=tacit.Cluster(workers=3), **settings)
    torch.testing.assert_close(found.parameters, by_hand(every))


def test_rarer_averages_send_fewer_bytes():
    """Per round 2 · 2/3 of 7 numbers of 8 bytes and 3 ranks for each moment that is due; three rounds."""
    moment = 2 * 2 * 7 * 8
    always, keep = sent(optimizer_state="average"), sent()
    assert always - keep == 3 * 2 * moment
    assert sent(optimizer_state="average", moments_every=3) - keep == 2 * moment
    assert sent(optimizer_state="average", moments_every={"exp_avg": 2, "exp_avg_sq": 3}) - keep == 2 * moment


def test_bytes_of_a_timing_only_run_are_those_of_the_run():
    settings = {"optimizer_state": "average", "moments_every": {"exp_avg_sq": 3}}
    assert sent(timing_only=True, **settings) == sent(**settings)


def test_sgd_without_momentum_has_nothing_to_average():
    assert sent(optimizer="sgd", optimizer_state="average") == sent(optimizer="sgd")


def test_reset_moments_start_again_after_each_round():
    """Adam's first step after a reset has the length of its learning rate in every coordinate."""
    workload = workloads.quadratic(dimension=3, noise=0.0)
    settings = {**ADAM, "steps": 5, "optimizer_state": "reset", "cluster": tacit.Cluster(workers=1)}
    ends = [tacit.simulate(workload, EVERY, **{**settings, "steps": steps}).parameters for steps in (4, 5)]
    torch.testing.assert_close((ends[1] - ends[0]).abs(), torch.full((3,), 0.05, dtype=torch.float64))


def test_a_saved_run_with_moments_is_repeated(tmp_path):
    first = run(optimizer_state="average", moments_every={"exp_avg": 2})
    first.save(tmp_path / "run")
    text = (tmp_path / "run" / "run.toml").read_text()
    assert 'optimizer_state = "average"' in text and "exp_avg = 2" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer_state": "mean"}, "optimizer_state='mean' is unknown"),
        ({"moments_every": 2}, 'needs optimizer_state="average"'),
        ({"optimizer_state": "average", "moments_every": 0}, "must be whole numbers of rounds"),
        ({"optimizer_state": "average", "moments_every": {"momentum": 2}}, "its moments are exp_avg, exp_avg_sq"),
        ({"optimizer_state": "average", "optimizer": torch.optim.Adafactor}, "must be elementwise"),
    ],
)
def test_what_cannot_be_averaged_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        run(**settings)
