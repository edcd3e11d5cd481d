"""One rank of benchmarks/compressed_step.py: steps with compressed gradients, and rounds of local steps."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import tacit
from benchmarks.peer_loops.common import Loop, Setting, optimizer_of, serve
from benchmarks.peer_loops.end_to_end_loops import compressed_gradient, ddp_ef21, local_top
from benchmarks.peer_loops.tacit_loops import attached, local
from benchmarks.peer_loops.torch_loops import ddp, parallel, plain


def ddp_powersgd_rank_2(setting: Setting) -> Loop:
    model = parallel(setting, bucket_cap_mb=500)  # with more than one bucket the hook aborts on gloo
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Loop(model, optimizer_of(model))


def low_rank(setting: Setting) -> Loop:
    compressor = tacit.LowRank(rank=2)
    return attached(setting, tacit.CompressedGradient(compressor=compressor, feedback=tacit.ErrorFeedback()))


METHODS: dict[str, Callable[[Setting], Loop]] = {
    "no communication": plain,
    "DDP": ddp,
    "DDP, PowerSGD hook, rank 2": ddp_powersgd_rank_2,
    "tacit CompressedGradient, EF21 Top 1 %": compressed_gradient,
    "DDP, tacit.hooks.ef21 Top 1 %": ddp_ef21,
    "tacit CompressedGradient, LowRank 2 + EF": low_rank,
    "tacit LocalSGD": local,
    "tacit LocalSGD, Top 1 %": local_top,
}


if __name__ == "__main__":
    serve(METHODS)
