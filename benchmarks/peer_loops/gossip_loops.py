"""One rank of benchmarks/gossip_links.py: a model that is only numbers, and a step that is only a sleep.

{"do": "pace", "strategy": "AllReduce()", "parameters": 1000000, "compute_s": 0.05, "warm_up": 3, "steps": 12, "seed":
0}
        answers the mean step after the warm-up, what it cost the processor, and what the trace says of exchanges;
        strategy "": nobody talks
{"do": "volume", "strategy": "SwarmSGD(local_steps=8)", "parameters": 11000000, "compute_s": 0.25, "exchanges": 4,
"seed": 0}
        answers what the kernel counted during so many exchanges after two others, and what the trace says of them

Sessions are closed before an answer: nothing of one measurement is on the wire during the next.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

import tacit
from benchmarks.peer_loops.common import Rank, serve
from tacit.record.trace import COMPUTE
from tacit.registry import parse
from tests.runtime import namespaces

RATE = 0.01
WINDOWS = 4096
WARM_UP = 2
"""Meetings before bytes are counted: the first distances that a lattice is fitted to are guesses."""


class Sleeper:
    """A training loop whose computing is a sleep.

    Its gradients are noise of this rank's own, windows on numbers that were drawn beforehand: new ones in every step,
    so that models of different ranks drift apart as in training, and free.
    """

    def __init__(self, parameters: int, compute_s: float, seed: int, rank: int) -> None:
        own = torch.Generator().manual_seed(seed + 1000 + rank)
        self.model, self._compute_s = nn.Embedding(parameters, 1), compute_s  # so many numbers and nothing else
        nn.init.normal_(self.model.weight, std=0.05, generator=torch.Generator().manual_seed(seed))
        self._noise, self._random = torch.randn(parameters + WINDOWS, 1, generator=own), own
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def attach(self, strategy: str, steps: int, seed: int) -> tacit.Session:
        """Encryption is left out: eight peers' would be done by the two cores that stand for eight machines."""
        return tacit.attach(
            self.model,
            self.optimizer,
            parse(strategy),
            steps=steps,
            seed=seed,
            interface=namespaces.INTERFACE,
            security="plain",
            timeout_s=60.0,
        )

    def step(self) -> None:
        time.sleep(self._compute_s)
        first = int(torch.randint(WINDOWS, (), generator=self._random))
        self.model.weight.grad = self._noise[first : first + len(self.model.weight)]
        self.optimizer.step()


def events(run: tacit.Run, rank: int, after_step: int = 0) -> list[tuple[str, str, float, float, int]]:
    """Return this rank's messages and notes from the end of a step on, in the order of time: kind, label, start, end
    and bytes.
    """
    own = [event for event in run.trace if event.rank == rank]
    since_s = max((event.time_s for event in own if event.kind == COMPUTE and event.step <= after_step), default=0.0)
    return [(e.kind, e.label, e.start_s, e.time_s, e.size_bytes) for e in own if e.label and e.time_s >= since_s]


class SleepingRank(Rank):
    """A rank that measures."""

    def pace(
        self, strategy: str, parameters: int, compute_s: float, warm_up: int, steps: int, seed: int
    ) -> dict[str, Any]:
        sleeper = Sleeper(parameters, compute_s, seed, self.rank)
        session = sleeper.attach(strategy, warm_up + steps, seed) if strategy else None
        self._meet()
        for _ in range(warm_up):
            sleeper.step()
        begun_s, cpu_s, before = time.perf_counter(), time.process_time(), namespaces.traffic()
        for _ in range(steps):
            sleeper.step()
        step_s, cpu_s = (time.perf_counter() - begun_s) / steps, (time.process_time() - cpu_s) / steps
        sent = namespaces.traffic() - before
        return {
            "step_s": step_s,
            "cpu_s": cpu_s,
            "sent_bytes": sent.sent_bytes,
            "sent_again_bytes": sent.sent_again_bytes,
            "events": [] if session is None else events(session.close(), self.rank),
        }

    def volume(self, strategy: str, parameters: int, compute_s: float, exchanges: int, seed: int) -> dict[str, Any]:
        """Counters are read a step before a meeting, when the exchanges of the meeting before are long over."""
        sleeper, period = Sleeper(parameters, compute_s, seed, self.rank), parse(strategy).local_steps
        warm_up, steps = (WARM_UP + 1) * period - 1, exchanges * period
        session = sleeper.attach(strategy, warm_up + steps + 1, seed)
        for _ in range(warm_up):
            sleeper.step()
        self._meet()
        before = namespaces.traffic()
        for _ in range(steps):
            sleeper.step()
        self._meet()
        counted, run = namespaces.traffic() - before, session.close()
        told, ever = (events(run, self.rank, step) for step in (warm_up, 0))
        said_again, in_all = (sum(label == "overflow" for _, label, *_ in some) for some in (told, ever))
        return {
            "payload_bytes": counted.payload_bytes,
            "sent_bytes": counted.sent_bytes,
            "sent_again_bytes": counted.sent_again_bytes,
            "events": told,
            "said_again": said_again,
            "said_again_in_warm_up": in_all - said_again,
        }


if __name__ == "__main__":
    serve({}, SleepingRank)
