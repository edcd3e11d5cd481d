"""One rank of benchmarks/end_to_end.py: the methods compared there, on pictures that can be learned.

{"do": "open", "method": "DDP", "model": "cnn", "period": 8, "overlap_steps": 0, "learning_rate": 0.01, "batch": 4, "folder": "…", "seed": 0}
{"do": "run", "method": "DDP", "steps": 8}          answers times, losses, bytes sent and a checksum of the model, to compare across ranks
{"do": "evaluate", "method": "DDP"}                 answers loss and hits on this rank's share of the held-out pictures
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import tacit
from benchmarks.peer_loops.common import Loop, Rank, Setting, optimizer_of, serve
from benchmarks.peer_loops.tacit_loops import attached, local
from benchmarks.peer_loops.torch_loops import ddp, ddp_powersgd, parallel
from tacit.runtime.ddp_hooks import Compression, ef21
from tests.runtime import namespaces

TOP = tacit.TopK(fraction=0.01)
QUANTIZER = tacit.QSGD(bits=8)


def ddp_ef21(setting: Setting) -> Loop:
    model = parallel(setting)
    model.register_comm_hook(Compression(TOP, tacit.EF21()), ef21)
    return Loop(model, optimizer_of(model))


def compressed_gradient(setting: Setting) -> Loop:
    return attached(setting, tacit.CompressedGradient(compressor=TOP, feedback=tacit.EF21()))


def local_top(setting: Setting) -> Loop:
    return attached(setting, tacit.LocalSGD(period=tacit.Every(setting.period), compressor=TOP))


def local_quantized(setting: Setting) -> Loop:
    """Unbiased, so that it needs no feedback, and its rounds are summed range by range."""
    strategy = tacit.LocalSGD(period=tacit.Every(setting.period), compressor=QUANTIZER, feedback=tacit.NoFeedback())
    return attached(setting, strategy)


METHODS: dict[str, Callable[[Setting], Loop]] = {
    "DDP": ddp,
    "DDP, PowerSGD hook": ddp_powersgd,
    "DDP, tacit.hooks.ef21 Top 1 %": ddp_ef21,
    "tacit CompressedGradient, EF21 Top 1 %": compressed_gradient,
    "tacit LocalSGD": local,
    "tacit LocalSGD, Top 1 %": local_top,
    "tacit LocalSGD, QSGD 8 bit": local_quantized,
}


class Pictures:
    """This rank's part of the pictures, the same batches in the same order for every method."""

    def __init__(self, folder: Path, rank: int, size: int, batch: int, seed: int) -> None:
        self._x, self._y = (np.load(folder / f"{name}.npy", mmap_mode="r")[rank::size] for name in ("x", "y"))
        self.held_out_x, self.held_out_y = (
            np.load(folder / f"{name}.npy", mmap_mode="r")[rank::size] for name in ("held_out_x", "held_out_y")
        )
        self._random, self._batch, self._order = np.random.default_rng([seed, rank]), batch, np.empty(0, np.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return the next batch, of epochs shuffled anew."""
        if len(self._order) < self._batch:
            self._order = self._random.permutation(len(self._y))
        chosen, self._order = self._order[: self._batch], self._order[self._batch :]
        return as_floats(self._x[chosen]), torch.from_numpy(self._y[chosen])


def as_floats(pictures: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Return bytes as numbers around 0."""
    return torch.from_numpy(np.ascontiguousarray(pictures)).float().div_(64).sub_(2)


class PictureRank(Rank):
    """A rank whose methods learn."""

    def open(self, **command: Any) -> dict[str, Any]:  # type: ignore[override]
        rate, folder = command.pop("learning_rate"), Path(command.pop("folder"))
        self._pictures = Pictures(folder, self.rank, self.size, command.pop("batch"), command.pop("seed"))
        answer = super().open(**command)
        for group in self._loops[command["method"]][0].optimizer.param_groups:
            group["lr"] = rate
        return answer

    def run(self, method: str, steps: int) -> dict[str, Any]:
        loop, interface = self._loops[method][0], os.environ["GLOO_SOCKET_IFNAME"]
        batches = [self._pictures.draw() for _ in range(steps)]
        self._meet()
        sent, last_s, times_s = namespaces.traffic(interface), time.perf_counter(), []
        for x, y in batches:
            loop.step(x, y)
            now_s = time.perf_counter()
            times_s.append(now_s - last_s)
            last_s = now_s
        sent = namespaces.traffic(interface) - sent
        with torch.no_grad():
            checksum = float(sum(p.double().sum() for p in loop.model.parameters()))
        return {
            "times_s": times_s,
            "sent_bytes": sent.sent_bytes,
            "sent_again_bytes": sent.sent_again_bytes,
            "checksum": checksum,
        }

    def evaluate(self, method: str) -> dict[str, Any]:
        """Ranks hold the same model here, so each measures a part of the held-out pictures."""
        model, pictures = self._loops[method][0].model, self._pictures
        model = getattr(model, "module", model)  # past DDP, whose forward would begin a step
        x, y = as_floats(pictures.held_out_x), torch.from_numpy(np.array(pictures.held_out_y))
        with torch.no_grad():
            guesses = torch.cat([model(part) for part in x.split(32)])
            loss = functional.cross_entropy(guesses, y, reduction="sum")
        return {"loss": float(loss), "hits": int((guesses.argmax(1) == y).sum()), "pictures": len(y)}


if __name__ == "__main__":
    serve(METHODS, PictureRank)
