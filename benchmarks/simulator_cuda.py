"""The gradient engine on a GPU: vmap against one by one, by model and workers. On a machine with CUDA and torch alone:

    PYTHONPATH=src python benchmarks/simulator_cuda.py [--out simulator_cuda.json]

Uses the thread host and made-up data, so it needs neither greenlet nor scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit import workloads


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def rate(model: nn.Module, workers: int, steps: int, engine: str, device: str) -> tuple[float, torch.Tensor]:
    """Return worker-steps a second and the model that came out."""
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(32 * workers, 64, generator=generator),
        torch.randint(0, 10, (32 * workers,), generator=generator),
    )
    workload = workloads.custom(model, nn.functional.cross_entropy, data=(x, y), batch_size=32)
    settings = {"cluster": tacit.Cluster(workers=workers), "engine": engine, "device": device, "host": "thread"}
    strategy = tacit.LocalSGD(period=tacit.Every(8))
    tacit.simulate(workload, strategy, steps=8, evaluate_every=8, **settings)
    begun = time.perf_counter()
    run = tacit.simulate(workload, strategy, steps=steps, evaluate_every=steps, **settings)
    if device == "cuda":
        torch.cuda.synchronize()
    return workers * steps / (time.perf_counter() - begun), run.parameters


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--device", default="cuda")
    chosen = arguments.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here; run this on a machine with one, or say --device cpu.")
    torch.backends.cudnn.allow_tf32 = False  # else convolutions agree to ten bits only
    table = {}
    for name, build, steps in (("mlp 64", lambda: mlp(64), 64), ("mlp 1024", lambda: mlp(1024), 32), ("cnn", cnn, 32)):
        for workers in (2, 4, 16, 64, 256):
            torch.manual_seed(0)
            model = build()
            fast, _ = rate(model, workers, steps, "vmap", chosen.device)
            slow, apart = rate(model, workers, 8, "loop", chosen.device)
            again, together = rate(model, workers, 8, "vmap", chosen.device)
            agrees = torch.allclose(together, apart, rtol=1e-3, atol=1e-4)
            table[f"{name}, {workers} workers"] = {
                "vmap_worker_steps_per_s": round(fast),
                "loop_worker_steps_per_s": round(slow),
                "vmap over loop": round(again / slow, 2),
                "both agree to rounding": agrees,
            }
            print(f"{name}, {workers} workers", table[f"{name}, {workers} workers"], flush=True)
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else platform.processor()
    results = {
        "command": "PYTHONPATH=src python benchmarks/simulator_cuda.py",
        "device": device,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "seed": 0,
        "table": table,
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
