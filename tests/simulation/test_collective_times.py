"""Times of collectives as a library runs them: gloo beside published measurements, tables of measured times."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import workloads
from tacit.cluster.collectives import MeasuredAllReduce, fitted_gloo
from tests.simulation.test_links import BANDWIDTH, LATENCY_S, fabric

PUBLISHED = Path(__file__).parent / "published_gloo_times.csv"
GLOO = tacit.Gloo(software_s_per_byte=0.0)


def published(collective: str, *, is_shaped: bool) -> list[MeasuredAllReduce]:
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    cells = [row for row in csv.DictReader(lines) if row["collective"] == collective]
    return [
        MeasuredAllReduce(
            size_bytes=int(row["size_mib"]) * 2**20,
            workers=int(row["workers"]),
            seconds=float(row["time_ms"]) / 1e3,
            latency_s=float(row["latency_ms"] or 0) / 1e3,
            bandwidth_bytes_per_s=float(row["bandwidth_gbit_per_s"] or "inf") * 1e9 / 8,
        )
        for row in cells
        if bool(row["latency_ms"]) == is_shaped
    ]


def error(predicted_s: float, cell: MeasuredAllReduce) -> float:
    return predicted_s / cell.seconds - 1


def price(cell: MeasuredAllReduce, collectives: Any) -> Any:
    return fabric(
        cell.workers,
        latency_s=cell.latency_s,
        bandwidth_bytes_per_s=cell.bandwidth_bytes_per_s,
        collectives=collectives,
    )[0]


def test_gloos_all_reduce_takes_the_published_times():
    """One constant from the 8 unshaped cells; the 24 shaped ones are not fitted."""
    unshaped, shaped = (published("all-reduce", is_shaped=kind) for kind in (False, True))
    assert (len(unshaped), len(shaped)) == (8, 24)
    gloo = fitted_gloo(unshaped)
    assert gloo.software_s_per_byte == pytest.approx(tacit.Gloo().software_s_per_byte, rel=0.01)
    errors, of_ring = (
        [
            abs(
                error(
                    price(cell, times).price_all_reduce(range(cell.workers), cell.size_bytes // 4, 4).seconds[0], cell
                )
            )
            for cell in shaped
        ]
        for times in (gloo, "ring")
    )
    assert np.mean(errors) <= 0.045 and max(errors) <= 0.14  # the issue asks for 6 % and 15 %
    assert np.mean(of_ring) > 0.3  # what the constant and the handshake are good for


def test_gloos_broadcast_takes_the_published_times():
    """The constant is that of the all-reduces; no cell of the broadcasts is fitted."""
    gloo = fitted_gloo(published("all-reduce", is_shaped=False))
    shaped, unshaped = (
        [
            error(max(price(cell, gloo).price_broadcast(range(cell.workers), 0, cell.size_bytes).seconds), cell)
            for cell in published("broadcast", is_shaped=kind)
        ]
        for kind in (True, False)
    )
    assert len(shaped) == 24 and np.mean(np.abs(shaped)) <= 0.02 and np.max(np.abs(shaped)) <= 0.05
    assert len(unshaped) == 8 and np.mean(np.abs(unshaped)) <= 0.2


def test_a_fit_needs_measurements_of_several_workers():
    with pytest.raises(ValueError, match="measured is empty; give at least one"):
        fitted_gloo([])
    with pytest.raises(ValueError, match="must have at least 2 workers and a positive time; leave it out"):
        fitted_gloo([MeasuredAllReduce(1e6, 1, 0.5)])


@pytest.mark.parametrize("software", [0.0, 3e-9])
def test_a_fit_finds_the_constant_that_made_the_times(software: float):
    made = tacit.Gloo(software_s_per_byte=software or 1e-10)
    links = {"latency_s": 0.001, "bandwidth_bytes_per_s": 1e9}
    cells = [
        MeasuredAllReduce(size, n, made.ring_s(size, workers=n, **links), **links)
        for size in (1e6, 1e8)
        for n in (2, 8)
    ]
    assert fitted_gloo(cells).software_s_per_byte == pytest.approx(made.software_s_per_byte, rel=1e-6)


@pytest.mark.parametrize(("workers", "latencies"), [(2, 4), (4, 12)])
def test_a_small_all_reduce_of_gloo_takes_round_trips(workers: int, latencies: int):
    """Measured at 1 KB: 4 latencies for two ranks, 12 for four; a ring without a handshake takes half."""
    seconds = fabric(workers, bandwidth_bytes_per_s=math.inf, collectives=GLOO)[0].price_all_reduce(
        range(workers), 256, 4
    )
    assert seconds.seconds == pytest.approx([latencies * LATENCY_S] * workers)


def test_a_large_all_reduce_of_gloo_without_latency_is_the_ring():
    """2(n − 1)/n of the buffer over the NIC; two segments in flight fill it."""
    elements = 16 * 2**20
    gloo, ring = (
        fabric(4, latency_s=0.0, collectives=times)[0].price_all_reduce(range(4), elements, 4)
        for times in (GLOO, "ring")
    )
    assert gloo.seconds == pytest.approx(ring.seconds)
    assert gloo.sent_bytes == ring.sent_bytes


def test_one_rank_takes_no_time():
    alone = fabric(3, collectives="gloo")[0]
    assert alone.price_all_reduce([1], 10, 4).seconds == (0.0,)
    assert alone.price_all_gather([1], [10]).seconds == (0.0,)
    assert alone.price_all_to_all([1], [[10]]).seconds == (0.0,)
    assert alone.price_broadcast([1], 1, 10).seconds == (0.0,)
    assert tacit.Gloo().ring_s(10, workers=1) == 0.0


def test_gloo_gathers_by_sending_to_all_at_once_after_the_lengths():
    sizes = [1000, 2000, 3000, 4000]
    found = fabric(4, collectives=GLOO)[0].price_all_gather(range(4), sizes)
    assert found.seconds == pytest.approx([4 * LATENCY_S + 3 * 4000 / BANDWIDTH] * 4)  # the largest goes to three
    assert found.sent_bytes == (3000, 6000, 9000, 12000)
    matrix = [[size] * 4 for size in sizes]
    assert fabric(4, collectives=GLOO)[0].price_all_to_all(range(4), matrix) == found


def test_gloo_broadcasts_down_a_tree_whose_ranks_send_to_all_children_at_once():
    size, unit_s = 1000, 1000 / BANDWIDTH
    found = fabric(4, collectives=GLOO)[0].price_broadcast(range(4), 1, size)
    first_s = 2 * LATENCY_S + 2 * unit_s  # the source sends to two, after their notices
    assert found.seconds == pytest.approx(
        [first_s + LATENCY_S + unit_s, first_s - LATENCY_S, first_s + unit_s, first_s]
    )
    assert found.sent_bytes == (0, 2000, 1000, 0)


def test_gloo_on_one_host_takes_processor_time_only():
    size, times = 400_000, tacit.Gloo(software_s_per_byte=1e-9)
    links = fabric(4, hosts=1, collectives=times)[0]
    assert links.price_all_reduce(range(4), size // 4, 4).seconds[0] == pytest.approx(times.ring_s(size, workers=4))
    assert links.price_all_gather(range(4), [size] * 4).seconds[0] == pytest.approx(3 * size * 1e-9 / 2)
    assert links.price_broadcast(range(4), 0, size).seconds[3] == pytest.approx(3 * size * 1e-9 / 2)


def test_what_gloo_sends_at_once_shares_the_nics_of_hosts():
    apart, together = (fabric(4, collectives=GLOO, **extra)[0] for extra in ({}, {"hosts": 2}))
    sizes = [1000] * 4
    assert apart.price_all_gather(range(4), sizes).seconds[0] == pytest.approx(4 * LATENCY_S + 3000 / BANDWIDTH)
    assert together.price_all_gather(range(4), sizes).seconds[0] == pytest.approx(4 * LATENCY_S + 4000 / BANDWIDTH)
    matrix = [[1000] * 4] * 4
    assert together.price_all_to_all(range(4), matrix).seconds[0] == pytest.approx(4 * LATENCY_S + 4000 / BANDWIDTH)


def test_the_slowest_link_sets_the_pace_of_gloos_ring():
    slow = {(1, 2): tacit.Link(latency_s=1.0)}
    found = fabric(4, bandwidth_bytes_per_s=math.inf, links=slow, collectives=GLOO)[0].price_all_reduce(range(4), 8, 4)
    assert found.seconds[0] == pytest.approx(12.0)


def test_measured_times_are_interpolated():
    table = {1000: 0.5, 2000: 1.0, 4000: 4.0}
    links = fabric(
        3, collectives=tacit.Measured(table, all_gather={100: 1.0}, all_to_all={100: 2.0}, broadcast={1: 3.0})
    )[0]
    sizes = [250, 1000, 1500, 3000, 4000, 6000]
    times = [links.price_all_reduce(range(3), size // 2, 2).seconds[0] for size in sizes]
    assert times == pytest.approx([0.5, 0.5, 0.75, 2.5, 4.0, 7.0])  # constant below, growing as at the end above
    assert links.price_all_gather(range(3), [50, 300, 10]).seconds == (3.0,) * 3  # one size: in proportion
    assert links.price_all_gather(range(3), [50, 60, 10]).seconds == (1.0,) * 3
    assert links.price_all_to_all(range(3), [[900, 50, 60], [1, 1, 1], [1, 1, 1]]).seconds == pytest.approx((2.2,) * 3)
    assert links.price_broadcast(range(3), 0, 2).seconds == (6.0,) * 3


def test_collectives_without_a_table_are_rings():
    ring, table = (fabric(3, collectives=times)[0] for times in ("ring", tacit.Measured({1: 1.0})))
    assert table.price_all_gather(range(3), [1, 2, 3]) == ring.price_all_gather(range(3), [1, 2, 3])
    assert table.price_all_to_all(range(3), [[5] * 3] * 3) == ring.price_all_to_all(range(3), [[5] * 3] * 3)
    assert table.price_broadcast(range(3), 1, 5) == ring.price_broadcast(range(3), 1, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tacit.Measured({}), r"all_reduce=\{\} must map bytes to seconds; write Measured\(\{1000: 0.0004"),
        (lambda: tacit.Measured([1, 2]), r"all_reduce=\[1, 2\] must map bytes to seconds"),
        (lambda: tacit.Measured({0: 1.0}), r"all_reduce=\{0: 1.0\} must map positive bytes to seconds"),
        (lambda: tacit.Measured({1: 1.0}, broadcast={1: -1.0}), r"broadcast=\{1: -1.0\} must map positive bytes"),
        (
            lambda: tacit.Measured({"1k": 1.0}),  # type: ignore[dict-item]
            r"all_reduce=\{'1k': 1.0\} must map positive bytes to seconds",
        ),
        (
            lambda: tacit.Gloo(software_s_per_byte=-1.0),
            "software_s_per_byte=-1.0 must be at least 0 and finite; try 1.6e-9",
        ),
        (lambda: tacit.Cluster(collectives="nccl"), """collectives="nccl" must be "ring" or "gloo", Gloo.* Measured"""),
        (lambda: tacit.Cluster(collectives=3), """collectives=3 must be "ring" or "gloo","""),
    ],
)
def test_bad_times_are_answered_with_what_to_write(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_lost_messages_delay_collectives_of_a_library_too():
    loss = [tacit.MessageLoss(probability=0.9, retry_s=1.0)]
    for times in ("gloo", tacit.Measured({1: 1e-3})):
        links = fabric(3, faults=loss, collectives=times)[0]
        prices = {links.price_all_reduce(range(3), 10, 4).seconds for _ in range(3)}
        assert len(prices) == 3 and min(prices)[0] > 1.0
        assert max(links.price_broadcast(range(3), 0, 40).seconds) > 1.0


def test_only_the_times_of_a_run_depend_on_the_library():
    runs = [
        tacit.simulate(
            workloads.quadratic(dimension=50),
            strategy,
            cluster=tacit.Cluster(workers=3, collectives=times, latency_s=0.01),
            steps=6,
        )
        for strategy in (tacit.AllReduce(), tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.5)))
        for times in ("ring", "gloo", tacit.Measured({100: 0.5}, all_gather={100: 0.5}))
    ]
    for ring, *others in (runs[:3], runs[3:]):
        for other in others:
            assert (ring.parameters == other.parameters).all()
            assert ring.summary()["time_s"] != other.summary()["time_s"]
            assert ring.summary()["rounds"] == other.summary()["rounds"]
