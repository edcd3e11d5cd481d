"""Pass messages of right types with wild values, from any sender, to the handlers of servers, learners and gossip.

    python fuzz/handlers.py --messages 1000000 --seed 0 --out benchmarks/results/fuzz_handlers.json

``wire.py`` stops where bytes have become a message; this begins there. A receiver is made, gets a few dozen messages
and is made anew. Every message must be used, ignored or refused with ``BadMessage``; afterwards the receiver's model
must be finite. Anything else ends the run with the seed of the receiver that failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

import tacit
from tacit import compression
from tacit.compression.compressor import Compressed
from tacit.compression.feedback.updates import Update
from tacit.compression.lattice import LatticeVector
from tacit.core.messages import Message
from tacit.core.network import SERVER, server_address
from tacit.core.parameter_layout import Layout
from tacit.core.strategy import ServerStrategy, Strategy
from tacit.core.worker import ObservedLosses
from tacit.errors import BadMessage, PeerLost, RunError, TimedOut
from tacit.session.server_model import ServerModel
from tacit.session.steps.optimizers import Optimizers
from tacit.strategies.gossip.asynchronous import AverageRequest, AverageResponse
from tacit.strategies.gossip.neighbours import GossipMessage
from tacit.strategies.servers.messages import (
    ModelReply,
    ModelRequest,
    ServedModel,
    ServerLeave,
    ServerPush,
    ServerRestart,
    ShardBatch,
    ShardReport,
)
from tacit.strategies.swarm.messages import (
    SwarmAcknowledgement,
    SwarmDecline,
    SwarmDecoded,
    SwarmJoinRequest,
    SwarmJoinResponse,
    SwarmModel,
    SwarmRequest,
    SwarmResend,
    SwarmResponse,
)
from tacit.strategies.swarm.pull import PullRequest, PullResponse
from tacit.testing.scripted import ScriptedNetwork, ScriptedWorker

NUMBERS: Final = 12
WORKERS: Final = 4
MESSAGES: Final = 40
"""How many messages one receiver gets."""
WHOLE: Final = (0, 1, -1, 2, 5, 2**31, 2**62, -(2**63), 2**63 - 1)
REAL: Final = (0.0, 1.0, 0.5, 0.25, -1.0, math.nan, math.inf, -math.inf, 1e12, 1e38, 1e308, 1e-320)
DTYPES: Final = (torch.float32,) * 4 + (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
)
TOP: Final = compression.TopK(fraction=0.3)

SERVERS: Final[Sequence[ServerStrategy[Any]]] = (
    tacit.KSync(k=2),
    tacit.KBatchSync(k=2),
    tacit.KAsync(k=1),
    tacit.KBatchAsync(k=2),
    tacit.KAsync(k=1, rate=tacit.StalenessRate(c=0.1)),
    tacit.KAsync(k=2, rate=tacit.RescaledRate()),
    tacit.KAsync(k=1, maximum_staleness=2),
    tacit.KBatchAsync(k=1, drop_staleness=2),
    tacit.KBatchAsync(k=2, local_steps=3, rate=tacit.InverseStaleness()),
    tacit.KBatchAsync(k=1, outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
    tacit.KBatchAsync(k=2, compressor=TOP, model_compressor=TOP),
    tacit.KAsync(k=1, compressor=compression.QSGD(bits=4), feedback=tacit.NoFeedback()),
    tacit.KAsync(k=1, shards=2),
    tacit.KBatchSync(k=1, shards=2),
    tacit.AdaSync(tacit.KAsync(k=1), every=2),
    tacit.Ringleader(),
)
GOSSIP: Final[Sequence[Strategy[Any]]] = (
    tacit.SwarmSGD(),
    tacit.SwarmSGD(compressor=tacit.Lattice(bits=4)),
    tacit.SwarmSGD(compressor=tacit.Lattice(bits=8), two_stage=True),
    tacit.SwarmSGD(blocking=True),
    tacit.SwarmSGD(blocking=True, compressor=tacit.Lattice(bits=8)),
    tacit.PullSwarm(),
    tacit.AsynchronousDPSGD(),
    tacit.DPSGD(topology=tacit.topology.Ring()),
)


class Exhausted(Exception):
    """No message is left for this receiver."""


class Wild:
    """Draws messages. live: numbers that mean something to the receiver at this moment."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.usual = NUMBERS
        self.live: Callable[[], Sequence[int]] = lambda: ()

    def whole(self) -> int:
        live = [*self.live()]
        return self.draw.choice(live) if live and self.draw.random() < 0.6 else self.draw.choice(WHOLE)

    def real(self, usual: float) -> float:
        return usual if self.draw.random() < 0.7 else self.draw.choice(REAL)

    def tensor(self) -> Tensor:
        draw = self.draw
        if draw.random() < 0.5:
            return torch.randn(self.usual)
        length = draw.choice([0, 1, NUMBERS - 1, NUMBERS, NUMBERS, NUMBERS, NUMBERS + 1, 1000])
        values, dtype = torch.randn(length), draw.choice(DTYPES)
        if draw.random() < 0.4 and length:
            values[draw.randrange(length)] = draw.choice([math.nan, math.inf, -math.inf, 1e38, -3e38, 1e20])
        values = values.nan_to_num(0.0, 1.0, 1.0).clamp(0, 200).to(dtype) if dtype is torch.uint8 else values.to(dtype)
        return values.view(1, -1) if draw.random() < 0.1 else values

    def floats(self) -> Tensor:
        """Return a tensor that a compressor takes."""
        size = self.draw.choice([1.0, 1.0, 1.0, 1e20, 3e38])
        return torch.randn(self.draw.choice([NUMBERS, NUMBERS, NUMBERS, 1, 1000])).clamp(-1, 1) * size

    def compressed(self) -> Compressed:
        one = self.draw.choice(
            [TOP, compression.QSGD(bits=4), compression.Dense(), compression.Sign(), compression.BFloat16()]
        )
        return one.compress(self.floats(), self.random, {})

    def body(self) -> Tensor | Update:
        if self.draw.random() < 0.6:
            return self.tensor()
        compressed = None if self.draw.random() < 0.1 else self.compressed()
        return Update(self.real(1.0), compressed, self.draw.random() < 0.2)

    def lattice(self) -> LatticeVector:
        made = compression.Lattice(bits=self.draw.choice([2, 4, 8, 16])).compress(self.floats(), self.random, {})
        side = self.draw.choice([made.side, made.side, 2.0**-126, 2.0**100, 1.0])
        return replace(made, side=side, check=self.draw.choice([made.check, 0, -1]))

    def vector(self) -> Tensor | LatticeVector:
        return self.tensor() if self.draw.random() < 0.6 else self.lattice()

    def outdated(self) -> LatticeVector | None:
        return self.lattice() if self.draw.random() < 0.2 else None

    def indices(self) -> Tensor:
        return torch.tensor([self.whole() for _ in range(self.draw.choice([0, 1, 2]))], dtype=torch.int64)

    def push(self) -> ServerPush:
        return ServerPush(self.whole(), self.whole(), self.real(0.1), self.real(1.0), self.real(0.5), self.body())

    def batch(self) -> ShardBatch:
        ranks = self.indices()
        return ShardBatch(ranks, torch.tensor([self.whole() for _ in ranks], dtype=torch.int64))

    def response(self) -> SwarmResponse:
        return SwarmResponse(self.whole(), self.vector(), self.outdated(), self.real(0.5))

    def message(self, kinds: Sequence[Callable[[], Message]]) -> Message:
        """Return a message that its class accepts; others are refused where bytes become messages."""
        while True:
            try:
                return self.draw.choice(kinds)()
            except (ValueError, OverflowError):
                continue


class Tally:
    """Counts messages by kind of receiver, and what became of them."""

    def __init__(self) -> None:
        self.given, self.refused = Counter[str](), Counter[str]()

    def refuse(self, kind: str) -> None:
        self.refused[kind] += 1


class FuzzedServer:
    """The world of one server: any message from anyone, and losses of learners."""

    knows_split = True
    size, steps = WORKERS, 10**9

    def __init__(self, wild: Wild, tally: Tally, shard: int) -> None:
        self._wild, self._tally, self.shard, self._left = wild, tally, shard, MESSAGES
        self.rank, self.random = server_address(shard), wild.random
        parameters = torch.zeros(NUMBERS)
        self.model = ServerModel(parameters, lambda vector: [vector], _momentum)
        self.state: Any = None
        wild.live = lambda: (0, 1, self.model.updates, max(0, self.model.updates - 1))
        self._kinds = (wild.push,) * 5 + (
            lambda: ModelRequest(wild.draw.random() < 0.5),
            ServerLeave,
            wild.batch,
            lambda: ShardReport(wild.whole(), wild.whole()),
        )

    @property
    def network(self) -> FuzzedServer:
        return self

    def write_part(self, folder: str, version: int) -> str:
        """Refuse to write: nothing that is received may name a folder."""
        raise AssertionError(f"a message let the server write into {folder!r}")

    @property
    def parameters(self) -> Tensor:
        return self.model.parameters

    def send(self, to: int, message: Message) -> None:
        message.size_bytes  # noqa: B018 - what is sent can be packed

    def receive(self, kind: type[Message], source: int | None = None, *, timeout_s: float | None = None) -> Any:
        if not self._left:
            raise Exhausted
        self._left -= 1
        if self._wild.draw.random() < 0.02:
            raise PeerLost(self._wild.draw.randrange(WORKERS), 1.0, "receive")
        self._tally.given["server"] += 1
        sender = self._wild.draw.choice([0, 0, 1, 1, 2, 3, SERVER, -3, -4, 4, 99, -(2**31)])
        return sender, self._wild.message(self._kinds)

    def update(self, gradient: Tensor, learning_rate: float | None = None, *, uses_optimizer: bool = True) -> None:
        self.model.update(gradient, learning_rate, 0.0, uses_optimizer=uses_optimizer)

    def note(self, name: str, value: float, about: int | None = None) -> None:
        assert isinstance(name, str)

    def now_s(self) -> float:
        return float(self._left)


def _momentum(parameters: list[torch.nn.Parameter]) -> Optimizers:
    return Optimizers([torch.optim.SGD(parameters, lr=0.01, momentum=0.5)])


def fuzz_server(strategy: ServerStrategy[Any], wild: Wild, tally: Tally) -> Tensor:
    """Serve until the messages end; return the model."""
    server: Any = FuzzedServer(wild, tally, wild.draw.randrange(strategy.shards))
    state = strategy.init_server(server)
    handler = _Counting(tally)
    logging.getLogger("tacit").addHandler(handler)
    try:
        strategy.serve(server, state)
        strategy.dismiss(server, state)
    except Exhausted:
        pass
    except PeerLost as lost:  # no learner is left, or the other shard
        assert "no learner left" in str(lost) or lost.rank < 0, lost
    finally:
        logging.getLogger("tacit").removeHandler(handler)
    model: Tensor = server.parameters
    return model


class _Counting(logging.Handler):
    """Counts the warnings of a server that refuses a message: one for each server."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        if "refused" in record.getMessage():
            self._tally.refuse("server")


class FuzzedNetwork(ScriptedNetwork):
    """A worker's network: what is awaited comes from the right sender with wild content, or the sender is lost."""

    def __init__(self, wild: Wild, tally: Tally, kind: str) -> None:
        super().__init__(1, WORKERS)
        self._wild, self._tally, self._kind, self.left_messages = wild, tally, kind, MESSAGES
        self._makers: dict[type[Message], Callable[[], Message]] = {
            ServedModel: lambda: ServedModel(wild.whole(), wild.body()),
            ModelReply: lambda: ModelReply(wild.tensor()),
            PullResponse: lambda: PullResponse(wild.tensor()),
            AverageResponse: lambda: AverageResponse(wild.whole(), wild.tensor(), wild.real(0.5)),
            SwarmJoinResponse: lambda: SwarmJoinResponse(wild.tensor()),
            SwarmModel: lambda: SwarmModel(wild.whole(), wild.vector(), None),
            SwarmDecoded: lambda: SwarmDecoded(wild.draw.random() < 0.5),
            GossipMessage: lambda: GossipMessage(
                wild.whole(), wild.whole(), wild.tensor() if wild.draw.random() < 0.5 else wild.compressed()
            ),
        }

    def send(self, to: int, message: Message) -> None:
        message.size_bytes  # noqa: B018 - what is sent can be packed

    def all_reduce_mean(self, parts: Any, *_: Any, **__: Any) -> Any:
        return parts.clone()

    def receive(self, kind: Any, source: int | None = None, *, timeout_s: float | None = None) -> Any:
        self.count()
        if self._wild.draw.random() < 0.05:
            raise PeerLost(0 if source is None else source, 1.0, "receive")
        if timeout_s is not None and self._wild.draw.random() < 0.05:
            raise TimedOut("receive", (), timeout_s)
        return source, self._wild.message([self._makers[kind]])

    def count(self) -> None:
        if not self.left_messages:
            raise Exhausted
        self.left_messages -= 1
        self._tally.given[self._kind] += 1


class FuzzedWorker(ScriptedWorker):
    """A worker with two parameter tensors, for two shards."""

    @property
    def layout(self) -> Layout:
        half = NUMBERS // 2
        return Layout(("first", "second"), (torch.Size((half,)),) * 2, (0, half), NUMBERS)


def fuzz_worker(strategy: Strategy[Any], wild: Wild, tally: Tally) -> Tensor:
    """Alternate hooks and handlers of one worker; return its model."""
    kind = "learner" if strategy.has_server else "gossip"
    network = FuzzedNetwork(wild, tally, kind)
    worker = FuzzedWorker(network, torch.zeros(NUMBERS), torch.ones(NUMBERS), steps=10**6)
    worker.observed = ObservedLosses(1, 1.0, 0.5, 0.5)
    state = strategy.init(worker)
    wild.usual = NUMBERS // (strategy.shards if isinstance(strategy, ServerStrategy) else 1)
    wild.live = lambda: _live_numbers(worker, state)
    makers = _handled(strategy, wild)
    sources = [SERVER, SERVER, 0, 2, 3, 1, -3, 4, 99, -(2**31)]
    try:
        while True:
            step = wild.draw.random()
            try:
                if makers and step < 0.7:
                    network.count()
                    strategy.on_message(worker, state, wild.draw.choice(sources), wild.message(makers))
                elif step < 0.72:
                    join = getattr(strategy, "join", None)
                    if join is not None and getattr(strategy, "takes_joiners", True):
                        join(worker, state)
                elif step < 0.74:
                    strategy.reported(worker, state)
                else:
                    _take_step(strategy, worker, state)
            except BadMessage:
                tally.refuse(kind)
            except (TimedOut, PeerLost):
                pass  # the run ends, or continues without the sender
            except RunError as error:
                assert "in round" in str(error), error  # D-PSGD: a message was lost
            check_finite(worker.parameters, state)
    except Exhausted:
        pass
    check_finite(worker.parameters, state)
    return worker.parameters


def _take_step(strategy: Strategy[Any], worker: ScriptedWorker, state: Any) -> None:
    worker.was_skipped = worker.was_abandoned = False
    worker.gradient = torch.ones(NUMBERS)
    strategy.before_step(worker, state)
    worker.step += 1
    strategy.after_step(worker, state)
    assert isinstance(worker.network, FuzzedNetwork)
    if not strategy.handles and worker.network.left_messages == MESSAGES:  # so that every loop ends
        worker.network.count()


def _live_numbers(worker: ScriptedWorker, state: Any) -> list[int]:
    named = [*getattr(state, "requested", {})] if isinstance(getattr(state, "requested", None), dict) else []
    return [*named, *getattr(state, "applied", {}), *getattr(state, "points", {}), worker.step, worker.step + 1, 3]


def _handled(strategy: Strategy[Any], wild: Wild) -> list[Callable[[], Message]]:
    """Return makers of the kinds that the strategy's handler takes."""
    makers: dict[type[Message], Callable[[], Message]] = {
        ServerRestart: lambda: ServerRestart(wild.whole(), wild.body()),
        SwarmRequest: lambda: SwarmRequest(wild.whole(), wild.vector(), wild.outdated()),
        SwarmResponse: wild.response,
        SwarmResend: lambda: SwarmResend(wild.whole(), wild.whole(), wild.real(1.0)),
        SwarmAcknowledgement: lambda: SwarmAcknowledgement(wild.whole()),
        SwarmDecline: lambda: SwarmDecline(wild.whole()),
        SwarmJoinRequest: SwarmJoinRequest,
        PullRequest: PullRequest,
        AverageRequest: lambda: AverageRequest(wild.whole(), wild.tensor()),
    }
    missing = [kind for kind in strategy.handles if kind not in makers]
    assert not missing, f"no maker of {missing}: let _handled make one"
    return [makers[kind] for kind in strategy.handles]


def check_finite(parameters: Tensor, state: Any) -> None:
    """Raise unless the model, and every vector of the state that becomes the model, is finite."""
    assert bool(parameters.isfinite().all()), parameters
    for name in ("buffer", "base", "snapshot"):
        vector = getattr(state, name, None)
        assert vector is None or bool(vector.isfinite().all()), (name, vector)


def run(messages: int, seed: int, seconds: float = math.inf) -> Tally:
    """Give ``messages`` messages to receivers, or as many as ``seconds`` allow; return the tally."""
    tally, number, begun_s = Tally(), 0, time.monotonic()
    while tally.given.total() < messages and time.monotonic() - begun_s < seconds:
        wild = Wild(seed + number)
        receivers: list[tuple[str, Any]] = [
            *(("server", one) for one in SERVERS),
            *(("learner", one) for one in SERVERS),
            *(("gossip", one) for one in GOSSIP),
        ]
        which, strategy = receivers[number % len(receivers)]
        try:
            with torch.no_grad():
                model = (fuzz_server if which == "server" else fuzz_worker)(strategy, wild, tally)
            assert bool(model.isfinite().all()), model
        except BaseException:
            print(f"receiver {number} (seed {seed + number}): {which} of {strategy}", file=sys.stderr)
            raise
        number += 1
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the handlers of messages.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the count here as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("tacit").propagate = False
    begun_s = time.process_time()
    tally = run(options.messages, options.seed)
    results = {
        "command": f"python fuzz/handlers.py --messages {options.messages} --seed {options.seed} --out FILE",
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            **{name: version(name) for name in ("tacit", "torch", "numpy")},
            "python": platform.python_version(),
        },
        "messages": tally.given.total(),
        "by_receiver": dict(sorted(tally.given.items())),
        "refused": dict(sorted(tally.refused.items())),
        "failures": 0,
        "models_not_finite": 0,
        "processor_seconds": round(time.process_time() - begun_s, 1),
    }
    print(json.dumps(results, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
