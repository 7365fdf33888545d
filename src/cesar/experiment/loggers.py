"""Metrics to TensorBoard and MLflow, each through its own library, where the experiment asks for it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from cesar.errors import ConfigError
from cesar.experiment.config import Experiment
from cesar.experiment.run import Observer, Row
from cesar.sim.simulation import RoundRecord


def loggers(experiment: Experiment, folder: Path) -> list[Observer]:
    """The observers that the experiment's [logging] table asks for."""
    chosen: list[Observer] = []
    if experiment.logging.tensorboard:
        chosen.append(TensorBoard(folder / "tensorboard"))
    if experiment.logging.mlflow:
        chosen.append(MLflow(experiment.name))
    return chosen


def _library(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"[logging] asks for {package}: pip install {package}, or switch it off") from None


class TensorBoard:
    """Writes event files; look at them with `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        self._library = _library("torch.utils.tensorboard", "tensorboard")
        self._folder = folder
        self._writer: Any = None

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        self._writer = self._library.SummaryWriter(str(self._folder / f"{title}-seed-{seed}"))

    def round_done(self, record: RoundRecord, sent: float) -> None:
        self._writer.add_scalar("shared", record.shared, record.round_)

    def tested(self, row: Row) -> None:
        for name, value in row.items():
            if name != "round":
                self._writer.add_scalar(name, value, row["round"])

    def finished(self, summary: dict[str, object]) -> None:
        self._writer.close()


class MLflow:
    """Logs one MLflow run per method and seed to wherever MLflow is set up to write."""

    def __init__(self, experiment: str) -> None:
        self._library: Any = _library("mlflow", "mlflow")
        self._library.set_experiment(experiment)

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        self._library.start_run(run_name=f"{title}-seed-{seed}")
        self._library.log_params({"method": title, "seed": seed, "rounds": rounds})

    def round_done(self, record: RoundRecord, sent: float) -> None:
        self._library.log_metric("shared", record.shared, step=record.round_)

    def tested(self, row: Row) -> None:
        metrics = {name: float(value) for name, value in row.items() if name != "round"}
        self._library.log_metrics(metrics, step=int(row["round"]))

    def finished(self, summary: dict[str, object]) -> None:
        self._library.end_run()
