"""Processor time that rounds take from computation: what is measured, and what a profile makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tacit
from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.profiles.measurement import BEGINS
from tacit.profiles.probe import beside
from tacit.record.run import Run
from tests.profiles.synthetic_runs import PARAMETERS, real_run

SENT = ring_all_reduce_bytes(PARAMETERS + 1, 8, 2)[0]
LOST_S = (0.019, 0.020, 0.021, 0.020, 0.019, 0.021, 0.020, 0.5)


def with_notes(run: Run, lost_s: Sequence[float] = LOST_S, share: float = 0.5, size_bytes: float = 2 * SENT) -> Run:
    """Return the run with the notes of rounds beside a loop after its end, and with events of these rounds."""
    end_s = max(event.time_s for event in run.trace.of("compute", "hook"))
    for rank in range(run.workers):
        run.trace.note(rank, end_s, beside.SHARE, share)
        run.trace.note(rank, end_s, BEGINS, len(lost_s))
        run.trace.note(rank, end_s, beside.BYTES, size_bytes)
        for number, lost in enumerate(lost_s):
            begin_s = end_s + 3.0 * number
            run.trace.hook(rank, begin_s, begin_s + 1.0, "flatten", PARAMETERS)
            run.trace.exchange(rank, begin_s + 1.0, begin_s + 2.0, "all-reduce", 100 + number, SENT, True)
            run.trace.hook(rank, begin_s + 2.0, begin_s + 3.0, "divide", PARAMETERS)
            run.trace.note(rank, begin_s + 3.0, f"{beside.LOST} {number + 1}", lost)
    return run


def test_a_profile_has_the_usual_loss_by_byte_times_the_processor_time_of_steps() -> None:
    profile = tacit.Profile.of(with_notes(real_run([1.0, 1.0])))
    assert profile.processor_s_per_byte == pytest.approx(0.5 * 0.020 / (2 * SENT), rel=1e-3)
    assert profile.cluster().processor_s_per_byte == profile.processor_s_per_byte


def test_rounds_beside_the_loop_count_for_nothing_else() -> None:
    plain, noted = (tacit.Profile.of(run) for run in (real_run([1.0, 1.0]), with_notes(real_run([1.0, 1.0]))))
    assert noted.cluster(processor_s_per_byte=0.0) == plain.cluster()


def test_noise_and_runs_without_notes_count_as_nothing() -> None:
    assert tacit.Profile.of(real_run([1.0, 1.0])).processor_s_per_byte == 0.0
    noisy = with_notes(real_run([1.0, 1.0]), lost_s=(0.02, -0.03, 0.01, -0.02, 0.03))
    assert tacit.Profile.of(noisy).processor_s_per_byte == 0.0


def test_a_profile_keeps_it_in_its_file(tmp_path: Path) -> None:
    profile = tacit.Profile.of(with_notes(real_run([1.0, 1.0])))
    assert tacit.Profile.load(profile.save(tmp_path / "profile")).processor_s_per_byte == profile.processor_s_per_byte


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Replace the clocks of the module: ``now_s`` advances by ``step_s`` at each look."""
    told = {"now_s": 0.0, "step_s": 0.25, "processor_s": 0.0}

    def look() -> float:
        told["now_s"] += told["step_s"]
        return told["now_s"]

    clock = SimpleNamespace(perf_counter=look, process_time=lambda: told["processor_s"])
    monkeypatch.setattr("tacit.profiles.probe.beside.time", clock)
    yield told


def test_the_loop_counts_passes_until_its_time_is_over(clocks: dict[str, float]) -> None:
    passes = beside._passes(torch.ones(2, 2), 1.0)
    assert (passes.count, passes.seconds) == (3, 1.0)


def test_the_share_is_processor_time_over_time_and_at_most_one(clocks: dict[str, float]) -> None:
    worker = _Notes()
    share = beside.ProcessorShare()
    share.end()  # without a begin
    share.note(worker)  # type: ignore[arg-type]
    clocks["step_s"] = 1.0
    share.begin()
    clocks["processor_s"] = 0.25
    share.end()
    share.note(worker)  # type: ignore[arg-type]
    clocks["processor_s"] = 5.0
    share.begin()
    clocks["processor_s"] = 25.0
    share.end()
    share.note(worker)  # type: ignore[arg-type]
    assert worker.noted == [(beside.SHARE, 0.25), (beside.SHARE, 1.0)]


class _Notes:
    """The part of a worker that takes notes."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, float]] = []

    def note(self, name: str, value: float) -> None:
        self.noted.append((name, value))


@pytest.mark.parametrize(("round_s", "affordable_s", "rounds"), [(0.1, 100.0, 8), (0.1, 2.0, 4), (0.1, 0.5, 0)])
def test_rounds_fit_into_the_budget(round_s: float, affordable_s: float, rounds: int) -> None:
    assert beside.affordable_rounds(round_s, affordable_s) == rounds
    assert (rounds + 1) * (2.5 * round_s + round_s) <= affordable_s or not rounds
