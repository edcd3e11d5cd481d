"""Live logs of a run's numbers: TensorBoard, Weights & Biases, MLflow, or a user's own object."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

from tacit.errors import nearest, require

_KNOWN: Final = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


class Log(Protocol):
    """A log of numbers by name and step. Only rank 0 writes."""

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None: ...

    def close(self) -> None: ...


def open_log(where: str | Log | None, rank: int) -> Log:
    """Return the log ``where``: "tensorboard", "tensorboard:FOLDER", "wandb", "mlflow", or a user's own log."""
    if where is None or rank != 0:
        return NoLog()
    if not isinstance(where, str):
        return where
    name, _, rest = where.partition(":")
    require(name in _KNOWN, f"log={where!r} is unknown{nearest(name, _KNOWN)}")
    try:
        importlib.import_module(_KNOWN[name])
    except ImportError:
        raise ValueError(
            f"log={where!r} needs the package {_KNOWN[name]}; pip install {_KNOWN[name]}, or omit log."
        ) from None
    match name:
        case "tensorboard":
            return TensorBoardLog(rest or None)
        case "wandb":
            return WandbLog()
        case _:
            return MlflowLog()


class NoLog:
    """A log that discards everything."""

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoardLog:
    """Writes TensorBoard events."""

    def __init__(self, folder: str | None) -> None:
        self._writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder)

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        for name, value in _present(numbers).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """Writes into the user's active run, or starts one."""

    def __init__(self) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._is_mine = wandb.run is None
        self._run: Any = wandb.run or wandb.init()

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        self._run.log(_present(numbers), step=step)

    def close(self) -> None:
        if self._is_mine:
            self._run.finish()


class MlflowLog:
    """Writes into the active run, or starts one."""

    def __init__(self) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._is_mine = self._mlflow.active_run() is None
        if self._is_mine:
            self._mlflow.start_run()

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        self._mlflow.log_metrics(_present(numbers), step=step)

    def close(self) -> None:
        if self._is_mine:
            self._mlflow.end_run()


def _present(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None}
