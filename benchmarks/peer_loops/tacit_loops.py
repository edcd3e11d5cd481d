"""tacit beside torch, in the same processes."""

from __future__ import annotations

import tacit
from benchmarks.peer_loops.common import Loop, Setting, build, optimizer_of, serve
from benchmarks.peer_loops.torch_loops import METHODS


def attached(setting: Setting, strategy: tacit.Strategy) -> Loop:
    model = build(setting.model)
    optimizer = optimizer_of(model)
    tacit.attach(model, optimizer, strategy)
    return Loop(model, optimizer)


def all_reduce(setting: Setting) -> Loop:
    return attached(setting, tacit.AllReduce())


def local(setting: Setting) -> Loop:
    return attached(setting, tacit.LocalSGD(period=tacit.Every(setting.period)))


def local_overlapped(setting: Setting) -> Loop:
    return attached(setting, tacit.LocalSGD(period=tacit.Every(setting.period), overlap_steps=setting.overlap_steps))


TACIT = {
    "tacit AllReduce": all_reduce,
    "tacit LocalSGD": local,
    "tacit LocalSGD, overlapped": local_overlapped,
}

if __name__ == "__main__":
    serve({**METHODS, **TACIT})
