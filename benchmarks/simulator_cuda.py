"""The simulator on a CUDA GPU: worker-steps per second next to the captured and the plain vmap call.

    make bench-simulator-cuda DATA=…        or, on a machine with torch, numpy, greenlet and tomli-w alone:
    PYTHONPATH=src python -m benchmarks.simulator_cuda [--data FOLDER] [--out FILE] [--only rates,epochs,memory,rule]

rates: LocalSGD, SwarmSGD and K-async on ResNet-20 and an MLP, exponential compute times, greenlet host. The first run
of each cell is not counted. Beside it stand the captured call and the plain
call alone, and the simulator with plain calls (engine="vmap").
epochs: 100 epochs of CIFAR-10 (20,000 pictures) on 64 workers with ResNet-20, batch 32.
memory: memory on the GPU and of the process, and its growth when a run has twice as many steps.
rule: vmap against one by one, by model and workers; it uses plain calls and the thread host.

Without --data, pictures of CIFAR-10's size are random bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.simulation.engine.calls.static_calls import StaticCalls, Steps
from tacit.simulation.engine.flat_optimizer import FlatOptimizer
from tacit.simulation.engine.losses import DeviceLosses
from tacit.simulation.engine.row_optimizer import Template
from tacit.workloads.data.image_files import read_cifar10

BATCH, PERIOD, SEED = 32, 8, 0
REPETITIONS = 3


@cache
def arrays(data: Path | None, count: int = 20_000) -> tuple[np.ndarray, ...]:
    """Return pictures and classes for training and for testing: CIFAR-10, or random ones of its size."""
    if data is not None:
        return tuple(np.asarray(part) for part in read_cifar10(data))
    random = np.random.default_rng(SEED)
    x = random.integers(0, 256, (count + 1000, 3, 32, 32), dtype=np.uint8)
    y = random.integers(0, 10, count + 1000)
    return x[:count], y[:count], x[count:], y[count:]


def pictures(data: Path | None, **settings) -> workloads.Workload:
    """Return ResNet-20 on these pictures."""
    x, y, x_test, y_test = arrays(data)
    return workloads.images(x, y, test=(x_test, y_test), model="resnet", batch_size=BATCH, **settings)


def digits(workers: int) -> workloads.Workload:
    """Return an MLP 64-64-10 on random data with batches of 32."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(BATCH * workers, 64, generator=generator)
    y = torch.randint(0, 10, (BATCH * workers,), generator=generator)
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return workloads.custom(model, nn.functional.cross_entropy, data=(x, y), batch_size=BATCH)


def simulated(
    workload: workloads.Workload, strategy: tacit.Strategy, workers: int, steps: int, engine: str, **rest
) -> tuple[float, tacit.Run]:
    """Return the seconds of a whole simulation and its run."""
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.02))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    settings = {"cluster": cluster, "steps": steps, "evaluate_every": steps, "lr": 0.01, **rest}
    run = tacit.simulate(workload, strategy, device="cuda", engine=engine, seed=SEED, **settings)
    torch.cuda.synchronize()
    return time.perf_counter() - begun, run


def marginal_rate(seconds: Callable[[int], float], work_per_step: int, steps: int, repetitions: int) -> float:
    """Return worker-steps per second between runs of ``steps`` and of twice as many steps.

    The difference leaves out opening data, capturing graphs and the two evaluations. Each of the two is the shortest of
    several repetitions, taken in turns.
    """
    pairs = [(seconds(steps), seconds(2 * steps)) for _ in range(repetitions)]
    short, long = (min(column) for column in zip(*pairs, strict=True))
    return steps * work_per_step / (long - short)


def bare_calls(workload: workloads.Workload, workers: int, repetitions: int) -> dict[str, float]:
    """Return milliseconds of the plain vmap call and of the captured call, both with gathered batches."""
    problem = workload.open(workers, Streams(SEED))
    problem.to(torch.device("cuda"))
    layout, module = problem.layout, problem.module
    first = nn.utils.parameters_to_vector([dict(module.named_parameters())[name] for name in layout.names]).detach()
    storage = first.repeat(workers + 1, 1)
    call = vmap(grad_and_value(lambda parameters, *batch: functional_call(module, parameters, batch)))
    ranks = list(range(workers))
    tokens = [sampler.take(1) for sampler in problem.samplers]
    batch = problem.collate(ranks, [own[0] for own in tokens])
    template = Template(lambda p: torch.optim.SGD(p, lr=0.01), module, layout)
    optimizer = FlatOptimizer(template, layout, storage, lambda step: 1.0)
    static = StaticCalls(problem, storage, optimizer, DeviceLosses(workers, storage.device), call, is_compiled=False)
    work = Steps(ranks, [0] * workers, tokens, BATCH)
    timed = {"plain": lambda: call(layout.split(storage[:-1]), *batch), "captured": lambda: static.advance(work)}
    results = {}
    for name, function in timed.items():
        for _ in range(3):
            function()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(repetitions):
            function()
        torch.cuda.synchronize()
        results[name] = 1e3 * (time.perf_counter() - begun) / repetitions
    return results


CELLS = (
    # name, workload, strategy, workers, steps, engines, goal
    ("ResNet-20, 16 workers, LocalSGD(8)", "resnet", "local", 16, 96, ("captured", "vmap"), 1_000),
    ("ResNet-20, 64 workers, LocalSGD(8)", "resnet", "local", 64, 24, ("captured", "vmap"), 1_200),
    ("ResNet-20, 64 workers, LocalSGD(8), compiled", "resnet", "local", 64, 24, ("compiled",), 1_500),
    ("ResNet-20, 64 workers, SwarmSGD(4)", "resnet", "swarm", 64, 36, ("captured",), 600),
    ("ResNet-20, 64 workers, KAsync(4)", "resnet", "async", 64, 300, ("captured",), 350),
    ("MLP, 256 workers, LocalSGD(8)", "mlp", "local", 256, 400, ("captured", "vmap"), 100_000),
    ("MLP, 1,024 workers, LocalSGD(8)", "mlp", "local", 1024, 160, ("captured", "vmap"), 200_000),
)
STRATEGIES = {
    "local": tacit.LocalSGD(period=tacit.Every(PERIOD)),
    "swarm": tacit.SwarmSGD(local_steps=4),
    "async": tacit.KAsync(k=4),
}


def rates(data: Path | None, chosen: str) -> dict[str, object]:
    """Worker-steps per second: steps per worker times workers; for K-async, gradients used by the server."""
    calls: dict[tuple[str, int], dict[str, float]] = {}
    table: dict[str, object] = {}
    for name, kind, strategy, workers, steps, engines, goal in CELLS:
        if chosen and chosen not in name:
            continue
        workload = pictures(data) if kind == "resnet" else digits(workers)
        if (kind, workers) not in calls:
            calls[kind, workers] = bare_calls(workload, workers, 5 if kind == "resnet" else 50)
        per_step = 4 if strategy == "async" else workers
        row: dict[str, object] = {"goal": goal}
        for engine in engines:
            seconds, run = simulated(workload, STRATEGIES[strategy], workers, steps, engine)  # captures
            rate = marginal_rate(
                lambda s, w=workload, n=workers, e=engine, k=strategy: simulated(w, STRATEGIES[k], n, s, e)[0],
                per_step,
                steps,
                1 if engine == "vmap" else 2 if strategy == "swarm" else REPETITIONS,
            )
            row[engine] = {"worker_steps_per_s": round(rate), "first_run_s": round(seconds, 2)}
            row[engine]["engine"] = f"{run.record['engine']}: {run.record['engine_reason']}"
        bare = calls[kind, workers]
        row["captured_call_ms"], row["plain_call_ms"] = round(bare["captured"], 3), round(bare["plain"], 3)
        best = row[engines[0]]["worker_steps_per_s"]
        row["over captured call"] = round(best / (1e3 * workers / bare["captured"]), 3)
        row["over plain call"] = round(best / (1e3 * workers / bare["plain"]), 3)
        row["verdict"] = "holds" if best >= goal else "does not hold"
        table[name] = row
        print(name, json.dumps(row), flush=True)
    return table


def epochs(data: Path | None) -> dict[str, object]:
    """100 epochs of 20,000 pictures: 64 workers, ResNet-20, batch 32, evaluated every 10 epochs."""
    workload, workers, count = pictures(data), 64, 20_000
    per_epoch = -(-count // workers // BATCH)
    settings = {"lr": 0.05, "momentum": 0.9, "schedule": tacit.Cosine()}
    simulated(workload, STRATEGIES["local"], workers, per_epoch, "captured", **settings)
    steps = 100 * per_epoch
    seconds, run = simulated(
        workload, STRATEGIES["local"], workers, steps, "captured", **{**settings, "evaluate_every": 10 * per_epoch}
    )
    last = run.history[-1]
    return {
        "seconds (goal 60)": round(seconds, 1),
        "steps": steps,
        "worker_steps_per_s": round(steps * workers / seconds),
        "loss": last["loss"],
        "metric": last["metric"],
        "verdict": "holds" if seconds < 60 else "does not hold",
    }


def memory(data: Path | None) -> dict[str, object]:
    """Memory of two runs, and after twice as many steps."""
    table = {}
    for name, make, workers, steps in (
        ("MLP, 1,024 workers", lambda: digits(1024), 1024, 80),
        ("ResNet-20, 64 workers", lambda: pictures(data), 64, 16),
    ):
        row = {}
        for label, count in (("once", steps), ("twice the steps", 2 * steps)):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            _, run = simulated(make(), STRATEGIES["local"], workers, count, "captured")
            row[label] = {
                "steps": count,
                "gpu_peak_MiB": round(torch.cuda.max_memory_allocated() / 2**20),
                "gpu_reserved_MiB": round(torch.cuda.max_memory_reserved() / 2**20),
                "process_peak_MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "trace_events": len(run.trace),
            }
            del run
        table[name] = row
        print(name, json.dumps(row), flush=True)
    return table


def rule(data: Path | None) -> dict[str, object]:
    """vmap over one by one with plain calls: above 1 vmap is faster."""
    torch.backends.cudnn.allow_tf32 = False  # else convolutions agree to ten bits only
    table: dict[str, object] = {}
    for width in (64, 1024):
        for workers in (2, 4, 16, 64):
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(32 * workers, 64, generator=generator)
            y = torch.randint(0, 10, (32 * workers,), generator=generator)
            model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
            workload = workloads.custom(model, nn.functional.cross_entropy, data=(x, y), batch_size=32)
            found = {}
            for engine in ("vmap", "loop", "captured"):
                simulated(workload, STRATEGIES["local"], workers, 8, engine)
                seconds, run = simulated(workload, STRATEGIES["local"], workers, 16, engine)
                found[engine] = (16 * workers / seconds, run.parameters)
            table[f"mlp {width}, {workers} workers"] = {
                "vmap over loop": round(found["vmap"][0] / found["loop"][0], 2),
                "captured over loop": round(found["captured"][0] / found["loop"][0], 2),
                "agree to rounding": all(
                    torch.allclose(found["loop"][1], found[e][1], rtol=1e-3, atol=1e-4) for e in ("vmap", "captured")
                ),
            }
    torch.backends.cudnn.allow_tf32 = True
    return table


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments.add_argument("--data", type=Path, help="the folder with CIFAR-10")
    arguments.add_argument("--only", default="rates,epochs,memory,rule", help="which parts, by comma")
    arguments.add_argument("--cell", default="", help="only cells of the part rates whose name contains this")
    chosen = arguments.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here; run this on a machine with one.")
    torch.set_num_threads(1)  # as `tacit compare` does: threads on the CPU only disturb the simulator
    parts = {"rates": lambda: rates(chosen.data, chosen.cell)}
    parts |= {f.__name__: lambda f=f: f(chosen.data) for f in (epochs, memory, rule)}
    results: dict[str, object] = {
        "command": "make bench-simulator-cuda",
        "device": torch.cuda.get_device_name(),
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "seed": SEED,
        "data": "CIFAR-10" if chosen.data else "random pictures of CIFAR-10's size",
    }
    for name in chosen.only.split(","):
        begun = time.perf_counter()
        print(f"{name}:", flush=True)
        results[name] = parts[name]()
        print(name, json.dumps(results[name]), f"{time.perf_counter() - begun:.0f} s", flush=True)
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
