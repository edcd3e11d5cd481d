"""Wrappers that communicate on their own (DDP, FSDP) around an attached model: found before they change a run, and
refused.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tacit
from tests.runtime.processes import outcomes, together

STRATEGY = tacit.LocalSGD(period=tacit.Every(8))
WAYS_OUT = (
    "do not wrap the model: call the inner model",
    "trainer.accelerator.prepare_model = lambda model, **_: model",
    "accelerator.prepare",
    "SingleDeviceStrategy",
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    draws = torch.Generator().manual_seed(tacit.rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=draws)).square().mean().backward()
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def wrap(model: nn.Module, kind: str) -> nn.Module:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    if kind == "DistributedDataParallel":
        return DistributedDataParallel(model)
    if kind == "compiled DistributedDataParallel":
        return torch.compile(DistributedDataParallel(model), backend="eager")
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # takes a second

    if kind == "FullyShardedDataParallel":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    return fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))


def attach_a_wrapped_model(kind: str) -> None:
    """As a callback of a framework does: the framework has wrapped the model, and the callback gets the inner one."""
    model = network()
    wrapped = wrap(model, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, STRATEGY):
        learn(wrapped, optimizer, 3)


def wrap_an_attached_model(kind: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, STRATEGY):
        wrapped = wrap(model, kind)
        learn(wrapped, optimizer, 3)


KINDS = ["DistributedDataParallel", "compiled DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"]


def errors_of(when: Callable[[str], None]) -> dict[str, str]:
    """Return the error of each kind of wrapper."""
    texts = {}
    for kind in KINDS:
        try:
            when(kind)
        except (tacit.MisplacedCall, ValueError) as error:
            texts[kind] = str(error)
    return texts


@pytest.mark.parametrize("when", [attach_a_wrapped_model, wrap_an_attached_model])
def test_a_wrapper_that_communicates_is_refused(when: Callable[[str], None]):
    for texts in together(2, errors_of, when):
        assert list(texts) == KINDS
        for kind, text in texts.items():
            assert kind.split()[-1] in text, text
            for way_out in WAYS_OUT:
                assert way_out in text, text


def attach_after_the_wrapper_is_gone() -> torch.Tensor:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, "DistributedDataParallel")
    learn(wrapped, optimizer, 1)
    wrapped.itself = wrapped  # alive until cycles are collected
    del wrapped
    session = tacit.attach(model, optimizer, STRATEGY)
    learn(model, optimizer, 3)
    between_rounds = flat(model).clone()
    session.close()
    return between_rounds


def test_a_wrapper_that_no_longer_exists_is_none():
    first, second = together(2, attach_after_the_wrapper_is_gone)
    assert not torch.equal(first, second)


def wrap_another_model() -> str:
    model, other = network(), network()
    wrapped = wrap(other, "DistributedDataParallel")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, STRATEGY) as session:
        learn(model, optimizer, 3)
    learn(wrapped, torch.optim.SGD(other.parameters(), lr=0.1), 2)
    gc.collect()
    return session.run.status


def test_a_wrapper_of_another_model_is_allowed():
    assert together(2, wrap_another_model) == ["finished"] * 2


def attach_the_wrapper() -> None:
    model = network()
    tacit.attach(wrap(model, "DistributedDataParallel"), torch.optim.SGD(model.parameters(), lr=0.1), STRATEGY)


def test_attaching_the_wrapper_itself_says_that_the_loop_must_call_the_inner_model():
    for result in outcomes(2, attach_the_wrapper):
        assert result.name == "TypeError" and "call the inner model" in result.text, result
