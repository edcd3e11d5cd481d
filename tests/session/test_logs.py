"""Where numbers go while a run goes on: each log gets what a fake of its package is asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import tacit


class Recorder:
    """A log of the user's own."""

    def __init__(self) -> None:
        self.rows, self.is_closed = [], False

    def write(self, step, numbers) -> None:
        self.rows.append((step, dict(numbers)))

    def close(self) -> None:
        self.is_closed = True


def short_run(log) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=3, log=log) as session:
        for loss in (3.0, 2.0, 1.0):
            session.observe(loss)
            optimizer.step()
        session.log(loss=0.5, metric=0.9)


def test_a_log_of_the_users_own():
    log = Recorder()
    short_run(log)
    assert [(step, row["training/loss"]) for step, row in log.rows[:3]] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert log.rows[3] == (3, {"evaluation/loss": 0.5, "evaluation/metric": 0.9})
    assert log.is_closed


@pytest.mark.parametrize("has_begun", [True, False])
def test_wandb_goes_on_with_the_users_run_or_begins_one(monkeypatch, has_begun):
    logged, ended = [], []
    run = SimpleNamespace(log=lambda numbers, step: logged.append((step, numbers)), finish=lambda: ended.append(1))
    fake = SimpleNamespace(run=run if has_begun else None, init=lambda: run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    short_run("wandb")
    assert logged[0][0] == 1 and logged[0][1]["training/loss"] == 3.0 and len(logged) == 4
    assert ended == ([] if has_begun else [1])


def test_mlflow(monkeypatch):
    logged, begun, ended = [], [], []
    fake = SimpleNamespace(
        active_run=lambda: None,
        start_run=lambda: begun.append(1),
        end_run=lambda: ended.append(1),
        log_metrics=lambda numbers, step: logged.append((step, numbers)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    short_run("mlflow")
    assert len(logged) == 4 and begun == ended == [1]


def test_tensorboard(monkeypatch, tmp_path):
    written, closed = [], []

    class Writer:
        def __init__(self, folder) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, name, value, step) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            closed.append(1)

    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    short_run(f"tensorboard:{tmp_path}")
    assert ("training/loss", 2.0, 2) in written and ("evaluation/metric", 0.9, 3) in written and closed == [1]


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        short_run("wandb")


# What is logged stays in the run.


def attached(**settings) -> tuple[tacit.Session, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return tacit.attach(model, optimizer, tacit.AllReduce(), steps=2, **settings), optimizer


def test_every_logged_number_is_in_the_history_and_in_the_summary(tmp_path):
    session, optimizer = attached()
    for accuracy in (torch.tensor(0.5), 0.75):
        session.observe(1.0)
        optimizer.step()
        session.log(loss=0.25, accuracy=accuracy, tokens=7, missing=None)
    run = session.close()
    assert [row["accuracy"] for row in run.history] == [0.5, 0.75]
    assert [(row["tokens"], row["missing"], row["loss"]) for row in run.history] == [(7.0, None, 0.25)] * 2
    assert run.summary()["logged"] == {"accuracy": 0.75, "tokens": 7.0}
    assert tacit.Run.load(run.save(tmp_path / "run")).history == run.history


def test_numbers_logged_without_a_loss_do_not_drop_the_training_loss():
    session, optimizer = attached()
    for step in (1, 2):
        session.observe(float(step))
        optimizer.step()
        session.log(accuracy=step / 4)
    run = session.close()
    assert [(row["step"], row["loss"]) for row in run.history if row["loss"] is not None] == [(1, 1.0), (2, 2.0)]
    assert [row["accuracy"] for row in run.history if "accuracy" in row] == [0.25, 0.5]
    assert [row["time_s"] for row in run.history] == sorted(row["time_s"] for row in run.history)
    assert run.summary()["loss"] == 2.0


@pytest.mark.parametrize("value", ["x", [1.0], torch.ones(2)], ids=["text", "list", "vector"])
def test_what_is_no_number_is_refused_where_it_is_logged(value):
    session, optimizer = attached()
    optimizer.step()
    with pytest.raises(TypeError, match="metric=.* must be a number"):
        session.log(metric=value)
    session.log(metric=0.5)
    assert session.close().history[-1]["metric"] == 0.5


@pytest.mark.parametrize("name", ["step", "time_s", "round", "bytes_sent", "period"])
def test_names_that_the_run_records_itself_are_refused(name):
    session, _ = attached()
    with pytest.raises(ValueError, match=f"{name}=1: .*choose another name"):
        session.log(**{name: 1})
    session.close()


def test_recalibration_without_batches_is_refused_at_attach():
    with pytest.raises(ValueError, match="needs batches to measure on; give calibration="):
        attached(buffers="recalibrate")
    session, _ = attached(buffers="recalibrate", calibration=[torch.ones(2, 2)])
    assert session.close().status == "finished"
