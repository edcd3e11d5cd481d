"""Hierarchical training on two sites: time per step and bytes across beside flat strategies and the simulator.
`make bench-hierarchy`, or

    python -m benchmarks.hierarchy [--quick] [--only 1] [--out benchmarks/results/hierarchy.json]

Two sites of two workers each: 1 Gbit/s inside a site, one link of 50 Mbit/s between the sites. Every worker is a process
in a network namespace of its own; needs root and iproute2. A step sleeps for 20 ms and updates an MLP of 153,610
numbers, so that two cores carry four workers.

1  time per step over whole periods after the first, mean over ranks, median over turns. Beside it the simulator's, with
   steps as long as the sleep, gloo's collectives and headers of 4.7 %: nothing is fitted.
2  bytes that the kernel sends on the link between the sites, both directions and headers included, per step: of a run
   of nine periods less one of one period. Beside them the bytes of the leaders' exchanges in the trace.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.fidelity.workloads import workload
from benchmarks.papers.common import arguments, measure, table, target
from benchmarks.peers import Crew
from tacit.record.trace import COMPUTE, EXCHANGE
from tacit.strategies import Strategy
from tests.runtime import namespaces

INSIDE_BITS_PER_S, ACROSS_BITS_PER_S = 1e9, 50e6
SLEEP_S: Final = 0.02
HEADERS: Final = 0.047
MODEL: Final = "mlp"
GROUPS: Final = 2
LEADERS: Final = (0, 2)
PATIENCE_S: Final = 120.0
TURNS: Final = 3

EIGHT: Final = tacit.LocalSGD(period=tacit.Every(8))
ALL_REDUCE, LOCAL, HIERARCHICAL = "AllReduce", "LocalSGD(8)", "Hierarchical(AllReduce, 8)"
BOTH_LOCAL, EIGHT_BITS = "Hierarchical(LocalSGD(2), 8)", "Hierarchical(AllReduce, 8, 8 bits)"
METHODS: Final[dict[str, Strategy[Any]]] = {
    ALL_REDUCE: tacit.AllReduce(),
    LOCAL: EIGHT,
    "LocalSGD(32)": tacit.LocalSGD(period=tacit.Every(32)),
    HIERARCHICAL: tacit.Hierarchical(outer=EIGHT, groups=GROUPS),
    "Hierarchical(AllReduce, 32)": tacit.Hierarchical(outer=tacit.LocalSGD(period=tacit.Every(32)), groups=GROUPS),
    BOTH_LOCAL: tacit.Hierarchical(inner=tacit.LocalSGD(period=tacit.Every(2)), outer=EIGHT, groups=GROUPS),
    EIGHT_BITS: tacit.Hierarchical(
        outer=tacit.LocalSGD(period=tacit.Every(8), compressor=tacit.QSGD(bits=8)), groups=GROUPS
    ),
}
CLUSTER: Final = tacit.Cluster(
    workers=4,
    hosts=2,
    compute=tacit.Constant(mean_s=SLEEP_S),
    bandwidth_bytes_per_s=ACROSS_BITS_PER_S / 8,
    host_bandwidth_bytes_per_s=INSIDE_BITS_PER_S / 8 / (1 + HEADERS),
    host_latency_s=1e-4,
    header_overhead=HEADERS,
    collectives="gloo",
)


def period_of(strategy: Strategy[Any]) -> int:
    """Return the steps between two rounds across the sites."""
    local = strategy.outer if isinstance(strategy, tacit.Hierarchical) else strategy
    period = getattr(local, "period", None)
    return period.n if isinstance(period, tacit.Every) else 1


def step_s(run: tacit.Run, period: int) -> float:
    """Return the mean time of a step over whole periods after the first."""
    ends_s: dict[int, list[float]] = {}
    for event in run.trace:
        if event.kind == COMPUTE:
            ends_s.setdefault(event.rank, []).append(event.time_s)
    steps = (len(ends_s[0]) - 1 - period) // period * period
    return statistics.fmean((sorted(own)[period + steps] - sorted(own)[period]) / steps for own in ends_s.values())


def across_bytes(run: tacit.Run) -> int:
    """Return the bytes of the leaders' exchanges."""
    labels = tuple(f"{kind} of {LEADERS}" for kind in ("all-reduce", "all-gather", "all-to-all"))
    return sum(event.size_bytes for event in run.trace if event.kind == EXCHANGE and event.label in labels)


class Sites:
    """Two sites of processes that train on request."""

    def __init__(self, crew: Crew, uplink: namespaces.Uplink, scratch: Path) -> None:
        self._crew, self._uplink, self._folder = crew, uplink, scratch / "run"

    def train(self, strategy: Strategy[Any], steps: int) -> tuple[tacit.Run, int]:
        """Return a run of so many steps, and what was sent between the sites from its start to its end."""
        before = self._uplink.sent_bytes()
        computed = {"model": MODEL, "sleeps_s": [SLEEP_S] * 4, "sigma": 0.0, "draws": "", "seed": 0}
        asked = {"strategy": str(strategy), "steps": steps, "folder": str(self._folder), **computed}
        self._crew.ask(PATIENCE_S, do="train", **asked)
        return tacit.Run.load(self._folder), self._uplink.sent_bytes() - before


@contextlib.contextmanager
def sites() -> Iterator[Sites]:
    """Set up both sites with a process on each host."""
    rates = {"inside_bits_per_s": INSIDE_BITS_PER_S, "across_bits_per_s": ACROSS_BITS_PER_S}
    with tempfile.TemporaryDirectory() as folder, namespaces.two_sites(2, **rates, burst_kb=64) as (hosts, uplink):
        crew = Crew("fidelity", hosts, Path(folder), 29500)
        try:
            crew.ask(PATIENCE_S, do="prepare", pinned=False)
            both = Sites(crew, uplink, Path(folder))
            both.train(tacit.AllReduce(), 2)
            yield both
        finally:
            crew.close()


def part_1(chosen: argparse.Namespace) -> dict[str, Any]:
    """Time per step, measured and simulated."""
    measured: dict[str, list[float]] = {name: [] for name in METHODS}
    periods = 2 if chosen.quick else 5
    with sites() as both:
        for _ in range(1 if chosen.quick else TURNS):
            for name, strategy in METHODS.items():
                period = period_of(strategy)
                steps = max(periods * period, 16) + period + 1
                measured[name].append(step_s(both.train(strategy, steps)[0], period) * 1e3)
    rows: list[dict[str, Any]] = []
    for name, strategy in METHODS.items():
        period = period_of(strategy)
        run = tacit.simulate(workload(MODEL), strategy, cluster=CLUSTER, steps=17 + 2 * period, timing_only=True)
        rows.append(
            {
                "method": name,
                "measured_ms": statistics.median(measured[name]),
                "least_ms": min(measured[name]),
                "most_ms": max(measured[name]),
                "simulated_ms": step_s(run, period) * 1e3,
            }
        )
    found = {row["method"]: row for row in rows}
    ms = {name: row["measured_ms"] for name, row in found.items()}
    off = {name: row["measured_ms"] / row["simulated_ms"] - 1 for name, row in found.items()}
    worst = max(off, key=lambda name: abs(off[name]))
    shares = (
        f"{ms[HIERARCHICAL] / ms[ALL_REDUCE]:.2f} of AllReduce's, {ms[HIERARCHICAL] / ms[LOCAL]:.2f} of LocalSGD(8)'s"
    )
    return {
        "setting": f"milliseconds per step; {TURNS} interleaved turns, median and range",
        "targets": [
            target(
                "1a",
                "a step of Hierarchical takes at most a third of AllReduce's",
                shares,
                ms[HIERARCHICAL] * 3 <= ms[ALL_REDUCE],
            ),
            target(
                "1b",
                "the simulator is within 15 % of every method",
                f"at worst {off[worst]:+.1%} ({worst})",
                abs(off[worst]) <= 0.15,
            ),
        ],
        "rows": rows,
        "table": table(
            ("method", "measured", "from", "to", "simulated", "measured / simulated"),
            [[*row.values(), row["measured_ms"] / row["simulated_ms"]] for row in rows],
        ),
    }


def part_2(chosen: argparse.Namespace) -> dict[str, Any]:
    """Bytes between the sites."""
    rows: list[dict[str, Any]] = []
    with sites() as both:
        for name, strategy in METHODS.items():
            period = period_of(strategy)
            more = (2 if chosen.quick else 8) * period
            (short, little), (long, much) = (both.train(strategy, steps) for steps in (period + 1, more + period + 1))
            by_trace = (across_bytes(long) - across_bytes(short)) / more
            rows.append({"method": name, "counted": (much - little) / more, "leaders": by_trace})
    found = {row["method"]: row["counted"] for row in rows}
    headers = {row["method"]: row["counted"] / row["leaders"] - 1 for row in rows if row["leaders"]}
    most = max(headers, key=lambda name: abs(headers[name]))
    share = found[HIERARCHICAL] / found[LOCAL]
    return {
        "setting": "bytes per step on the link between the sites, both directions, headers included",
        "targets": [
            target(
                "2a",
                "Hierarchical sends at most 0.7 of LocalSGD's bytes across at equal periods",
                f"{share:.2f}",
                share <= 0.7,
            ),
            target(
                "2b",
                "the trace's bytes are those counted, but for headers of up to 10 %",
                f"{headers[most]:+.1%} at most ({most})",
                0 <= headers[most] <= 0.1,
            ),
        ],
        "rows": rows,
        "table": table(("method", "counted", "leaders' bytes in the trace"), [list(row.values()) for row in rows]),
    }


if __name__ == "__main__":
    parts = {1: part_1, 2: part_2}
    measure(
        "Hierarchical training on two sites", "hierarchy", parts, arguments(__doc__, "hierarchy", parts), "benchmarks"
    )
