"""Metrics to TensorBoard and MLflow, each through its own library, where the experiment asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cesar.base.errors import ConfigError
from cesar_lab.data.datasets import require
from cesar_lab.run.config import Experiment
from cesar_lab.run.execute import Observer
from cesar_lab.run.journal import Row
from cesar_lab.run.simulation import RoundRecord


def loggers(experiment: Experiment, folder: Path) -> list[Observer]:
    """The observers that the experiment's [logging] table asks for."""
    chosen: list[Observer] = []
    if experiment.logging.tensorboard:
        chosen.append(TensorBoard(folder / "tensorboard"))
    if experiment.logging.mlflow:
        chosen.append(MLflow(experiment.name))
    return chosen


class TensorBoard:
    """Writes event files; look at them with `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        self._library = require("torch.utils.tensorboard", "logging")
        self._folder = folder
        self._writer: Any = None

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        folder = self._folder / f"{title}-seed-{seed}"
        self._writer = self._library.SummaryWriter(str(folder), purge_step=done or None)

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
        self._library: Any = require("mlflow", "logging")
        try:
            self._library.set_experiment(experiment)
        except self._library.exceptions.MlflowException as error:
            raise ConfigError(
                f"MLflow cannot write to {self._library.get_tracking_uri()}: {error}. Let MLFLOW_TRACKING_URI name a "
                "server or a database, for example sqlite:///mlflow.db, or set logging.mlflow = false"
            ) from None

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
