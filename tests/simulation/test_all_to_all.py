"""All-to-all in the simulator: who gets what, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit import workloads
from tacit.core.messages import TensorMessage
from tacit.simulation.scripts.run import simulate_script
from tacit.strategies import Strategy
from tacit.testing.toys import Handing
from tests.simulation.test_links import BANDWIDTH, LATENCY_S, fabric


@given(workers=st.integers(2, 12), size_bytes=st.integers(1, 10_000))
@settings(deadline=None, max_examples=30)
def test_equal_parts_cost_one_latency_and_the_wire(workers: int, size_bytes: int):
    price = fabric(workers)[0].price_all_to_all(range(workers), [[size_bytes] * workers] * workers)
    assert price.seconds == pytest.approx([LATENCY_S + (workers - 1) * size_bytes / BANDWIDTH] * workers)
    assert price.sent_bytes == ((workers - 1) * size_bytes,) * workers


def test_nobody_receives_faster_than_its_link_allows():
    """Ranks 1 to 3 send to rank 0 alone: three parts come in one behind the other; what a rank keeps for itself costs
    nothing.
    """
    sizes = [[9000, 0, 0, 0], *([6000, 9000, 9000, 9000][:1] + [0] * 3 for _ in range(3))]
    price = fabric(4)[0].price_all_to_all(range(4), sizes)
    assert price.seconds[0] == pytest.approx(LATENCY_S + 3 * 6000 / BANDWIDTH)
    assert price.sent_bytes == (0, 6000, 6000, 6000)


def test_a_slow_link_slows_its_own_part():
    slow = {(1, 2): tacit.Link(bandwidth_bytes_per_s=BANDWIDTH / 10)}
    price = fabric(4, links=slow)[0].price_all_to_all(range(4), [[1000] * 4] * 4)
    assert price.seconds[0] == pytest.approx(LATENCY_S + (10 + 1 + 1) * 1000 / BANDWIDTH)


def test_everybody_gets_what_was_meant_for_it():
    run = tacit.simulate(workloads.quadratic(dimension=3), Handing(), cluster=tacit.Cluster(workers=4), steps=2)
    assert run.summary()["rounds"] == 2  # the gathering that follows continues the round
    sizes = {place: TensorMessage(torch.zeros(place)).size_bytes for place in (1, 2, 3, 4)}
    for rank in range(4):
        sent = [e.size_bytes for e in run.trace.of("exchange") if e.rank == rank and e.label == "all-to-all"]
        assert sent == [sum(sizes.values()) - sizes[rank + 1]] * 2


SCRIPT = """
import sys
import torch
from torch import nn
import tacit

torch.manual_seed(tacit.rank())
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
strategy = tacit.LocalSGD(period=tacit.Every(2), compressor=tacit.TopK(k=4), aggregate=sys.argv[1])
session = tacit.attach(model, optimizer, strategy)
for _ in range(4 + 2 * tacit.rank()):
    optimizer.zero_grad()
    model(torch.randn(8, 3) + tacit.rank()).square().mean().backward()
    optimizer.step()
session.close()
"""


def test_a_script_with_uneven_data_and_buffers_does_not_depend_on_the_form(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    gathered, scattered = (
        simulate_script(path, [form], cluster=tacit.Cluster(workers=3)) for form in ("gather", "scatter")
    )
    assert torch.equal(gathered.parameters, scattered.parameters)
    kinds = [e.label for e in scattered.trace.of("exchange") if e.rank == 0]
    assert kinds[:3] == ["all-to-all", "all-gather", "all-reduce"]  # BatchNorm's buffers travel by themselves


@pytest.mark.parametrize("compressor", [tacit.QSGD(bits=3, bucket=8), tacit.TopK(k=4)], ids=str)
def test_ranks_that_encode_together_send_what_they_send_alone(compressor: tacit.Compressor):
    """Ranks whose number may change encode one by one, because others may divide their vectors anew."""
    strategy = tacit.CompressedGradient(compressor=compressor, feedback=tacit.NoFeedback(), aggregate="scatter")
    together, alone = (
        tacit.simulate(
            workloads.quadratic(dimension=30, heterogeneity=0.5),
            strategy,
            cluster=tacit.Cluster(workers=6, compute=tacit.Exponential(mean_s=1.0), min_workers=fewest),
            steps=4,
        )
        for fewest in (6, 2)
    )
    assert torch.equal(together.parameters, alone.parameters)
    assert list(together.trace) == list(alone.trace)


def test_ranks_that_receive_the_same_messages_share_the_list():
    """Where ranks outnumber buckets, the last ranks sum ranges without numbers."""
    seen: dict[int, list[object]] = {}

    class Watching(tacit.CompressedGradient):
        def before_step(self, worker, state):
            network = worker.network

            class Watched:
                def __getattr__(self, name):
                    return getattr(network, name)

                def all_to_all(self, messages, group=None):
                    seen[worker.rank] = network.all_to_all(messages, group=group)
                    return seen[worker.rank]

            worker.network = Watched()
            try:
                return super().before_step(worker, state)
            finally:
                worker.network = network

    strategy = Watching(compressor=tacit.QSGD(bits=4, bucket=8), feedback=tacit.NoFeedback(), aggregate="scatter")
    tacit.simulate(workloads.quadratic(dimension=16), strategy, cluster=tacit.Cluster(workers=5), steps=1)
    held = [seen[rank][0].body.numbers for rank in range(5)]
    assert sorted(held) == [0, 0, 0, 8, 8]
    empty = [rank for rank in range(5) if held[rank] == 0]
    assert len({id(seen[rank]) for rank in empty}) == 1 and len({id(seen[rank]) for rank in range(5)}) == 3


def test_an_all_to_all_needs_a_message_for_everybody():
    @dataclass(frozen=True, kw_only=True)
    class Short(Strategy[None]):
        def before_step(self, worker, state):
            worker.network.all_to_all([TensorMessage(torch.zeros(1))])

    with pytest.raises(ValueError, match="all_to_all got 1 messages for 3 ranks; pass one per rank"):
        tacit.simulate(workloads.quadratic(dimension=3), Short(), cluster=tacit.Cluster(workers=3), steps=1)
