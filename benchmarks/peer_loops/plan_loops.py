"""One rank of benchmarks/plan: trains without evaluations, keeps models on the way, and evaluates them afterwards.

{"do": "prepare", "pinned": false}   answers the priority that the process got
{"do": "timed", "strategy": "AllReduce()", "steps": 70, "every": 5, "folder": "…", "scratch": "…", "model": "mlp", …}
                        trains. Rank 0 answers when all ranks had completed each step, and the losses of the models that
                        were kept: the mean over ranks, or rank 0's own for a strategy with a server
{"do": "timed", "strategy": "DDP()", …}
                        the same with DistributedDataParallel
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import tacit
from benchmarks.fidelity.workloads import workload
from benchmarks.peer_loops.common import serve
from benchmarks.peer_loops.fidelity_loops import TIMEOUT_S, Computation, WorkingRank
from tacit.core.randomness import Streams
from tacit.registry import parse
from tacit.strategies import DDP, LocalSGD, Strategy
from tacit.strategies.local_sgd.periods import Every


class Kept:
    """Models that were kept during a run, and the seconds after which each step was complete on this rank."""

    def __init__(self, module: nn.Module, every: int, period: int | None = None) -> None:
        self._module, self._every, self._period = module, every, period
        self._began_s, self._counted = time.perf_counter(), 0
        self.times_s: list[float] = []
        self.models: dict[int, Tensor] = {}

    def step(self, updates: int | None = None) -> None:
        """Note the end of a step. A copy of 600 KB takes less than 0.2 ms.

        updates: those of a server that the model has. They count instead of steps, so that as many models are kept as
        the simulator evaluates: with more of them, one crosses the target earlier by chance.
        """
        self.times_s.append(time.perf_counter() - self._began_s)
        step, before = len(self.times_s), self._counted
        self._counted = step if updates is None else updates
        is_due = self._counted // self._every > before // self._every
        if is_due or (self._period is not None and step % self._period == 0):
            with torch.no_grad():
                self.models[step] = parameters_to_vector(self._module.parameters())


def reporting_period(strategy: Strategy[Any]) -> int | None:
    """Return the period of a strategy that reports the model of its last round; None: it reports the mean of models."""
    if not isinstance(strategy, LocalSGD) or not isinstance(strategy.period, Every):
        return None
    return strategy.period.n if strategy.outer is not None or strategy.compressor is not None else None


class PlanRank(WorkingRank):
    """A rank whose runs are evaluated after their end."""

    def timed(
        self, strategy: str, steps: int, every: int, folder: str | None, scratch: str, **computed: Any
    ) -> dict[str, Any]:
        chosen: Strategy[Any] = parse(strategy, "strategies")
        own = Computation(self.rank, self.size, **computed)
        if isinstance(chosen, DDP) and self.size > 1:
            kept = self._ddp(own, steps, every)
        else:
            kept = self._attached(own, chosen, steps, every, folder, computed)
        torch.save((kept.times_s, kept.models), Path(scratch) / f"{self.rank}.pt")
        self._meet()
        answer = self._evaluated(Path(scratch), computed["model"], chosen) if self.rank == 0 else {}
        self._meet()
        return answer

    def _attached(
        self, own: Computation, strategy: Strategy[Any], steps: int, every: int, folder: str | None, computed: Any
    ) -> Kept:
        interface = os.environ["GLOO_SOCKET_IFNAME"]
        session = tacit.attach(
            own.module,
            own.optimizer,
            strategy,
            steps=steps,
            seed=computed["seed"],
            interface=None if interface == "lo" else interface,
            security="plain",
            timeout_s=TIMEOUT_S,
        )
        self._meet()
        kept = Kept(own.module, every, reporting_period(strategy))
        while not session.is_done:
            session.observe(own.gradient(own.module))
            own.optimizer.step()
            kept.step(session.updates if strategy.has_server else None)
        run = session.close()
        if self.rank == 0 and folder is not None:
            run.workload = str(workload(computed["model"]))
            run.save(folder, overwrite=True)
        return kept

    def _ddp(self, own: Computation, steps: int, every: int) -> Kept:
        with self._process_group():
            module = DistributedDataParallel(own.module)
            self._meet()
            kept = Kept(own.module, every)
            for _ in range(steps):
                own.gradient(module)
                own.optimizer.step()
                kept.step()
            dist.barrier()
        return kept

    @contextmanager
    def _process_group(self) -> Iterator[None]:
        self._runs += 1
        store = PrefixStore(f"ddp {self._runs}", self._barrier)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
        try:
            yield
        finally:
            dist.destroy_process_group()

    def _evaluated(self, scratch: Path, model: str, strategy: Strategy[Any]) -> dict[str, Any]:
        """Return the end of each step on the last rank, and rows of step, seconds and loss."""
        ranks = [torch.load(scratch / f"{rank}.pt") for rank in range(self.size)]
        if strategy.has_server:  # ranks have taken different numbers of steps
            ranks = ranks[:1]
        problem = workload(model).open(self.size, Streams(0))
        times_s = [max(own) for own in zip(*(times for times, _ in ranks), strict=True)]
        period, kept, rows = reporting_period(strategy) or 1, ranks[0][1], []
        for step in kept:
            if (reported := step // period * period) in kept:
                mean = torch.stack([models[reported] for _, models in ranks]).mean(dim=0)
                rows.append([step, times_s[step - 1], problem.evaluate(mean).loss])
        return {"times_s": times_s, "rows": rows}


if __name__ == "__main__":
    serve({}, PlanRank)
