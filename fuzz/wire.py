"""Throw bytes at the wire: every kind of compressed message, sealed with right lengths and a right checksum, until something breaks.

    python fuzz/wire.py --seconds 60                 # coverage-guided if atheris is installed, else a plain mutator
    python fuzz/wire.py --seconds 60 --plain

An input is a kind's number and a body. Whatever comes out must be ``BadMessage``, ``LatticeOverflow`` (a wrong reference), or a vector of the
right length, within the memory that the process is held to; anything else ends the run with the input that did it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch

try:
    import atheris
except ImportError:
    atheris = None

# What is imported in here reports which lines an input reaches.
with atheris.instrument_imports(["tacit.compression", "tacit.messages"]) if atheris else contextlib.nullcontext():
    from tacit import compression
    from tacit.compression import Compressed
    from tacit.errors import BadMessage, LatticeOverflow
    from tacit.messages import unpack

NUMBERS = 60
SHAPES = (torch.Size((6, 8)), torch.Size((12,)))
X = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))
SENDERS: list[compression.Compressor] = [
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
]
SEEDS = [sender.compress(X, np.random.default_rng(0), {}, SHAPES) for sender in SENDERS]
KINDS = sorted({message.kind for message in SEEDS})
ODD = [struct.pack("<q", number) for number in (0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))]


def sealed(kind: bytes, body: bytes) -> bytes:
    """Return a message of that kind and body with a header that is right about both."""
    return struct.pack("<2sBBQI", b"tc", 1, len(kind), len(body), zlib.crc32(kind + body)) + kind + body


def body_of(message: Compressed) -> bytes:
    """Return the input that stands for ``message``."""
    return bytes([KINDS.index(message.kind)]) + message.pack()[16 + len(message.kind) :]


def try_one(data: bytes) -> None:
    """Receive ``data`` as a worker would that expects so many numbers."""
    if not data:
        return
    try:
        message = unpack(sealed(KINDS[data[0] % len(KINDS)].encode(), data[1:]))
        assert isinstance(message, Compressed)
        decoded = message.of_length(NUMBERS).dense(X)
    except (BadMessage, LatticeOverflow):
        return
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


def run_plain(seconds: float) -> None:
    """Mutate valid messages at random, without looking at what they reach."""
    seeds, count, end = [body_of(message) for message in SEEDS], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = bytes(mutated(bytearray(random.choice(seeds))))
        try:
            try_one(data)
        except BaseException:
            print(f"input {count}: {data.hex()}")
            raise
        count += 1
    print(f"{count} inputs in {seconds:.0f} s, no failure (plain mutator)")


def run_guided(seconds: float) -> None:
    """Let libFuzzer look for inputs that reach new code; it prints the count."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, message in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(body_of(message))
        limits = [f"-max_total_time={int(seconds)}", "-max_len=600", "-rss_limit_mb=4096"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", "-artifact_prefix=build/", corpus], try_one)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the packed wire.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--plain", action="store_true", help="do not look for atheris")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
    if atheris and not options.plain:
        run_guided(options.seconds)
    else:
        run_plain(options.seconds)


if __name__ == "__main__":
    main()
