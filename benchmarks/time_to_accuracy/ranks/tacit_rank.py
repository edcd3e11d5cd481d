"""torch's own methods and tacit's, in one environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import tacit
from benchmarks.peer_loops.torch_loops import bf16
from benchmarks.time_to_accuracy.ranks.common import AccuracyRank, Loop, Order, Training, serve
from tacit.registry import parse

TIMEOUT_S = 60.0


@contextmanager
def process_group(me: AccuracyRank) -> Iterator[None]:
    store = PrefixStore(f"run {me.runs}", me.barrier)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


@contextmanager
def ddp(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    with process_group(me):
        yield Loop(DistributedDataParallel(training.module), training.optimizer)


@contextmanager
def ddp_bf16(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    with process_group(me):
        model = DistributedDataParallel(training.module)
        model.register_comm_hook(None, bf16)
        yield Loop(model, training.optimizer)


@contextmanager
def ddp_powersgd(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    with process_group(me):
        model = DistributedDataParallel(training.module, bucket_cap_mb=500)  # on gloo it aborts with several buckets
        rank = int(order.value or 1)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        yield Loop(model, training.optimizer)


@contextmanager
def post_local(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    """As torch's documentation has it, without warm-up: local steps from the first one on."""
    with process_group(me):
        model = DistributedDataParallel(training.module)
        alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
        state = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None, subgroup=alone, start_localSGD_iter=0, post_local_gradient_allreduce=False
        )
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=int(order.value or 1), warmup_steps=0)
        averager.step = 1  # it counts from 0 and would average before the first period is over
        yield Loop(model, PostLocalSGDOptimizer(training.optimizer, averager))


@contextmanager
def attached(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    strategy, rule = parse(order.strategy, "strategies"), order.rule
    session = tacit.attach(
        training.module,
        training.optimizer,
        strategy,
        steps=None if rule.deadline_s is not None and not strategy.has_server else rule.steps,
        seed=order.seed,
        interface=None if me.interface == "lo" else me.interface,
        security="plain",
        timeout_s=TIMEOUT_S,
    )
    is_served = strategy.has_server and me.rank == 0
    if strategy.has_server:
        session.keep_models(rule.every)
    loop = Loop(training.module, training.optimizer, observe=session.observe, clock=session.now_s)
    loop.is_done = lambda: session.is_done
    loop.kept = [] if is_served else None
    yield loop
    run = session.close()
    if is_served:
        loop.kept = [(kept.updates, kept.time_s, kept.parameters) for kept in session.kept_models]
    if me.rank == 0 and order.folder is not None:
        run.save(order.folder, overwrite=True)


METHODS = {
    "DDP": ddp,
    "DDP, bf16 hook": ddp_bf16,
    "DDP, PowerSGD hook": ddp_powersgd,
    "torch PostLocalSGD": post_local,
    "tacit": attached,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(METHODS, AccuracyRank)  # type: ignore[arg-type]
