"""accelerate's LocalSGD, as its documentation has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD

from benchmarks.time_to_accuracy.ranks.common import AccuracyRank, Loop, Order, Training, serve


@contextmanager
def local(me: AccuracyRank, training: Training, order: Order) -> Iterator[Loop]:
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(training.module, training.optimizer)
    period = int(order.value or 1)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=period, enabled=True) as averaging:
        assert averaging.enabled, f"accelerate sees {accelerator.distributed_type}"
        yield Loop(model, optimizer, after=averaging.step, backward=accelerator.backward)


if __name__ == "__main__":
    serve({"accelerate LocalSGD": local}, AccuracyRank)  # type: ignore[dict-item]
