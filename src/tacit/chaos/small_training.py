"""What workers of runs with faults train, and how they record it. Needs torch alone, so that others can use it too.

The record of a life is a file of JSON lines: the process, then each step with its time and, where this worker has
exchanged something in it, a checksum of the model. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

_FEATURES: Final = 32
_CLASSES: Final = 10


class Record:
    """Writes one line per event; a line is in the file when the call returns, even if the process is killed then."""

    def __init__(self, folder: Path, seat: int, life: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"seat-{seat}-life-{life}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.add(event="started", seat=seat, life=life, process=os.getpid())

    def add(self, **values: Any) -> None:
        os.write(self._file, (json.dumps({"time_s": time.monotonic(), **values}) + "\n").encode())


def network(hidden: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, _CLASSES))


class Samples:
    """Points around ten centres, which overlap; each worker draws its own, and all evaluate the same."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(12345)
        self._centres = torch.randn(_CLASSES, _FEATURES, generator=draw)
        self._draw = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, _CLASSES, (size,), generator=self._draw)
        return self._centres[labels] + 2.0 * torch.randn(size, _FEATURES, generator=self._draw), labels


def evaluate(model: nn.Module) -> float:
    """Return the loss on samples that no worker trains on."""
    inputs, labels = Samples(777).batch(4000)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), labels))


def checksum(model: nn.Module) -> int:
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return zlib.crc32(ctypes.string_at(flat.data_ptr(), flat.nbytes))  # without NumPy, which torch does not need
