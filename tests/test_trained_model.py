"""``run.model()``: the trained module out of a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads

CLUSTER = tacit.Cluster(workers=2)


def trained(workload, **settings) -> tacit.Run:
    return tacit.simulate(workload, tacit.LocalSGD(period=tacit.Every(4)), cluster=CLUSTER, steps=20, **settings)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=draws)
    return x, (x[:, 0] > 0).long()


def test_a_custom_model_comes_back_trained_and_the_users_own_is_unchanged():
    x, y = data()
    own = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in own.state_dict().items()}
    run = trained(workloads.custom(own, nn.functional.cross_entropy, data=(x, y)))
    model = run.model()
    assert isinstance(model, nn.Sequential) and not model.training
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    with torch.no_grad():
        prediction = model(x)
    assert float(nn.functional.cross_entropy(prediction, y)) == pytest.approx(run.history[-1]["loss"], rel=1e-5)
    assert float((prediction.argmax(-1) == y).double().mean()) == run.history[-1]["metric"]
    assert not torch.equal(model[1].running_mean, before["1.running_mean"]), "buffers are the workers' mean"
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(model[0].weight, run.model()[0].weight), "every call makes a module of its own"


def test_a_loss_with_parameters_of_its_own_is_left_out_of_the_model():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(prediction * self.scale, target)

    run = trained(workloads.custom(nn.Linear(4, 2), Scaled(), data=data()))
    assert run.parameters.numel() == 11
    assert torch.equal(nn.utils.parameters_to_vector(run.model().parameters()), run.parameters[:10])


def test_a_loaded_run_needs_its_workload(tmp_path):
    workload = workloads.digits(model="softmax")
    run = trained(workload)
    loaded = tacit.Run.load(run.save(tmp_path / "run"))
    with pytest.raises(tacit.TacitError, match=r'pass the workload it trained, digits\(model="softmax"\): run.model'):
        loaded.model()
    assert torch.equal(nn.utils.parameters_to_vector(loaded.model(workload).parameters()), run.parameters)
    with pytest.raises(tacit.TacitError, match="the run has 650 parameters and this model 4810"):
        loaded.model(workloads.digits(model="mlp"))


def test_a_session_gives_its_model_too():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce()) as session:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert torch.equal(session.run.model().weight, model.weight)


def test_a_strategy_is_read_from_text():
    assert tacit.strategy("LocalSGD(period=Every(8))") == tacit.LocalSGD(period=tacit.Every(8))
    with pytest.raises(ValueError, match="Every"):
        tacit.strategy("Every(8)")
