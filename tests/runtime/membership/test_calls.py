"""The record of calls: which are under way, and how long a result is kept for a member that lacks it."""

from __future__ import annotations

import torch

from tacit.runtime.membership.calls import CallRecord, Gather, MemberCall, Sum


def begun(record: CallRecord) -> MemberCall:
    call = Sum("mean", torch.ones(2))
    record.begin(call)
    return call


def finished(record: CallRecord) -> MemberCall:
    call = begun(record)
    record.end(call)
    record.returned(call)
    return call


def test_a_result_is_kept_until_a_later_call_has_ended():
    record = CallRecord()
    first = finished(record)
    second = begun(record)
    assert record.ended == {1: first} and record.lacking == [2]
    record.end(second)  # so every member has begun it, after it got the first result
    assert record.ended == {2: second} and record.lacking == []


def test_results_of_overlapped_calls_are_kept_until_a_call_ends_that_began_after_all_had_got_them():
    record = CallRecord()
    overlapped = begun(record)
    finished(record)
    record.end(overlapped)
    assert set(record.ended) == {1, 2}
    record.returned(overlapped)  # with two calls begun
    finished(record)
    assert set(record.ended) == {3}


def test_only_the_latest_call_can_be_withdrawn_to_begin_behind_another():
    record = CallRecord()
    first, second = begun(record), begun(record)
    assert not record.withdraw(first)
    assert record.withdraw(second) and record.begun == 1 and record.lacking == [1]


def test_a_joiner_counts_on_from_its_donor():
    record = CallRecord()
    begun(record)
    record.restart(7)
    assert record.lacking == [] and finished(record).number == 8


def test_gathered_bytes_survive_the_way_to_a_member_that_lacks_them():
    donor, lacking = Gather("all-gather", b"x"), Gather("all-gather", b"x")
    donor.received = [b"", b"two", b"\0"]
    lacking.take(donor.result())
    assert lacking.received == donor.received
