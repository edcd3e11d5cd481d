"""How fast the simulator is, as ratios taken in one run: `make bench-simulator`, or

    python benchmarks/simulator.py [--out FILE] [--quick] [--source CHECKOUT]
                                   [--only speed,swarm,rounds,compressed,scale,memory,timing,rule,servers,strategies]

speed: worker-steps a second of LocalSGD(Every(8)) on a digits MLP with batches of 32, against a plain Python loop over
torch modules and the bare vmap call.
swarm: SwarmSGD(local_steps=4) with 256 nodes on digits, against the bare vmap call.
rounds: processor time of the simulator itself for one worker and one round of LocalSGD(Every(8)), without the calls
that evaluate gradients; also of the commit before rounds were matrix operations.
compressed: worker-steps a second of three compressed strategies with 64 workers on digits as they are, against the bare
vmap call.
scale: 1,000 workers x 100 steps in a process of its own, wall time and peak memory; cost per worker-step from 64 to
1,000 workers. memory: peak memory of 1,024 workers as steps grow. timing: events a second of timing-only runs. rule:
vmap against one by one over module kinds and sizes; the engine's fixed rule is read off this table. servers: gradients
a second that updates use, and gradients per call of the engine, for K of 64 learners on the default network; against
the bare vmap call, and against gradients that are evaluated when they are sent. strategies: worker-steps a second of
EF21, SwarmSGD and KSync (``simulator_cases``); with ``--source``, next to the rates of the same runs with the sources
of another checkout. The goals are against the commit before the simulator was made faster, for example

    git worktree add ../before b2c65f7 && python benchmarks/simulator.py --only strategies --source ../before

Every figure is the best of several alternating repetitions: the machine is shared, and the least disturbed one says
what the code can do. Rates are per second of processor time with one thread of torch, which on an idle machine is the
time on the clock; scale has the time on the clock and all threads.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.core.worker import Worker
from tacit.simulation.engine.engine import Engine
from tacit.strategies.servers import ParameterServerStrategy

BATCH = 32
PERIOD = 8
REPETITIONS = 5  # --quick: 1
ROOT = Path(__file__).resolve().parents[1]
BEFORE_ROUNDS = "b2c65f7"  # the last commit in which each rank averaged and recorded its part of a round alone
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def digits(workers: int) -> workloads.Workload:
    """Return the digits MLP with enough data for full batches: scikit-learn's digits, repeated where workers are many."""
    pictures, labels = load_digits(return_X_y=True)
    times = -(-BATCH * workers // len(pictures))
    x = np.tile(pictures.reshape(-1, 8, 8).astype(np.float32), (times, 1, 1))
    return workloads.images(x, np.tile(labels, times), model="mlp", batch_size=BATCH)


def simulated(
    workers: int, steps: int, optimizer: str = "sgd", compute: tacit.cluster.delays.Delay | None = None, **rest
) -> float:
    """Return worker-steps a second of a whole simulation, opening the data included, evaluated at start and end only."""
    cluster = tacit.Cluster(workers=workers, compute=compute or tacit.Constant(mean_s=0.02))
    strategy = rest.pop("strategy", None) or tacit.LocalSGD(period=tacit.Every(PERIOD))
    workload = rest.pop("workload", None) or digits(workers)
    begun = time.process_time()
    tacit.simulate(
        workload, strategy, cluster=cluster, steps=steps, optimizer=OPTIMIZERS[optimizer], evaluate_every=steps, **rest
    )
    return workers * steps / (time.process_time() - begun)


def plain_loop(workers: int, steps: int, optimizer: str) -> float:
    """Return worker-steps a second of what one would write without tacit: a module and an optimizer per worker,
    averaged in a loop.
    """
    problem = digits(workers).open(workers, Streams(0))
    models = [copy.deepcopy(problem.module) for _ in range(workers)]
    optimizers = [OPTIMIZERS[optimizer](list(model.parameters())) for model in models]
    begun = time.process_time()
    for step in range(1, steps + 1):
        for rank, (model, stepper) in enumerate(zip(models, optimizers, strict=True)):
            x, y = problem.collate([rank], [problem.samplers[rank].take(1)[0]])
            stepper.zero_grad()
            model(x[0], y[0]).backward()
            stepper.step()
        if step % PERIOD == 0:
            with torch.no_grad():
                for group in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack([p.detach() for p in group]).mean(0)
                    for parameter in group:
                        parameter.copy_(mean)
    return workers * steps / (time.process_time() - begun)


def bare_vmap(
    workers: int,
    calls: int,
    workload: workloads.Workload | None = None,
) -> float:
    """Return replicas a second of the vmap call alone: parameters as rows of a matrix, one batch made beforehand."""
    problem = (workload or digits(workers)).open(workers, Streams(0))
    module, layout = problem.module, problem.layout
    rows = nn.utils.parameters_to_vector(module.parameters()).detach().repeat(workers, 1)
    batch = problem.collate(range(workers), [sampler.take(1)[0] for sampler in problem.samplers])
    call = vmap(grad_and_value(lambda parameters, x, y: functional_call(module, parameters, (x, y))))
    call(layout.split(rows), *batch)
    begun = time.process_time()
    for _ in range(calls):
        call(layout.split(rows), *batch)
    return workers * calls / (time.process_time() - begun)


def best(measurements: dict[str, Callable[[], float]], repetitions: int = 5) -> dict[str, float]:
    """Return the highest rate of each, taken in turns so that a disturbance hits all alike."""
    rates = dict.fromkeys(measurements, 0.0)
    for _ in range(min(repetitions, REPETITIONS)):
        for name, measure in measurements.items():
            rates[name] = max(rates[name], measure())
    return rates


def speed() -> dict[str, object]:
    """LocalSGD on a digits MLP with batches of 32 against a plain loop and the bare vmap call."""
    results: dict[str, object] = {}
    small = workloads.digits(model="mlp")  # 64 workers have batches of 22, 256 workers of 5
    for workers, steps in ((64, 240), (256, 120), (1000, 40)):
        rates = best(
            {
                "tacit, SGD, constant times": lambda w=workers, s=steps: simulated(w, s),
                "tacit, SGD, exponential times": lambda w=workers, s=steps: simulated(
                    w, s, compute=tacit.Exponential(mean_s=0.02)
                ),
                "tacit, Adam": lambda w=workers, s=steps: simulated(w, s, "adam"),
                "plain loop, SGD": lambda w=workers: plain_loop(w, PERIOD, "sgd"),
                "plain loop, Adam": lambda w=workers: plain_loop(w, PERIOD, "adam"),
                "bare vmap": lambda w=workers: bare_vmap(w, 20),
                "tacit, SGD, digits as they are": lambda w=workers, s=steps: simulated(w, s, workload=small),
                "bare vmap, digits as they are": lambda w=workers: bare_vmap(w, 20, small),
            }
        )
        as_is = rates["tacit, SGD, digits as they are"] / rates["bare vmap, digits as they are"]
        sgd, adam = rates["plain loop, SGD"], rates["plain loop, Adam"]
        results[f"{workers} workers"] = {
            "worker_steps_per_s": {name: round(rate) for name, rate in rates.items()},
            "ratios": {
                "SGD over plain loop (goal 5)": round(rates["tacit, SGD, constant times"] / sgd, 2),
                "SGD, exponential times, over plain loop (goal 5)": round(
                    rates["tacit, SGD, exponential times"] / sgd, 2
                ),
                "Adam over plain loop (goal 3)": round(rates["tacit, Adam"] / adam, 2),
                "SGD over bare vmap (goal 0.6)": round(rates["tacit, SGD, constant times"] / rates["bare vmap"], 2),
                f"the same with digits as they are, batches of {min(BATCH, 1437 // workers)} (goal 0.5)": round(
                    as_is, 2
                ),
            },
        }
    return results


def swarm() -> dict[str, object]:
    """SwarmSGD with 256 nodes on digits as they are, against the bare vmap call of all nodes."""
    workload, steps, nodes = workloads.digits(model="mlp"), 80, 256
    cluster = tacit.Cluster(workers=nodes, compute=tacit.Exponential(mean_s=0.02))

    def rate() -> float:
        begun = time.process_time()
        tacit.simulate(
            workload, tacit.SwarmSGD(local_steps=4), cluster=cluster, steps=steps, evaluate_every=steps, lr=0.1
        )
        return nodes * steps / (time.process_time() - begun)

    rates = best({"tacit": rate, "bare vmap": lambda: bare_vmap(nodes, 20, workload)}, 3)
    return {
        "worker_steps_per_s": {name: round(found) for name, found in rates.items()},
        "SwarmSGD over bare vmap": round(rates["tacit"] / rates["bare vmap"], 3),
    }


def rounds() -> dict[str, object]:
    """The simulator's own processor time for one worker and one round, now and before the work on rounds."""
    with tempfile.TemporaryDirectory() as folder:
        git = subprocess.run(["git", "archive", BEFORE_ROUNDS, "src"], cwd=ROOT, capture_output=True)
        sources = {"now": ROOT / "src"}
        if git.returncode == 0:  # else a copy without the history
            subprocess.run(["tar", "-x", "-C", folder], input=git.stdout, check=True)
            sources["before"] = Path(folder) / "src"
        found: dict[str, list[dict[str, dict[str, float]]]] = {when: [] for when in sources}
        for _ in range(min(2, REPETITIONS)):
            for when, source in sources.items():
                found[when].append(_round_cost(source))
    results: dict[str, object] = {"before": f"commit {BEFORE_ROUNDS}" if "before" in sources else "not available"}
    for cell, kinds in found["now"][0].items():
        results[cell] = {}
        for kind in kinds:
            least = {when: min(one[cell][kind] for one in costs) for when, costs in found.items()}
            row = {f"{when}_us": round(cost, 1) for when, cost in least.items()}
            if "before" in least:
                row["before over now (goal 3)"] = round(least["before"] / least["now"], 2)
            results[cell][kind] = row
    return {"processor time per worker and round": results}


def _round_cost(source: Path) -> dict[str, dict[str, float]]:
    """Return the figures of ``round_cost.py`` for the sources in a folder."""
    command = [sys.executable, str(ROOT / "benchmarks" / "round_cost.py"), *(["--quick"] if REPETITIONS == 1 else [])]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "ignore"}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, dict[str, float]] = json.loads(child.stdout)
    return found


def compressed() -> dict[str, object]:
    """Compressed strategies with 64 workers on digits as they are, against the bare vmap call."""
    workers, workload, top = 64, workloads.digits(model="mlp"), tacit.TopK(fraction=0.01)
    strategies: dict[str, tuple[tacit.Strategy, int]] = {
        "EF21, Top 1 %": (tacit.CompressedGradient(compressor=top, feedback=tacit.EF21()), 96),
        "QSGD, 4 bit": (tacit.CompressedGradient(compressor=tacit.QSGD(bits=4), feedback=tacit.NoFeedback()), 24),
        "LocalSGD(8), Top 1 %": (tacit.LocalSGD(period=tacit.Every(PERIOD), compressor=top), 240),
    }
    measurements: dict[str, Callable[[], float]] = {
        name: lambda strategy=strategy, steps=steps: simulated(workers, steps, workload=workload, strategy=strategy)
        for name, (strategy, steps) in strategies.items()
    }
    rates = best({**measurements, "bare vmap": lambda: bare_vmap(workers, 20, workload)})
    return {
        "worker_steps_per_s": {name: round(rate) for name, rate in rates.items()},
        "over bare vmap": {name: round(rates[name] / rates["bare vmap"], 3) for name in strategies},
    }


def scale() -> dict[str, object]:
    """1,000 workers in a process of its own, and the cost of a worker-step as workers grow."""
    child = subprocess.run([sys.executable, __file__, "--thousand"], capture_output=True, text=True, check=True)
    steps = {64: 320, 256: 160, 1000: 80}
    rates = best({str(workers): lambda w=workers, s=s: simulated(w, s) for workers, s in steps.items()}, 3)
    return {
        "1,000 workers x 100 steps (goal 20 s, 1 GiB)": json.loads(child.stdout),
        "microseconds_per_worker_step": {workers: round(1e6 / rate, 1) for workers, rate in rates.items()},
        "1,000 over 64 workers (goal at most 1)": round(rates["64"] / rates["1000"], 2),
    }


def thousand() -> dict[str, object]:
    """Run inside a fresh process: as a user would, with the default evaluations."""
    begun = time.perf_counter()
    run = tacit.simulate(
        workloads.digits(), tacit.LocalSGD(period=tacit.Every(PERIOD)), cluster=tacit.Cluster(workers=1000), steps=100
    )
    return {
        "seconds": round(time.perf_counter() - begun, 2),
        "peak_memory_MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "loss": round(run.history[-1]["loss"], 4),
    }


def memory() -> dict[str, object]:
    """Peak memory of a process with 1,024 workers, by the number of steps."""
    found = {}
    for steps in (100, 400) if REPETITIONS == 1 else (100, 400, 1600):
        child = [sys.executable, __file__, "--memory", str(steps)]
        found[f"{steps} steps"] = json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout)
    few, *_, many = found.values()
    more_mib, more = many["peak_memory_MiB"] - few["peak_memory_MiB"], many["events"] - few["events"]
    return {"LocalSGD(8), digits": found, "bytes_per_event_of_the_trace": round(more_mib * 2**20 / more, 1)}


def memory_of(steps: int) -> dict[str, int]:
    """Run inside a fresh process."""
    cluster = tacit.Cluster(workers=1024)
    strategy = tacit.LocalSGD(period=tacit.Every(PERIOD))
    run = tacit.simulate(workloads.digits(), strategy, cluster=cluster, steps=steps, evaluate_every=steps)
    peak_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"peak_memory_MiB": peak_mib, "events": len(run.trace)}


def timing() -> dict[str, object]:
    """Events of the trace a second, no gradients at all."""

    def events(workers: int, strategy: tacit.Strategy) -> float:
        begun = time.process_time()
        run = tacit.simulate(
            workloads.quadratic(dimension=100),
            strategy,
            cluster=tacit.Cluster(workers=workers),
            steps=120_000 // workers,
            timing_only=True,
        )
        return len(run.trace) / (time.process_time() - begun)

    strategies = {"AllReduce": tacit.AllReduce(), "LocalSGD(8)": tacit.LocalSGD(period=tacit.Every(8))}
    rates = best(
        {f"{name}, {n} workers": lambda n=n, s=s: events(n, s) for n in (8, 64, 512) for name, s in strategies.items()},
        3,
    )
    return {"events_per_s (goal 150,000)": {name: round(rate) for name, rate in rates.items()}}


def rule() -> dict[str, object]:
    """vmap over loop, by workers and model: above 1 vmap is faster."""
    table: dict[str, object] = {}
    random = np.random.default_rng(0)
    pictures, labels = random.standard_normal((2048, 28, 28)).astype(np.float32), random.integers(0, 10, 2048)
    cases = {
        "quadratic": (workloads.quadratic(dimension=100), 40),
        "softmax": (workloads.digits(model="softmax"), 40),
        "mlp 64": (workloads.digits(), 40),
        "mlp 256": (workloads.digits(hidden=256), 24),
        "mlp 1024": (workloads.digits(hidden=1024), 16),
        "mlp 4096": (workloads.digits(hidden=4096), 8),
        "mlp 16384": (workloads.digits(hidden=16384), 8),
        "cnn on 8x8": (workloads.digits(model="cnn"), 8),
        "cnn on 28x28": (workloads.images(pictures, labels, model="cnn"), 8),
    }
    for name, (workload, steps) in cases.items():
        dimension = workload.open(1, Streams(0)).layout.dimension
        row = {}
        for workers in (2, 4, 8, 16, 64):
            rates = best(
                {
                    e: lambda e=e, n=workers, w=workload, s=steps: simulated(n, s, engine=e, workload=w)
                    for e in ("vmap", "loop")
                },
                3,
            )
            row[f"{workers} workers"] = round(rates["vmap"] / rates["loop"], 2)
        table[f"{name} ({dimension:,} parameters)"] = row
    return {"vmap over loop": table}


class AtOnce(ParameterServerStrategy):
    """A base class of strategies whose gradients are evaluated when they are sent, not when they are used."""

    def before_step(self, worker: Worker, state: object) -> None:
        worker.gradient.sum()  # before the update is skipped
        super().before_step(worker, state)


class KSyncAtOnce(AtOnce, tacit.KSync): ...


class KBatchSyncAtOnce(AtOnce, tacit.KBatchSync): ...


class KAsyncAtOnce(AtOnce, tacit.KAsync): ...


def served(strategy: ParameterServerStrategy, workers: int, updates: int, sizes: list[int]) -> float:
    """Return gradients a second that updates use; ``sizes``: takes the number of gradients of each engine call."""
    settle_call = Engine._settle_call

    def counted(self: Engine, ranks: list[int], *rest: object) -> None:
        sizes.append(len(ranks))
        settle_call(self, ranks, *rest)

    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.02))
    workload, sizes[:] = digits(workers), []
    Engine._settle_call = counted
    begun = time.process_time()
    try:
        tacit.simulate(workload, strategy, cluster=cluster, steps=updates, evaluate_every=updates)
    finally:
        Engine._settle_call = settle_call
    return strategy.k * updates / (time.process_time() - begun)


def servers() -> dict[str, object]:
    """K of 64 learners on the default network: gradients a second that updates use, and per call of the engine."""
    cases = {  # a strategy, the same with gradients evaluated when they are sent, and updates
        "KSync(k=32)": (tacit.KSync(k=32), KSyncAtOnce(k=32), 60),
        "KBatchSync(k=32)": (tacit.KBatchSync(k=32), KBatchSyncAtOnce(k=32), 60),
        "KAsync(k=4)": (tacit.KAsync(k=4), KAsyncAtOnce(k=4), 480),
    }
    results: dict[str, object] = {}
    for name, (strategy, at_once, updates) in cases.items():
        sizes: dict[str, list[int]] = {"tacit": [], "evaluated at once": []}
        rates = best(
            {
                "tacit": lambda s=strategy, u=updates, z=sizes["tacit"]: served(s, 64, u, z),
                "evaluated at once": lambda s=at_once, u=updates // 6, z=sizes["evaluated at once"]: served(
                    s, 64, u, z
                ),
                "bare vmap": lambda: bare_vmap(64, 20),
            },
            3,
        )
        goal = " (goal 10)" if name.startswith("KSync") else ""
        results[name] = {
            "gradients_used_per_s": {way: round(rate) for way, rate in rates.items()},
            "gradients_per_call": {way: round(sum(own) / len(own), 1) for way, own in sizes.items()},
            f"over gradients evaluated at once{goal}": round(rates["tacit"] / rates["evaluated at once"], 1),
            "over bare vmap": round(rates["tacit"] / rates["bare vmap"], 2),
        }
    return results


GOALS = {  # times the rate before issue 16, of commit b2c65f7
    "EF21, Top 1 %, 64 workers": 5,
    "SwarmSGD(4), 256 nodes": 2,
    "SwarmSGD(4), 8-bit lattice, 256 nodes": None,
    "KSync(32), 64 learners": 10,
}


def strategies(source: Path | None = None, turns: int = 3) -> dict[str, object]:
    """Compressed, gossip and server strategies, each rate in a process of its own; with another checkout in turns."""
    script = Path(__file__).with_name("simulator_cases.py")
    checkouts = {"now": script.parents[1]} if source is None else {"before": source, "now": script.parents[1]}
    measured: dict[str, object] = {}
    for name, goal in GOALS.items():
        found: dict[str, list[dict[str, float]]] = {which: [] for which in checkouts}
        for _ in range(turns):
            for which, folder in checkouts.items():
                environment = {**os.environ, "PYTHONPATH": str(folder.resolve() / "src")}
                child = subprocess.run(
                    [sys.executable, str(script), name], env=environment, capture_output=True, text=True, check=True
                )
                found[which].append(json.loads(child.stdout)[name])
        own: dict[str, object] = {}
        for clock in ("worker_steps_per_s", "worker_steps_per_processor_s"):
            rates = {which: [one[clock] for one in several] for which, several in found.items()}
            own[clock] = {which: [round(rate) for rate in several] for which, several in rates.items()}
            if source is not None:
                ratio = statistics.median(rates["now"]) / statistics.median(rates["before"])
                own[f"now over before, {clock}" + (f" (goal {goal})" if goal else "")] = round(ratio, 2)
        measured[name] = own
    return measured


def main() -> None:
    parts = {
        f.__name__: f for f in (speed, swarm, rounds, compressed, scale, memory, timing, rule, servers, strategies)
    }
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments.add_argument("--only", default=",".join(parts), help="which parts, by comma")
    arguments.add_argument("--source", type=Path, help="a checkout whose sources the part strategies runs in turns")
    arguments.add_argument("--quick", action="store_true", help="one repetition of each, to see that it runs")
    arguments.add_argument("--thousand", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.memory:
        print(json.dumps(memory_of(chosen.memory)))
        return
    if chosen.thousand:
        print(json.dumps(thousand()))
        return
    if chosen.quick:
        global REPETITIONS
        REPETITIONS = 1
    torch.set_num_threads(1)
    results: dict[str, object] = {
        "command": "make bench-simulator",
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "seed": 0,
    }
    if chosen.out is not None and chosen.out.exists():
        results = json.loads(chosen.out.read_text()) | results
    loads: dict[str, float] = results.setdefault("load average after each part", {})  # type: ignore[assignment]
    for name in chosen.only.split(","):
        print(f"{name}: {parts[name].__doc__}", flush=True)
        results[name] = strategies(chosen.source) if name == "strategies" else parts[name]()
        loads[name] = round(os.getloadavg()[0], 1)
        print(json.dumps(results[name], indent=2), flush=True)
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
