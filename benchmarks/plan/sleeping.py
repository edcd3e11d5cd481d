"""The script that is probed: the training loop of the real runs, as a user would write it.

    python -m tacit probe benchmarks/plan/sleeping.py -- MODEL SLEEP_S [SLEEP_S …]

One sleep for each rank. Each rank writes the time at which the script began into the folder PROBE_TIMES, if it is set.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tacit
from benchmarks.peer_loops.fidelity_loops import TIMEOUT_S, Computation

STEPS = 100_000


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "PROBE_TIMES" in os.environ:
        Path(os.environ["PROBE_TIMES"], str(rank)).write_text(f"{time.time()}")
    model, *sleeps = sys.argv[1:]
    sleeps_s = [float(sleep) for sleep in sleeps]
    own = Computation(rank, size, model=model, sleeps_s=sleeps_s, sigma=0.0, draws="", seed=0)
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    session = tacit.attach(
        own.module,
        own.optimizer,
        tacit.AllReduce(),
        steps=STEPS,
        interface=None if interface == "lo" else interface,
        security="plain",
        timeout_s=TIMEOUT_S,
    )
    while not session.is_done:
        session.observe(own.gradient(own.module))
        own.optimizer.step()
    session.close()


if __name__ == "__main__":
    main()
