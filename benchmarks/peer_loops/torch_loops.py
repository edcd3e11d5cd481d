"""What torch itself offers, and the loop that never communicates."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peer_loops.common import Loop, Setting, build, optimizer_of, serve


def plain(setting: Setting) -> Loop:
    model = build(setting.model)
    return Loop(model, optimizer_of(model))


def parallel(setting: Setting, **options: Any) -> DistributedDataParallel:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return DistributedDataParallel(build(setting.model), **options)


def ddp(setting: Setting) -> Loop:
    model = parallel(setting)
    return Loop(model, optimizer_of(model))


def bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """torch's hook under another name: it refuses CPU by its function's name, not by what it does."""
    return default_hooks.bf16_compress_hook(state, bucket)


def ddp_bf16(setting: Setting) -> Loop:
    model = parallel(setting)
    model.register_comm_hook(None, bf16)
    return Loop(model, optimizer_of(model))


def ddp_powersgd(setting: Setting) -> Loop:
    model = parallel(setting, bucket_cap_mb=500)  # with more than one bucket the hook aborts on gloo
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Loop(model, optimizer_of(model))


def post_local(setting: Setting) -> Loop:
    """As torch's documentation has it: DDP, its hook with groups of one, the averager, the optimizer around."""
    model = parallel(setting)
    alone, _ = dist.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=setting.period, warmup_steps=0)
    averager.step = 1  # it counts from 0 and would average before the first period is over
    return Loop(model, PostLocalSGDOptimizer(optimizer_of(model), averager))


def averager(setting: Setting) -> Loop:
    """The averager alone, without DDP around the model: less than the documentation asks for, and the fastest torch
    has.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model: nn.Module = build(setting.model)
    keeper = PeriodicModelAverager(period=setting.period, warmup_steps=0)
    keeper.step = 1
    parameters: list[Tensor] = list(model.parameters())
    return Loop(model, optimizer_of(model), after=lambda: keeper.average_parameters(iter(parameters)))


METHODS = {
    "no communication": plain,
    "DDP": ddp,
    "DDP, bf16 hook": ddp_bf16,
    "DDP, PowerSGD hook": ddp_powersgd,
    "torch PostLocalSGD": post_local,
    "torch PeriodicModelAverager": averager,
}

if __name__ == "__main__":
    serve(METHODS)
