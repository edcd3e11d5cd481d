"""Saving weights while attached: parameters are views of one buffer, so sub-modules and safetensors need copies."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import tacit


def saved_bytes(thing: object) -> int:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.tell()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 64, bias=False)
        self.head.weight = self.body.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)))


def attached() -> tuple[nn.Module, torch.optim.Optimizer, tacit.Session]:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)))


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_state_dict_is_independent_of_the_buffer(is_closed):
    model, optimizer, session = attached()
    if is_closed:
        session.close()
    state = session.model_state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    storages = {value.untyped_storage().data_ptr() for value in state.values()}
    assert len(storages) == len(state)  # also of tied weights: safetensors refuses shared memory
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
    norm = {name: value for name, value in state.items() if name.startswith("norm.")}
    assert saved_bytes(norm) < saved_bytes(state) / 3
    before = state["body.weight"].clone()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    assert torch.equal(state["body.weight"], before) and not torch.equal(model.body.weight, before)
    session.close()


def test_safetensors_takes_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    _, _, session = attached()
    state = session.model_state_dict()
    safetensors.save_file(state, tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    session.close()


def test_what_a_module_adds_to_its_state_dict_is_copied_too():
    class Counting(nn.Linear):
        seen = [1]

        def get_extra_state(self) -> list[int]:
            return self.seen

        def set_extra_state(self, state: list[int]) -> None:
            self.seen = state

    model = Counting(2, 1)
    session = tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.LocalSGD())
    state = session.model_state_dict()
    assert state["_extra_state"] == [1] and state["_extra_state"] is not model.seen
    session.close()
