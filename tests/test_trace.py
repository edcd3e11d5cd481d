"""The trace: one order whatever the order of writing, packed when long, whole when loaded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as draw

from tacit.record import trace as traces
from tacit.record.trace import COMPUTE, KINDS, Event, Trace

times = draw.floats(0, 10)
events = draw.lists(
    draw.builds(
        lambda start, length, rank, kind, step, label: Event(start + length, rank, kind, start, step, label=label),
        times,
        times,
        draw.integers(-1, 4),
        draw.sampled_from(KINDS),
        draw.integers(0, 9),
        draw.sampled_from(["", "period", "a", "zebra"]),
    ),
    max_size=40,
)


def written(order: list[Event], pack_every: int = 10**9) -> Trace:
    trace = Trace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_LONG", pack_every)
        for event in order:
            trace.record(event.kind, event.rank, event.start_s, event.time_s, step=event.step, label=event.label)
            trace.pack_if_long()
    return trace


@given(events)
def test_events_come_in_order_of_time_however_they_were_written(drawn: list[Event]):
    assert list(written(drawn)) == sorted(drawn)
    assert list(written(drawn[::-1])) == sorted(drawn)


@given(events)
def test_packing_changes_neither_events_nor_digest(drawn: list[Event]):
    plain, packed = written(drawn), written(drawn[::-1], pack_every=3)
    assert len(plain) == len(packed) == len(drawn)
    assert list(plain) == list(packed)
    assert plain.digest == packed.digest


@given(
    events, draw.lists(draw.tuples(draw.integers(0, 4), draw.integers(1, 9), draw.lists(times, min_size=1, max_size=6)))
)
def test_a_stretch_of_steps_is_its_steps_one_by_one(drawn: list[Event], stretches: list[tuple[int, int, list[float]]]):
    together, apart = written(drawn), written(drawn, pack_every=3)
    for rank, first, times_s in stretches:
        together.record_steps(rank, first, times_s)
        for step, (start_s, end_s) in enumerate(pairwise(times_s), first):
            apart.record(COMPUTE, rank, start_s, end_s, step=step)
    assert len(together) == len(apart)
    assert list(together) == list(apart)
    assert together.digest == apart.digest


@given(events)
def test_sorting_stretch_by_stretch_is_sorting_all(drawn: list[Event]):
    crowded = [event._replace(time_s=round(event.time_s)) for event in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_SORTED_AT_ONCE", 3)
        assert list(written(crowded)) == sorted(crowded)


@given(events, draw.sampled_from(KINDS), draw.lists(draw.tuples(times, times, draw.integers(-1, 4)), max_size=6))
def test_many_events_at_once_are_the_same_one_by_one(
    drawn: list[Event], kind: str, many: list[tuple[float, float, int]]
):
    together, apart = written(drawn), written(drawn)
    starts_s, lengths_s, ranks = (np.array([row[place] for row in many]) for place in range(3))
    together.record_many(kind, ranks, starts_s + lengths_s, starts_s, step=7, label="a")
    for start_s, length_s, rank in many:
        apart.record(kind, rank, start_s, start_s + length_s, step=7, label="a")
    assert list(together) == list(apart)
    assert together.digest == apart.digest


@given(events, draw.sampled_from([None, *KINDS]), draw.sampled_from([None, "", "a", "never written"]))
def test_what_comes_in_any_order_is_what_comes_in_order(drawn: list[Event], kind: str | None, label: str | None):
    found = written(drawn, pack_every=3).unordered(("time_s", "rank", "step"), kind, label)
    wanted = [event for event in drawn if kind in (None, event.kind) and label in (None, event.label)]
    assert sorted(zip(*(column.tolist() for column in found), strict=True)) == sorted(
        (event.time_s, event.rank, event.step) for event in wanted
    )


@given(events, times)
def test_cutting_forgets_what_ends_later(drawn: list[Event], until_s: float):
    trace = written(drawn, pack_every=3)
    trace.columns()
    trace.cut(until_s)
    assert list(trace) == sorted(event for event in drawn if event.time_s <= until_s)


def test_a_different_word_is_a_different_digest():
    digests = {written([Event(1.0, 0, "note", 1.0, label=label)]).digest for label in ("a", "b", "")}
    assert len(digests) == 3


def test_a_trace_grows_after_it_was_read(tmp_path: Path):
    trace = written([Event(2.0, 0, "note", 2.0)])
    assert len(trace.columns()["rank"]) == 1
    trace.record("compute", 1, 0.0, 1.0, step=1)
    assert [event.kind for event in trace] == ["compute", "note"]
    trace.save(tmp_path / "trace.npz")
    assert list(Trace.load(tmp_path / "trace.npz")) == list(trace)
    assert Trace.load(tmp_path / "trace.npz").digest == trace.digest


def test_collectives_of_many_ranks_have_the_same_events():
    """Events of many ranks are written as arrays, those of few as tuples."""
    whole, parts = Trace(), Trace()
    ranks, starts_s = tuple(range(100)), [0.01 * rank for rank in range(100)]
    whole.waits(ranks, starts_s, 2.0, "all-reduce", 1)
    whole.exchanges(ranks, 2.0, [3.0] * 100, "all-reduce", 1, list(ranks))
    for rank in ranks:
        parts.waits([rank], [starts_s[rank]], 2.0, "all-reduce", 1)
        parts.exchanges([rank], 2.0, [3.0], "all-reduce", 1, [rank])
    assert len(whole) == len(parts) == 200 and not whole.rows and len(parts.rows) == 200
    assert list(whole) == list(parts) and whole.digest == parts.digest
    whole.cut(2.5)
    assert len(whole) == len(whole.of("wait")) == 100
