"""How fast messages travel and what serving them costs, as ratios taken in one run: `make bench-messages`, or

    OMP_NUM_THREADS=1 python benchmarks/messages.py [--out benchmarks/results/messages.json] [--only trips,serving]
    [--launches 5]

trips: round trips of a tensor between two processes on loopback: ours (security "token" and "curve"), bare pyzmq with
zero-copy sends (with
  nothing, with a token that is sent and compared as ours is, with CURVE), gloo.
serving: the step time of an 11M-parameter MLP (batch 32, one thread) while another process reads its 44 MB: a handler
of ours that answers with a
  snapshot it owns, against a bare pyzmq thread that does the same, against no reads.

Contenders take turns within every repetition, each time beginning with another one: who comes after whom makes some per
cent. «median» is taken over repetitions; «best» compares the least disturbed ones: the machine is shared. Where its
memory lies, a pair of processes keeps for life, and some lie better than others: everything is done by several pairs,
one after the other, and the goals are read from the median over them.
"""

from __future__ import annotations

import argparse
import hmac
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
import zmq
from torch import Tensor, nn

from tacit.core.messages import Message, TensorMessage
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock

SIZES = {"1 KB": (1024, 300), "1 MB": (2**20, 100), "25 MB": (25_000_000, 6)}  # bytes, round trips a repetition
REPETITIONS = 12
SERVING_REPETITIONS = 36  # what a read costs is as small as the spread of the steps
SERVED_ELEMENTS = 11_000_000
BLOCK_STEPS = 8


@dataclass(frozen=True)
class Read(Message):
    """Asks for the model."""


class Ours:
    """A post of ours."""

    def __init__(self, rank: int, store: dist.Store, security: str, name: str = "trips") -> None:
        self.peer, self.served = 1 - rank, TensorMessage(torch.zeros(1))
        self.post = MessageEndpoint(
            rank,
            [self.peer],
            dist.PrefixStore(f"ours-{security}-{name}", store),
            host="127.0.0.1",
            security=security,
            hook_lock=HookLock(),
            handles=(Read,),
            handler=lambda source, _: self.post.send(source, self.served),
            sent=None,
            received=None,
            timeout_s=30,
            largest_bytes=2**30,
        )

    def send(self, tensor: Tensor) -> None:
        self.post.send(self.peer, TensorMessage(tensor).owned())

    def receive(self) -> Tensor:
        return self.post.receive(TensorMessage)[1].tensor

    def read(self) -> Tensor:
        self.post.send(self.peer, Read())
        return self.receive()

    def close(self) -> None:
        self.post.close()


class Bare:
    """pyzmq alone, PUSH to PULL, without copies."""

    def __init__(self, rank: int, store: dist.Store, security: str, name: str = "trips") -> None:
        self.context, prefix = zmq.Context(), dist.PrefixStore(f"bare-{security}-{name}", store)
        self.pull, self.push = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
        public, secret = zmq.curve_keypair()
        if security == "curve":
            self.pull.curve_server, self.pull.curve_secretkey = True, secret
        port = self.pull.bind_to_random_port("tcp://127.0.0.1")
        prefix.set(str(rank), f"{port} {public.decode()}")
        their_port, their_key = prefix.get(str(1 - rank)).decode().split()
        if security == "curve":
            self.push.curve_serverkey = their_key.encode()
            self.push.curve_publickey, self.push.curve_secretkey = public, secret
        self.push.connect(f"tcp://127.0.0.1:{their_port}")

    def send(self, tensor: Tensor) -> None:
        self.push.send(tensor.numpy().data.cast("B"), copy=False)

    def receive(self) -> Tensor:
        return torch.frombuffer(self.pull.recv(copy=False).buffer, dtype=torch.uint8)

    def read(self) -> Tensor:
        self.push.send(b"read")
        return self.receive()

    def serve(self, served: Tensor) -> None:
        """Answer every request from a thread, until an empty one."""
        while self.pull.recv():
            self.send(served)

    def close(self) -> None:
        self.context.destroy(linger=0)


class Guarded(Bare):
    """pyzmq with the security that ours has on loopback: every message carries a token."""

    token = bytes(range(16))

    def send(self, tensor: Tensor) -> None:
        self.push.send(self.token, zmq.SNDMORE)
        super().send(tensor)

    def receive(self) -> Tensor:
        if not hmac.compare_digest(self.pull.recv(), self.token):
            raise ValueError("a stranger")
        return super().receive()


class Gloo:
    """torch.distributed's own point-to-point."""

    def __init__(self, rank: int) -> None:
        self.peer, self.buffer = 1 - rank, torch.empty(0, dtype=torch.uint8)

    def send(self, tensor: Tensor) -> None:
        self.buffer = torch.empty_like(tensor) if self.buffer.numel() != tensor.numel() else self.buffer
        dist.send(tensor, self.peer)

    def receive(self) -> Tensor:
        dist.recv(self.buffer, self.peer)
        return self.buffer

    def close(self) -> None: ...


def contenders(rank: int, store: dist.Store) -> dict[str, Any]:
    return {
        "ours": Ours(rank, store, "token"),
        "bare": Bare(rank, store, "plain"),
        "bare, token": Guarded(rank, store, "plain", "token"),
        "ours, curve": Ours(rank, store, "curve"),
        "bare, curve": Bare(rank, store, "curve"),
        "gloo": Gloo(rank),
    }


def servers(rank: int, store: dist.Store) -> dict[str, Any]:
    """Return those of the serving part, with sockets of their own."""
    return {"ours": Ours(rank, store, "token", "serving"), "bare": Bare(rank, store, "plain", "serving")}


def peer(pipe: Connection, port: int) -> None:
    """The other process: echoes and reads as it is told."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False)
    join(1, store)
    known = contenders(1, store)
    serving = servers(1, store)
    while (told := pipe.recv()) is not None:
        match told:
            case ("echo", name, times, size):
                one = known[name]
                if isinstance(one, Gloo):
                    one.buffer = torch.empty(size, dtype=torch.uint8)
                for _ in range(times):
                    one.send(one.receive())
            case ("read", name):
                serving[name].read()
            case ("stop", name):
                serving[name].push.send(b"")
    for one in (*known.values(), *serving.values()):
        one.close()


def join(rank: int, store: dist.Store) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=2)


def measure_trips(pipe: Connection, known: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for label, (size, times) in SIZES.items():
        tensor = torch.zeros(size, dtype=torch.uint8)
        taken: dict[str, list[float]] = {name: [] for name in known}
        for repetition in range(REPETITIONS + 1):
            for name in in_turn(known, repetition):
                one = known[name]
                pipe.send(("echo", name, times, size))
                each = []
                for _ in range(times):
                    begun_s = time.perf_counter()
                    one.send(tensor)
                    one.receive()
                    each.append(time.perf_counter() - begun_s)
                if repetition:  # the first one connects
                    taken[name].append(statistics.median(each))
        row = {name: {"median_us": micro(statistics.median(t)), "best_us": micro(min(t))} for name, t in taken.items()}
        pairs = (
            ("ours", "bare"),
            ("ours", "bare, token"),
            ("ours, curve", "bare, curve"),
            ("ours", "gloo"),
            ("ours, curve", "ours"),
        )
        results[label] = row | {f"{mine} / {other}": ratio(taken[mine], taken[other]) for mine, other in pairs}
    return results


def measure_serving(pipe: Connection, ours: Ours, bare: Bare) -> dict[str, Any]:
    served = torch.zeros(SERVED_ELEMENTS)
    ours.served = TensorMessage(served).owned()
    ours.post.start_handling()
    thread = Thread(target=bare.serve, args=(served,), daemon=True)
    thread.start()
    step = training_step()
    results: dict[str, Any] = {}
    for every in (1, 8):
        taken: dict[str, list[float]] = {"nobody": [], "bare": [], "ours": []}
        for repetition in range(SERVING_REPETITIONS + 1):
            for name in in_turn(taken, repetition):
                seconds = block(step, lambda name=name: pipe.send(("read", name)) if name != "nobody" else None, every)
                if repetition:
                    taken[name].append(seconds)
        quiet_s = taken["nobody"]
        cost = {name: [t - q for t, q in zip(taken[name], quiet_s, strict=True)] for name in ("bare", "ours")}
        results[f"one read in {every}"] = {
            "step_ms": {name: round(1e3 * statistics.median(t), 3) for name, t in taken.items()},
            "cost_of_a_read_ms": {name: round(1e3 * every * statistics.median(c), 3) for name, c in cost.items()},
            "cost, ours / bare": round(statistics.median(cost["ours"]) / statistics.median(cost["bare"]), 3),
            "cost, ours / bare, of best": round(
                (min(taken["ours"]) - min(quiet_s)) / (min(taken["bare"]) - min(quiet_s)), 3
            ),
            "step, ours / nobody": ratio(taken["ours"], quiet_s),
            "step, bare / nobody": ratio(taken["bare"], quiet_s),
            "step, ours / bare": ratio(taken["ours"], taken["bare"]),
        }
    pipe.send(("stop", "bare"))
    thread.join()
    return results


def in_turn(names: Iterable[str], repetition: int) -> list[str]:
    """Return the names beginning with another one in every repetition."""
    names = list(names)
    first = repetition % len(names)
    return names[first:] + names[:first]


def training_step() -> Callable[[], None]:
    """Return one step of an 11M-parameter MLP: what an owner of 44 MB does meanwhile."""
    model = nn.Sequential(nn.Linear(1024, 3300), nn.ReLU(), nn.Linear(3300, 2300), nn.ReLU(), nn.Linear(2300, 10))
    optimizer, x, y = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(32, 1024), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def block(step: Callable[[], None], read: Callable[[], None], every: int) -> float:
    """Return the mean seconds of a step over a block, with a read asked for at the beginning of every ``every``th."""
    begun_s = time.perf_counter()
    for number in range(BLOCK_STEPS):
        if number % every == 0:
            read()
        step()
    return (time.perf_counter() - begun_s) / BLOCK_STEPS


def combine(launches: list[Any]) -> Any:
    """Return the median over launches of every number in equal trees of numbers."""
    if isinstance(launches[0], dict):
        return {key: combine([one[key] for one in launches]) for key in launches[0]}
    return round(statistics.median(launches), 3)


def ratios_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Return what a launch is compared by: its ratios, and the rest of the tree without its leaves."""
    inner = {key: value if "/" in key else ratios_of(value) for key, value in tree.items() if isinstance(value, dict)}
    return {key: value for key, value in inner.items() if value}


def summarize(results: dict[str, Any]) -> None:
    """Print what the goals are read from: medians over launches, and in brackets the least and largest of a launch."""
    launches = results["launches"]
    for label, row in results.get("trips", {}).items():
        times = ", ".join(f"{name} {one['median_us']:.0f}" for name, one in row.items() if "/" not in name)
        print(f"{label}, round trip in µs: {times}")
        for name in ("ours / bare", "ours / bare, token", "ours, curve / bare, curve"):
            median, all_of_them = row[name]["median"], [one["trips"][label][name]["median"] for one in launches]
            goal = "" if name == "ours / bare" else f", goal 1.2: {'met' if median <= 1.2 else 'missed'}"
            print(f"  {name}: {median:.2f} ({min(all_of_them):.2f} to {max(all_of_them):.2f}){goal}")
    for label, row in results.get("serving", {}).items():
        cost = row["cost_of_a_read_ms"]
        each = [one["serving"][label]["step, ours / nobody"]["median"] for one in launches]
        print(
            f"{label}: a read costs a step {cost['ours']:.2f} ms, bare {cost['bare']:.2f}: {cost['ours'] / cost['bare']:.2f}"
        )
        print(f"  step, ours / nobody {row['step, ours / nobody']['median']:.3f} ({min(each):.3f} to {max(each):.3f})")
    if "serving" in results:
        print("goals: 1.3 of bare's cost at one in 1, a step at most 1.05 of nobody's at one in 8")


def ratio(mine: list[float], theirs: list[float]) -> dict[str, float]:
    """Return the median over repetitions of the ratio within a repetition, and the ratio of the least disturbed ones."""
    within = [m / t for m, t in zip(mine, theirs, strict=True)]
    return {"median": round(statistics.median(within), 3), "best": round(min(mine) / min(theirs), 3)}


def micro(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def launch(parts: str) -> dict[str, Any]:
    """Measure with a new pair of processes, this one and another."""
    multiprocessing.set_start_method("spawn")
    pipe, theirs = multiprocessing.Pipe()
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    other = multiprocessing.Process(target=peer, args=(theirs, store.port), daemon=True)
    other.start()
    join(0, store)
    known, serving = contenders(0, store), servers(0, store)
    results: dict[str, Any] = {}
    if "trips" in parts:
        results["trips"] = measure_trips(pipe, known)
    if "serving" in parts:
        results["serving"] = measure_serving(pipe, **serving)
    pipe.send(None)
    for one in (*known.values(), *serving.values()):
        one.close()
    other.join()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="trips,serving")
    parser.add_argument("--launches", type=int, default=5, help="pairs of processes, one after the other")
    parser.add_argument("--one-launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.one_launch:
        print(json.dumps(launch(arguments.only)))
        return
    launches = []
    for number in range(arguments.launches):
        command = [sys.executable, __file__, "--one-launch", "--only", arguments.only]
        launches.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        print(f"launch {number + 1} of {arguments.launches} done", flush=True)
    results = {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
        },
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "repetitions": {"trips": REPETITIONS, "serving": SERVING_REPETITIONS},
        **combine(launches),
        "launches": [ratios_of(one) for one in launches],
    }
    summarize(results)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
