"""Clusters of five workers in trouble, for laws that hold whatever happens."""

from __future__ import annotations

from hypothesis import strategies as draw

import tacit


@draw.composite
def troubles(choose: draw.DrawFn, *, loses_messages: bool) -> dict[str, object]:
    """Draw what ``tacit.Cluster`` takes: delays, links, up to two faults.

    ``loses_messages``: lost ones too, which not every strategy says again.
    """
    times = draw.floats(0.0, 0.5)
    kinds = [
        draw.builds(tacit.Pause, rank=draw.integers(0, 4), at_s=times, for_s=draw.floats(0.01, 0.5)),
        draw.builds(tacit.Slow, rank=draw.integers(0, 4), factor=draw.floats(0.3, 8.0)),
        draw.builds(
            tacit.Partition, ranks=draw.lists(draw.integers(0, 4), min_size=1), at_s=times, for_s=times.filter(bool)
        ),
    ]
    if loses_messages:
        kinds.append(draw.builds(tacit.MessageLoss, probability=draw.floats(0.0, 0.4)))
    return {
        "compute": choose(draw.sampled_from([tacit.Exponential(mean_s=0.02), tacit.Constant(mean_s=0.02)])),
        "latency_s": choose(draw.sampled_from([0.0, 1e-3, 0.03])),
        "bandwidth_bytes_per_s": choose(draw.sampled_from([2e3, 1e9])),
        "faults": choose(draw.lists(draw.one_of(kinds), max_size=2)),
    }
