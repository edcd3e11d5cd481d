"""A simulated server's model: the arithmetic of the workers' optimizers, and optimizer states of version 0.1."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from tacit.core.parameter_layout import Layout
from tacit.simulation.engine.row_optimizer import row_optimizer
from tacit.simulation.servers.server_models import load_optimizer_state, optimizer_state, server_models


class NotElementwise(torch.optim.SGD):
    """An optimizer that the row optimizers do not know, and therefore step worker by worker."""


def in_two_groups(parameters):
    """Groups in another order than the layout's, with two learning rates."""
    return torch.optim.Adam([{"params": parameters[2:]}, {"params": parameters[:2], "lr": 0.05}], lr=0.01)


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "groups": in_two_groups,
    "not elementwise": partial(NotElementwise, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_server_steps_as_a_row_and_continues_from_its_state(name):
    """Version 0.1 updated a server's model as a matrix of one row, and stored that optimizer's state."""
    torch.manual_seed(0)
    module, factory = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), OPTIMIZERS[name]
    layout = Layout.of(module)
    start, gradients = torch.randn(layout.dimension), torch.randn(6, layout.dimension)
    row, whole = start.clone().unsqueeze(0), start.clone()
    before = row_optimizer(factory, module, layout, row, lambda step: 1.0)
    [model] = server_models(whole, 1, layout, factory, lambda step: 1.0)
    stored = None
    for step, gradient in enumerate(gradients):
        if step == 3:
            stored, halfway, new_form = copy.deepcopy(before.state_dict()), whole.clone(), optimizer_state(model)
            new_form = copy.deepcopy(new_form)
        before.step([0], [step], layout.split(gradient.unsqueeze(0)), 0.5)
        model.update(gradient, 0.5 * before.base_rate, 0.0)
        assert torch.equal(row[0], whole)
    assert stored is not None
    for state in (stored, new_form):
        again = halfway.clone()
        [resumed] = server_models(again, 1, layout, factory, lambda step: 1.0)
        load_optimizer_state(resumed, state)
        for gradient in gradients[3:]:
            resumed.update(gradient, 0.5 * before.base_rate, 0.0)
        assert torch.equal(again, whole)


def test_without_a_rate_the_schedule_counts_updates():
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    whole = torch.zeros(2)
    [model] = server_models(whole, 1, layout, partial(torch.optim.SGD, lr=1.0), lambda step: 1.0 / (1 + step))
    model.update(torch.ones(2), None, 0.0)
    model.update(torch.ones(2), None, 0.0)
    torch.testing.assert_close(whole, torch.full((2,), -1.5))
