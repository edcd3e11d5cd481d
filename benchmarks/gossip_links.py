"""SwarmSGD on shaped links: step times from 2 to 8 peers beside AllReduce and the simulator, and the bytes of an
exchange. `make bench-gossip`, or

    python -m benchmarks.gossip_links [--quick] [--only 1] [--out benchmarks/results/gossip_links.json]

Every peer is a process in a network namespace of its own, whose interface is shaped in both directions; needs root and
iproute2.

1  a step is a sleep and the update of a model of 1M numbers, so that two cores can carry eight peers; all begin together and so meet at the same
   moments. Given is the mean step over whole periods after the first (AllReduce: after three steps), the median over
   ranks and turns. Beside it the simulator's, for as many workers with steps as long as the sleep on links of the same
   rate and 0.1 ms of latency: nothing is fitted.
2  two peers and 11M numbers: what the kernel counted at their interfaces during some exchanges, less the headers of Ethernet, IP and TCP;
   attaching, the first two meetings and closing are outside. A count is repeated where TCP had to send much again or an
   exchange crosses its edges.

Messages are not encrypted: between machines they would be by default, but not eight peers' by two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import tacit
from benchmarks.papers.common import arguments, measure, table, target
from benchmarks.peers import Crew, Failed
from tacit import workloads
from tacit.strategies import Strategy
from tests.runtime import namespaces

FLAT: Final = 1.05
"""How much longer a step may be at 8 peers than at 2 and still be called as long."""
LATTICE: Final = tacit.Lattice(bits=8)
QUIET, ALL_REDUCE, SWARM, EIGHT_BITS = "no communication", "AllReduce", "SwarmSGD", "SwarmSGD, 8 bits"
BLOCKING, TWO_STAGES = "SwarmSGD, blocking", "SwarmSGD, 8 bits, two stages"
SHARES: Final = {EIGHT_BITS: 0.25, TWO_STAGES: 0.5}
"""Of the bytes of an exchange in full precision: 8 bits for 32, or twice 8."""
TRIES, LOST = 4, 1e-3
"""How often bytes are counted at most, and what share of them TCP may have sent again in a count that stands."""
PATIENCE_S: Final = 180.0
"""For one measurement; the first one's peers still have to start."""

Events = Iterable[Sequence[Any]]
"""Messages and notes of one rank as ``gossip_loops`` tells them."""


@dataclass(frozen=True)
class Plan:
    """What is run."""

    rates_bits_per_s: Mapping[str, float]
    sizes: tuple[int, ...]
    parameters: int
    compute_s: float
    local_steps: int  # an exchange takes two models' time on the wire, and a peer may be asked by several at once
    periods: int  # measured, after one that is not
    all_reduce_steps: int  # measured, after three that are not
    turns: int
    large_parameters: int
    large_compute_s: float
    exchanges: int
    seed: int = 0

    def strategies(self) -> dict[str, Strategy[Any] | None]:
        steps = self.local_steps
        return {
            QUIET: None,
            ALL_REDUCE: tacit.AllReduce(),
            SWARM: tacit.SwarmSGD(local_steps=steps),
            EIGHT_BITS: tacit.SwarmSGD(local_steps=steps, compressor=LATTICE),
            BLOCKING: tacit.SwarmSGD(local_steps=steps, blocking=True),
        }

    def steps(self, method: str) -> tuple[int, int]:
        """Return a method's steps before and in the measurement."""
        if method == ALL_REDUCE:
            return 3, self.all_reduce_steps
        return self.local_steps, self.local_steps * (1 if method == QUIET else self.periods)


RATES = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
FULL = Plan(RATES, (2, 4, 8), 1_000_000, 0.05, 32, 3, 12, 2, 11_000_000, 0.25, 4)
QUICK = Plan({"1 Gbit/s": 1e9}, (2, 3), 10_000, 0.005, 8, 2, 4, 1, 100_000, 0.02, 2)


def pace(chosen: argparse.Namespace) -> dict[str, Any]:
    """The step of SwarmSGD is as long at 8 peers as at 2, AllReduce's is not, and the simulator says so beforehand."""
    plan = QUICK if chosen.quick else FULL
    networks: dict[str, dict[str, Any]] = {}
    for network, rate in plan.rates_bits_per_s.items():
        for size in plan.sizes:
            begun_s, load = time.perf_counter(), os.getloadavg()[0]
            methods = _measured_steps(plan, rate, size)
            for name, strategy in plan.strategies().items():
                if strategy is not None and "failed" not in methods[name]:
                    methods[name]["predicted"] = predicted(plan, name, strategy, rate, size)
            networks.setdefault(network, {})[str(size)] = {"methods": methods, "load_before": load}
            took_s = time.perf_counter() - begun_s
            print(f"  {network}, {size} peers, {took_s:.0f} s, load {load:.1f} before", flush=True)
            for name, found in methods.items():
                print(f"    {name}: {found.get('failed') or f'{_step(found)} ms'}", flush=True)
    return {
        "seeds": [plan.seed + turn for turn in range(plan.turns)],
        "networks": networks,
        "targets": _pace_claims(plan, networks),
        "table": _pace_table(plan, networks),
        "setting": f"{plan.parameters:,} parameters, {1e3 * plan.compute_s:g} ms of sleep a step, {plan.local_steps} local steps between meetings, "
        f"{plan.periods} periods measured after one (AllReduce: {plan.all_reduce_steps} steps after 3), {plan.turns} turns, {os.cpu_count()} cores, "
        "one thread per process.",
    }


def _measured_steps(plan: Plan, rate: float, size: int) -> dict[str, dict[str, Any]]:
    """Return every method's steps in one place, methods taking turns in the same processes."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.strategies()}
    failures: dict[str, str] = {}
    try:
        with crew_at(size, rate) as crew:
            for turn in range(plan.turns):
                for name, strategy in plan.strategies().items():
                    warm_up, steps = plan.steps(name)
                    answers[name] += crew.ask(
                        PATIENCE_S,
                        do="pace",
                        strategy=str(strategy or ""),
                        parameters=plan.parameters,
                        compute_s=plan.compute_s,
                        warm_up=warm_up,
                        steps=steps,
                        seed=plan.seed + turn,
                    )
    except Failed as failed:
        failures[name] = str(failed)
    for name, found in answers.items():
        if not found:
            failures.setdefault(name, "one before it failed")
    return {
        name: {"failed": failures[name]} if name in failures else _summary(found, plan.steps(name)[1])
        for name, found in answers.items()
    }


def _summary(answers: Sequence[Mapping[str, Any]], steps: int) -> dict[str, Any]:
    times_ms = [1e3 * answer["step_s"] for answer in answers]
    return {
        "step_ms": statistics.median(times_ms),
        "least_ms": min(times_ms),
        "most_ms": max(times_ms),
        "cpu_ms": 1e3 * statistics.median(answer["cpu_s"] for answer in answers),
        "sent_bytes_per_step": statistics.fmean(answer["sent_bytes"] for answer in answers) / steps,
        "sent_again_bytes_per_step": statistics.fmean(answer["sent_again_bytes"] for answer in answers) / steps,
        **of_exchanges([answer["events"] for answer in answers]),
    }


def of_exchanges(ranks: Iterable[Events]) -> dict[str, Any]:
    """Return what traces tell of exchanges without waiting: how many, how soon they were answered, and what went
    differently; {} if none were.
    """
    counts: Counter[str] = Counter()
    waits_s: list[float] = []
    for events in ranks:
        asked_s: float | None = None
        for kind, label, start_s, time_s, _ in events:
            counts[f"{kind} {label}"] += 1
            if (kind, label) == ("send", "swask") and asked_s is None:
                asked_s = start_s
            elif (kind, label) == ("receive", "swans") and asked_s is not None:
                waits_s.append(time_s - asked_s)
                asked_s = None
    if not waits_s:
        return {}
    return {
        "answered": len(waits_s),
        "answered_after_ms": 1e3 * statistics.median(waits_s),
        "skipped": counts["note skipped"],
        "said_again": counts["note overflow"],
    }


def predicted(plan: Plan, name: str, strategy: Strategy[Any], rate: float, size: int) -> dict[str, Any]:
    """Return the simulator's steps for the same cluster, from the sleep and the link's rate alone."""
    warm_up, steps = plan.steps(name)
    numbers, nothing = nn.Embedding(plan.parameters, 1), torch.zeros(size, dtype=torch.int64)
    workload = workloads.custom(numbers, nn.functional.mse_loss, data=(nothing, torch.zeros(size, 1)))
    compute = tacit.Constant(mean_s=plan.compute_s)
    cluster = tacit.Cluster(workers=size, compute=compute, latency_s=1e-4, bandwidth_bytes_per_s=rate / 8)
    run = tacit.simulate(
        workload,
        strategy,
        cluster=cluster,
        steps=warm_up + steps,
        seed=plan.seed,
        timing_only=True,
        evaluate_every=warm_up + steps,
    )
    ends_s: list[list[float]] = [[] for _ in range(size)]
    events: list[list[Sequence[Any]]] = [[] for _ in range(size)]
    for event in run.trace:
        if event.kind == "compute":
            ends_s[event.rank].append(event.time_s)
        elif event.label:
            events[event.rank].append((event.kind, event.label, event.start_s, event.time_s, event.size_bytes))
    times_s = [(own[-1] - own[warm_up - 1]) / steps for own in ends_s]
    return {"step_ms": 1e3 * statistics.median(times_s), **of_exchanges(events)}


def _growth(places: Mapping[str, Any], sizes: Sequence[int], method: str, *, simulated: bool = False) -> float | None:
    """Return a method's step at the most peers over that at the least; None where either is not there."""
    try:
        found = [places[str(size)]["methods"][method] for size in (sizes[0], sizes[-1])]
        least, most = (one["predicted"]["step_ms"] if simulated else one["step_ms"] for one in found)
    except KeyError:
        return None
    return float(most / least)


def _pace_claims(plan: Plan, networks: Mapping[str, Any]) -> list[dict[str, Any]]:
    claims, ends = [], f"{plan.sizes[-1]} peers over {plan.sizes[0]}"
    for network, places in networks.items():
        for method in (SWARM, EIGHT_BITS, BLOCKING, ALL_REDUCE):
            growth, foreseen = (_growth(places, plan.sizes, method, simulated=simulated) for simulated in (False, True))
            if growth is None or foreseen is None:
                continue
            said = f"{method}, {network}: {growth:.3f}; the simulator said {foreseen:.3f}"
            if method == ALL_REDUCE:
                claims.append(target("grows", f"a step at {ends}: more than {FLAT}", said, growth > FLAT))
            else:
                is_flat = None if method == BLOCKING else growth <= FLAT
                claims.append(target("flat", f"a step at {ends}: at most {FLAT}", said, is_flat))
        off = [
            (found["step_ms"] / found["predicted"]["step_ms"], f"{method} at {size} peers")
            for size, place in places.items()
            for method, found in place["methods"].items()
            if "predicted" in found
        ]
        if off:
            (least, where), (most, elsewhere) = min(off), max(off)
            said = f"{network}: {least:.3f} ({where}) to {most:.3f} ({elsewhere})"
            claims.append(target("predicted", "steps, measured over simulated", said, None))
        for size, place in places.items():
            for method, found in place["methods"].items():
                if "failed" in found:
                    said = f"{method}, {network}, {size} peers: {found['failed']}"
                    claims.append(target("runs", "everything runs to its end", said, False))
    return claims


def _pace_table(plan: Plan, networks: Mapping[str, Any]) -> list[str]:
    sizes, rows, exchanges = [str(size) for size in plan.sizes], [], []
    for network, places in networks.items():
        for method in plan.strategies():
            found = [places.get(size, {}).get("methods", {}).get(method, {}) for size in sizes]
            grown = [_growth(places, plan.sizes, method, simulated=simulated) for simulated in (False, True)]
            rows.append((network, method, *map(_step, found), *("" if one is None else f"{one:.3f}" for one in grown)))
            for size, one in zip(sizes, found, strict=True):
                if "answered" in one:
                    after, skipped = (
                        f"{one[key]:.0f} ({one['predicted'].get(key, 0):.0f})"
                        for key in ("answered_after_ms", "skipped")
                    )
                    exchanges.append((network, method, size, one["answered"], after, skipped, one["said_again"]))
    ends = f"{sizes[-1]} : {sizes[0]}"
    return [
        "A step in milliseconds, measured (predicted):",
        "",
        *table(("network", "method", *(f"{size} peers" for size in sizes), ends, f"{ends}, predicted"), rows),
        "",
        f"Exchanges without waiting, of all ranks in {plan.turns} turns (one is simulated); meetings are skipped while an answer is still expected:",
        "",
        *table(
            ("network", "method", "peers", "answered", "after, ms", "skipped", "said again with more bits"), exchanges
        ),
    ]


def _step(found: Mapping[str, Any]) -> str:
    if "step_ms" not in found:
        return "failed" if "failed" in found else ""
    return f"{found['step_ms']:.1f}" + (f" ({found['predicted']['step_ms']:.1f})" if "predicted" in found else "")


def volume(chosen: argparse.Namespace) -> dict[str, Any]:
    """An exchange at 8 bits moves a quarter of the bytes, half with the two-stage decode, counted at the interface."""
    plan = QUICK if chosen.quick else FULL
    forms = {
        SWARM: tacit.SwarmSGD(local_steps=8),
        EIGHT_BITS: tacit.SwarmSGD(local_steps=8, compressor=LATTICE),
        TWO_STAGES: tacit.SwarmSGD(local_steps=8, compressor=LATTICE, two_stage=True),
    }
    counted: dict[str, dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    try:
        with crew_at(2, 1e9) as crew:
            for name, strategy in forms.items():
                counted[name] = _least_disturbed(plan, crew, strategy)
                print(f"    {name}: {counted[name]['interface_bytes']:,.0f} bytes an exchange", flush=True)
    except Failed as failed:
        failures.append(target("runs", "everything runs to its end", f"{name}: {failed}", False))
    keys = ("interface_bytes", "payload_bytes", "trace_bytes")
    rows = [
        (
            name,
            *(f"{found[key]:,.0f}" for key in keys),
            f"{_share(counted, name):.4f}",
            f"{found['said_again']} ({found['said_again_in_warm_up']})",
        )
        for name, found in counted.items()
    ]
    headings = ("form", "interface", "less headers", "in the trace", "of full precision", "said again (in warm-up)")
    return {
        "seeds": [plan.seed],
        "forms": counted,
        "targets": [*_volume_claims(counted), *failures],
        "table": table(headings, rows),
        "setting": f"{plan.large_parameters:,} parameters, two peers at 1 Gbit/s, {2 * plan.exchanges} exchanges after 4 as warm-up; bytes of one, "
        "both directions together.",
    }


def _least_disturbed(plan: Plan, crew: Crew, strategy: Strategy[Any]) -> dict[str, Any]:
    """Count until no exchange crosses the edges of a count and TCP sent next to nothing again; else return the count
    nearest to that.
    """
    found: list[dict[str, Any]] = []
    exchanges = 2 * plan.exchanges
    for turn in range(TRIES):
        ranks = crew.ask(
            PATIENCE_S,
            do="volume",
            strategy=str(strategy),
            parameters=plan.large_parameters,
            compute_s=plan.large_compute_s,
            exchanges=plan.exchanges,
            seed=plan.seed + turn,
        )
        sent = [(label, size) for rank in ranks for kind, label, _, _, size in rank["events"] if kind == "send"]
        words, said_again = Counter(label for label, _ in sent), sum(rank["said_again"] for rank in ranks)
        is_whole = words["swdone"] == exchanges and words["swask"] + words["swans"] == 2 * exchanges + said_again
        sums = {key: sum(rank[key] for rank in ranks) for key in ("sent_bytes", "payload_bytes", "sent_again_bytes")}
        found.append(
            {
                "interface_bytes": sums["sent_bytes"] / exchanges,
                "payload_bytes": sums["payload_bytes"] / exchanges,
                "trace_bytes": sum(size for _, size in sent) / exchanges,
                "sent_again_bytes": sums["sent_again_bytes"] / exchanges,
                "exchanges": exchanges,
                "is_whole": is_whole,
                "count": turn + 1,
                "said_again": said_again,
                "said_again_in_warm_up": sum(rank["said_again_in_warm_up"] for rank in ranks),
            }
        )
        if is_whole and sums["sent_again_bytes"] <= LOST * sums["payload_bytes"]:
            break
    return min(found, key=lambda count: (not count["is_whole"], count["sent_again_bytes"]))


def _share(counted: Mapping[str, Any], name: str) -> float:
    return float(counted[name]["payload_bytes"] / counted[SWARM]["payload_bytes"])


def _volume_claims(counted: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    claims = []
    for name, found in counted.items():
        crossed = "" if found["is_whole"] else "; exchanges cross the edges of the count"
        if name in SHARES:
            share = _share(counted, name)
            is_near = found["is_whole"] and abs(share / SHARES[name] - 1) <= 0.02
            said = f"{name}: {share:.4f}, {found['said_again']} times said again with more bits{crossed}"
            claims.append(target("bytes", f"{SHARES[name]} of full precision's, within 2 %", said, is_near))
        over = found["payload_bytes"] / found["trace_bytes"]
        said = f"{name}: {over:.5f} of what the trace says of {found['exchanges']} exchanges{crossed}"
        claims.append(target("told", "the kernel's bytes are the trace's, within 0.5 %", said, abs(over - 1) <= 0.005))
    return claims


@contextlib.contextmanager
def crew_at(size: int, rate_bits_per_s: float) -> Iterator[Crew]:
    """Start a peer on each of ``size`` hosts; end them and take the hosts down, whatever happens."""
    with tempfile.TemporaryDirectory() as scratch, namespaces.hosts(size, rate_bits_per_s=rate_bits_per_s) as hosts:
        crew = Crew("gossip", hosts, Path(scratch), 29500)
        try:
            yield crew
        except Failed:
            print(*(Path(scratch) / "gossip.log").read_text().splitlines()[-20:], sep="\n", file=sys.stderr)
            raise
        finally:
            crew.close()


PARTS = {1: pace, 2: volume}


def main() -> None:
    chosen = arguments(__doc__ or "", "gossip_links", PARTS)
    if (reason := namespaces.refused()) is not None:
        print(f"no shaped links here: {reason}", file=sys.stderr)
        raise SystemExit(2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    measure("SwarmSGD on shaped links", "gossip_links", PARTS, chosen, package="benchmarks")


if __name__ == "__main__":
    main()
