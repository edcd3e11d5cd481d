"""Runs: what a simulation returns, saved and loaded, and what is kept when it goes wrong."""

from __future__ import annotations

import errno
import math
import tomllib
from pathlib import Path

import pytest
import torch

import tacit
from tacit import workloads

QUADRATIC = workloads.quadratic(dimension=4)
LOCAL = tacit.LocalSGD(period=tacit.Every(4))


@pytest.fixture(scope="module")
def run() -> tacit.Run:
    return tacit.simulate(workloads.digits(), LOCAL, cluster=tacit.Cluster(workers=4), steps=40, seed=5)


def test_the_history_has_a_row_per_evaluation(run: tacit.Run):
    assert [row["step"] for row in run.history] == list(range(41))
    assert set(run.history[0]) == {
        "time_s",
        "step",
        "round",
        "bytes_sent",
        "loss",
        "gradient_norm_squared",
        "metric",
        "spread",
        "period",
    }
    assert run.history[0]["time_s"] == 0 and run.history[0]["spread"] is None
    last = run.history[-1]
    assert last["loss"] < 0.5 * run.history[0]["loss"] and last["metric"] > 0.7
    assert last["round"] == 10 and last["period"] == 4
    times = [row["time_s"] for row in run.history]
    assert times == sorted(times)
    assert all(row["round"] == row["step"] // 4 for row in run.history)


def test_the_summary_adds_up(run: tacit.Run):
    summary = run.summary()
    assert summary["steps"] == 40 and summary["rounds"] == 10 and summary["status"] == "finished"
    assert summary["bytes_sent"] == 10 * 2 * 3 * (4810 + 1 + 1) * 4  # parameters, the period, the weight
    talking = sum(e.time_s - e.start_s for e in run.trace.of("exchange")) / (4 * summary["time_s"])
    assert summary["computing"] + summary["idle"] + talking == pytest.approx(1.0)


def test_a_saved_run_loads_as_it_was(run: tacit.Run, tmp_path: Path):
    folder = run.save(tmp_path / "run")
    back = tacit.Run.load(folder)
    assert back.digest == run.digest
    assert back.history == run.history and torch.equal(back.parameters, run.parameters)
    assert back.summary() == run.summary() and list(back.trace) == list(run.trace)
    assert back.config["strategy"] == "LocalSGD(period=Every(4))"


def test_a_folder_that_exists_is_not_overwritten(run: tacit.Run, tmp_path: Path):
    run.save(tmp_path / "run")
    with pytest.raises(
        tacit.FolderExists, match="exists and is not empty; choose another name, or pass overwrite=True"
    ):
        run.save(tmp_path / "run")
    run.save(tmp_path / "run", overwrite=True)


def test_a_full_disk_leaves_what_was_there(run: tacit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run.save(tmp_path / "run")

    def full(*args: object, **rest: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.savez_compressed", full)
    with pytest.raises(tacit.TacitError, match="No space left on device; nothing there was changed"):
        run.save(tmp_path / "run", overwrite=True)
    assert tacit.Run.load(tmp_path / "run").digest == run.digest
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_no_run_is_told(tmp_path: Path):
    with pytest.raises(tacit.TacitError, match=r"is not a run folder: it has no run\.json"):
        tacit.Run.load(tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_history():
    with pytest.raises(
        tacit.NotFinite, match=r"the loss of worker \d+ is (nan|inf) in step \d+; a smaller learning rate"
    ) as caught:
        tacit.simulate(QUADRATIC, LOCAL, cluster=tacit.Cluster(workers=4), steps=300, lr=50.0, seed=1)
    error = caught.value
    assert error.run is not None and error.run.status.startswith("failed: the loss of worker")
    assert 10 < len(error.run.history) < 100
    assert error.step > error.run.history[-1]["step"]
    assert all(row["loss"] is None or math.isfinite(row["loss"]) for row in error.run.history)


def test_ctrl_c_keeps_what_there_is():
    def interrupt(step: int, steps: int, time_s: float, loss: float | None) -> None:
        if step >= 30:
            raise KeyboardInterrupt

    with pytest.raises(tacit.Interrupted) as caught:
        tacit.simulate(QUADRATIC, LOCAL, cluster=tacit.Cluster(workers=4), steps=100, progress=interrupt)
    run = caught.value.run
    assert run is not None and run.status == "interrupted"
    assert 20 <= run.history[-1]["step"] < 100


def test_progress_is_told_step_time_and_loss():
    told: list[tuple[int, int, float, float | None]] = []
    tacit.simulate(
        QUADRATIC,
        LOCAL,
        cluster=tacit.Cluster(workers=2),
        steps=20,
        evaluate_every=5,
        progress=lambda *a: told.append(a),
    )
    assert [step for step, *_ in told] == [0, 5, 10, 15, 20]
    assert all(steps == 20 and loss is not None for _, steps, _, loss in told)


def test_a_start_can_be_given():
    start = torch.arange(4.0)
    run = tacit.simulate(QUADRATIC, LOCAL, cluster=tacit.Cluster(workers=2), steps=1, start=start, lr=1e-12)
    torch.testing.assert_close(run.parameters, start.double(), atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="start has 3 numbers, but the workload's model has 4 parameters"):
        tacit.simulate(QUADRATIC, LOCAL, steps=1, start=torch.zeros(3))


def test_schedules_scale_the_rate():
    seen: list[float] = []

    class Watching(tacit.AllReduce):
        def before_step(self, worker, state):
            if worker.rank == 0:
                seen.append(worker.learning_rate)
            super().before_step(worker, state)

    for schedule in (
        tacit.StepDecay(at=(0.5, 0.75), by=0.1),
        lambda step: 1.0 / (1 + step),
        tacit.InverseTime(offset=2.0),
    ):
        tacit.simulate(QUADRATIC, Watching(), cluster=tacit.Cluster(workers=2), steps=4, lr=0.4, schedule=schedule)
    assert seen[:4] == pytest.approx([0.4, 0.4, 0.04, 0.004])
    assert seen[4:8] == pytest.approx([0.4, 0.2, 0.4 / 3, 0.1])
    assert seen[8:] == pytest.approx([0.4, 0.8 / 3, 0.2, 0.16])
    assert tacit.Cosine(warmup_steps=2).factor(0, 10) == 0.5 and tacit.Cosine().factor(10, 10) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps=0 must be a whole number, at least 1"),
        ({"host": "fiber"}, ValueError, "host='fiber' is unknown"),
        ({"evaluate_every": 0}, ValueError, "evaluate_every=0 must be at least 1"),
        ({"schedule": 3}, TypeError, "schedule=3 must be a function of the step"),
    ],
)
def test_bad_arguments_say_the_way_out(arguments: dict, error: type, message: str):
    with pytest.raises(error, match=message):
        tacit.simulate(QUADRATIC, LOCAL, **arguments)


def test_bad_kinds_of_arguments_are_told():
    with pytest.raises(TypeError, match=r"must be a workload; try tacit.workloads.digits\(\)"):
        tacit.simulate("digits", LOCAL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a strategy; try tacit.AllReduce\(\)"):
        tacit.simulate(QUADRATIC, "AllReduce")  # type: ignore[arg-type]


PUBLIC_NAMES = """
AdaCommPeriod AdaSync AllReduce AsynchronousDPSGD BFloat16 BadData BadMessage BlockTopK CHOCO Calibrated Chain Cluster Complete
Compressed CompressedGradient Compressor Constant Cosine Crash DDP DPSGD Deadlock Delay DelayedNesterov Dense Disagreement EF21
EF21Bidirectional EF21HeavyBall EF21Momentum EF21Partial EF21Plus EF21Weighted ErrorFeedback Every Exponential
ExponentialGraph Feedback FolderExists Geometric Gloo Graph Hierarchical HyperExponential Hypercube Interrupted InverseStaleness
InverseTime Join KAsync KBatchAsync KBatchSync KSync Lattice LatticeOverflow Layerwise LeftOut LinearPeriod Link LocalSGD
LogNormal Loss LossPeriod LowRank Measured MembersChanged MergesStates Message MessageLoss MisplacedCall Network Nic NoFeedback NotFinite
OnePeer OneShot Outer OuterAdam OuterSGD PacePeriod Pareto Partition Pause PeerLost Period PeriodList PeriodState
Plan PlanMap Profile PullSwarm QSGD RandomK RandomRegular RatePeriod Recorded ReplayDiverged RescaledRate Ring Ringleader Round Run
RunError RunsAhead SERVER
SGP Schedule ScriptFailed Server ServerStrategy Session ShiftedExponential Sign Slow SlowMo SlowSpells SpeedBias
StalenessRate Star StepDecay Strategy SwarmSGD TacitError TakesJoiners TensorMessage TimedOut TopK Topology Torus
VariancePeriod Worker Workload attach compare hooks load_once plan plan_map rank simulate size strategy theory workloads
"""


def test_the_public_names_stay_put():
    """Users' scripts are written against these: adding or removing a name is a decision, and changes ``PUBLIC_NAMES``."""
    kept, found = set(PUBLIC_NAMES.split()), set(tacit.__all__)
    assert {"added": found - kept, "removed": kept - found} == {"added": set(), "removed": set()}
    assert sorted(tacit.__all__) == PUBLIC_NAMES.split()
    assert [name for name in tacit.__all__ if not hasattr(tacit, name)] == []


def test_a_saved_run_holds_the_toml_that_makes_it_again(run: tacit.Run, tmp_path: Path):
    described = (run.save(tmp_path / "run") / "run.toml").read_text()
    assert described.startswith("# tacit simulate --config run.toml repeats this run.")
    settings = tomllib.loads(described)
    assert settings["workload"] == 'digits(model="mlp")' and settings["strategy"] == "LocalSGD(period=Every(4))"
    assert (settings["seed"], settings["steps"], settings["cluster"]["workers"]) == (5, 40, 4)
    own = tacit.simulate(QUADRATIC, LOCAL, steps=2, optimizer=lambda p: torch.optim.Adam(p), schedule=lambda step: 1.0)
    assert own.toml().startswith("# Not enough to repeat this run: optimizer, schedule came from a script")
    tomllib.loads(own.toml())


def test_a_run_prints_in_one_line(run: tacit.Run):
    shown = repr(run)
    assert shown.startswith('<Run LocalSGD(period=Every(4)) on digits(model="mlp"), 4 workers, seed 5: loss 0.')
    assert shown.endswith("finished>") and len(shown) < 200
