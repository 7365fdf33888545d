"""Figures of attacks: kept beside the run, drawn, and written into a document between two marker lines."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import cesar
from cesar.base.errors import DataError
from cesar.page import write_page
from cesar_lab.attack.filter import FilterResult
from cesar_lab.attack.inference import InferenceResult
from cesar_lab.attack.leakage import LeakageResult
from cesar_lab.run import execute as run
from cesar_lab.run.config import Experiment
from cesar_lab.show import page, picture
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.report import PACKAGE
from cesar_lab.show.table import NONE, Table

BEGIN, END = "<!-- attack figures -->", "<!-- end of attack figures -->"
Kind = Literal["membership", "leakage", "filter"]
KINDS: tuple[Kind, ...] = ("membership", "leakage", "filter")
Saved = dict[str, Any]
MEMBERSHIP = """## Membership inference

Was this sample in a node's training data? Every node attacks one random neighbour, its victim, with a threshold on the
loss: a sample on which a model has a low loss is taken for one that the model was trained on. The area under the ROC
curve (AUC) is the probability that a training sample of the victim has a lower loss than a test sample: 0.5 is
guessing, 1 is certainty. The attack is tried on the victim's model alone, as D-PSGD delivers it, then on its mean with
the models of one, two, … further neighbours of the attacker. A value that was not sent counts as the attacker's own, as
it does when the attacker averages. Under masks and with everything shared, a single curious node holds only the last
column, and the columns before it are what colluders may be left with. With sparsification a sum has at least s + 1
members at each position, so a curious node stands somewhere in between.

Nodes here have few classes each, and a model gives away its classes first. The second table compares with test samples
of the victim's own classes alone: there only what the model has memorised counts."""
LEAKAGE = """## Leakage over rounds

A curious node keeps the sums of many rounds of its own, and who was in them. Where sets change from round to round,
these are different equations about nearly the same models, and it solves them by least squares. It uses nothing
but its own models, the announced sets and its sums; the truth is used to judge the outcome, and to pick the strongest
of five estimators.

- *identified*: at this fraction of the positions, the sets would determine a neighbour's value exactly if models
  stood still.
- *error*: ‖estimate − model‖ / ‖model‖ against the neighbour's model in the last round; beside it the error of the best
  mean, which uses the same sums and tells nobody apart.
- *recovered*: 1 − (error / error of the mean)², how much of what tells a neighbour from the mean is found out.
- *AUC*: of membership inference with the true model, with the estimate (± the standard error of its lead over the
  mean), and with the mean.

These are simple estimators. They do not use that averaging couples the sums of different rounds. An attacker who does finds
out far more (see *Many rounds* above)."""
FILTER = """## A filter over many rounds

A curious node knows the graph, the positions and the rule of averaging, and keeps its own models and its sums of all rounds.
That is a linear system about everybody's models, and it follows them with a Kalman filter while nodes train. While they settle
nobody trains, and it solves by least squares. It attacks a neighbour's model as it was when training ended. It is taken to know
everybody's positions and who was absent; the truth picks the stronger of two ideas of how training moves models, and judges.

- *error*: ‖estimate − model‖ / ‖model‖ over all neighbours; beside it that of the mean which a single round gives at best.
- *AUC*: of membership inference with the true model, with that mean, and with the filter's estimates (± the standard error of
  their lead over the mean).
- *sets alone*: of announced TopK sets without any value. A sample that a node trains on has a large gradient where the node
  announces. The gradients are those at the model that everybody started from."""
ALT = "Membership AUC against the number of models in the mean"


def plain(results: Sequence[InferenceResult | LeakageResult | FilterResult]) -> list[Saved]:
    """Results for JSON, which has no NaN."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return [clean(asdict(result)) for result in results]


def save(directory: Path, kind: Kind, methods: list[Saved], settings: dict[str, int]) -> None:
    """Keep the outcome of an attack in its experiment directory."""
    text = json.dumps({"settings": settings, "methods": methods}, indent=2)
    (directory / f"{kind}.json").write_text(text + "\n", encoding="utf-8")


def _saved(directory: Path, kind: Kind) -> Saved | None:
    path = directory / f"{kind}.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; run cesar attack {kind} again") from None


def membership_chart(results: Sequence[InferenceResult]) -> Chart:
    """AUC against the number of models in the mean."""
    return Chart(
        title=ALT,
        caption="Mean over victims, with its standard error; 0.5 is guessing.",
        x=Axis(name="models in the mean", whole=True),
        y=Axis(name="membership AUC"),
        series=tuple(
            Series(
                name=result.title,
                x=[float(point.models) for point in result.sums],
                y=[point.auc for point in result.sums],
                error=[point.auc_error for point in result.sums],
            )
            for result in results
        ),
        wide=True,
    )


def membership_table(results: Sequence[InferenceResult]) -> Table:
    """For a screen: a row for each number of models, a column for each method."""

    def cell(result: InferenceResult, m: int) -> str:
        if m >= len(result.sums):
            return ""
        point = result.sums[m]
        return f"{point.auc:.3f} ± {point.auc_error:.3f} ({point.own_classes:.3f})"

    return Table(
        heads=("models", *(result.title for result in results)),
        rows=tuple(
            (str(m + 1), *(cell(result, m) for result in results))
            for m in range(max(len(result.sums) for result in results))
        ),
        title="membership AUC, mean over victims ± standard error",
        caption="in brackets: against test samples of the victim's own classes alone",
    )


def leakage_table(results: Sequence[LeakageResult]) -> Table:
    """For a screen: a row for each method."""
    first = results[0]
    return Table(
        heads=("method", "identified", "error", "of mean", "recovered", "true", "est.", "mean"),
        rows=tuple(
            (
                row.title,
                f"{row.identified:.1%}",
                *(f"{error:.3f}" for error in (row.error, row.error_mean)),
                f"{row.recovered:.1%}",
                *(f"{area:.3f}" for area in (row.auc_true, row.auc_apart, row.auc_mean)),
            )
            for row in results
        ),
        title=f"{first.receivers} receivers, sums of {len(first.rounds)} rounds",
        caption="membership AUC of the true model, the estimate, and the mean that tells nobody apart",
    )


def filter_table(results: Sequence[FilterResult]) -> Table:
    """For a screen: a row for each method."""
    first = results[0]

    def area(value: float) -> str:
        return NONE if math.isnan(value) else f"{value:.3f}"

    return Table(
        heads=("method", "model", "mean of", "trained", "settled", "sets"),
        rows=tuple(
            (
                row.title,
                f"{row.auc_true:.3f}",
                f"{row.auc_mean:.3f} ({row.hidden:.3g})",
                *map(area, (row.auc_trained, row.auc_settled, row.auc_sets)),
            )
            for row in results
        ),
        title=f"membership AUC, {first.attackers} attackers, {len(first.rounds)} rounds and {first.settled} of settling",
        caption="of a model, of the mean that one sum gives, of a filter after training and after settling, and of announced sets alone",
    )


def write_charts(directory: Path, results: Sequence[InferenceResult]) -> Path:
    """AUC against the number of models in the mean, as an interactive page and as SVG; the page."""
    chart = membership_chart(results)
    picture.draw([chart], directory / "membership.svg")
    return write_page(
        directory / "membership.html",
        "charts.html",
        package=PACKAGE,
        title=f"Membership inference: {directory.name}",
        version=cesar.__version__,
        pairs=[(page.figure(chart), membership_table(results))],
    )


def write_section(directories: Sequence[Path], out: Path) -> Path:
    """Replace what stands between the markers of a document; a new document gets a heading and the markers.

    Raises:
        DataError: no attack was run on a directory, or the markers are not there once each, in order.
    """
    text = out.read_text(encoding="utf-8") if out.exists() else f"# Privacy\n\n{BEGIN}\n{END}\n"
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise DataError(f"{out} must have one line {BEGIN} and below it one line {END}; add them")
    lines = [
        *("", "Written by `cesar attack document`; every figure was measured.", ""),
        *_chapter("membership", MEMBERSHIP, directories, out.parent),
        *_chapter("leakage", LEAKAGE, directories, out.parent),
        *_chapter("filter", FILTER, directories, out.parent),
    ]
    body = "\n".join(lines)
    out.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")
    return out


def _chapter(kind: Kind, introduction: str, directories: Sequence[Path], folder: Path) -> Iterator[str]:
    """All that one kind of attack has found; nothing if it was not tried."""
    for directory in directories:
        if all(_saved(directory, one) is None for one in KINDS):
            raise DataError(
                f"nothing has attacked {directory} yet; run cesar attack {', '.join(KINDS[:-1])} or {KINDS[-1]} on it"
            )
    attacked = [directory for directory in directories if _saved(directory, kind) is not None]
    if attacked:
        yield from (introduction, "")
    for directory in attacked:
        experiment, saved = run.read(directory), _saved(directory, kind)
        assert saved is not None
        yield from (f"### {experiment.name}", "", f"{_about(experiment)} {_settings(saved)}", "")
        if kind == "leakage":
            yield from _leakage_lines(saved["methods"])
            continue
        if kind == "filter":
            yield from _filter_lines(saved["methods"])
            continue
        yield from _membership_lines(saved["methods"])
        name = f"attack-{experiment.name}.svg"
        shutil.copyfile(directory / "membership.svg", folder / name)
        yield from (f"![{ALT}]({name})", "")


def _about(experiment: Experiment) -> str:
    data, topology, training = experiment.data, experiment.topology, experiment.training
    dynamic = ", new in every round" if topology.dynamic else ""
    faults, crashes = experiment.faults, ""
    if faults.crash_rate:
        crashes = f" In every round each node crashes with probability {faults.crash_rate:g}, {faults.crash_point.replace('_', ' ')}."
    limit = "all" if data.train_limit is None else f"the first {data.train_limit:,}"
    return (
        f"{data.dataset} ({limit} training samples, {data.partition}), {experiment.model.name}, {topology.nodes} nodes, "
        f"{topology.kind} graph of degree {topology.degree}{dynamic}, {experiment.rounds} rounds of {training.steps_per_round} steps, "
        f"batch {training.batch_size}, learning rate {training.learning_rate:g}, seeds "
        f"{', '.join(map(str, experiment.seeds))}.{crashes}"
    )


def _settings(saved: Saved) -> str:
    rounds = saved["methods"][0]["rounds"]
    shown = ", ".join(map(str, rounds)) if len(rounds) <= 6 else f"{rounds[0]} to {rounds[-1]}"
    return (
        f"Attacked: round{'s' if len(rounds) > 1 else ''} {shown}, with up to {saved['settings']['samples']} "
        f"training and as many test samples per attack, seed {saved['settings']['seed']}."
    )


def _membership_lines(methods: list[Saved]) -> Iterator[str]:
    for title, key in (
        ("AUC against test samples of all classes, mean over victims ± standard error:", "auc"),
        ("Against test samples of the victim's own classes alone:", "own_classes"),
    ):
        if methods[0]["sums"][0][key] is None:
            continue
        most = max(len(method["sums"]) for method in methods)
        table = Table(
            heads=("", "victim alone", *(f"mean of {m}" for m in range(2, most + 1))),
            rows=tuple(
                (
                    method["title"],
                    *(_with_error(point[key], point[f"{key}_error"]) for point in method["sums"]),
                    *[""] * (most - len(method["sums"])),
                )
                for method in methods
            ),
        )
        yield from (title, "", table.markdown(), "")


def _with_error(value: float | None, error: float | None) -> str:
    return NONE if value is None else f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _leakage_lines(methods: list[Saved]) -> Iterator[str]:
    table = Table(
        heads=(
            *("", "identified", "error of the estimate", "error of the mean", "recovered"),
            *("AUC, true model", "AUC, estimate", "AUC, mean", "strongest estimator"),
        ),
        rows=tuple(
            (
                row["title"],
                f"{row['identified']:.1%}",
                *(f"{row[key]:.4f}" for key in ("error", "error_mean")),
                f"{row['recovered']:.1%}",
                f"{row['auc_true']:.3f}",
                _with_error(row["auc_apart"], row["auc_error"]),
                f"{row['auc_mean']:.3f}",
                row["estimator"],
            )
            for row in methods
        ),
    )
    yield from (table.markdown(), "")
    yield f"{methods[0]['receivers']} receivers, drawn at random, attack from the sums of {len(methods[0]['rounds'])} rounds."
    yield ""


def _filter_lines(methods: list[Saved]) -> Iterator[str]:
    table = Table(
        heads=(
            *(
                "",
                "models in the mean",
                "error of the mean",
                "after training",
                "after settling",
                "AUC, true model",
            ),
            *("AUC, mean", "AUC, after training", "AUC, after settling", "AUC, sets alone"),
        ),
        rows=tuple(
            (
                row["title"],
                f"{row['hidden']:.3g}",
                *(
                    NONE if row[key] is None else f"{row[key]:.4f}"
                    for key in ("error_mean", "error", "error_settled")
                ),
                *(f"{row[key]:.3f}" for key in ("auc_true", "auc_mean")),
                *(_with_error(row[f"auc_{key}"], row[f"auc_{key}_error"]) for key in ("trained", "settled")),
                _with_error(row["auc_sets"], None),
            )
            for row in methods
        ),
    )
    yield from (table.markdown(), "")
    first = methods[0]
    yield f"{first['attackers']} attackers, drawn at random; {first['settled']} rounds of settling."
    yield ""
