"""Time of a what-if map of 64 cells (bandwidth × latency) from one plan: python benchmarks/plan_map_speed.py."""

from __future__ import annotations

import time

import tacit
from tacit.workloads import digits


def main() -> None:
    """Make a plan, then its map three times; print seconds and the number of simulated paces."""
    profile = tacit.Profile(
        workers=4,
        compute=tacit.Exponential(mean_s=0.02),
        speed={3: 1 / 3},
        latency_s=3e-4,
        bandwidth_bytes_per_s=2.5e6,
        collectives="gloo",
    )
    begun_s = time.perf_counter()
    plan = tacit.plan(profile, digits(model="mlp"), target_loss=0.3, steps=400, seeds=[0], jobs=2)
    timed = sum(row.shortest_s is not None for row in plan.rows)
    print(f"plan: {time.perf_counter() - begun_s:.1f} s, {timed} of {len(plan.rows)} candidates have a time")
    for _ in range(3):
        begun_s = time.perf_counter()
        made = plan.map(bandwidth=(1.25e5, 1.25e8, 8), latency=(1e-5, 1e-2, 8))
        print(f"map of 64 cells: {time.perf_counter() - begun_s:.2f} s, {made.simulated} paces simulated")


if __name__ == "__main__":
    main()
