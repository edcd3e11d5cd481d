"""Events of hooks on real processes: together with computing, waits and exchanges they cover a worker's time."""

from __future__ import annotations

import tacit
from tacit import workloads
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, WAIT
from tacit.runtime.train import train
from tests.runtime.processes import together

_SHORT_S = 21e-6  # other work that is shorter has no event
LABELS = {
    tacit.AllReduce(): {"flatten", "divide", "update"},
    tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.1), feedback=tacit.EF21()): {
        "flatten",
        "encode TopK",
        "decode TopK",
        "update",
    },
    tacit.CompressedGradient(compressor=tacit.QSGD(bits=8), feedback=tacit.NoFeedback(), aggregate="scatter"): {
        "flatten",
        "encode QSGD",
        "decode QSGD",
        "update",
    },
    tacit.LocalSGD(period=tacit.Every(3), overlap_steps=1): {"flatten", "divide"},
    tacit.KAsync(k=1): {"flatten", "update"},
}


def trained() -> list[tacit.Run]:
    return [train(workloads.digits(), strategy, steps=8, evaluate_every=3) for strategy in LABELS]


def test_every_moment_of_a_worker_is_computing_a_hook_a_wait_or_an_exchange() -> None:
    for (strategy, labels), run in zip(LABELS.items(), together(2, trained)[0], strict=True):
        hooks = run.trace.of(HOOK)
        assert {event.label for event in hooks} - {"other"} == labels, strategy
        assert all(event.value > 0 for event in hooks if event.label not in ("update", "other"))
        for rank in range(2):
            blocking = [event for event in run.trace.of(COMPUTE, CANCELLED, HOOK, WAIT, EXCHANGE) if event.rank == rank]
            covered_s, last_s = 0.0, max(event.time_s for event in blocking if event.kind == COMPUTE)
            for event in sorted(blocking, key=lambda event: event.start_s):
                assert event.start_s > last_s or event.start_s - covered_s < _SHORT_S, (strategy, event)
                covered_s = max(covered_s, event.time_s)
        if strategy.has_server:
            updates = [event for event in hooks if event.rank == -1]
            assert len(updates) >= 8 and all(event.value == run.parameters.numel() for event in updates)
