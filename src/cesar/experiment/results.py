"""What the files of an experiment directory say: test steps, and means over seeds."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cesar.errors import DataError
from cesar.experiment import run
from cesar.experiment.config import Experiment
from cesar.settings import MethodSection
from cesar.wire import CATEGORIES

METRICS = {"accuracy": "higher", "rmse": "lower", "rouge_l": "higher", "test_loss": "lower"}
"""What is better of each metric. A table shows the first that a run has."""

Step = dict[str, float]
"""One test step of a run: metrics, bytes and seconds up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """What a method reached and cost: means over its seeds.

    Attributes:
        value: the main metric, with the standard error over seeds as `error` (None for a single seed).
        bytes: sent by a node in `round_` rounds.
        bytes_ratio: bytes per round against D-PSGD that shares everything, if the experiment has that.
        round_: rounds done at the test step that all figures are from; `rounds` are planned.
        seeds: runs that the means are over.
    """

    title: str
    metric: str
    value: float
    error: float | None
    test_loss: float
    shared: float
    bytes: float
    bytes_ratio: float | None
    seconds_training: float
    seconds_protocol: float
    seconds_evaluation: float
    round_: int
    rounds: int
    seeds: int
    seeds_finished: int
    seeds_planned: int

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric] == "higher"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One method and seed, as far as it has come; `steps` are its test steps with all that led to them.

    `peak_rss_bytes` is the most memory that the process had held when the run ended, if that was noted.
    """

    finished: bool
    steps: list[Step]
    settings: str
    peak_rss_bytes: int | None
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One experiment directory. `methods` have been tested at least once; `runs` go by title."""

    folder: str
    experiment: Experiment
    metric: str
    methods: list[MethodSection]
    runs: dict[str, list[RecordedRun]]


def summarise(directory: Path) -> list[MethodRow]:
    """One row per method that has been tested, in the order of the experiment file.

    A method is judged by its finished runs; while there is none, by the last test step that all its runs
    have reached.

    Raises:
        DataError: the directory is no experiment, or nothing in it was tested yet.
    """
    return rows_of(read_study(directory))


def rows_of(study: Study) -> list[MethodRow]:
    full = [method for method in study.methods if method.name == "dpsgd" and method.sparsifier is None]
    full.sort(key=lambda method: method.paper)
    per_round = mean(judged(study, full[0])[-1], "bytes_per_round") if full else None
    return [_row(study, method, per_round) for method in study.methods]


def _row(study: Study, method: MethodSection, full: float | None) -> MethodRow:
    steps = judged(study, method)[-1]
    return MethodRow(
        title=method.title,
        metric=study.metric,
        value=mean(steps, study.metric),
        error=standard_error(steps, study.metric),
        test_loss=mean(steps, "test_loss"),
        shared=mean(steps, "shared"),
        bytes=mean(steps, "bytes"),
        bytes_ratio=mean(steps, "bytes_per_round") / full if full else None,
        seconds_training=mean(steps, "training"),
        seconds_protocol=mean(steps, "protocol"),
        seconds_evaluation=mean(steps, "evaluation"),
        round_=int(steps[0]["round"]),
        rounds=study.experiment.rounds,
        seeds=len(steps),
        seeds_finished=sum(one.finished for one in study.runs[method.title]),
        seeds_planned=len(study.experiment.seeds),
    )


def judged(study: Study, method: MethodSection) -> list[list[Step]]:
    """What a method is judged by: for every test step that all the runs in question have reached, these runs.

    Those in question are the finished ones, or while there is none, all that have begun; so a mean never
    jumps because a seed dropped out of it.
    """
    begun = [one for one in study.runs[method.title] if one.steps]
    judged = [one for one in begun if one.finished] or begun
    by_round: dict[float, list[Step]] = {}
    for step in (step for one in judged for step in one.steps):
        by_round.setdefault(step["round"], []).append(step)
    groups = [by_round[number] for number in sorted(by_round) if len(by_round[number]) == len(judged)]
    if not groups:
        raise DataError(f"{study.folder}: the seeds of {method.title} have no test step in common")
    return groups


def mean(steps: Sequence[Step], key: str) -> float:
    return float(np.mean([step[key] for step in steps]))


def standard_error(steps: Sequence[Step], key: str) -> float | None:
    """The standard error of the mean; one seed has none."""
    if len(steps) < 2:
        return None
    with np.errstate(invalid="ignore"):  # the table says it if a run diverged
        return float(np.std([step[key] for step in steps], ddof=1) / math.sqrt(len(steps)))


def read_study(directory: Path) -> Study:
    if not (directory / "experiment.json").is_file():
        raise DataError(f"{directory} holds no experiment.json; give a directory that cesar run has made")
    try:
        experiment = run.read(directory)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{directory / 'experiment.json'} cannot be read: {error}") from None
    runs = {
        method.title: [_read_run(directory / method.folder / f"seed-{seed}") for seed in experiment.seeds]
        for method in experiment.method
    }
    tested = [method for method in experiment.method if any(one.steps for one in runs[method.title])]
    if not tested:
        first = min(experiment.evaluation.every, experiment.rounds)
        raise DataError(f"{directory} has no test step yet; the first comes after {first} rounds")
    known = next(one.steps[0] for one in runs[tested[0].title] if one.steps)
    metric = next(name for name in METRICS if name in known)
    folder = directory.resolve().name
    return Study(folder=folder, experiment=experiment, metric=metric, methods=tested, runs=runs)


def _read_run(folder: Path) -> RecordedRun:
    metrics, ledger, timing = (_table(folder / f"{name}.csv") for name in ("metrics", "ledger", "timing"))
    summary, versions = _json(folder / "summary.json"), _json(folder / "versions.json")
    try:
        steps = list(_steps(metrics, ledger, timing))
    except KeyError as error:
        raise DataError(f"{folder}: the tables of this run have no column {error}") from None
    return RecordedRun(
        finished=bool(summary and steps),
        steps=steps,
        settings=str(summary.get("settings", "")),
        peak_rss_bytes=int(str(summary["peak_rss_bytes"])) if "peak_rss_bytes" in summary else None,
        versions={name: str(version) for name, version in versions.items()},
    )


def _steps(metrics: list[Step], ledger: list[Step], timing: list[Step]) -> Iterator[Step]:
    """Test steps and all that led to them. A step that another table lacks is still being written."""
    for row in metrics:
        done = int(row["round"])
        if not 0 < done <= min(len(ledger), len(timing)):
            continue
        spent = {
            part: sum(line[part] for line in timing[:done]) for part in ("training", "protocol", "evaluation")
        }
        yield {
            **row,
            **spent,
            "test_loss": row["test_loss"],
            # Testing is the experimenter's wish; the method does not pay for it.
            "seconds": spent["training"] + spent["protocol"],
            "shared": sum(line["shared"] for line in ledger[:done]) / done,
            "bytes_per_round": row["bytes"] / done,
            **{f"{category}_per_round": row[f"bytes_{category}"] / done for category in CATEGORIES},
        }


def _table(path: Path) -> list[Step]:
    """The numbers of a table; none if the run has not written it yet."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _json(path: Path) -> dict[str, object]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
