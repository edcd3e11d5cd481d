"""Workers that share a host: what they exchange with each other does not use the NIC, what leaves the host shares it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import tacit
from tacit import workloads
from tacit.cluster.group_network import GroupNetwork
from tests.simulation.test_links import BANDWIDTH, LATENCY_S, arrivals, fabric


@pytest.mark.parametrize(
    ("workers", "hosts", "found"),
    [
        (4, None, [0, 1, 2, 3]),
        (4, 2, [0, 0, 1, 1]),
        (5, 2, [0, 0, 0, 1, 1]),
        (3, 1, [0, 0, 0]),
        (3, [7, 2, 7], [7, 2, 7]),
    ],
)
def test_ranks_are_divided_over_hosts(workers: int, hosts: Any, found: list[int]):
    cluster = tacit.Cluster(workers=workers, hosts=hosts)
    assert [cluster.host(rank) for rank in range(workers)] == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": 0}, "hosts=0 must be between 1 and workers=4; leave it out"),
        ({"hosts": 5}, "hosts=5 must be between 1 and workers=4"),
        ({"hosts": [0, 1]}, "hosts has 2 entries, but workers=4; give the host of each rank"),
        ({"hosts": "two"}, r"hosts='two' must be a number of hosts, or a list .* write hosts=2, or a list such as"),
        ({"hosts": [0, 0, 1, 1.5]}, "must be a number of hosts, or a list"),
        ({"host_latency_s": -1.0}, "host_latency_s=-1.0 must be at least 0"),
        ({"host_bandwidth_bytes_per_s": 0.0}, "host_bandwidth_bytes_per_s=0.0 must be positive"),
        ({"header_overhead": -0.1}, "header_overhead=-0.1 must be at least 0 and finite; 0.047 adds"),
        ({"nics": {4: tacit.Nic()}}, "nics names worker 4, but workers=4"),
        ({"nics": {1: 1e6}}, r"must map ranks to NICs; write \{1: Nic\(out_bytes_per_s=12.5e6\)\}"),
        (
            {"hosts": 2, "nics": {0: tacit.Nic(), 1: tacit.Nic(out_bytes_per_s=1.0)}},
            "nics gives ranks 0 and 1 different NICs, but they share a host; give the NIC of one rank",
        ),
        ({"server": "rank1"}, """server='rank1' must be "extra" or "rank0"; did you mean 'rank0'?"""),
        ({"server": "besides"}, """server='besides' must be "extra" or "rank0".$"""),
        ({"cancel": "never"}, """cancel='never' must be "instant" or "step_end"."""),
    ],
)
def test_bad_hosts_and_nics_are_answered_with_what_to_write(given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        tacit.Cluster(workers=4, **given)


def test_a_nic_needs_a_bandwidth():
    with pytest.raises(ValueError, match=r"out_bytes_per_s=0 must be positive; inf is a NIC without a limit"):
        tacit.Nic(out_bytes_per_s=0)


def test_a_message_within_a_host_does_not_use_the_nic():
    transfers = [(0.0, 0, 1, 1000), (0.0, 0, 2, 1000)]
    assert arrivals(transfers, hosts=3) == pytest.approx([0.0, 1.5])  # alone in the pipe; without hosts both take 2.5
    slower = arrivals(transfers, hosts=3, host_latency_s=0.1, host_bandwidth_bytes_per_s=2000.0)
    assert slower == pytest.approx([0.6, 1.5])


def test_workers_of_one_host_share_its_nic():
    assert arrivals([(0.0, 0, 2, 1000), (0.0, 1, 4, 1000)], hosts=3) == pytest.approx([2.5, 2.5])
    assert arrivals([(0.0, 0, 2, 1000), (0.0, 4, 3, 1000)], hosts=3) == pytest.approx([2.5, 2.5])
    assert arrivals([(0.0, 0, 2, 1000), (0.0, 1, 4, 1000)]) == pytest.approx([1.5, 1.5])


def test_a_link_of_its_own_counts_within_a_host_too():
    assert arrivals([(0.0, 0, 1, 1000)], hosts=3, links={(0, 1): tacit.Link(latency_s=2.0)}) == pytest.approx([2.0])


def test_nics_differ_by_rank_and_direction():
    nics = {0: tacit.Nic(out_bytes_per_s=100.0), 3: tacit.Nic(in_bytes_per_s=200.0)}
    transfers = [(0.0, 0, 1, 1000), (0.0, 1, 0, 1000), (0.0, 2, 3, 1000)]
    assert arrivals(transfers, nics=nics) == pytest.approx([10.5, 1.5, 5.5])
    ring = fabric(4, nics={2: tacit.Nic(out_bytes_per_s=BANDWIDTH / 10)})[0].price_all_reduce(range(4), 4000, 4)
    assert ring.seconds[0] == pytest.approx(6 * 4000 / (BANDWIDTH / 10) + LATENCY_S)  # as a slow link


def test_a_nic_without_a_limit_waits_for_the_other_side_only():
    nics = {0: tacit.Nic(out_bytes_per_s=math.inf, in_bytes_per_s=math.inf)}
    assert arrivals([(0.0, 0, 1, 1000), (0.0, 0, 2, 1000)], nics=nics) == pytest.approx([1.5, 1.5])
    assert arrivals([(0.0, 1, 0, 1000), (0.0, 2, 0, 1000)], nics=nics) == pytest.approx([1.5, 1.5])


def test_headers_lengthen_what_nics_transfer():
    assert arrivals([(0.0, 0, 1, 1000), (0.0, 2, 3, 1000)], header_overhead=0.25, hosts=[0, 1, 2, 2, 3, 4]) == (
        pytest.approx([1.75, 0.0])
    )
    slow = {(0, 1): tacit.Link(bandwidth_bytes_per_s=500.0)}
    assert arrivals([(0.0, 0, 1, 1000)], header_overhead=0.25, links=slow) == pytest.approx([3.0])


def test_a_ring_pays_the_nic_only_between_hosts():
    """On one host it is free; over two hosts each NIC carries one of the ring's edges, or all of them."""
    elements, chunk_s = 4000, 4000 / BANDWIDTH
    assert fabric(4, hosts=1)[0].price_all_reduce(range(4), elements, 4).seconds == (0.0,) * 4
    apart = fabric(4)[0].price_all_reduce(range(4), elements, 4).seconds[0]
    halves = fabric(4, hosts=2)[0].price_all_reduce(range(4), elements, 4).seconds[0]
    mixed = fabric(4, hosts=[0, 1, 0, 1])[0].price_all_reduce(range(4), elements, 4).seconds[0]
    assert mixed == pytest.approx(6 * (LATENCY_S + 2 * chunk_s))  # two edges leave each host
    assert apart == pytest.approx(6 * (LATENCY_S + chunk_s))
    assert halves < apart


def test_the_other_collectives_are_free_on_one_host():
    links, _ = fabric(4, hosts=1)
    assert links.price_all_gather(range(4), [1000] * 4).seconds == (0.0,) * 4
    assert links.price_all_to_all(range(4), [[1000] * 4] * 4).seconds == (0.0,) * 4
    assert links.price_broadcast(range(4), 0, 1000).seconds == (0.0,) * 4


def test_transfers_of_an_all_to_all_share_the_nic_of_a_host():
    size = 1000
    links, _ = fabric(4, hosts=2)
    # Stage 1 crosses from one rank of each host, stages 2 from both at once, stage 3 from one.
    expected_s = (1 + 2 + 1) * size / BANDWIDTH
    assert links.price_all_to_all(range(4), [[size] * 4] * 4).seconds[0] >= expected_s
    assert links.price_broadcast(range(4), 0, size).seconds[3] == pytest.approx(LATENCY_S + 2 * size / BANDWIDTH)


def test_messages_to_a_server_on_rank_0_do_not_use_the_nic_of_rank_0():
    """K-async with one learner: all its messages stay on the host, so an update takes one step."""
    cluster = tacit.Cluster(
        workers=1, compute=tacit.Constant(mean_s=0.01), server="rank0", latency_s=0.1, bandwidth_bytes_per_s=100.0
    )
    run = tacit.simulate(workloads.quadratic(dimension=10), tacit.KAsync(k=1), cluster=cluster, steps=5)
    assert run.summary()["time_s"] == pytest.approx(0.05)


def test_a_slow_wire_does_not_slow_the_learner_beside_the_server():
    """20 Mbit/s, four learners: the one on the server's host computes without interruption."""
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.02), server="rank0", bandwidth_bytes_per_s=2.5e6)
    run = tacit.simulate(
        workloads.quadratic(dimension=100_000), tacit.KAsync(k=1), cluster=cluster, steps=20, timing_only=True
    )
    steps = [event.rank for event in run.trace.of("compute")]
    assert run.summary()["time_s"] < 20 * 0.021 and steps.count(0) > steps.count(1)


def test_the_server_without_a_network_uses_the_fast_path_on_any_host():
    strategy, workload = tacit.KSync(k=2), workloads.quadratic(dimension=3)
    runs = [
        tacit.simulate(
            workload,
            strategy,
            cluster=tacit.Cluster(workers=4, latency_s=0.0, bandwidth_bytes_per_s=math.inf, **extra),
            steps=20,
            timing_only=True,
        )
        for extra in ({}, {"hosts": 2, "server": "rank0"}, {"hosts": 2, "server": "rank0", "host_latency_s": 0.1})
    ]
    assert [run.record["host"] == "race" for run in runs] == [True, True, False]
    assert runs[0].digest == runs[1].digest != runs[2].digest


def test_arrays_of_a_group_are_the_clusters_numbers():
    """``GroupNetwork`` computes with arrays what ``Cluster`` says pair by pair."""
    links = {(0, 3): tacit.Link(latency_s=0.5), (4, 1): tacit.Link(bandwidth_bytes_per_s=7.0), (1, 2): tacit.Link()}
    cluster = tacit.Cluster(
        workers=6,
        hosts=[0, 0, 1, 1, 2, 0],
        host_latency_s=0.25,
        host_bandwidth_bytes_per_s=1e9,
        header_overhead=0.5,
        links={**links, (3, 0): tacit.Link(latency_s=0.75, bandwidth_bytes_per_s=5.0)},
        nics={2: tacit.Nic(out_bytes_per_s=1e3), 4: tacit.Nic(in_bytes_per_s=2e3)},
    )
    for group in (range(6), [5, 3, 0, 4], [2, 1]):
        network = GroupNetwork(cluster, group)
        for (at, source), (to, target) in itertools.permutations(enumerate(group), 2):
            assert network.latency_s[at, to] == cluster.latency(source, target)
            assert network.bandwidth[at, to] == cluster.bandwidth(source, target)
        for stage in range(1, len(group)):
            pairs = [(rank, group[(place + stage) % len(group)]) for place, rank in enumerate(group)]
            found = [network.staged_bandwidth[place, (place + stage) % len(group)] for place in range(len(group))]
            assert found == cluster.bandwidths(pairs)
