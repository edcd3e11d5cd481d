"""Runs made up from formulas, with the shape that worlds give theirs: curves, rounds, waiting, a period that grows."""

from __future__ import annotations

import math

import numpy as np
import torch

from tacit.record.run import Row, Run
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, NOTE, RECEIVE, SEND, WAIT, Trace
from tacit.report.comparison import Comparison, Entry

MODEL_BYTES = 200_000


def row(time_s: float, loss: float | None, *, step: int = 0, rounds: int = 0, bytes_sent: int = 0) -> Row:
    """Return a history row in which nothing else was measured."""
    measured = {"gradient_norm_squared": None, "metric": None, "spread": None, "period": None}
    return {"time_s": time_s, "step": step, "round": rounds, "bytes_sent": bytes_sent, "loss": loss, **measured}


def tiny_run(points: list[tuple[float, float | None]], *, seed: int = 0, bytes_per_row: int = 100) -> Run:
    """Return a run of (time, loss) rows, one step, one round and ``bytes_per_row`` each; two workers never wait."""
    history = [row(t, y, step=i, rounds=i, bytes_sent=i * bytes_per_row) for i, (t, y) in enumerate(points)]
    trace = Trace()
    for i in range(1, len(points)):
        for rank in range(2):
            trace.record(COMPUTE, rank, points[i - 1][0], points[i][0], step=i)
            trace.record(EXCHANGE, rank, points[i][0], points[i][0], step=i, round=i, size_bytes=bytes_per_row // 2)
    return Run("tiny", "Tiny()", 2, len(points) - 1, seed, history, torch.zeros(1), trace)


def local_run(
    *, period: float = 1, growth: float = 1.0, seed: int = 0, workers: int = 16, steps: int = 300, floor: float = 0.03
) -> Run:
    """Return a run like LocalSGD's: ``period`` steps (times ``growth`` every round), wait for all, exchange."""
    random = np.random.default_rng([seed, int(period * 10)])
    trace, history, clock = Trace(), [], np.zeros(workers)
    sent, rounds, since, current, exchange_s = 0, 0, 0, float(period), 0.012
    each = MODEL_BYTES * 2 * (workers - 1) // workers
    for step in range(steps + 1):
        loss = (floor + 2.27 * math.exp(-step / 40) + 0.3 / (1 + step / 8)) * math.exp(0.02 * random.standard_normal())
        spread = 1e-3 * since * (1 + 20 * math.exp(-step / 60))
        measured = {"spread": spread, "period": round(current), "gradient_norm_squared": loss**2}
        here = row(float(clock.mean()), loss, step=step, rounds=rounds, bytes_sent=sent)
        history.append({**here, **measured, "metric": 1 - 0.4 * loss / (1 + loss)})
        if step == steps:
            break
        took = random.exponential(0.02, workers) + 0.005
        for rank in range(workers):
            trace.record(COMPUTE, rank, clock[rank], clock[rank] + took[rank], step=step + 1)
        clock, since = clock + took, since + 1
        if since < round(current) and step + 1 < steps:
            continue
        together, rounds, since = float(clock.max()), rounds + 1, 0
        for rank in range(workers):
            trace.record(WAIT, rank, clock[rank], together, step=step + 1, round=rounds, label="all_reduce")
            stop = together + exchange_s
            trace.record(EXCHANGE, rank, together, stop, step=step + 1, round=rounds, size_bytes=each)
        trace.record(NOTE, 0, together, together, step=step + 1, round=rounds, value=round(current), label="period")
        clock, sent, current = np.full(workers, together + exchange_s), sent + each * workers, current * growth
    config = {"workload": "digits(model=mlp)", "steps": steps, "seed": seed}
    record = {"engine": "vmap", "threads": 2, "versions": {"tacit": "0.1.0", "torch": "2.13.0"}}
    return Run(
        "digits",
        "LocalSGD",
        workers,
        steps,
        seed,
        history,
        torch.zeros(3),
        trace,
        "accuracy",
        config=config,
        record=record,
    )


def server_run(*, k: int = 8, seed: int = 0, workers: int = 16, updates: int = 300) -> Run:
    """Return a run like KSync's: the server takes the first ``k`` gradients and cancels the others."""
    random = np.random.default_rng([seed, k, 99])
    trace, history, now, sent = Trace(), [], 0.0, 0
    for update in range(updates + 1):
        loss = (0.05 + 2.5 * math.exp(-update / 45)) * math.exp(0.03 * random.standard_normal())
        history.append(
            {**row(now, loss, step=update, rounds=update, bytes_sent=sent), "metric": 1 - 0.4 * loss / (1 + loss)}
        )
        if update == updates:
            break
        took = random.exponential(0.02, workers) + 0.005
        due = float(np.sort(took)[k - 1])
        for rank in range(workers):
            done = took[rank] <= due
            trace.record(COMPUTE if done else CANCELLED, rank, now, now + min(took[rank], due), step=update + 1)
            if done:
                trace.record(SEND, rank, now + took[rank], now + took[rank], peer=-1, size_bytes=MODEL_BYTES)
                trace.record(WAIT, rank, now + took[rank], now + due + 0.006, step=update + 1, label="model")
                sent += MODEL_BYTES
            trace.record(RECEIVE, rank, now + due + 0.006, now + due + 0.006, peer=-1)
        trace.record(WAIT, -1, now, now + due, label="gradients")
        trace.record(SEND, -1, now + due, now + due + 0.006, peer=0, size_bytes=MODEL_BYTES * workers)
        now, sent = now + due + 0.006, sent + MODEL_BYTES * workers
    return Run("digits", "KSync", workers, updates, seed, history, torch.zeros(3), trace, "accuracy")


def four_strategies(*, seeds: int = 3, workers: int = 16, steps: int = 300) -> Comparison:
    """Return AllReduce, two LocalSGDs and KSync on one workload and one cluster."""
    shape = {"workers": workers, "steps": steps}
    entries = [
        Entry("AllReduce()", [local_run(seed=s, **shape) for s in range(seeds)], note="lr=0.1"),
        Entry("LocalSGD(period=Every(8))", [local_run(period=8, floor=0.035, seed=s, **shape) for s in range(seeds)]),
        Entry(
            "LocalSGD(period=VariancePeriod(initial=4))",
            [local_run(period=4, growth=1.06, floor=0.032, seed=s, **shape) for s in range(seeds)],
            note="lr=0.2",
        ),
        Entry("KSync(k=8)", [server_run(seed=s, workers=workers, updates=steps) for s in range(seeds)]),
    ]
    cluster = f"Cluster(workers={workers}, compute=ShiftedExponential(shift_s=0.005, tail_mean_s=0.02))"
    command = 'tacit compare --workload "digits(model=mlp)" --workers 16 --steps 300 --seeds 3'
    return Comparison(entries, "digits(model=mlp, batch_size=32)", cluster, "AllReduce()", reproduce=command)
