"""Throw bytes at the wire: every kind of message, sealed with right lengths and a right checksum, until something
breaks.

    python fuzz/wire.py --seconds 60                 # coverage-guided if atheris is installed, else a plain mutator
    python fuzz/wire.py --seconds 60 --plain
    python fuzz/wire.py --seconds 2400 --out benchmarks/results/fuzz.json

An input is a kind's number (plus 128: it comes in two frames), the length of its fields' codes, and what follows the
kind. It is unpacked and received as a worker or a server with 60 parameters would. Whatever comes out must be
``BadMessage``, ``LatticeOverflow`` (a wrong reference), or what belongs there, within the memory that the process is
held to; anything else ends the run with the input that did it.

Kinds are found by looking: one that a new strategy brings is thrown at as soon as it exists.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import pkgutil
import platform
import random
import resource
import struct
import sys
import tempfile
import time
import typing
import zlib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

try:
    import atheris
except ImportError:
    atheris = None

INSTRUMENTED = [
    "tacit.compression",
    "tacit.core.message_fields",
    "tacit.core.message_kinds",
    "tacit.core.message_reading",
    "tacit.core.messages",
    "tacit.strategies",
]

# What is imported in here reports which lines an input reaches.
with atheris.instrument_imports(INSTRUMENTED) if atheris else contextlib.nullcontext():
    from tacit import compression
    from tacit.compression import Compressed, Compressor
    from tacit.compression.coding.sparse_sum import SumVector
    from tacit.compression.feedback import EF21
    from tacit.compression.feedback.updates import Update, UpdateWithStatistics
    from tacit.compression.lattice import LatticeVector
    from tacit.core.message_reading import MAGIC, VERSION, unpack, unpack_frames
    from tacit.core.messages import Message
    from tacit.errors import BadMessage, LatticeOverflow
    from tacit.strategies.gossip.neighbours import GossipMessage
    from tacit.strategies.servers.messages import ServerPush
    from tacit.strategies.servers.parts.channels import Channel
    from tacit.strategies.swarm import codec
    from tacit.strategies.swarm.messages import SwarmMessage, SwarmModel, SwarmRequest, SwarmResponse

    for package in ("tacit.runtime", "tacit.session", "tacit.strategies"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)

NUMBERS = 60
SHAPES = (torch.Size((6, 8)), torch.Size((12,)))
X = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))
SENDERS: list[Compressor] = [
    compression.Dense(),
    compression.BFloat16(),
    compression.TopK(fraction=0.2),
    compression.TopK(k=1),
    compression.TopK(fraction=0.6),
    compression.BlockTopK(block=8, k=2),
    compression.QSGD(bits=8),
    compression.QSGD(bits=3, bucket=5),
    compression.Sign(),
    compression.LowRank(rank=1),
    compression.Lattice(bits=4),
    compression.Chain(compression.TopK(fraction=0.2), compression.QSGD(bits=4)),
    compression.Layerwise(compression.Sign(), exempt_below=20),
    compression.Layerwise(compression.Chain(compression.TopK(k=3), compression.BFloat16()), exempt_below=0),
]
ODD = [struct.pack("<q", number) for number in (0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))]


def kinds_below(kind: type[Message]) -> Iterator[type[Message]]:
    """Yield every kind that derives from ``kind``."""
    for one in kind.__subclasses__():
        yield one
        yield from kinds_below(one)


def plain_example(kind: type[Message], numbers: torch.Tensor) -> Message:
    """Return a message of that kind, each field some value of its type, tensors being ``numbers``."""
    some: dict[Any, Any] = {int: 1, float: 0.5, bool: True, str: "text", bytes: b"bytes", torch.Tensor: numbers}
    hints = typing.get_type_hints(kind)
    return kind(*(some.get(hints[field.name], numbers) for field in dataclasses.fields(kind)))


def examples() -> Iterator[Message]:
    """Yield valid messages, of every kind one at least."""
    vectors = [sender.compress(X, np.random.default_rng(0), {}, SHAPES) for sender in SENDERS]
    sparse, lattice = vectors[2], next(one for one in vectors if isinstance(one, LatticeVector))
    said = Update(1.0, sparse)
    yield from vectors
    yield SumVector.of(2 * sparse.dense().double(), [sparse, vectors[3]], torch.float32)
    yield said
    yield UpdateWithStatistics(1.0, vectors[6], False, X[:3])
    yield from (Update(0.5, vector) for vector in vectors)
    yield ServerPush(1, 1, 0.1, 1.0, 0.5, said)
    yield from (ServerPush(1, 1, 0.1, 1.0, 0.5, Update(1.0, vector)) for vector in vectors)
    yield SwarmRequest(1, lattice, lattice)
    yield SwarmMessage(1, lattice, None)
    yield SwarmResponse(1, lattice, lattice, 0.5)
    yield SwarmModel(1, X, None)
    yield GossipMessage(1, 1, sparse)
    for kind in kinds_below(Message):
        for numbers in (X, torch.arange(4)):
            with contextlib.suppress(ValueError, TypeError, BadMessage):
                example = plain_example(kind, numbers)
                example.pack()  # refuses a field that the kind does not allow
                yield example


SEEDS = list(examples())
KINDS = sorted({kind.kind for kind in kinds_below(Message)})
CHANNEL = Channel(compression.TopK(fraction=0.2), EF21(), SimpleNamespace(random=np.random.default_rng(0)), X)  # type: ignore[arg-type]


class Tally:
    """How many inputs there were and what became of them, written down now and then."""

    def __init__(self, out: Path | None, guided: bool) -> None:
        self._out, self._guided, self._begun_s = out, guided, time.monotonic()
        self._due_s = 0.0
        self.inputs, self.received = Counter[str](), Counter[str]()
        self._crash: dict[str, str] | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun_s

    def try_one(self, data: bytes) -> None:
        """Receive ``data`` and count it."""
        if len(data) < 2:
            return
        kind = KINDS[data[0] % 128 % len(KINDS)]
        self.inputs[kind] += 1
        try:
            packed = sealed(kind.encode(), data[1], data[2:])
            receive(unpack(packed) if data[0] < 128 else unpack_in_two(packed, data[-1]))
            self.received[kind] += 1
        except (BadMessage, LatticeOverflow):
            pass
        except BaseException as error:
            self._crash = {"input": data.hex(), "kind": kind, "error": f"{type(error).__name__}: {error}"}
            self.write()
            print(f"input {self.inputs.total()}: {data.hex()}")
            raise
        if self.seconds >= self._due_s:  # libFuzzer ends the process without a word to Python
            self._due_s = self.seconds + 5
            self.write()

    def write(self) -> None:
        if self._out is None:
            return
        results = {
            "command": " ".join(
                ["python fuzz/wire.py", *("FILE" if word == str(self._out) else word for word in sys.argv[1:])]
            ),
            "date": time.strftime("%Y-%m-%d"),
            "versions": {
                **{name: version(name) for name in ("tacit", "torch", "numpy")},
                "python": platform.python_version(),
                **({"atheris": version("atheris")} if self._guided else {}),
            },
            "coverage_guided": self._guided,
            "inputs": self.inputs.total(),
            "seconds": round(self.seconds, 1),
            "processor_seconds": round(time.process_time(), 1),
            "received": self.received.total(),
            "unique_crashes": 0 if self._crash is None else 1,
            "crash": self._crash,
            "kinds": {kind: {"inputs": self.inputs[kind], "received": self.received[kind]} for kind in KINDS},
        }
        self._out.write_text(json.dumps(results, indent=1) + "\n")


def sealed(kind: bytes, codes: int, rest: bytes) -> bytes:
    """Return a message of that kind, whose fields' codes are the first ``codes`` bytes of the rest, with a header that
    is right about both.
    """
    length = len(kind) + min(codes, len(rest))
    body = len(kind) + len(rest) - length
    return struct.pack("<2sBHQI", MAGIC, VERSION, length, body, zlib.crc32(kind + rest)) + kind + rest


def unpack_in_two(packed: bytes, tail: int) -> Message:
    """Return the message, the last ``tail`` bytes of which are a frame of their own."""
    cut = max(0, len(packed) - tail)
    return unpack_frames(packed[:cut], 0, iter([memoryview(bytearray(packed[cut:]))]))


def body_of(message: Message) -> bytes:
    """Return the input that stands for ``message``."""
    packed, name = message.pack(), len(message.kind)
    (length,) = struct.unpack_from("<H", packed, 3)
    return bytes([KINDS.index(message.kind), length - name]) + packed[17 + name :]


def receive(message: Message) -> None:
    """Do with a message what who gets it does before anything of its own is changed."""
    assert message.size_bytes == len(message.pack()), message
    match message:
        case Compressed():
            decode(message)
        case Update():
            decode(message.body)
        case ServerPush():
            check_vector(CHANNEL.decode(CHANNEL.new_state(X), message.body, 1.0))
        case SwarmMessage():
            check_vector(codec.decode(message, X))
            if isinstance(message.body, LatticeVector):
                codec.bits_and_side(message.body)
        case GossipMessage() if isinstance(message.body, Compressed):
            decode(message.body)


def decode(message: Compressed) -> None:
    """Decode as a worker does that expects so many numbers, alone and into a sum, and send the sum on."""
    decoded = message.of_length(NUMBERS).dense(X)
    check_vector(decoded)
    if message.needs_reference or not bool(decoded.isfinite().all()):
        return
    total = torch.zeros(NUMBERS, dtype=torch.float64)
    message.add_into(total)
    again = SumVector.of(total, [message], torch.float32).dense()
    assert torch.equal(again, total), (again, total)


def check_vector(decoded: torch.Tensor) -> None:
    assert decoded.shape == (NUMBERS,) and decoded.is_floating_point(), decoded


def mutated(data: bytearray) -> bytearray:
    """Return ``data`` with a few small changes."""
    for _ in range(random.randint(1, 5)):
        at = random.randrange(len(data)) if data else 0
        match random.randrange(5):
            case 0:
                data[at : at + 1] = random.randbytes(1)
            case 1:
                data[at : at + 8] = random.choice(ODD)
            case 2:
                del data[at : at + random.randint(1, 9)]
            case 3:
                data[at:at] = random.randbytes(random.randint(1, 9))
            case 4:
                other = body_of(random.choice(SEEDS))
                begin = random.randrange(len(other))
                data[at:at] = other[begin : begin + random.randint(1, 30)]
    return data


def run_plain(seconds: float, tally: Tally) -> None:
    """Mutate valid messages at random, without looking at what they reach."""
    seeds = [body_of(message) for message in SEEDS]
    while tally.seconds < seconds:
        tally.try_one(bytes(mutated(bytearray(random.choice(seeds)))))
    tally.write()
    print(f"{tally.inputs.total()} inputs in {seconds:.0f} s, no failure (plain mutator)")


def run_guided(seconds: float, tally: Tally) -> None:
    """Let libFuzzer look for inputs that reach new code; it prints the count."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, message in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(body_of(message))
        limits = [f"-max_total_time={int(seconds)}", "-max_len=900", "-rss_limit_mb=4096"]
        Path("build").mkdir(exist_ok=True)
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", "-artifact_prefix=build/", corpus], tally.try_one)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the packed wire.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--plain", action="store_true", help="do not look for atheris")
    parser.add_argument("--out", type=Path, help="write the count here as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
    silent = set(KINDS) - {message.kind for message in SEEDS} - {Compressed.kind}
    assert not silent, f"no example of {silent}: let examples() yield one"
    tally = Tally(options.out, bool(atheris) and not options.plain)
    if atheris and not options.plain:
        run_guided(options.seconds, tally)
    else:
        run_plain(options.seconds, tally)


if __name__ == "__main__":
    main()
