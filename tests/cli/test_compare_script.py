"""``tacit compare train.py``: strategies on a user's own script, from the command line."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from tacit import Run
from tests.cli.command_line import Command

TWO = ("-s", "AllReduce", "-s", "local-sgd(period=Every(4))")
SCRIPT = """
import sys
from pathlib import Path
import torch, tacit

if tacit.rank() == 0:
    with Path("runs.txt").open("a") as file:
        file.write(f"{torch.initial_seed()} {sys.argv[1:]}\\n")
    if len(Path("runs.txt").read_text().splitlines()) == INTERRUPT_AT:
        raise KeyboardInterrupt
target = torch.tensor([[1.0, 2.0, 3.0]]).T
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), steps=12)
for _ in range(12):
    inputs = torch.randn(5, 3)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs @ target).square().mean()
    loss.backward()
    session.observe(loss)
    optimizer.step()
session.close()
print("the script's own output")
"""


@pytest.fixture
def script(tacit: Command) -> str:
    """Return the path of a script in the empty folder where commands run."""
    Path("train.py").write_text(SCRIPT.replace("INTERRUPT_AT", "0"))
    return "train.py"


def runs_made() -> int:
    """Return how often the script has run so far."""
    return len(Path("runs.txt").read_text().splitlines())


def labels(folder: str) -> list[str]:
    return [row["label"] for row in json.loads(Path(folder, "compare.json").read_text())["strategies"]]


def test_strategies_and_seeds_are_compared_on_an_unmodified_script(tacit: Command, script: str) -> None:
    answer = tacit("compare", script, *TWO, "--workers", "2", "--seeds", "2", "--out", "here", "--", "--lr", "0.1")
    assert (answer.exit_code, answer.errors) == (0, "")
    assert "Report: here/report.html" in answer.output
    assert "4/4  LocalSGD(period=Every(4)) · seed 1: loss" in answer.output
    assert "the script's own output" not in answer.output
    assert labels("here") == ["AllReduce()", "LocalSGD(period=Every(4))"]
    assert [line.split(" ", 1)[1] for line in Path("runs.txt").read_text().splitlines()] == ["['--lr', '0.1']"] * 4
    rounds = {path.name: Run.load(path).summary()["rounds"] for path in Path("here/runs").iterdir()}
    assert rounds == {
        "AllReduce-0": 12,
        "AllReduce-1": 12,
        "LocalSGD-period-Every-4-0": 3,
        "LocalSGD-period-Every-4-1": 3,
    }
    assert "same model" not in answer.output
    first, second = Run.load("here/runs/AllReduce-0"), Run.load("here/runs/AllReduce-1")
    assert first.summary()["loss"] != second.summary()["loss"]


def test_files_make_the_comparison_and_each_run_again(tacit: Command, script: str) -> None:
    arguments = ("--workers", "2", "--latency", "2ms", "--speed", "1=0.5", "--target", "5", "--seeds", "3,")
    assert tacit("compare", script, "-s", "script", *TWO, *arguments, "--out", "a", "--", "x").exit_code == 0
    assert tacit("compare", "--config", "a/compare.toml", "--out", "b").exit_code == 0
    assert Path("a/compare.toml").read_text() == Path("b/compare.toml").read_text()
    assert tomllib.loads(Path("a/compare.toml").read_text())["strategies"] == [
        "script",
        "AllReduce()",
        "LocalSGD(period=Every(4))",
    ]
    for name in ("script-3", "AllReduce-3", "LocalSGD-period-Every-4-3"):
        alone = f"alone-{name}"
        assert tacit("simulate", "--config", f"a/runs/{name}/run.toml", "--out", alone).exit_code == 0
        digests = {Run.load(folder).digest for folder in (f"a/runs/{name}", f"b/runs/{name}", alone)}
        assert len(digests) == 1


@pytest.mark.processes
@pytest.mark.usefixtures("fork_server")
def test_runs_of_a_script_do_not_depend_on_the_number_of_processes(tacit: Command, script: str) -> None:
    strategies = ("-s", "LocalSGD(period=Every(2))", "-s", "script", *TWO)
    for jobs in ("1", "2"):
        answer = tacit("compare", script, *strategies, "--workers", "2", "--seeds", "2", "--jobs", jobs, "--out", jobs)
        assert (answer.exit_code, answer.errors) == (0, "")
        assert "the script's own output" not in answer.output
        assert "LocalSGD(period=Every(2)) is the script's own strategy, so it ran once" in answer.output
    one, two = (json.loads(Path(folder, "compare.json").read_text()) for folder in ("1", "2"))
    assert one == two
    digests = [{path.name: Run.load(path).digest for path in Path(folder, "runs").iterdir()} for folder in ("1", "2")]
    assert digests[0] == digests[1] and len(digests[0]) == 6
    assert runs_made() == 12


@pytest.mark.processes
def test_measured_steps_are_not_disturbed_by_other_runs(tacit: Command, script: str) -> None:
    answer = tacit("compare", script, "--workers", "2", "--compute", "measured", "--jobs", "2", "--out", "here")
    assert answer.exit_code == 2
    assert "jobs=2: runs with measured step times must be made one at a time" in answer.errors


def test_without_strategies_the_scripts_own_is_compared_with_all_reduce(tacit: Command, script: str) -> None:
    answer = tacit("compare", script, "--workers", "2", "--out", "here")
    assert answer.exit_code == 0, answer.errors
    assert labels("here") == ["LocalSGD(period=Every(2))", "AllReduce()"]
    assert "the script's own strategy" in answer.output
    found = json.loads(Path("here/compare.json").read_text())
    assert found["baseline"] == "AllReduce()"
    assert [row["rounds"]["mean"] for row in found["strategies"]] == [6, 12]


def test_a_strategy_equal_to_the_scripts_own_runs_once(tacit: Command, script: str) -> None:
    arguments = ("-s", "LocalSGD(period=Every(2))", "-s", "script", "-s", "AllReduce", "--workers", "2", "--out", "a")
    answer = tacit("compare", script, *arguments)
    assert answer.exit_code == 0, answer.errors
    assert runs_made() == 2
    assert labels("a") == ["LocalSGD(period=Every(2))", "AllReduce()"]
    assert "LocalSGD(period=Every(2)) is the script's own strategy, so it ran once" in answer.output


def test_a_script_that_seeds_its_generators_gives_equal_models(tacit: Command, script: str) -> None:
    Path(script).write_text(Path(script).read_text().replace("model =", "torch.manual_seed(tacit.rank())\nmodel ="))
    answer = tacit("compare", script, *TWO, "--workers", "2", "--seeds", "2", "--out", "here")
    assert "every seed gave the same model: the script seeds its own generators" in answer.output


def test_a_script_without_a_loss_is_compared_by_time_and_bytes(tacit: Command, script: str) -> None:
    Path(script).write_text(Path(script).read_text().replace("    session.observe(loss)\n", ""))
    answer = tacit("compare", script, *TWO, "--workers", "2", "--out", "here")
    assert answer.exit_code == 0, answer.errors
    said = " ".join(answer.output.split())
    assert "No run measured a loss, so only times and bytes are compared; a script reports its loss with" in said


def test_the_strategy_replaces_that_of_every_session(tacit: Command) -> None:
    Path("two.py").write_text(
        "import torch, tacit\n"
        "for strategy in (tacit.LocalSGD(period=tacit.Every(3)), tacit.LocalSGD(period=tacit.Every(2))):\n"
        "    model = torch.nn.Linear(3, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    with tacit.attach(model, optimizer, strategy, steps=6) as session:\n"
        "        for _ in range(6):\n"
        "            optimizer.zero_grad()\n"
        "            model(torch.randn(5, 3)).square().mean().backward()\n"
        "            optimizer.step()\n"
    )
    assert tacit("compare", "two.py", "--workers", "2", "--out", "here").exit_code == 0
    assert labels("here") == ["LocalSGD(period=Every(3)) and LocalSGD(period=Every(2))", "AllReduce()"]
    assert Run.load("here/runs/AllReduce-0").record["strategies"] == ["AllReduce()", "AllReduce()"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--lr", "0.1"), "leave out --lr, or pass it to the script after --"),
        (("--steps", "5"), "leave out --steps, or pass it to the script after --"),
        (("--workload", "digits"), "leave out --workload, or pass it to the script after --"),
        (("--tune",), "--tune cannot be used with a script, which chooses its own learning rate"),
        (("-s", "AllReduce", "-s", "AllReduce"), "strategies contains AllReduce() twice"),
        (("-s", "AlReduce"), "did you mean 'AllReduce'?"),
        (("--fault", "Join(rank=1, at_s=0.1)"), "a script cannot start while others train"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_leave_no_folder(tacit: Command, script: str, options: tuple[str, ...], reason: str) -> None:
    answer = tacit("compare", script, *options, "--workers", "2", "--out", "here")
    assert answer.exit_code == 2
    assert reason in answer.errors
    assert not Path("here").exists() and not Path("runs.txt").exists()


def test_a_script_that_is_not_there_is_named(tacit: Command) -> None:
    answer = tacit("compare", "trian.py", "--out", "here")
    assert (answer.exit_code, answer.errors) == (
        2,
        "error: the script trian.py cannot be read: No such file or directory.",
    )
    assert not Path("here").exists()


def test_a_strategy_that_fails_keeps_its_row(tacit: Command, script: str) -> None:
    crash = ("--fault", "Crash(rank=1, at_s=0.05)", "--workers", "3")
    answer = tacit("compare", script, "-s", "AllReduce", "-s", "SwarmSGD", *crash, "--out", "here")
    assert answer.exit_code == 1
    assert "AllReduce(), seed 0: failed: " in answer.errors
    assert labels("here")[0] == "AllReduce()" and len(labels("here")) == 2


def test_resuming_adds_a_strategy_and_seeds(tacit: Command, script: str) -> None:
    assert tacit("compare", script, "--workers", "2", "--out", "here", "--", "x").exit_code == 0
    digest = Run.load("here/runs/script-0").digest
    answer = tacit("compare", "--resume", "here", "-s", "LocalSGD(period=Every(6))")
    assert answer.exit_code == 0, answer.errors
    assert runs_made() == 3
    assert labels("here") == ["LocalSGD(period=Every(2))", "AllReduce()", "LocalSGD(period=Every(6))"]
    shutil.rmtree("here/runs/AllReduce-0")
    assert tacit("compare", "--resume", "here", "--seeds", "2").exit_code == 0
    assert runs_made() == 3 + 1 + 3
    assert Run.load("here/runs/script-0").digest == digest


def test_resuming_refuses_what_would_replace_finished_runs(tacit: Command, script: str) -> None:
    assert tacit("compare", script, *TWO, "--workers", "2", "--out", "here").exit_code == 0
    holds = "--resume here would replace 2 finished runs: "
    answer = tacit("compare", "--resume", "here", "--workers", "3")
    assert answer.exit_code == 2 and f"{holds}cluster.workers=3 instead of 2" in answer.errors
    answer = tacit("compare", script, "--resume", "here", "--", "y")
    assert answer.exit_code == 2 and f"{holds}arguments=['y'] instead of []" in answer.errors
    settings = Path("here/compare.toml").read_text()
    Path("here/compare.toml").write_text(settings.replace("workers = 2", "workers = 4"))
    answer = tacit("compare", "--resume", "here")
    assert answer.exit_code == 2 and f"{holds}cluster.workers=4 instead of 2" in answer.errors
    Path("here/compare.toml").write_text(settings)
    Path(script).write_text(Path(script).read_text() + "\n")
    answer = tacit("compare", "--resume", "here", "--seeds", "2")
    assert answer.exit_code == 2 and f"{holds}train.py was edited since" in answer.errors
    assert runs_made() == 2


def test_a_comparison_on_a_workload_is_not_resumed_with_a_script(tiny: Command, tacit: Command, script: str) -> None:
    assert tiny("compare", "-s", "AllReduce", "--out", "here").exit_code == 0
    answer = tacit("compare", script, "--resume", "here")
    assert answer.exit_code == 2
    assert "--resume here holds a comparison on a workload, not on train.py" in answer.errors


def test_ctrl_c_keeps_what_there_is_and_resume_goes_on(tacit: Command, script: str) -> None:
    Path(script).write_text(SCRIPT.replace("INTERRUPT_AT", "2"))
    answer = tacit("compare", script, *TWO, "--workers", "2", "--out", "here")
    assert answer.exit_code == 130
    assert "interrupted; finished runs are saved. tacit compare --resume here continues." in answer.errors
    assert Run.load("here/runs/AllReduce-0").status == "finished"
    assert tacit("compare", "--resume", "here").exit_code == 0
    assert runs_made() == 3
    assert Run.load("here/runs/LocalSGD-period-Every-4-0").status == "finished"


def test_simulate_takes_one_strategy_in_place_of_the_scripts_own(tacit: Command, script: str) -> None:
    answer = tacit("simulate", script, "-s", "AllReduce", "--workers", "2", "--out", "a")
    assert answer.exit_code == 0, answer.errors
    assert "AllReduce() on train.py, seed 0" in answer.output
    assert Run.load("a").summary()["rounds"] == 12
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b").exit_code == 0
    assert Run.load("a").digest == Run.load("b").digest
    assert tacit("simulate", "--config", "a/run.toml", "-s", "script", "--out", "c").exit_code == 0
    assert Run.load("c").strategy == "LocalSGD(period=Every(2))"


def test_a_comparison_takes_its_cluster_from_a_file(tacit: Command, script: str) -> None:
    Path("cluster.toml").write_text('workers = 3\ncompute = "Constant(mean_s=2.0)"\n')
    assert tacit("compare", script, *TWO, "--cluster", "cluster.toml", "--out", "a").exit_code == 0
    assert Run.load("a/runs/AllReduce-0").workers == 3
    arguments = ("--workload", "quadratic(dimension=5)", "--steps", "3", "--cluster", "cluster.toml", "--out", "b")
    assert tacit("compare", *TWO, *arguments).exit_code == 0
    assert Run.load("b/runs/AllReduce-0").summary()["time_s"] > 6


def test_a_strategy_that_the_script_defines_is_named_script(tacit: Command, script: str) -> None:
    Path(script).write_text(f"import tacit\n\nclass Neighbour(tacit.LocalSGD):\n    pass\n\n{Path(script).read_text()}")
    answer = tacit("compare", script, "-s", "Neighbour(every=2)", "-s", "AllReduce")
    assert answer.exit_code == 2
    assert f"strategy='Neighbour' must be a name that tacit knows, and {Path(script).name} defines it" in answer.errors
    assert "write -s script for the strategy" in answer.errors and "-s module:Neighbour" in answer.errors
    assert "unknown strategy 'Neighbor'" in tacit("compare", script, "-s", "Neighbor").errors
