"""One rank of benchmarks/fidelity: an ordinary training loop whose forward pass is stretched by a sleep.

{"do": "prepare", "pinned": false}
                        answers the priority that the process got; pinned: all its threads stay on one core, its own
{"do": "train", "strategy": "AllReduce()", "steps": 12, "folder": "…", "model": "mlp", "sleeps_s": [0.02, 0.02],
"sigma": 0.0, "draws": "", "seed": 0, "beside": false}
                        draws: a name for the random sleeps, which differ from run to run
                        trains, and rank 0 writes the run into the folder; nothing is evaluated
                        beside: (of AllReduce) rounds beside a loop follow the last step
{"do": "ddp", "steps": 12, "warm_up": 2, "model": …}
                        trains with DistributedDataParallel; answers the seconds of the steps after the warm-up
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

import tacit
from benchmarks.fidelity.workloads import LEARNING_RATE, workload
from benchmarks.peer_loops.common import Rank, serve
from benchmarks.peer_loops.priority import PRIORITY, asked_priority, set_priority
from tacit.core.messages import TensorMessage
from tacit.core.randomness import Streams
from tacit.core.worker import Worker
from tacit.profiles.probe.beside import ProcessorShare, measure_beside
from tacit.registry import parse
from tacit.strategies import Strategy
from tacit.workloads.workload import Problem

TIMEOUT_S: Final = 60.0


@contextmanager
def _communication_first(is_computing: bool) -> Iterator[None]:
    """Give the threads that start here a higher real-time priority than this one, if it computes without pauses.

    Threads of one real-time priority take turns of 100 ms: a round would wait that long for a core.
    """
    changes = is_computing and os.sched_getscheduler(0) == os.SCHED_RR
    if changes:
        set_priority(PRIORITY + 1)
    try:
        yield
    finally:
        if changes:
            set_priority(PRIORITY)


class Computation:
    """The model, data and optimizer of one rank, and the sleep of its steps."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        model: str,
        sleeps_s: list[float],
        sigma: float,
        draws: str,
        seed: int,
        lr: float = LEARNING_RATE,
        momentum: float = 0.0,
    ) -> None:
        streams = Streams(seed)
        self.problem = workload(model).open(size, streams)
        self.module: nn.Module = self.problem.module
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=lr, momentum=momentum)
        self._rank, self._sampler = rank, self.problem.samplers[rank]
        self._sleep_s, self._sigma, self._random = sleeps_s[rank], sigma, streams.numpy(draws, rank)
        self.is_computing = not max(sleeps_s)
        self._warm_up(workload(model).open(size, Streams(seed + 1)))

    def _warm_up(self, other: Problem) -> None:
        """Compute gradients that nobody uses: first calls choose kernels, and page faults become rare after dozens."""
        batch = other.collate([self._rank], other.samplers[self._rank].take(1))
        for _ in range(60 if self.is_computing else 3):
            self.module(*(part[0] for part in batch)).backward()
        self.optimizer.zero_grad()

    def gradient(self, module: nn.Module) -> torch.Tensor:
        """Compute the gradient of the next batch; forward pass and sleep take the sleep's time, or longer."""
        begun_s = time.perf_counter()
        batch = self.problem.collate([self._rank], self._sampler.take(1))
        self.optimizer.zero_grad()
        loss: torch.Tensor = module(*(part[0] for part in batch))
        left_s = begun_s + self._next_sleep_s() - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _next_sleep_s(self) -> float:
        if not self._sigma:
            return self._sleep_s
        return self._sleep_s * float(self._random.lognormal(-(self._sigma**2) / 2, self._sigma))  # of mean 1


@dataclass
class CalibrationState:
    """Processor time of the steps, and the shortest round so far."""

    share: ProcessorShare = field(default_factory=ProcessorShare)
    round_s: float = math.inf


@dataclass(frozen=True)
class Calibration(Strategy[CalibrationState]):
    """``AllReduce``, and after its last step rounds beside a loop, which show what they take from computation."""

    inner: ClassVar = tacit.AllReduce()

    def init(self, worker: Worker) -> CalibrationState:
        self.inner.init(worker)
        return CalibrationState()

    def before_step(self, worker: Worker, state: CalibrationState) -> None:
        state.share.end()
        began_s = time.perf_counter()
        self.inner.before_step(worker, None)
        state.round_s = min(state.round_s, time.perf_counter() - began_s)

    def after_step(self, worker: Worker, state: CalibrationState) -> None:
        state.share.begin()

    def finish(self, worker: Worker, state: CalibrationState) -> None:
        state.share.note(worker)
        own = TensorMessage(torch.tensor([state.round_s], dtype=torch.float64))
        measure_beside(worker, max(one.tensor.item() for one in worker.network.all_gather(own)))


class WorkingRank(Rank):
    """A rank that trains."""

    def prepare(self, pinned: bool) -> dict[str, Any]:
        """Ask for real-time priority for all threads, those to come included, and pin them to a core if wanted."""
        return {"priority": asked_priority(self.rank if pinned else None)}

    def train(
        self, strategy: str, steps: int, folder: str | None, beside: bool = False, **computed: Any
    ) -> dict[str, Any]:
        own, interface = Computation(self.rank, self.size, **computed), os.environ["GLOO_SOCKET_IFNAME"]
        with _communication_first(own.is_computing):
            session = tacit.attach(
                own.module,
                own.optimizer,
                Calibration() if beside else parse(strategy, "strategies"),
                steps=steps,
                seed=computed["seed"],
                interface=None if interface == "lo" else interface,
                security="plain",
                timeout_s=TIMEOUT_S,
            )
        while not session.is_done:
            session.observe(own.gradient(own.module))
            own.optimizer.step()
        run = session.close()
        if self.rank == 0 and folder is not None:
            run.workload, run.strategy = str(workload(computed["model"])), strategy
            run.save(folder, overwrite=True)
        return {"steps": session.step}

    def ddp(self, steps: int, warm_up: int, **computed: Any) -> dict[str, Any]:
        own = Computation(self.rank, self.size, **computed)
        self._runs += 1
        store = PrefixStore(f"ddp {self._runs}", self._barrier)
        with _communication_first(own.is_computing):
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
        try:
            module, times_s = DistributedDataParallel(own.module), [0.0]
            for step in range(warm_up + steps):
                if step == warm_up:
                    times_s = [time.perf_counter()]
                own.gradient(module)
                own.optimizer.step()
                times_s.append(time.perf_counter())
            dist.barrier()
        finally:
            dist.destroy_process_group()
        return {"times_s": [end_s - times_s[0] for end_s in times_s[1:]]}


if __name__ == "__main__":
    serve({}, WorkingRank)
