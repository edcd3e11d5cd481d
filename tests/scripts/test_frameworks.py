"""Hugging Face Trainer, accelerate and Lightning: modules of their shape, and the packages themselves where they are
installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn

import tacit
from tacit.simulation.scripts.run import simulate_script

# A package of accelerate's shape: state in singletons, distributed where torchrun's variables are set, an optimizer
# without hooks of its own.
STATE = """
import os

class PartialState:
    _shared_state = {}

    def __init__(self, cpu=False):
        self.__dict__ = self._shared_state
        if self._shared_state:
            return
        if int(os.environ.get("LOCAL_RANK", -1)) != -1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("Tried to launch on distributed with multinode, but `MASTER_ADDR` env was not set")
        self.num_processes, self.process_index = 1, 0

class GradientState:
    _shared_state = {}

    def __init__(self):
        self.__dict__ = self._shared_state
        self._shared_state.setdefault("sync_gradients", True)
"""
OPTIMIZER = """
import torch

class AcceleratedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()
"""


@pytest.fixture
def accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package of accelerate's shape."""
    package = tmp_path / "packages" / "accelerate"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text(STATE)
    (package / "optimizer.py").write_text(OPTIMIZER)
    monkeypatch.syspath_prepend(str(package.parent))
    known = [name for name in sys.modules if name.partition(".")[0] == "accelerate"]
    for name in (*known, "accelerate", "accelerate.state", "accelerate.optimizer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        del sys.modules[name]


SCRIPT = """
import os
import sys
from pathlib import Path

import torch
import tacit
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import GradientState, PartialState

state = PartialState(cpu=True)
assert (state.num_processes, state.process_index) == (1, tacit.rank())
assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(tacit.rank()), str(tacit.size()))
model = torch.nn.Linear(4, 1)
optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(3))) as session:
    for micro_batch in range(8 + 2 * tacit.rank()):
        GradientState().sync_gradients = micro_batch % 2 == 1
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if micro_batch % 2 == 1:
            optimizer.step()
            assert GradientState().sync_gradients  # as this worker left it, whatever the others did meanwhile
            optimizer.zero_grad()
assert PartialState().process_index == tacit.rank()
(Path(__file__).parent / f"steps-{tacit.rank()}").write_text(str(session.run.summary()["rounds"]))
"""


def test_accelerate_takes_a_simulated_worker_for_one_process(tmp_path, accelerate):
    path = tmp_path / "train.py"
    path.write_text(dedent(SCRIPT))
    run = simulate_script(path, cluster=tacit.Cluster(workers=3, speed={1: 0.4}))
    assert run.status == "finished" and len([*tmp_path.glob("steps-*")]) == 3
    state = sys.modules["accelerate.state"]
    assert state.PartialState(cpu=True).process_index == 0  # nothing of the workers is left


def test_an_accelerated_optimizer_is_unwrapped(accelerate):
    from accelerate.optimizer import AcceleratedOptimizer

    model = nn.Linear(4, 1)
    optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with tacit.attach(model, optimizer, tacit.AllReduce()) as session:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert session.step == 1


def test_an_unknown_wrapper_of_an_optimizer_is_refused():
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

        def __repr__(self) -> str:
            return "Lookahead"

    model = nn.Linear(4, 1)
    with pytest.raises(TypeError, match=r"Lookahead, which wraps another .* attach the optimizer inside"):
        tacit.attach(model, Lookahead(torch.optim.SGD(model.parameters(), lr=0.1)), tacit.AllReduce())


# The packages themselves.

needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
needs_lightning = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")

ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
optimizer, loader = accelerator.prepare(optimizer, loader)
with tacit.attach(model, optimizer, {strategy}) as session:
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
tell(model=flat(model), status=session.run.status)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Attach(lightning.Callback):
    def on_train_start(self, trainer, module):
        self.session = tacit.attach(module, trainer.optimizers[0], {strategy})

    def on_train_end(self, trainer, module):
        tell(status=self.session.close().status, model=flat(module))


data = torch.utils.data.TensorDataset(torch.randn(64, 4)[rank::size])
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Attach()], devices=1, strategy=SingleDeviceStrategy(device="cpu"),
    plugins=[LightningEnvironment()],
)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["LocalSGD(period=Every(3))", "AllReduce()"])
@pytest.mark.parametrize(
    "script",
    [pytest.param(ACCELERATE, marks=needs_accelerate), pytest.param(LIGHTNING, marks=needs_lightning)],
    ids=["accelerate", "lightning"],
)
def test_a_framework_trains_in_both_worlds(play, script, strategy):
    outcome = play(script.format(strategy=strategy))
    for world in (outcome.real, outcome.simulated):
        assert all(told["status"] == "finished" and torch.equal(told["model"], world[0]["model"]) for told in world)
