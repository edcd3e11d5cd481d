"""torchft's LocalSGD: a lighthouse on rank 0's host, a manager and a store in every process, which is a replica group
of its own.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD

from benchmarks.peer_loops.common import Loop, Setting, build, optimizer_of, serve

kept: list[object] = []  # servers live as long as somebody holds them


def local(setting: Setting) -> Loop:
    lighthouse = setting.port + 2
    if setting.rank == 0:
        kept.append(LighthouseServer(bind=f"0.0.0.0:{lighthouse}", min_replicas=setting.size, join_timeout_ms=100))
    model = build(setting.model)
    optimizer = optimizer_of(model)
    store = TCPStore(setting.address, setting.port + 3 + setting.rank, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=setting.size,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        replica_id=f"replica{setting.rank}",
        store_addr=setting.address,
        store_port=store.port,
        hostname=setting.address,
        lighthouse_addr=f"http://{setting.master}:{lighthouse}",
        init_sync=False,
    )
    averaging = LocalSGD(manager, model, optimizer, sync_every=setting.period)
    averaging.__enter__()
    kept.extend((store, manager, averaging))
    return Loop(model, optimizer)


if __name__ == "__main__":
    serve({"torchft LocalSGD": local})
