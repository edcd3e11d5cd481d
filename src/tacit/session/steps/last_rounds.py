"""The rounds that a worker joins after its own data has ended."""

from __future__ import annotations

from collections.abc import Callable

from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.step_context import StepContext
from tacit.session.steps.step_hooks import StepHooks
from tacit.strategies.local_sgd.periods import UNTIL_THE_END


def join_last_rounds(
    hooks: StepHooks, worker: AttachedWorker, step: StepContext, begin_step: Callable[[], None]
) -> None:
    """Take steps without data, with weight 0, until no rank has any weight, at most up to the announced number.

    Other ranks may have more data, and their rounds need every rank. begin_step: called between two steps.
    """
    worker.has_no_data = True
    while worker.steps is None or worker.step < worker.steps:
        left = UNTIL_THE_END if worker.steps is None else worker.steps - worker.step
        if hooks.hook_free_steps >= left:
            if worker.steps is not None:
                worker.meter.skip(left)
            return
        worker.meter.skip(hooks.hook_free_steps)
        hooks.hook_free_steps = 0
        begin_step()
        step.total_weight = -1.0
        with hooks.in_hook():
            hooks.call_before_without_data()
        worker.meter.end_step(0.0)
        worker.gradient_was_set = False
        with hooks.in_hook():
            hooks.call_after()
        if step.total_weight == 0.0:
            return
