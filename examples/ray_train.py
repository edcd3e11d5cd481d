"""The three lines inside a Ray Train worker: Ray starts the processes, on this machine or a Ray cluster, and tacit
makes them one run.

    pip install "tacit[ray]"
    python examples/ray_train.py --workers 2

Ray's TorchTrainer begins a torch.distributed group in every worker; tacit finds it, and opens groups of its own beside
it.
"""

import argparse

import ray.train
import torch
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn

import tacit


def train(settings: dict) -> None:
    """What every worker does: an ordinary loop."""
    torch.manual_seed(0)
    inputs, labels = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(labels)
    mine = torch.tensor([i for i in range(len(inputs)) if i % 5 and i % tacit.size() == tacit.rank()])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(8)), steps=settings["steps"])  # 1

    for _ in range(settings["steps"]):
        batch = mine[torch.randint(len(mine), (32,))]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        session.observe(loss)  # 2
        optimizer.step()

    run = session.close()  # 3
    held_out = slice(0, None, 5)
    accuracy = (model(inputs[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    rounds = run.summary()["rounds"]
    ray.train.report({"accuracy": accuracy, "rounds": rounds})
    if tacit.rank() == 0:
        print(f"{tacit.size()} workers, {rounds} rounds: accuracy {accuracy:.3f} on held-out digits")
        if settings["out"] is not None:
            run.save(settings["out"])  # `tacit report` draws it


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--out", help="a folder for the run, on a disk that the workers see")
    arguments.add_argument("--storage", help="where Ray keeps its own results; without it ~/ray_results")
    options = arguments.parse_args()
    TorchTrainer(
        train,
        train_loop_config={"steps": options.steps, "out": options.out},
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers, use_gpu=False),
        run_config=ray.train.RunConfig(storage_path=options.storage),
    ).fit()
