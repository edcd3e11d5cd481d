"""Against torch's own: DistributedDataParallel, the periodic averager, clipping, micro-batches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

import tacit
from tests.runtime.processes import together
from tests.runtime.small_runs import batches, close, flat, learn, network, sgd, tacit_run


def ddp_run(steps: int) -> torch.Tensor:
    model = network()
    parallel = DistributedDataParallel(model)
    learn(parallel, sgd(model), batches(tacit.rank(), steps))
    return flat(model)


def averager_run(steps: int) -> torch.Tensor:
    model = network()
    optimizer, averager = sgd(model), PeriodicModelAverager(period=4, warmup_steps=3)
    for x in batches(tacit.rank(), steps):
        learn(model, optimizer, [x])
        averager.average_parameters(model.parameters())
    return flat(model)


def side_by_side(steps: int) -> dict[str, torch.Tensor]:
    """Sessions before, during and after a process group of the user: neither disturbs the other."""
    found = {"all-reduce": tacit_run(tacit.AllReduce(), steps)}
    dist.init_process_group("gloo")
    found |= {"ddp": ddp_run(steps), "averager": averager_run(steps)}
    found["local"] = tacit_run(tacit.LocalSGD(period=tacit.Every(4)), steps)
    dist.all_reduce(torch.ones(1))  # the user's group still works
    dist.destroy_process_group()
    return found


def test_all_reduce_is_ddp_and_local_sgd_is_torchs_averager():
    for result in together(3, side_by_side, 12):
        close(result["all-reduce"], result["ddp"])
        close(result["local"], result["averager"])


def clipped_runs() -> dict[str, torch.Tensor]:
    found = {}
    for name in ("tacit", "ddp"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        [x] = batches(tacit.rank(), 1)
        x = x * (1 + 20 * tacit.rank())  # rank 1 has the large gradient
        if name == "ddp":
            dist.init_process_group("gloo")
            DistributedDataParallel(model)(x).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            dist.destroy_process_group()
        else:
            with tacit.attach(model, optimizer, tacit.AllReduce(), steps=1):
                model(x).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                found["local"] = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
                optimizer.step()
                found["used"] = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        found[name] = flat(model)
    return found


def test_clipping_in_the_loop_acts_on_the_local_gradient_unlike_ddp():
    a, b = together(2, clipped_runs)
    close(a["used"], (a["local"] + b["local"]) / 2)
    assert (a["tacit"] - a["ddp"]).abs().max() > 1e-3


def accumulating_run() -> dict[str, object]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), steps=6) as session:
        data = batches(tacit.rank(), 24)
        for start in range(0, 24, 4):
            optimizer.zero_grad()
            for x in data[start : start + 4]:
                loss = model(x).square().mean() / 4
                loss.backward()
                session.observe(loss * 4)
            optimizer.step()
    return {"end": flat(model), "summary": session.run.summary(), "rows": len(session.run.history)}


def test_micro_batches_are_not_steps():
    a, b = together(2, accumulating_run)
    assert a["summary"]["steps"] == 6 and a["summary"]["rounds"] == 3 and a["rows"] == 6
    assert torch.equal(a["end"], b["end"])
