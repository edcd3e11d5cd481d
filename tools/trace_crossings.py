"""Count what one step of an attached model touches: files for EF21, package crossings for AllReduce.

    python tools/trace_crossings.py ef21                                        # one process
    torchrun --standalone --nproc-per-node 2 tools/trace_crossings.py ef21      # two workers over loopback
    torchrun --standalone --nproc-per-node 2 tools/trace_crossings.py all-reduce

ef21        files of src/tacit whose code runs between entering and leaving ``CompressedGradient.before_step``.
message     those of them that touch the message: a frame of the file has the message, a list of messages, or the packed
            bytes as an argument, a local variable or its result. Locks, clocks, time-outs and kernels do not.
all-reduce  crossings during one ``optimizer.step()``: calls from a frame of one top-level package of src/tacit into a
            frame of another. Returns do not count. Frames of other libraries in between are skipped, so that a call
            through ``contextlib`` or ``torch`` counts. The first call from the training loop does not count.

Rank 0 prints the count of one step after a few others, when all modules are loaded. Only code with a file counts:
the ``__init__`` that ``dataclasses`` generates has none. Exit status 1 where the count is above ``--limit``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import tacit
from tacit.core.messages import Message

ROOT = Path(tacit.__file__).resolve().parent
PREFIX = f"{ROOT}/"
WARM_UP_STEPS = 4


def file_of(frame: FrameType) -> str | None:
    """Return the frame's file relative to src/tacit, or None for code from elsewhere."""
    name = frame.f_code.co_filename
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def holds_message(value: object) -> bool:
    """Return whether ``value`` is a message, its packed bytes, or a list or tuple of these."""
    if isinstance(value, list | tuple):
        return any(map(holds_message, value))
    return isinstance(value, Message | bytes | bytearray | memoryview) and value != b""


def package_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


class Calls:
    """A profile function that records the calls of tacit's functions while it is switched on."""

    def __init__(self, within: CodeType | None = None) -> None:
        self.within = within  # record only while this function runs; None: always
        self.is_on = within is None
        self.functions: Counter[tuple[str, str]] = Counter()  # (file, function) → calls
        self.holders: set[str] = set()  # files that touch a message
        self.crossings: list[tuple[str, str]] = []  # (caller, callee), each "file:function"

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and self.is_on and (file := file_of(frame)) is not None:
            if any(map(holds_message, [argument, *frame.f_locals.values()])):
                self.holders.add(file)
            self.is_on = frame.f_code is not self.within
        if event != "call":
            return
        if frame.f_code is self.within:
            self.is_on = True
        file = file_of(frame)
        if not self.is_on or file is None:
            return
        self.functions[file, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        if caller is not None:
            source = file_of(caller)
            assert source is not None
            if package_of(source) != package_of(file):
                self.crossings.append((f"{source}:{caller.f_code.co_qualname}", f"{file}:{frame.f_code.co_qualname}"))

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})


def record_step(strategy: tacit.Strategy[Any], calls: Calls) -> int:
    """Train a small model for a few steps, record the last one, and return the rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tacit.attach(model, optimizer, strategy, steps=WARM_UP_STEPS + 1) as session:
        for step in range(WARM_UP_STEPS + 1):
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            if step == WARM_UP_STEPS:
                sys.setprofile(calls)
            try:
                optimizer.step()
            finally:
                sys.setprofile(None)
        return session.rank


def count_ef21_files(only_message: bool) -> tuple[int, int]:
    """Print the files that one EF21 step runs, or those that touch its message; return the rank and their number."""
    calls = Calls(within=tacit.CompressedGradient.before_step.__code__)
    rank = record_step(tacit.CompressedGradient(feedback=tacit.EF21(), aggregate="gather"), calls)
    files = sorted(calls.holders) if only_message else calls.files
    if rank == 0:
        print(f"{len(files)} files" + (" touch the message" if only_message else ""))
        for file in files:
            names = [f"{name}×{n}" if n > 1 else name for (one, name), n in calls.functions.items() if one == file]
            print(f"  {file:40} {', '.join(names)}")
    return rank, len(files)


def count_all_reduce_crossings() -> tuple[int, int]:
    """Print the package crossings of one AllReduce step; return the rank and their number."""
    calls = Calls()
    rank = record_step(tacit.AllReduce(), calls)
    if rank == 0:
        print(f"{len(calls.crossings)} crossings")
        for caller, callee in calls.crossings:
            print(f"  {caller}  →  {callee}")
    return rank, len(calls.crossings)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("ef21", "message", "all-reduce"), help="the step to trace")
    parser.add_argument("--limit", type=int, help="largest count that passes")
    options = parser.parse_args()
    if options.what == "all-reduce":
        rank, count = count_all_reduce_crossings()
    else:
        rank, count = count_ef21_files(only_message=options.what == "message")
    return 1 if rank == 0 and options.limit is not None and count > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
