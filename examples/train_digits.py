"""An ordinary PyTorch script with three lines of tacit in it.

torchrun --nproc-per-node 4 examples/train_digits.py
python examples/train_digits.py                       one process alone
tacit simulate examples/train_digits.py --workers 64  the same file on 64 simulated workers
tacit compare examples/train_digits.py --workers 64   its strategy compared with AllReduce
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tacit

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--steps", type=int, default=400)
arguments.add_argument("--lr", type=float, default=0.1)
arguments.add_argument("--period", type=int, default=8, help="local steps between two averages")
options = arguments.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
inputs, labels = tacit.load_once(lambda: load_digits(return_X_y=True))
inputs, labels = torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(labels)
held_out = slice(0, None, 5)
mine = [i for i in range(len(inputs)) if i % 5 and i % tacit.size() == tacit.rank()]  # this worker's share
loader = DataLoader(TensorDataset(inputs[mine], labels[mine]), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
strategy = tacit.LocalSGD(period=tacit.Every(options.period))
session = tacit.attach(model, optimizer, strategy, steps=options.steps)  # 1

while session.step < options.steps:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.observe(loss)  # 2, for the loss curve
        optimizer.step()  # the strategy happens here
        if session.step == options.steps:
            break

run = session.close()  # 3: the last round; the model now holds what the strategy reports

if tacit.rank() == 0:
    with torch.no_grad():
        accuracy = (model(inputs[held_out]).argmax(1) == labels[held_out]).float().mean()
    print(f"{tacit.size()} workers, {run.summary()['rounds']} rounds: accuracy {accuracy:.3f} on held-out digits")
