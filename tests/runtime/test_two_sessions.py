"""Two models with a session each in one script, as in a GAN: each session has its own messages, rounds, bytes and
trace, in both worlds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tacit
from tacit.simulation.scripts.run import simulate_script
from tests.runtime.processes import together

SCRIPT = """
import json
import torch, tacit

def attached(start, width, lr):
    model = torch.nn.Linear(width, 1, bias=False)
    torch.nn.init.constant_(model.weight, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer, tacit.attach(model, optimizer, tacit.strategy(STRATEGY), steps=STEPS)

first, first_optimizer, first_session = attached(0.0, WIDTHS[0], 0.0)
second, second_optimizer, second_session = attached(1.0, WIDTHS[1], 0.0)
for _ in range(3 * STEPS):
    attached = ((first, first_optimizer, first_session), (second, second_optimizer, second_session))
    for model, optimizer, session in attached:
        if session.is_done:
            continue
        optimizer.zero_grad()
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()
first_session.close()
second_session.close()
found = {
    "models": [model.weight.detach().flatten().tolist() for model in (first, second)],
    "runs": [session.run.summary() for session in (first_session, second_session)],
}
with open(f"FOLDER/{tacit.rank()}.json", "w") as file:
    json.dump(found, file)
"""
STRATEGIES = [
    "LocalSGD(period=Every(2))",
    "SwarmSGD(local_steps=2)",
    "PullSwarm(local_steps=2)",
    "DPSGD(topology=Complete())",
    "KAsync(k=1)",
    "CompressedGradient(compressor=TopK(k=1))",
]


def script(folder: Path, strategy: str, widths: tuple[int, int]) -> Path:
    """Return a script in which every worker leaves what it found in a file of its own."""
    values = {"STRATEGY": repr(strategy), "STEPS": "8", "WIDTHS": str(widths), "FOLDER": str(folder)}
    code = SCRIPT
    for name, value in values.items():
        code = code.replace(name, value)
    path = folder / "two.py"
    path.write_text(code)
    return path


def found(folder: Path) -> list[dict]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def simulated(folder: Path, strategy: str, widths: tuple[int, int] = (3, 3)) -> list[dict]:
    run = simulate_script(script(folder, strategy, widths), cluster=tacit.Cluster(workers=2))
    assert run.status == "finished"
    return found(folder)


def execute(path: str) -> None:
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_models_of_equal_size_are_not_mixed_in_the_simulator(strategy, tmp_path):
    """With a learning rate of 0 nothing may move."""
    for worker in simulated(tmp_path, strategy):
        assert worker["models"] == [[0.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_models_of_different_sizes_train_next_to_each_other_in_the_simulator(strategy, tmp_path):
    for worker in simulated(tmp_path, strategy, widths=(3, 5)):
        assert worker["models"] == [[0.0] * 3, [1.0] * 5]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["LocalSGD(period=Every(2))", "DPSGD(topology=Complete())"])
def test_rounds_and_bytes_are_counted_by_session_as_on_real_processes(strategy, tmp_path):
    widths = (3, 50)
    together(2, execute, str(script(tmp_path, strategy, widths)))
    real = found(tmp_path)[0]["runs"]
    here = simulated(tmp_path, strategy, widths)[0]["runs"]
    for name in ("steps", "rounds", "bytes_sent", "messages"):
        assert [run[name] for run in here] == [run[name] for run in real], name
    assert here[1]["bytes_sent"] > here[0]["bytes_sent"] > 0


def test_a_session_after_another_has_a_trace_of_its_own(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(
        """
import torch, tacit
for steps in (4, 6):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=steps) as session:
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
"""
    )
    run = simulate_script(path, cluster=tacit.Cluster(workers=2))
    assert run.summary()["rounds"] == run.summary()["steps"] == 6
