"""What the files of an experiment directory say: test steps, and means over seeds."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cesar.base.errors import DataError
from cesar.protocol.wire import CATEGORIES
from cesar_lab.run import execute as run
from cesar_lab.run.config import Experiment, MethodTable
from cesar_lab.show.paired import standard_error_of

METRICS = {"accuracy": "higher", "rmse": "lower", "rouge_l": "higher", "test_loss": "lower"}
"""What is better of each metric. A table shows the first that a run has."""

Step = dict[str, float]
"""One test step of a run: metrics, bytes and seconds up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """What a method reached and cost: means over its seeds.

    Attributes:
        value: the main metric, mean over nodes, with the standard error over seeds as `error` (None for a single seed).
        spread: the standard deviation between nodes. What runs of older versions did not note is None, here and below.
        mean_model: the metric of the mean of all models.
        distance: between models and their mean.
        before_settling: the metric after the last round of training, if settling rounds followed.
        best: the best that it was at a test in training, mean over seeds.
        bytes: sent by a node in all rounds, `settle_bytes` of them in `settle_rounds` settling rounds.
        bytes_ratio: bytes per round against D-PSGD that shares everything, if the experiment has that.
        round_: rounds of training done at the test step that all figures are from; `rounds` are planned.
        seeds: runs that the means are over; their values go by seed in `by_seed` and `mean_model_by_seed`, those at the end of
            training in `trained_by_seed`.
    """

    title: str
    metric: str
    value: float
    error: float | None
    spread: float | None
    mean_model: float | None
    distance: float | None
    before_settling: float | None
    best: float
    test_loss: float
    shared: float
    bytes: float
    bytes_ratio: float | None
    settle_bytes: float
    settle_rounds: float
    seconds_training: float
    seconds_protocol: float
    seconds_evaluation: float
    round_: int
    rounds: int
    seeds: int
    seeds_finished: int
    seeds_planned: int
    by_seed: dict[int, float]
    mean_model_by_seed: dict[int, float]
    trained_by_seed: dict[int, float]

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

    seed: int
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
    methods: list[MethodTable]
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
    full = sorted((method for method in study.methods if shares_all(method)), key=lambda method: method.paper)
    per_round = mean(last(study, full[0]), "bytes_per_round") if full else None
    return [_row(study, method, per_round) for method in study.methods]


def shares_all(method: MethodTable) -> bool:
    """Whether this is plain D-PSGD that shares everything."""
    return _is_plain(method) and method.sparsifier is None


def _is_plain(method: MethodTable) -> bool:
    return method.name == "dpsgd" and not method.noise and method.epsilon is None and method.gossip_steps == 1


def _row(study: Study, method: MethodTable, full: float | None) -> MethodRow:
    steps, metric, rounds = last(study, method), study.metric, study.experiment.rounds
    settled = any(step["settle_round"] for step in steps)
    trained = [group for group in judged(study, method) if group[0]["round"] == rounds]
    runs = _judged_runs(study, method)
    seeds = [one.seed for one in runs]
    better = max if METRICS[metric] == "higher" else min
    tests = [[step[metric] for step in one.steps if step["round"] <= rounds] for one in runs]
    common = f"mean_model_{metric}"
    return MethodRow(
        title=method.title,
        metric=metric,
        value=mean(steps, metric),
        error=standard_error(steps, metric),
        spread=mean_if_known(steps, f"{metric}_spread"),
        mean_model=mean_if_known(steps, common),
        distance=mean_if_known(steps, "distance"),
        before_settling=mean(trained[0], metric) if settled and trained else None,
        best=float(np.mean([better(found) for found in tests])),
        test_loss=mean(steps, "test_loss"),
        shared=mean(steps, "shared"),
        bytes=mean(steps, "bytes"),
        bytes_ratio=mean(steps, "bytes_per_round") / full if full else None,
        settle_bytes=mean(steps, "settle_bytes"),
        settle_rounds=mean(steps, "settle_round"),
        seconds_training=mean(steps, "training"),
        seconds_protocol=mean(steps, "protocol"),
        seconds_evaluation=mean(steps, "evaluation"),
        round_=min(rounds, int(min(step["round"] for step in steps))),
        rounds=rounds,
        seeds=len(steps),
        seeds_finished=sum(one.finished for one in study.runs[method.title]),
        seeds_planned=len(study.experiment.seeds),
        by_seed={seed: step[metric] for seed, step in zip(seeds, steps, strict=True)},
        mean_model_by_seed={
            seed: step[common] for seed, step in zip(seeds, steps, strict=True) if common in step
        },
        trained_by_seed={seed: step[metric] for seed, step in zip(seeds, trained[0], strict=True)}
        if trained
        else {},
    )


def reference(study: Study, method: MethodTable) -> MethodTable | None:
    """What a method is compared with: D-PSGD with the same sparsifier and share, else full sharing.

    Of several it is the first, one with the same exchange (`paper`) before others.
    """
    plain = [other for other in study.methods if _is_plain(other) and other is not method]
    plain.sort(key=lambda other: other.paper != method.paper)
    own = [other for other in plain if method.sparsifier is not None and _shares_alike(other, method)]
    if method.name == "dpsgd":  # the first of its kind is compared with full sharing, not with the second
        own = [other for other in own if study.methods.index(other) < study.methods.index(method)]
    full = [] if shares_all(method) else [other for other in plain if shares_all(other)]
    return next(iter([*own, *full]), None)


def _shares_alike(plain: MethodTable, method: MethodTable) -> bool:
    """Whether D-PSGD has a method's sparsifier and its share, or takes over the share that was measured."""
    amount = plain.share or plain.alpha
    return plain.sparsifier == method.sparsifier and amount in (None, method.share or method.alpha)


def last(study: Study, method: MethodTable) -> list[Step]:
    """The test steps that a method's row is made from.

    Runs that have ended are judged by their own last step: with a tolerance one seed settles in fewer rounds than another.
    """
    common = judged(study, method)[-1]
    ends = [one.steps[-1] for one in _judged_runs(study, method) if one.finished]
    ended = len(ends) == len(common) and all(step["round"] >= study.experiment.rounds for step in ends)
    return ends if ended else common


def settling(study: Study, method: MethodTable) -> list[list[Step]]:
    """The test steps from the end of training on, if settling rounds followed."""
    groups = [g for g in judged(study, method) if g[0]["round"] >= study.experiment.rounds]
    return groups if len(groups) > 1 else []


def judged(study: Study, method: MethodTable) -> list[list[Step]]:
    """What a method is judged by: for every test step that all the runs in question have reached, these runs.

    Those in question are the finished ones, or while there is none, all that have begun; so a mean never
    jumps because a seed dropped out of it.
    """
    judged = _judged_runs(study, method)
    by_round: dict[float, list[Step]] = {}
    for step in (step for one in judged for step in one.steps):
        by_round.setdefault(step["round"], []).append(step)
    groups = [by_round[number] for number in sorted(by_round) if len(by_round[number]) == len(judged)]
    if not groups:
        raise DataError(f"{study.folder}: the seeds of {method.title} have no test step in common")
    return groups


def _judged_runs(study: Study, method: MethodTable) -> list[RecordedRun]:
    begun = [one for one in study.runs[method.title] if one.steps]
    return [one for one in begun if one.finished] or begun


def mean(steps: Sequence[Step], key: str) -> float:
    return float(np.mean([step[key] for step in steps]))


def mean_if_known(steps: Sequence[Step], key: str) -> float | None:
    """The mean of what runs of older versions did not note."""
    return mean(steps, key) if all(key in step for step in steps) else None


def standard_error(steps: Sequence[Step], key: str) -> float | None:
    """The standard error of the mean over seeds; one seed has none."""
    return standard_error_of([step[key] for step in steps])


def read_study(directory: Path) -> Study:
    if not (directory / "experiment.json").is_file():
        raise DataError(f"{directory} holds no experiment.json; give a directory that cesar run has made")
    try:
        experiment = run.read(directory)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{directory / 'experiment.json'} cannot be read: {error}") from None
    runs = {
        method.title: [_read_run(directory / method.folder, seed, experiment) for seed in experiment.seeds]
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


def _read_run(method: Path, seed: int, experiment: Experiment) -> RecordedRun:
    folder = method / f"seed-{seed}"
    metrics, ledger, timing = (_table(folder / f"{name}.csv") for name in ("metrics", "ledger", "timing"))
    summary, versions = _json(folder / "summary.json"), _json(folder / "versions.json")
    try:
        steps = list(_steps(metrics, ledger, timing, experiment.rounds))
    except KeyError as error:
        raise DataError(f"{folder}: the tables of this run have no column {error}") from None
    return RecordedRun(
        seed=seed,
        finished=bool(summary and steps),
        steps=steps,
        settings=str(summary.get("settings", "")),
        peak_rss_bytes=int(str(summary["peak_rss_bytes"])) if "peak_rss_bytes" in summary else None,
        versions={name: str(version) for name, version in versions.items()},
    )


def _steps(metrics: list[Step], ledger: list[Step], timing: list[Step], rounds: int) -> Iterator[Step]:
    """Test steps and all that led to them; after `rounds` rounds come settling rounds. A step that another table lacks is still being written."""
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
            "settle_round": max(0, done - rounds),
            "settle_bytes": sum(line[category] for line in ledger[rounds:done] for category in CATEGORIES),
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
