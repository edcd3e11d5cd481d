"""NICs and links that differ from the others, from rates and latencies of pairs."""

from __future__ import annotations

import itertools

import pytest

import tacit
from tacit.profiles.pairs import Differences, Pair, differences
from tests.profiles.synthetic_runs import real_run


def pairs_of(workers: int, **slow: float) -> dict[tuple[int, int], Pair]:
    """Return pairs of 100 bytes/s and 1 ms, with other rates as in ``r01=50.0``."""
    return {
        pair: Pair(1e-3, slow.get(f"r{pair[0]}{pair[1]}", 100.0)) for pair in itertools.permutations(range(workers), 2)
    }


def test_pairs_that_are_alike_give_no_differences() -> None:
    assert differences(pairs_of(4, r01=95.0), None) == Differences(latency_s=1e-3)
    assert differences({}, None) == Differences()


def test_a_slow_link_is_a_link_and_a_slow_nic_a_nic() -> None:
    assert differences(pairs_of(4, r01=50.0, r10=50.0), None) == Differences(links={(0, 1): 0.5}, latency_s=1e-3)
    one_way = differences(pairs_of(4, r01=50.0), None)
    assert one_way.links == {(0, 1): 0.5, (1, 0): 1.0}, "(1, 0) would default to (0, 1)"
    sends_slowly = {f"r3{other}": 25.0 for other in range(3)}
    assert differences(pairs_of(4, **sends_slowly), None) == Differences(out={3: 0.25}, latency_s=1e-3)


def test_ranks_of_one_host_share_a_nic_and_their_own_pairs_do_not_count() -> None:
    pairs = pairs_of(4, r01=1e6, r10=1e6, r23=1e6, r32=1e6)
    for source, target in itertools.product((2, 3), (0, 1)):
        pairs[source, target] = Pair(1e-3, 40.0)
    found = differences(pairs, [0, 0, 1, 1])
    assert set(found.out) == {2} and set(found.into) == {0}, "what the second host sends, the first receives"
    assert found.out[2] == found.into[0] == pytest.approx(40 / 70, rel=0.01)


def test_latencies_that_differ_are_added() -> None:
    pairs = pairs_of(3)
    pairs[0, 2] = pairs[2, 0] = Pair(5e-3, 100.0)
    found = differences(pairs, None)
    assert found.added_latency_s == {(0, 2): pytest.approx(4e-3)}
    assert found.fields(2e-3, 1e6) == {"links": {(0, 2): tacit.Link(latency_s=6e-3)}}


def test_the_round_that_a_slow_nic_explains_gives_the_others_their_own_bandwidth() -> None:
    from tacit.profiles.combined import combined
    from tacit.profiles.measurement import Measurement

    measurement = Measurement.of(real_run([1.0] * 4))
    alike = combined([measurement])
    slow = combined([measurement], pairs_of(4, **{f"r3{other}": 25.0 for other in range(3)}))
    assert slow["nics"][3].out_bytes_per_s == pytest.approx(alike["bandwidth_bytes_per_s"], rel=0.35)
    assert slow["bandwidth_bytes_per_s"] > 2 * alike["bandwidth_bytes_per_s"]
