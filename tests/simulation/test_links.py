"""What travelling costs: collectives beside their closed forms, messages that share a NIC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.simulation.agenda import Agenda
from tacit.simulation.links import Fabric
from tacit.strategies import Strategy
from tacit.testing.toys import Answer, Gathering, Question

LATENCY_S, BANDWIDTH = 0.003, 2e6


def fabric(workers: int, **cluster) -> tuple[Fabric, Agenda]:
    agenda = Agenda()
    described = tacit.Cluster(
        workers=workers, **{"latency_s": LATENCY_S, "bandwidth_bytes_per_s": BANDWIDTH, **cluster}
    )
    return Fabric(described, agenda, Streams(0)), agenda


@given(workers=st.integers(2, 12), elements=st.integers(1, 10_000))
@settings(deadline=None, max_examples=40)
def test_ring_all_reduce_costs_its_closed_form(workers: int, elements: int):
    price = fabric(workers)[0].price_all_reduce(range(workers), elements, 4)
    largest = math.ceil(elements / workers) * 4
    closed_s = 2 * (workers - 1) * (LATENCY_S + largest / BANDWIDTH)
    if elements % workers == 0:
        assert price.seconds == pytest.approx([closed_s] * workers)
    else:  # chunks of two sizes: the largest bounds every stage
        smallest = elements // workers * 4
        assert 2 * (workers - 1) * (LATENCY_S + smallest / BANDWIDTH) <= price.seconds[0] <= closed_s * (1 + 1e-12)
    assert sum(price.sent_bytes) == 2 * (workers - 1) * elements * 4


@given(sizes=st.lists(st.integers(1, 5000), min_size=2, max_size=10))
@settings(deadline=None, max_examples=40)
def test_ring_all_gather_costs_its_closed_form(sizes: list[int]):
    workers = len(sizes)
    equal = fabric(workers)[0].price_all_gather(range(workers), [sizes[0]] * workers)
    assert equal.seconds == pytest.approx([(workers - 1) * (LATENCY_S + sizes[0] / BANDWIDTH)] * workers)
    uneven = fabric(workers)[0].price_all_gather(range(workers), sizes)
    assert list(uneven.sent_bytes) == [sum(sizes) - sizes[(rank + 1) % workers] for rank in range(workers)]


@pytest.mark.parametrize("workers", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("source", [0, 1])
def test_tree_broadcast_costs_its_closed_form(workers: int, source: int):
    size_bytes = 40_000
    price = fabric(workers)[0].price_broadcast(range(workers), source, size_bytes)
    assert sum(price.sent_bytes) == (workers - 1) * size_bytes
    stages = math.ceil(math.log2(workers))
    # The longest chain of hops has as many latencies as a rank below n has binary ones.
    hops = max(rank.bit_count() for rank in range(workers))
    assert max(price.seconds) == pytest.approx(hops * LATENCY_S + stages * size_bytes / BANDWIDTH)
    assert price.seconds[source] <= stages * size_bytes / BANDWIDTH + 1e-12  # it only has to send


def test_a_slow_link_slows_the_whole_ring():
    slow = {(1, 2): tacit.Link(bandwidth_bytes_per_s=BANDWIDTH / 10)}
    plain, hampered = (fabric(4, **extra)[0].price_all_reduce(range(4), 4000, 4) for extra in ({}, {"links": slow}))
    chunk_s = 1000 * 4 / (BANDWIDTH / 10)
    assert hampered.seconds[0] == pytest.approx(6 * chunk_s + LATENCY_S)  # its six chunks, one behind the other
    assert plain.seconds[0] == pytest.approx(6 * (LATENCY_S + chunk_s / 10))
    assert hampered.sent_bytes == plain.sent_bytes


def test_links_count_both_ways_unless_both_are_given():
    near, far = tacit.Link(latency_s=1e-6), tacit.Link(latency_s=1.0)
    one, both = (
        tacit.Cluster(workers=3, links={(0, 1): far}),
        tacit.Cluster(workers=3, links={(0, 1): far, (1, 0): near}),
    )
    assert (one.latency(0, 1), one.latency(1, 0), one.latency(1, 2)) == (1.0, 1.0, 1e-4)
    assert (both.latency(0, 1), both.latency(1, 0)) == (1.0, 1e-6)


def arrivals(transfers: list[tuple[float, int, int, int]], **cluster) -> list[float]:
    """Return when transfers of (start_s, source, target, size) arrive."""
    links, agenda = fabric(6, latency_s=0.5, bandwidth_bytes_per_s=1000.0, **cluster)
    times = [math.nan] * len(transfers)
    for place, (start_s, source, target, size_bytes) in enumerate(transfers):

        def begin(place=place, source=source, target=target, size_bytes=size_bytes):
            links.transfer(source, target, size_bytes, lambda: times.__setitem__(place, agenda.now_s))

        agenda.at(start_s, begin)
    agenda.run(lambda: False)
    return times


def test_a_message_alone_takes_latency_and_its_size():
    assert arrivals([(0.0, 0, 1, 2000)]) == [pytest.approx(2.5)]


def test_what_a_nic_sends_at_once_shares_it():
    assert arrivals([(0.0, 0, 1, 1000), (0.0, 0, 2, 1000)]) == pytest.approx([2.5, 2.5])
    # The second comes half-way: both at half speed until the first is through after 1.5 s.
    assert arrivals([(0.0, 0, 1, 1000), (0.5, 0, 2, 1000)]) == pytest.approx([2.0, 2.5])


def test_what_arrives_at_once_shares_the_receivers_nic():
    assert arrivals([(0.0, rank, 5, 1000) for rank in range(4)]) == pytest.approx([4.5] * 4)


def test_messages_between_two_arrive_in_the_order_they_were_sent():
    """As on TCP: a small one that would be through sooner waits for the large one before it; others do not."""
    large, small, elsewhere = arrivals([(0.0, 0, 1, 4000), (0.1, 0, 1, 10), (0.1, 0, 2, 10)])
    assert elsewhere < large == small


def test_a_slow_link_holds_back_only_its_own_transfer():
    slow = {(0, 1): tacit.Link(bandwidth_bytes_per_s=100.0)}
    assert arrivals([(0.0, 0, 1, 1000), (0.0, 2, 3, 1000)], links=slow) == pytest.approx([10.5, 1.5])


@pytest.mark.slow
@given(
    transfers=st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(1, 3000)).filter(
            lambda t: t[1] != t[2]
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None, max_examples=60)
def test_every_transfer_arrives_and_no_pipe_exceeds_its_bandwidth(transfers: list[tuple[float, int, int, int]]):
    times = arrivals(transfers)
    for (start_s, _, _, size_bytes), time_s in zip(transfers, times, strict=True):
        assert time_s >= start_s + 0.5 + size_bytes / 1000 - 1e-6
    for node in range(6):
        sent = [(s, size, t) for (s, source, _, size), t in zip(transfers, times, strict=True) if source == node]
        if sent:
            busy_s = max(t for *_, t in sent) - 0.5 - min(s for s, *_ in sent)
            assert sum(size for _, size, _ in sent) <= 1000 * busy_s + 1e-3


def test_hundreds_of_messages_at_once_fill_the_send_window():
    """A hook that sends more than its window blocks until some have arrived; nothing is lost."""

    @dataclass(frozen=True, kw_only=True)
    class Flood(Strategy[None]):
        def after_step(self, worker, state):
            if worker.rank == 0:
                for _ in range(200):
                    worker.network.send(1, Question(torch.zeros(10)))
            else:
                for _ in range(200):
                    worker.network.receive(Question, source=0)
                worker.network.send(0, Answer(torch.zeros(1)))

    run = tacit.simulate(workloads.quadratic(dimension=2), Flood(), cluster=tacit.Cluster(workers=2), steps=1)
    sends = [e.time_s for e in run.trace.of("send") if e.rank == 0]
    assert len(sends) == 200 and sends[63] == sends[0] < sends[64]


def test_gathering_and_broadcasting_equal_all_reduce():
    cluster = tacit.Cluster(workers=4)
    runs = [
        tacit.simulate(workloads.quadratic(dimension=5), strategy, cluster=cluster, steps=10)
        for strategy in (Gathering(), tacit.AllReduce())
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters)


def test_groups_reduce_among_themselves():
    seen = {}

    @dataclass(frozen=True, kw_only=True)
    class Pairs(Strategy[None]):
        def after_step(self, worker, state):
            pair = [worker.rank // 2 * 2, worker.rank // 2 * 2 + 1]
            mean = worker.network.all_reduce_mean(
                torch.tensor([float(worker.rank)]), weight=1.0 + worker.rank % 2, group=pair
            )
            seen[worker.rank] = mean.item()

    tacit.simulate(workloads.quadratic(dimension=2), Pairs(), cluster=tacit.Cluster(workers=4), steps=1)
    assert seen == pytest.approx({0: 2 / 3, 1: 2 / 3, 2: 8 / 3, 3: 8 / 3})


def test_a_round_in_which_nobody_has_weight_leaves_everybody_its_own():
    seen = {}

    @dataclass(frozen=True, kw_only=True)
    class Silent(Strategy[None]):
        def after_step(self, worker, state):
            seen[worker.rank] = worker.network.all_reduce_mean(torch.tensor([float(worker.rank)]), weight=0.0).item()

    tacit.simulate(workloads.quadratic(dimension=2), Silent(), cluster=tacit.Cluster(workers=3), steps=1)
    assert seen == {0: 0.0, 1: 1.0, 2: 2.0}
