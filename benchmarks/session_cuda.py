"""On the device machine: a session on CUDA tensors, alone, and two gloo processes staged through pinned memory; NCCL
with one rank.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import tacit


def play(rank, size, port, strategy, out):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank)
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    g = torch.Generator().manual_seed(100 + rank)
    with tacit.attach(model, optimizer, strategy, steps=40) as session:
        for _ in range(40):
            x = torch.randn(32, 64, generator=g).cuda()
            y = (x.sum(1) > 0).long()
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            session.observe(loss)
            scaler.step(optimizer)
            scaler.update()
    out[rank] = (
        torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()]),
        model[1].running_mean.cpu(),
        session.run.history[-1]["loss"],
        session.run.summary()["rounds"],
        scaler.get_scale(),
    )


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    manager = mp.Manager()
    for port, strategy in enumerate(
        [
            tacit.AllReduce(),
            tacit.LocalSGD(period=tacit.Every(4)),
            tacit.LocalSGD(period=tacit.Every(6), overlap_steps=3),
        ]
    ):
        for size in (1, 2):
            out = manager.dict()
            t = time.time()
            mp.spawn(play, (size, 29600 + 10 * port + size, strategy, out), nprocs=size)
            print(
                strategy,
                size,
                "loss",
                out[0][2],
                "rounds",
                out[0][3],
                "scale",
                out[0][4],
                "equal",
                all(
                    torch.allclose(out[0][0], out[r][0], atol=1e-6) and torch.allclose(out[0][1], out[r][1], atol=1e-6)
                    for r in range(size)
                ),
                round(time.time() - t, 1),
                "s",
            )
    from tacit.runtime.process_groups import Group

    group = Group(dist.HashStore(), "x", [0], 0, address="127.0.0.1", backend="nccl", timeout_s=lambda: 60.0)
    x = torch.ones(5, device="cuda")
    group.all_reduce(x).wait()
    torch.cuda.synchronize()
    print("nccl one rank", x.tolist(), group.wire_device(x))
    group.close()
