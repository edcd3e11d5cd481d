"""The candidates of a plan: which workers take part, and how they communicate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tacit.compression import QSGD, TopK
from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21
from tacit.profiles.profile import Profile
from tacit.strategies import (
    DDP,
    CompressedGradient,
    KAsync,
    KBatchAsync,
    KSync,
    LocalSGD,
    Strategy,
    SwarmSGD,
)
from tacit.strategies.local_sgd.outer import OuterSGD
from tacit.strategies.local_sgd.periods import Every, VariancePeriod

_SLOW: Final = 1.25
"""A worker whose step takes longer than the next slower one's by this factor may be left out."""
_MOST_LEFT_OUT: Final = 2  # different numbers of slow workers
PERIODS: Final = (2, 4, 8, 16, 32, 64)
_COMPRESSED_PERIODS: Final = (4, 16)
_DILOCO_PERIODS: Final = (16, 64)
_OVERLAP_PERIODS: Final = (4, 8, 16)
_DILOCO: Final = OuterSGD(lr=0.7, momentum=0.9, nesterov=True)


@dataclass(frozen=True)
class Candidate:
    """A strategy and the workers that take part, by their ranks in the profile.

    is_kept: it stays in the plan to the end, as the baseline or as the user's own strategy.
    """

    strategy: Strategy[Any]
    ranks: tuple[int, ...]
    is_kept: bool = False

    @property
    def label(self) -> str:
        """The strategy as text, and the number of workers."""
        return f"{self.strategy} on {len(self.ranks)}"


def worker_sets(profile: Profile) -> list[tuple[int, ...]]:
    """Return the sets of workers to consider: all, all but the slowest, and the fastest alone."""
    by_speed = sorted(range(profile.workers), key=lambda rank: (profile.mean_step_s(rank), rank))
    steps_s = [profile.mean_step_s(rank) for rank in by_speed]
    sets = [tuple(range(profile.workers))]
    gaps = [count for count in range(2, profile.workers) if steps_s[count] > _SLOW * steps_s[count - 1]]
    sets += [tuple(sorted(by_speed[:count])) for count in sorted(gaps, reverse=True)[:_MOST_LEFT_OUT]]
    if profile.workers > 1:
        sets.append((by_speed[0],))
    return sets


def candidates(
    profile: Profile, own: Strategy[Any] | None = None, wanted: Sequence[Strategy[Any]] | None = None
) -> list[Candidate]:
    """Return all candidates for a profile.

    own: the strategy that the user has today. wanted: those to consider besides DDP; None: the usual ones.
    """
    sets = worker_sets(profile)
    everyone = sets[0]
    found = [Candidate(DDP(), everyone, is_kept=True)]
    if own is not None and not isinstance(own, DDP):
        found.append(Candidate(own, everyone, is_kept=True))
    for ranks in sets:
        usual = strategies_for(len(ranks), profile.costs)
        chosen = usual if wanted is None else [DDP(), *(one for one in wanted if _fits(one, len(ranks)))]
        found += [Candidate(strategy, ranks) for strategy in chosen]
    seen: dict[tuple[str, tuple[int, ...]], Candidate] = {}
    for one in found:
        seen.setdefault((str(one.strategy), one.ranks), one)
    return list(seen.values())


def strategies_for(workers: int, costs: Mapping[str, object]) -> Iterator[Strategy[Any]]:
    """Yield the strategies to consider for a number of workers.

    costs: of the profile. Where costs were measured, compressors without a measured cost are left out, because their
    work in hooks decides whether they pay.
    """
    yield DDP()
    if workers == 1:
        return
    for period in PERIODS:
        yield LocalSGD(period=Every(period))
    yield LocalSGD(period=VariancePeriod(initial=4))
    for period in _OVERLAP_PERIODS:
        yield LocalSGD(period=Every(period), overlap_steps=period // 2)
    for period in _DILOCO_PERIODS:
        yield LocalSGD(period=Every(period), outer=_DILOCO)
    top, quantized = TopK(fraction=0.01), QSGD(bits=8)
    if _is_priced(top, costs):
        yield CompressedGradient(compressor=top, feedback=EF21())
    if _is_priced(quantized, costs):
        yield CompressedGradient(compressor=quantized)
    for compressor in (top, quantized):
        if _is_priced(compressor, costs):
            yield from (LocalSGD(period=Every(period), compressor=compressor) for period in _COMPRESSED_PERIODS)
    if workers > 2:
        yield KSync(k=workers - 1)
        yield SwarmSGD(local_steps=4)
        yield SwarmSGD(local_steps=8)
    yield KAsync(k=1)
    yield KBatchAsync(k=workers)


def is_plain_period(strategy: Strategy[Any]) -> bool:
    """Whether a strategy is LocalSGD with a fixed period and nothing else."""
    return (
        isinstance(strategy, LocalSGD)
        and strategy == LocalSGD(period=strategy.period)
        and isinstance(strategy.period, Every)
    )


def _fits(strategy: Strategy[Any], workers: int) -> bool:
    """Whether a strategy of the user can run with this number of workers."""
    return workers > 1 and getattr(strategy, "k", 1) <= workers


def _is_priced(compressor: Compressor, costs: Mapping[str, object]) -> bool:
    name = type(compressor).__name__
    return not costs or f"encode {name}" in costs or "encode" in costs


def without(profile: Profile, ranks: Sequence[int]) -> list[int]:
    """Return the ranks of the profile that do not take part."""
    return [rank for rank in range(profile.workers) if rank not in ranks]
