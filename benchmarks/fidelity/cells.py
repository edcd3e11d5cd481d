"""What the fidelity benchmark runs: places, methods, and the number of steps of each cell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import tacit
from benchmarks.fidelity.workloads import PARAMETERS
from tacit.strategies import Strategy

RATES_BITS_PER_S: Final = {"loopback": None, "1 Gbit/s": 1e9, "100 Mbit/s": 1e8, "20 Mbit/s": 2e7}
BURSTS_KB: Final = {"1 Gbit/s": 256, "100 Mbit/s": 32, "20 Mbit/s": 32}
"""What tbf lets pass at once. With 256 KB most of a round of 614 KB passes at the speed of the machine."""
SLEEP_S: Final = 0.02
SLOW: Final = 3.0
SIGMA: Final = 0.6
CALIBRATION_STEPS: Final = 12
JITTER_CALIBRATION_STEPS: Final = 48
"""The mean of 12 random steps of three runs on four ranks is uncertain by 5 %; that of 48 by 3 %."""
UPDATES: Final = 240
"""Updates of the server in a run of K-async."""
_TIME_S: Final = 4.5
"""About how long a timed run takes; where steps are random, twice as long."""
_MOST_STEPS: Final = 160

ALL_REDUCE, EF21, QSGD = "AllReduce", "EF21 Top 1 %", "QSGD 8 bit"
LOCAL_8, LOCAL_32, OVERLAPPED = "LocalSGD 8", "LocalSGD 32", "LocalSGD 8, overlapped"
SWARM, K_ASYNC, DDP = "SwarmSGD 8", "K-async", "DDP"


@dataclass(frozen=True)
class Method:
    """A strategy, or DDP, and how its runs are timed."""

    strategy: Strategy[Any]  # that the simulator predicts it with
    period: int = 1  # steps; a run is timed over whole periods
    skipped: int = 0  # first steps that do not count, so that as many rounds end as begin
    share: float = 1.0  # of the model's bytes that a round sends

    @property
    def has_server(self) -> bool:
        return self.strategy.has_server


METHODS: Final = {
    ALL_REDUCE: Method(tacit.AllReduce()),
    LOCAL_8: Method(tacit.LocalSGD(period=tacit.Every(8)), period=8),
    LOCAL_32: Method(tacit.LocalSGD(period=tacit.Every(32)), period=32),
    OVERLAPPED: Method(tacit.LocalSGD(period=tacit.Every(8), overlap_steps=4), period=8, skipped=4),
    EF21: Method(
        tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21()), period=1, share=0.02
    ),
    QSGD: Method(
        tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback()), period=1, share=0.25
    ),
    SWARM: Method(tacit.SwarmSGD(local_steps=8), period=8),
    K_ASYNC: Method(tacit.KAsync(k=1)),
    DDP: Method(tacit.DDP()),
}
CALIBRATED: Final = (ALL_REDUCE, EF21, QSGD)
NEVER_CALIBRATED: Final = (LOCAL_8, LOCAL_32, OVERLAPPED, SWARM)
DENSE: Final = (ALL_REDUCE, *NEVER_CALIBRATED)
COMPRESSED: Final = (EF21, QSGD)
JUDGED: Final = (*DENSE, *COMPRESSED)
"""The methods of the 63 cells: all but K-async and DDP, which have goals of their own."""


@dataclass(frozen=True)
class Place:
    """Hosts, their network, and what a step is on them."""

    hosts: int
    network: str
    slow: bool = False  # whether the last host takes three times as long
    sigma: float = 0.0  # of the log-normal factor on the sleep
    model: str = "mlp"
    sleep_s: float = SLEEP_S
    is_quick: bool = False  # processes on the loopback of this machine, few steps

    def __str__(self) -> str:
        words = [f"{self.hosts} {'processes' if self.is_quick else 'hosts'}", self.network]
        words += [f"one {SLOW:g}x slower"] * self.slow + [f"jitter {self.sigma:g}"] * (self.sigma > 0)
        return ", ".join([*words, *([f"{self.model}, no sleep"] if self.sleep_s == 0 else [])])

    @property
    def folder(self) -> str:
        """The name of the folder of its runs."""
        return re.sub(r"[^a-z0-9.]+", "-", str(self).lower())

    def sleep_of(self, rank: int) -> float:
        """Return the mean sleep of a rank."""
        return self.sleep_s * (SLOW if self.slow and rank == self.hosts - 1 else 1.0)

    def steps(self, method: str) -> int:
        """Return the steps of a run that times ``method``: whole periods, the skipped steps, and one after them.

        For server strategies these are updates of the server.
        """
        about = METHODS[method]
        if about.has_server:
            return 24 if self.is_quick else UPDATES * (2 if self.sigma else 1)
        if self.is_quick:
            periods = 8 if about.period == 1 else 2
        else:
            least = {1: 16, 8: 4, 32: 2}[about.period]
            wanted = min(_TIME_S / self.expected_step_s(method), _MOST_STEPS) / about.period
            periods = max(least, round(wanted)) * (2 if self.sigma else 1)
        return periods * about.period + about.skipped + 1

    @property
    def calibration_steps(self) -> int:
        """The steps of each run that calibrates."""
        return JITTER_CALIBRATION_STEPS if self.sigma else CALIBRATION_STEPS

    def expected_step_s(self, method: str) -> float:
        """Return roughly what a step takes, to choose the number of steps and to tell how long the benchmark takes."""
        about, rate = METHODS[method], RATES_BITS_PER_S[self.network]
        computing_s = (self.sleep_of(self.hosts - 1) or 0.01) + 0.003
        if about.has_server:
            return computing_s
        numbers = about.share * PARAMETERS[self.model] * 2 * (self.hosts - 1) / self.hosts
        return computing_s + (0.0 if rate is None else 32 * numbers / rate / about.period)

    def expected_s(self) -> float:
        """Return roughly how long all runs in this place take."""
        timed_s = sum(self.expected_step_s(name) * self.steps(name) + 0.6 for name in METHODS)
        calibration_s = sum(
            self.expected_step_s(name) * (CALIBRATION_STEPS + self.calibration_steps) + 1.0 for name in CALIBRATED
        )
        return 4.0 + timed_s + calibration_s


PLACES: Final = (
    *(Place(2, network) for network in RATES_BITS_PER_S),
    *(Place(4, network) for network in ("1 Gbit/s", "100 Mbit/s", "20 Mbit/s")),
    *(Place(4, network, slow=True) for network in ("1 Gbit/s", "100 Mbit/s")),
)
JITTER: Final = tuple(Place(4, network, sigma=SIGMA) for network in ("1 Gbit/s", "100 Mbit/s"))
COMPUTING: Final = tuple(Place(2, network, model="cnn", sleep_s=0.0) for network in ("loopback", "100 Mbit/s"))
QUICK: Final = Place(2, "loopback", model="small", sleep_s=0.002, is_quick=True)
