"""Encoding and decoding against a copy of the same bytes, on the CPU or on one CUDA GPU.

    python benchmarks/compression.py [--device cuda] [--out benchmarks/results/compression.json]

128 Mi float32 on CUDA, 16 Mi on the CPU (one thread). Each figure is the median of several calls, each timed alone (events on CUDA); inputs are
normal numbers, far larger than any cache. Before every call and outside its timing EF21's estimate is put back, which also keeps a GPU busy until
the call is queued: what is timed is the device's work. A naive line in torch stands beside each kernel. The file keeps the other device's section,
so that two machines can fill it. Needs torch alone, and Triton for the kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacit.compression import fused

SHARE = 100
"""One in so many numbers is selected."""
BITS, BUCKET = 8, 1024
SIDE = 0.01
GOALS_MS = {  # issue 4, on an H200 with 128 Mi
    "ef21 step, 1 %": 0.9, "qsgd encode": 0.25, "lattice encode": 0.25, "lattice decode": 0.33,
}  # fmt: skip


class Cases(NamedTuple):
    timed: dict[str, Callable[[], Any]]
    """What to time, by name; the first is the yardstick."""
    prepare: Callable[[], Any]


def cases(n: int, device: str) -> Cases:
    torch.manual_seed(0)
    x, estimate, near = (torch.randn(n, device=device) for _ in range(3))
    near.uniform_(-1, 1).mul_(0.4 * SIDE * 2**BITS).add_(x)  # inside the radius
    kept, target, k = estimate.clone(), torch.empty_like(x), n // SHARE
    codes, norms = fused.qsgd_encode(x, BITS, BUCKET, 0)
    sent = fused.lattice_encode(x, SIDE, BITS)
    timed: dict[str, Callable[[], Any]] = {
        "copy": lambda: target.copy_(x),
        "select largest, 1 %": lambda: fused.select_largest(x, k),
        "select largest, 1 %, naive": lambda: naive_select(x, k),
        "ef21 step, 1 %": lambda: fused.ef21_select(x, estimate, k),
        "ef21 step, 1 %, naive": lambda: naive_ef21(x, estimate, k),
        "qsgd encode": lambda: fused.qsgd_encode(x, BITS, BUCKET, 1),
        "qsgd encode, naive": lambda: naive_qsgd(x),
        "qsgd decode": lambda: fused.qsgd_decode(codes, norms, BITS, BUCKET),
        "lattice encode": lambda: fused.lattice_encode(x, SIDE, BITS),
        "lattice encode, naive": lambda: naive_lattice_encode(x),
        "lattice decode": lambda: fused.lattice_decode(sent.codes, near, SIDE, BITS, sent.check),
        "lattice decode, naive": lambda: naive_lattice_decode(sent.codes, near),
    }
    return Cases(timed, lambda: estimate.copy_(kept))


def naive_select(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    places = torch.topk(x.abs(), k, sorted=False).indices
    return places, x[places]


def naive_ef21(gradient: Tensor, estimate: Tensor, k: int) -> tuple[Tensor, Tensor]:
    places, values = naive_select(gradient - estimate, k)
    estimate[places] += values
    return places, values


def naive_qsgd(x: Tensor) -> tuple[Tensor, Tensor]:
    table, levels = x.view(-1, BUCKET), 2 ** (BITS - 1) - 1
    norms = table.abs().amax(1, keepdim=True)
    return (table / norms * levels + torch.rand_like(table)).floor().to(torch.int8), norms


def naive_lattice_encode(x: Tensor) -> Tensor:
    return ((x / SIDE).round().to(torch.int64) % 2**BITS).to(torch.uint8)


def naive_lattice_decode(codes: Tensor, reference: Tensor) -> Tensor:
    base = SIDE * codes
    return base + 2**BITS * SIDE * ((reference - base) / (2**BITS * SIDE)).round()


def seconds(run: Callable[[], Any], prepare: Callable[[], Any], device: str, repetitions: int) -> list[float]:
    """Return the time of each call, after calls that warm up."""
    taken = []
    for number in range(repetitions + 3):
        prepare()
        if device == "cuda":
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            run()
            ended.record()
            ended.synchronize()
            took = begun.elapsed_time(ended) / 1000
        else:
            started = time.perf_counter()
            run()
            took = time.perf_counter() - started
        if number >= 3:
            taken.append(took)
    return taken


def measure(n: int, device: str, repetitions: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    copy_s = 0.0
    timed, prepare = cases(n, device)
    for name, run in timed.items():
        median = statistics.median(seconds(run, prepare, device, repetitions))
        copy_s = copy_s or median
        rows[name] = {"median_ms": round(median * 1e3, 3), "over_copy": round(median / copy_s, 2)}
        if device == "cuda" and n == 2**27 and name in GOALS_MS:
            rows[name] |= {"goal_ms": GOALS_MS[name], "is_met": median * 1e3 <= GOALS_MS[name]}
        print(f"{name:28} {rows[name]['median_ms']:10.3f} ms {rows[name]['over_copy']:7.2f} x copy", flush=True)
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--numbers", type=int, help="how many float32; 2^27 on CUDA and 2^24 on the CPU unless told")
    arguments.add_argument("--repetitions", type=int)
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    is_cuda = chosen.device == "cuda"
    n = chosen.numbers or (2**27 if is_cuda else 2**24)
    if n % BUCKET:
        raise SystemExit(f"--numbers {n} must be a multiple of {BUCKET}, a bucket.")
    repetitions = chosen.repetitions or (50 if is_cuda else 7)
    torch.set_num_threads(1)
    rows = measure(n, chosen.device, repetitions)
    section = {
        "command": f"python benchmarks/compression.py --device {chosen.device}",
        "device": torch.cuda.get_device_name() if is_cuda else f"{platform.machine()}, 1 of {os.cpu_count()} cores",
        "versions": {
            "torch": torch.__version__, "python": platform.python_version(),
            "triton": importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else None,
        },
        "numbers": n, "seed": 0, "repetitions": repetitions, "rows": rows,
    }  # fmt: skip
    if chosen.out is not None:
        old = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        chosen.out.write_text(json.dumps(old | {chosen.device: section}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
