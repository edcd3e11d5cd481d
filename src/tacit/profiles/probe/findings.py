"""The profile of a probe, and sentences about what makes it uncertain or is missing in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from statistics import median
from typing import Any, Final, NamedTuple

from tacit.errors import require
from tacit.profiles.combined import combined, short
from tacit.profiles.probe import agenda
from tacit.profiles.probe.gradients import GradientNoise, gradient_noise
from tacit.profiles.probe.reading import Reading
from tacit.profiles.profile import Profile
from tacit.record.run import Run

_BURST: Final = 0.15
_NOTICED_S: Final = 1e-3
"""Difference of rounds below which schedulers of busy hosts explain it."""
_SLOWER: Final = 0.1
_BUSY: Final = 0.5
"""Load per core before the probe from which other work is noticed."""
_SHARED: Final = 0.6
_MEMORY: Final = 0.8
_DIFFERENT_DATA: Final = 0.5
_FEWEST_STEPS: Final = 2


class Findings(NamedTuple):
    """A profile, the reading that it was made from, and the gradient noise if it was measured."""

    profile: Profile
    reading: Reading
    noise: GradientNoise | None


def findings_of(
    run: Run, *, strategy: str | None = None, steps: int | None = None, sessions: int = 1, ended: str = ""
) -> Findings:
    """Return the findings of the trace that a probe left.

    strategy, steps, sessions: of the script. ended: why the probe ended early, as a clause.
    """
    reading = Reading.of(run)
    steps_s = reading.steps_s(agenda.STEPS)
    enough = len(steps_s) == run.workers and all(len(times_s) >= _FEWEST_STEPS for times_s in steps_s.values())
    require(
        enough,
        f"the probe has step times of {len(steps_s)} of {run.workers} workers, and a profile needs those of all; "
        f"let the script take at least {agenda.DROPPED + _FEWEST_STEPS + 1} steps on each worker.",
    )
    products = reading.products()
    noise = gradient_noise(products) if products else None
    fields = combined([reading.measurement()], reading.pairs())
    if peaks := reading.peak_memory_bytes():
        fields["peak_memory_bytes"] = peaks
    own = (*_early_end(reading, ended), *_other_sessions(sessions))
    fields["warnings"] = (*own, *fields["warnings"], *_warnings(reading, fields, noise))
    profile = Profile(**fields, strategy=strategy, steps=steps)
    return Findings(dataclasses.replace(profile, **_noise_fields(noise, profile.batch)), reading, noise)


def _noise_fields(noise: GradientNoise | None, batch: float | None) -> dict[str, Any]:
    if noise is None:
        return {}
    scale = noise.noise_scale_batches
    return {
        "noise_scale": None if scale is None else short(scale * (batch or 1.0)),
        "heterogeneity": None if noise.is_like_shuffled else short(noise.heterogeneity or 0.0),
    }


def _early_end(reading: Reading, ended: str) -> Iterator[str]:
    names = [agenda.TITLES[phase] for phase in reading.missing()]
    if names and ended:
        yield f"The probe ended early, because {ended}. Missing: {', '.join(names)}."
    elif names:
        yield f"Missing, because the budget was too small: {', '.join(names)}. A larger --budget measures more."


def _other_sessions(sessions: int) -> Iterator[str]:
    if sessions > 1:
        yield (
            f"The script attaches {sessions} sessions. The first one was probed; the others ran with their own "
            f"strategies, and their rounds are part of its steps."
        )


def _warnings(reading: Reading, fields: dict[str, Any], noise: GradientNoise | None) -> Iterator[str]:
    """Yield what only a probe can tell; ``combined`` has the other warnings."""
    yield from _load(reading)
    if reading.run.workers > 1 and not reading.measurement().exchanges:
        yield "No round was measured: latency and bandwidth of the profile are defaults. Set them in profile.toml."
    yield from _rounds(reading)
    yield from _memory(fields)
    if reading.was_not_finite:
        yield (
            "Gradients became NaN or infinite during the probe, which takes local steps with the script's own learning "
            "rate. Times are not affected."
        )
    if noise is not None and noise.noise_scale_batches is None:
        yield "The mean gradient is lost in its noise, so the noise scale is not known: it is many batches."
    if noise is not None and noise.noise_scale_batches is not None and fields.get("batch") is None:
        yield (
            "The noise scale is in batches of one worker, because the batch size is not known. "
            "session.observe(loss, samples=len(batch)) tells it."
        )
    if noise is not None and not noise.is_like_shuffled and (noise.heterogeneity or 0.0) > _DIFFERENT_DATA:
        yield (
            f"The workers' data differ by {100 * (noise.heterogeneity or 0.0):.0f} % of the gradient. Long periods "
            f"without averaging cost accuracy; shuffle the data if you can."
        )


def _load(reading: Reading) -> Iterator[str]:
    """Yield a sentence if hosts were busy before the probe. Ranks on one host see the same load."""
    cores: dict[str, int] = reading.run.record.get("cores", {})
    busy = {
        rank: (load, cores[str(rank)])
        for rank, load in sorted(reading.loads().items())
        if str(rank) in cores and load > _BUSY * cores[str(rank)]
    }
    if busy:
        load, available = max(busy.values())
        yield (
            f"Before the probe, the load of the hosts of rank{'s' * (len(busy) > 1)} {', '.join(map(str, busy))} was "
            f"up to {load:.1f} on {available} core{'s' * (available > 1)}: other programs run there, and steps contain "
            f"this slowdown."
        )


def _rounds(reading: Reading) -> Iterator[str]:
    in_rhythm_s, back_to_back_s = reading.round_s(agenda.ROUNDS), reading.back_to_back_s()
    if in_rhythm_s and back_to_back_s and abs(back_to_back_s - in_rhythm_s) > max(_BURST * in_rhythm_s, _NOTICED_S):
        share = 100 * (back_to_back_s / in_rhythm_s - 1)
        if len(reading.run.record.get("hosts", [])) == 1:
            why = "all ranks are on one host and compete for its cores"
        elif share > 0:
            why = "the network has a burst allowance, and longer rounds or shorter steps use it up"
        else:
            why = "ranks arrive at rounds at different times, or pauses let the network slow down"
        yield (
            f"Rounds take {_ms(in_rhythm_s)} in the rhythm of the run and {_ms(back_to_back_s)} back to back "
            f"({share:+.0f} %): {why}."
        )
    alone_s, with_rounds_s = _median_step(reading, agenda.STEPS), _median_step(reading, agenda.ROUNDS)
    if alone_s and with_rounds_s and with_rounds_s > (1 + _SLOWER) * alone_s:
        yield (
            f"Steps between rounds take {100 * (with_rounds_s / alone_s - 1):.0f} % longer than steps without rounds: "
            f"predictions for strategies with a round in every step are too short by this."
        )
    shifts, pairs = reading.shift_rates(), reading.pairs()
    if shifts and pairs:
        together, alone = median(shifts), median(pair.bytes_per_s for pair in pairs.values())
        if together < _SHARED * alone:
            yield (
                f"While all workers send at once, each gets {100 * together / alone:.0f} % of the rate of one pair "
                f"alone: they share a link or cores."
            )


def _median_step(reading: Reading, phase: str) -> float | None:
    """Return the median over all ranks of the time of a step, without hooks and rounds."""
    if not reading.has(phase):
        return None
    if phase == agenda.STEPS:
        by_rank = reading.steps_s(phase)
    else:
        by_rank = {rank: [step.seconds for step in steps] for rank, steps in reading.steps(phase).items()}
    medians = [median(times_s) for times_s in by_rank.values() if times_s]
    return median(medians) if medians else None


def _memory(fields: dict[str, Any]) -> Iterator[str]:
    for rank, peak in fields["peak_memory_bytes"].items():
        total = fields["memory_bytes"].get(rank)
        if total and peak > _MEMORY * total:
            yield (
                f"Rank {rank} uses {peak / 1e9:.1f} GB of {total / 1e9:.1f} GB of memory. Strategies that keep another "
                f"copy of the model may not fit."
            )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
