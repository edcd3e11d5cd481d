"""What ``tacit probe`` prints: one screen about steps, rounds, hooks, memory and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from tacit.profiles.probe import agenda
from tacit.profiles.probe.findings import Findings
from tacit.profiles.warnings import drifts
from tacit.report import units

_ALIKE: Final = 1.1
"""Ranks whose median steps are within this factor are shown together."""
_HOOKS: Final = {agenda.ROUNDS: "AllReduce", agenda.QSGD: "QSGD 8 bit", agenda.TOP_K: "Top 1 %"}
_STEADY: Final = 0.1


def screen(findings: Findings) -> Iterator[str]:
    """Yield the lines."""
    profile = findings.profile
    model = [] if profile.parameters is None else [f"{_many(profile.parameters)} parameters ({_model_size(findings)})"]
    backend = [profile.backend] if profile.backend else []
    counted = f"{profile.workers} worker{'s' * (profile.workers > 1)}"
    yield f"probe: {', '.join([counted, *model, *backend])}"
    yield f"  steps    {_steps(findings)}"
    if rounds := _rounds(findings):
        yield f"  rounds   {rounds}"
    hooks = [
        f"{name} {units.seconds(seconds)}"
        for phase, name in _HOOKS.items()
        if (seconds := findings.reading.hooks_s(phase)) is not None
    ]
    if hooks:
        yield f"  hooks    {' · '.join(hooks)}"
    if memory := _memory(findings):
        yield f"  memory   {memory}"
    if gradients := _gradients(findings):
        yield f"  noise    {gradients}"
    for sentence in profile.warnings:
        yield f"  warning: {sentence}"


def _model_size(findings: Findings) -> str:
    return units.size(findings.profile.parameter_bytes or 0)


def _many(value: int) -> str:
    return f"{value:,}" if value < 1e6 else f"{value / 1e6:.3g} M"


def _steps(findings: Findings) -> str:
    measurement = findings.reading.measurement()
    groups = _groups({rank: median(times_s) for rank, times_s in measurement.steps_s.items()})
    fastest_s = min(middle_s for _, middle_s in groups)
    texts = []
    for ranks, middle_s in groups:
        times_s = np.concatenate([measurement.steps_s[rank] for rank in ranks])
        low_s, high_s = np.quantile(times_s, (0.1, 0.9))
        slower = f", {middle_s / fastest_s:.1f}×" if middle_s > _ALIKE * fastest_s else ""
        texts.append(
            f"{_ranks(ranks)}: {units.seconds(middle_s)} ({units.seconds(low_s)} to {units.seconds(high_s)}{slower})"
        )
    shown = ", ".join(texts)
    if not measurement.again_s:
        return shown
    largest = max(drifts(measurement), key=abs, default=0.0)
    steady = "yes" if abs(largest) <= _STEADY else "no"
    return f"{shown}; steady: {steady} ({100 * largest:+.0f} % between begin and end)"


def _groups(medians_s: Mapping[int, float]) -> list[tuple[list[int], float]]:
    """Return ranks with similar medians together, fastest first, and the median of each group."""
    groups: list[list[int]] = []
    for rank in sorted(medians_s, key=lambda rank: medians_s[rank]):
        if groups and medians_s[rank] <= _ALIKE * medians_s[groups[-1][0]]:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return [(sorted(ranks), median(medians_s[rank] for rank in ranks)) for ranks in groups]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _rounds(findings: Findings) -> str:
    profile, reading = findings.profile, findings.reading
    in_rhythm_s, back_to_back_s = reading.round_s(agenda.ROUNDS), reading.back_to_back_s()
    parts = []
    if in_rhythm_s is not None:
        behind = "" if back_to_back_s is None else f" (back to back {units.seconds(back_to_back_s)})"
        parts.append(f"{units.seconds(in_rhythm_s)} in the rhythm of the run{behind}")
    if pairs := reading.pairs():
        parts.append(f"{units.seconds(median(pair.latency_s for pair in pairs.values()))} one way")
        parts.append(f"{_rate(median(pair.bytes_per_s for pair in pairs.values()))} between two")
    different = [*(f"rank {rank}" for rank in profile.nics), *(f"ranks {a} and {b}" for a, b in profile.links)]
    if different:
        parts.append(f"other NICs or links: {', '.join(different)}")
    return ", ".join(parts)


def _rate(bytes_per_s: float) -> str:
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _memory(findings: Findings) -> str:
    peak, total = findings.profile.peak_memory_bytes, findings.profile.memory_bytes
    if not peak:
        return ""
    of = f" of {units.size(min(total.values()))}" if total else ""
    return f"{units.size(max(peak.values()))}{of}"


def _gradients(findings: Findings) -> str:
    profile, noise = findings.profile, findings.noise
    parts = []
    if profile.noise_scale is not None:
        unit = "batches" if profile.batch is None else "samples"
        shown = f"{profile.noise_scale:,.0f}" if profile.noise_scale >= 10 else f"{profile.noise_scale:.2g}"
        parts.append(f"scale {shown} {unit} at the start")
    if noise is not None and noise.heterogeneity is not None:
        if not noise.is_measurable:
            parts.append("no difference between the workers' data is visible in the gradient")
        else:
            shard = noise.shard_batches * (profile.batch or 1.0)
            unit = "batches" if profile.batch is None else "samples"
            parts.append(
                f"the workers' data differ by {100 * noise.heterogeneity:.0f} % of the gradient, as shuffled shards of "
                f"{shard:,.0f} {unit} would"
            )
    return "; ".join(parts)
