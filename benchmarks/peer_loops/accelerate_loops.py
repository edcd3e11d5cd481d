"""accelerate's LocalSGD, as its documentation has it."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD

from benchmarks.peer_loops.common import Loop, Setting, build, optimizer_of, serve


def local(setting: Setting) -> Loop:
    accelerator = Accelerator(cpu=True)
    model = build(setting.model)
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    averaging = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=setting.period, enabled=True)
    assert averaging.enabled, f"accelerate sees {accelerator.distributed_type}"
    averaging.__enter__()
    return Loop(model, optimizer, after=averaging.step, backward=accelerator.backward)


if __name__ == "__main__":
    serve({"accelerate LocalSGD": local})
