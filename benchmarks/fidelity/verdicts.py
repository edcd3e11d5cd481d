"""Goals of the fidelity benchmark and the tables of its results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.fidelity.cells import COMPRESSED, DDP, DENSE, JUDGED, K_ASYNC, METHODS, NEVER_CALIBRATED, SWARM
from benchmarks.papers.common import table, target

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By place and method."""
Errors = list[tuple[float, str]]
"""Absolute errors, as shares, and their cells."""


def errors_of(results: Results, methods: Iterable[str], key: str = "predicted") -> Errors:
    """Return the errors of the cells of ``methods``."""
    return [
        (abs(found[f"{key}_error"]), f"{method}, {place}")
        for place, cells in results.items()
        for method in methods
        if f"{key}_error" in (found := cells.get(method, {}))
    ]


def _share_within(errors: Errors, limit: float) -> float:
    return sum(error <= limit for error, _ in errors) / len(errors)


def _worst(errors: Errors) -> str:
    error, where = max(errors)
    return f"mean {statistics.fmean(error for error, _ in errors):.1%}, worst {error:.1%} ({where})"


def _all_within(
    number: str, stated: str, results: Results, methods: Iterable[str], limit: float
) -> list[dict[str, Any]]:
    errors = errors_of(results, methods)
    if not errors:
        return []
    within = sum(error <= limit for error, _ in errors)
    said = f"{within} of {len(errors)} cells; {_worst(errors)}"
    return [target(number, stated, said, within == len(errors))]


def place_claims(results: Results) -> list[dict[str, Any]]:
    """The goals of the nine places."""
    claims, judged, unseen = [], errors_of(results, JUDGED), errors_of(results, NEVER_CALIBRATED)
    if judged:
        for limit, wanted in ((0.05, 0.90), (0.10, 0.97)):
            share = _share_within(judged, limit)
            stated = f"step time without K-async and DDP: at least {wanted:.0%} of cells within {limit:.0%}"
            said = f"{share:.1%} of {len(judged)} cells; {_worst(judged)}"
            claims.append(target(f"within {limit:.0%}", stated, said, share >= wanted))
        mean = statistics.fmean(error for error, _ in unseen)
        stated = "strategies that were never calibrated: mean error at most 2 %"
        claims.append(target("never calibrated", stated, _worst(unseen), mean <= 0.02))
    if served := errors_of(results, [K_ASYNC]):
        within = sum(error <= 0.20 for error, _ in served)
        stated, said = "K-async within 20 % in all places but one", f"{within} of {len(served)}; {_worst(served)}"
        claims.append(target("K-async", stated, said, within >= len(served) - 1))
    claims += _all_within("DDP", "DDP within 10 %", results, [DDP], 0.10)
    for title, methods in (("nominal", JUDGED), ("nominal, K-async", [K_ASYNC])):
        if errors := errors_of(results, methods, "nominal"):
            claims.append(target(title, "the same from sleep, rate and 0.1 ms of latency", _worst(errors), None))
    return claims


def jitter_claims(results: Results) -> list[dict[str, Any]]:
    """The goals with log-normal step times."""
    claims = _all_within("jitter", "log-normal steps, sigma 0.6: within 10 %", results, METHODS, 0.10)
    if errors := errors_of(results, METHODS, "nominal"):
        claims.append(target("jitter, nominal", "the same from a constant mean", _worst(errors), None))
    return claims


def computing_claims(results: Results) -> list[dict[str, Any]]:
    """The goals with real computation."""
    rounds = [method for method in DENSE if method != SWARM]
    others = [
        *_all_within("SwarmSGD", "exchanges that travel during the computation, not rounds", results, [SWARM], 0.10),
        *_all_within("others", "K-async and DDP", results, [K_ASYNC, DDP], 0.10),
    ]
    return [
        *_all_within("dense", "real computation, one core per worker: dense rounds within 10 %", results, rounds, 0.10),
        *_all_within("compressed", "the same, compressed rounds within 30 %", results, COMPRESSED, 0.30),
        *({**claim, "holds": None} for claim in others),
    ]


def results_table(results: Results) -> list[str]:
    """Return measured and predicted step times by place and method."""
    rows = [
        (place, method, *(_cell(found, key) for key in ("measured", "predicted", "nominal")), found.get("load", ""))
        for place, cells in results.items()
        for method, found in cells.items()
        if found
    ]
    heading = ("place", "method", "measured", "predicted", "nominal", "load")
    return ["Milliseconds of a step (K-async: of an update), with the error of predictions:", "", *table(heading, rows)]


def _cell(found: Mapping[str, Any], key: str) -> str:
    if f"{key}_ms" not in found:
        return ""
    error = found.get(f"{key}_error")
    return f"{found[f'{key}_ms']:.2f}" + ("" if error is None else f" ({error:+.1%})")
