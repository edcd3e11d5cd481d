"""The strategy that takes the place of a script's own while it is probed.

It walks through the phases of ``agenda``. Between two phases, in a step that counts for neither, all ranks exchange
how much time has passed and how long steps and rounds take. Each computes from this how many steps the next phase has,
so all have the same. What is measured is in the trace: events of steps, rounds and hooks as in any run, and notes.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tacit.compression import QSGD, TopK
from tacit.compression.feedback import EF21, NoFeedback
from tacit.core.messages import TensorMessage
from tacit.core.strategy import RunsAhead, Strategy
from tacit.core.worker import Worker
from tacit.errors import NotFinite, require
from tacit.profiles.probe import agenda, exchanges
from tacit.profiles.probe.agenda import Agreed
from tacit.profiles.probe.beside import ProcessorShare, affordable_rounds, measure_beside
from tacit.profiles.probe.gradients import GradientSum
from tacit.record.facts import peak_memory_bytes
from tacit.runtime.environment import machine
from tacit.session.probing import ProbeComplete, current_probe
from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.compressed_gradient import CompressedGradient

PHASE: Final = "probe "
"""Notes of this name and that of a phase mark where the phase begins; their value is its number of steps."""
BETWEEN: Final = f"{PHASE}between"
"""The note at the end of a phase."""
LOAD, WITHIN, NOISE, BETWEEN_RANKS, NOT_FINITE = "load", "within", "noise", "between ranks", "not finite"
BATCHES, PRODUCTS_SQUARED = "batches", "products squared"
PEAK_MEMORY: Final = "peak memory"
"""The largest memory of a rank up to the end of the steps without hooks, before the probe's strategies need any."""
SMALL, BACK_TO_BACK, BESIDE = "small", "back to back", "beside"
"""Parts of the phase ``network`` that are marked as phases are."""
_INNER: Final[dict[str, Strategy[Any]]] = {
    agenda.ROUNDS: AllReduce(),
    agenda.TOP_K: CompressedGradient(compressor=TopK(fraction=0.01), feedback=EF21()),
    agenda.QSGD: CompressedGradient(compressor=QSGD(bits=8), feedback=NoFeedback()),
}


@dataclass
class ProbingState:
    """Where the probe is, and what this rank has measured so far."""

    began_s: float
    phase: int = 0  # index into the phases
    steps: int = agenda.DROPPED  # of the phase
    done: int = 0  # of these
    inner: Any = None  # state of the strategy that the phase runs
    last_s: float | None = None  # when the last hook before an update began
    step_s: float = 0.0
    round_s: float = 0.0
    gradients: GradientSum = field(default_factory=GradientSum)
    share: ProcessorShare = field(default_factory=ProcessorShare)
    models_are_equal: bool = True
    is_one_host: bool = True


@dataclass(frozen=True, kw_only=True)
class Probing(Strategy[ProbingState], RunsAhead):
    """Measure steps, gradients, rounds and the network, then end the script."""

    budget_s: float = 60.0

    def __post_init__(self) -> None:
        require(self.budget_s > 0, f"budget_s={self.budget_s} must be positive.")

    def init(self, worker: Worker) -> ProbingState:
        worker.note(LOAD, os.getloadavg()[0])
        worker.note(PHASE + agenda.START, agenda.DROPPED)
        return ProbingState(time.monotonic())

    def hook_free_steps(self, worker: Worker, state: ProbingState) -> int:
        is_free = agenda.PHASES[state.phase] in (agenda.STEPS, agenda.STEPS_AGAIN)
        if is_free and not state.done:  # all of them are taken before the next hook
            state.done = state.steps
            return state.steps
        return 0

    def before_step(self, worker: Worker, state: ProbingState) -> None:
        phase, now_s = agenda.PHASES[state.phase], time.perf_counter()
        if phase == agenda.START and state.last_s is not None:
            took_s = now_s - state.last_s
            state.step_s = min(took_s, state.step_s or took_s)
        state.last_s = now_s
        if state.done >= state.steps:
            return
        if phase == agenda.GRADIENTS:
            state.gradients.add(worker.gradient)
            worker.skip_update()
        elif phase in _INNER:
            self._run_inner(_INNER[phase], worker, state)

    def _run_inner(self, inner: Strategy[Any], worker: Worker, state: ProbingState) -> None:
        """Run one round; a gradient that is not finite is replaced, since only times matter."""
        try:
            inner.before_step(worker, state.inner)
        except NotFinite:
            worker.note(NOT_FINITE, 1.0)
            worker.gradient = torch.randn_like(worker.gradient)
            inner.before_step(worker, state.inner)

    def after_step(self, worker: Worker, state: ProbingState) -> None:
        if state.done < state.steps:
            state.done += 1
            return
        worker.note(BETWEEN, float(worker.step))
        ended = agenda.PHASES[state.phase]
        state.share.end()
        if ended == agenda.STEPS:
            state.share.note(worker)
        if ended == agenda.STEPS and (peak := peak_memory_bytes()) is not None:
            worker.note(PEAK_MEMORY, peak)
        if ended == agenda.STEPS and worker.size > 1:
            self._estimate_round(worker, state)
        if ended == agenda.GRADIENTS:
            _note_products(worker, state)
        self._begin_next(worker, state)

    def _begin_next(self, worker: Worker, state: ProbingState) -> None:
        """Begin the next phase that has steps; raise if there is none."""
        for phase in range(state.phase + 1, len(agenda.PHASES)):
            name, agreed = agenda.PHASES[phase], self._agree(worker, state)
            if name == agenda.NETWORK and worker.size > 1:
                self._measure_network(worker, state, agreed)
                continue
            steps = agenda.steps_of(name, agreed, self.budget_s, worker.size)
            if steps:
                state.phase, state.steps, state.done = phase, steps, 0
                state.inner = _INNER[name].init(worker) if name in _INNER else None
                worker.note(PHASE + name, steps)
                if name == agenda.STEPS:
                    state.share.begin()
                return
        raise ProbeComplete

    def _agree(self, worker: Worker, state: ProbingState) -> Agreed:
        """Exchange times with all ranks; return the largest ones."""
        elapsed_s = time.monotonic() - state.began_s
        probe = current_probe()
        announced = math.inf if probe is None or probe.own_steps is None else float(probe.own_steps)
        host = float(zlib.crc32(machine().encode()))
        own = [elapsed_s, state.step_s, state.round_s, worker.step - announced, host]
        received = worker.network.all_gather(TensorMessage(torch.tensor(own, dtype=torch.float64)))
        rows = [one.tensor.tolist() for one in received]
        state.is_one_host = len({row[-1] for row in rows}) == 1
        elapsed_s, step_s, round_s, surplus = (max(row[column] for row in rows) for column in range(4))
        return Agreed(elapsed_s=elapsed_s, step_s=step_s, round_s=round_s, steps_left=-surplus)

    def _estimate_round(self, worker: Worker, state: ProbingState) -> None:
        """Estimate the time of a round from small ones; if it is short enough, average the models in one."""
        size_bytes = _model_bytes(worker)
        worker.note(PHASE + SMALL, 0.0)
        state.round_s = exchanges.estimated_round_s(worker, size_bytes)
        worker.note(BETWEEN, float(worker.step))
        state.models_are_equal = agenda.averages_models(self._agree(worker, state), self.budget_s)
        if state.models_are_equal:
            began_s = time.perf_counter()
            worker.network.all_reduce_mean(worker.parameters, into=worker.parameters)
            state.round_s = time.perf_counter() - began_s

    def _measure_network(self, worker: Worker, state: ProbingState, agreed: Agreed) -> None:
        """Measure rounds back to back, an eighth of the model's size, and pairs, as far as the budget allows it."""
        size_bytes, affordable_s = _model_bytes(worker), agenda.affordable_s(agreed, self.budget_s)
        worker.note(PHASE + BACK_TO_BACK, 0.0)
        _repeat(worker, size_bytes, agreed.round_s, affordable_s)
        worker.note(BETWEEN, float(worker.step))
        rounds = affordable_rounds(agreed.round_s, affordable_s)
        if rounds and worker.parameters.device.type == "cpu":
            worker.note(PHASE + BESIDE, 0.0)
            measure_beside(worker, agreed.round_s, rounds)
            worker.note(BETWEEN, float(worker.step))
        worker.note(PHASE + agenda.NETWORK, 0.0)
        _repeat(worker, size_bytes / 8, agreed.round_s / 8, affordable_s)
        pair_bytes = exchanges.pair_bytes(worker, size_bytes, agreed.round_s, 2 * affordable_s)
        if pair_bytes and not state.is_one_host and worker.parameters.device.type == "cpu":
            exchanges.measure_pairs(worker, pair_bytes)
        worker.note(BETWEEN, float(worker.step))


def _repeat(worker: Worker, size_bytes: float, expected_s: float, affordable_s: float) -> None:
    """Take part in a few all-reduces of so many bytes, if they are affordable."""
    if exchanges.REPETITIONS * expected_s <= affordable_s:
        for _ in range(exchanges.REPETITIONS):
            exchanges.mean_of(worker, size_bytes)


def _model_bytes(worker: Worker) -> int:
    return worker.parameters.numel() * worker.parameters.element_size()


def _note_products(worker: Worker, state: ProbingState) -> None:
    """Note what this rank contributes to noise scale and heterogeneity."""
    mean = state.gradients.mean()
    mean_of_all = worker.network.all_reduce_mean(mean, extra_state=False) if state.models_are_equal else None
    products = state.gradients.products(mean_of_all, worker.size)
    state.gradients = GradientSum()
    worker.note(WITHIN, products.within)
    worker.note(NOISE, products.noise)
    worker.note(BATCHES, products.batches)
    worker.note(PRODUCTS_SQUARED, products.products_squared)
    if products.between is not None:
        worker.note(BETWEEN_RANKS, products.between)
