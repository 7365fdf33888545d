"""Figures of attacks: kept beside the run, drawn, and written into a document between two marker lines."""

from __future__ import annotations

import html
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import plotly.io  # type: ignore[import-untyped]

from cesar.attack.leakage import LeakageResult
from cesar.attack.membership import MembershipResult, PartialSum
from cesar.errors import DataError
from cesar.experiment import run
from cesar.experiment.config import Experiment

BEGIN, END = "<!-- attack figures -->", "<!-- end of attack figures -->"
Kind = Literal["membership", "leakage"]
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
of five estimators. With fixed groups (`groups2`: of two or more) it has a sum for every complete group.

- *identified*: at this fraction of the positions, the sets would determine a neighbour's value exactly if models
  stood still.
- *error*: ‖estimate − model‖ / ‖model‖ against the neighbour's model in the last round; beside it the error of the best
  mean, which uses the same sums and tells nobody apart; with fixed groups nobody of the same group.
- *recovered*: 1 − (error / error of the mean)², how much of what tells a neighbour from the mean is found out.
- *AUC*: of membership inference with the true model, with the estimate (± the standard error of its lead over the
  mean), and with the mean.

These are simple estimators. A cleverer attacker finds out more, not less."""
COLOURS = ("#0f6ecd", "#c2540a", "#0a8f5b", "#a05a92", "#5d6771")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 380, 70, 24, 190, 56


def plain(results: Sequence[MembershipResult | LeakageResult]) -> list[Saved]:
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


def write_plots(directory: Path, results: Sequence[MembershipResult]) -> Path:
    """AUC against the number of models in the mean, as an interactive page and as SVG; the page."""
    (directory / "membership.svg").write_text(_svg(results), encoding="utf-8")
    lines = [
        {
            "name": result.title,
            "x": [point.models for point in result.sums],
            "y": [point.auc for point in result.sums],
            "error_y": {"array": [point.auc_error for point in result.sums]},
            "line": {"color": COLOURS[number % len(COLOURS)]},
        }
        for number, result in enumerate(results)
    ]
    layout = {
        "template": "plotly_white",
        "xaxis": {"title": {"text": "models in the mean"}, "dtick": 1},
        "yaxis": {"title": {"text": "membership AUC"}},
    }
    page = directory / "membership.html"
    plotly.io.write_html({"data": lines, "layout": layout}, page, include_plotlyjs=True)
    return page


def _svg(results: Sequence[MembershipResult]) -> str:
    """The same without a library, for documents."""
    points = [point for result in results for point in result.sums]
    most = max(point.models for point in points)
    low = math.floor(20 * min(0.5, *(point.auc - _error(point) for point in points))) / 20
    high = math.ceil(20 * max(point.auc + _error(point) for point in points)) / 20
    high = max(high, low + 0.05)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(models: int) -> float:
        return LEFT + 20 + (wide - 40) * ((models - 1) / max(most - 1, 1))

    def y(area: float) -> float:
        return TOP + tall * (high - area) / (high - low)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        ' aria-label="Membership AUC against the number of models in the mean" font-family="system-ui" font-size="14">',
        "<style>text { fill: #1f2328 } .grid { stroke: #d0d7de } .paper { fill: #fff }",
        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #3d444d } .paper { fill: #161b22 } }",
        "</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    ticks = round((high - low) / 0.05)
    for area in (low + 0.05 * k for k in range(0, ticks + 1, 1 if ticks <= 10 else 2)):
        lines.append(f'<path class="grid" d="M{LEFT} {y(area):.1f}h{wide}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(area) + 5:.1f}" text-anchor="end">{area:.2f}</text>')
    lines += [
        f'<text x="{x(m):.1f}" y="{HEIGHT - 32}" text-anchor="middle">{m}</text>' for m in range(1, most + 1)
    ]
    lines.append(
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 10}" text-anchor="middle">models in the mean</text>'
    )
    lines.append(
        f'<text x="18" y="{TOP + tall / 2}" text-anchor="middle" transform="rotate(-90 18 {TOP + tall / 2})">'
        "membership AUC</text>"
    )
    for number, result in enumerate(results):
        lines += _curve(
            result,
            number,
            [(x(p.models), y(p.auc), y(p.auc + _error(p)), y(p.auc - _error(p))) for p in result.sums],
        )
    return "\n".join([*lines, "</svg>", ""])


def _curve(
    result: MembershipResult, number: int, points: list[tuple[float, float, float, float]]
) -> Iterator[str]:
    colour, height = COLOURS[number % len(COLOURS)], TOP + 20 + 24 * number
    path = "L".join(f"{across:.1f} {down:.1f}" for across, down, _, _ in points)
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    for across, down, top, bottom in points:
        yield f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{colour}"/>'
    yield f'<path d="M{WIDTH - RIGHT + 12} {height - 5}h22" stroke="{colour}" stroke-width="2.5"/>'
    yield f'<text x="{WIDTH - RIGHT + 42}" y="{height}">{html.escape(result.title)}</text>'


def _error(point: PartialSum) -> float:
    return 0.0 if math.isnan(point.auc_error) else point.auc_error


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
    ]
    body = "\n".join(lines)
    out.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")
    return out


def _chapter(kind: Kind, introduction: str, directories: Sequence[Path], folder: Path) -> Iterator[str]:
    """All that one kind of attack has found; nothing if it was not tried."""
    for directory in directories:
        if _saved(directory, "membership") is None and _saved(directory, "leakage") is None:
            raise DataError(
                f"nothing has attacked {directory} yet; run cesar attack membership or leakage on it"
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
        yield from _membership_lines(saved["methods"])
        picture = f"attack-{experiment.name}.svg"
        shutil.copyfile(directory / "membership.svg", folder / picture)
        yield from (f"![Membership AUC against the number of models in the mean]({picture})", "")


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
        yield from (
            title,
            "",
            "| | victim alone | " + " | ".join(f"mean of {m}" for m in range(2, most + 1)) + " |",
        )
        yield "|---" * (most + 1) + "|"
        for method in methods:
            cells = [_with_error(point[key], point[f"{key}_error"]) for point in method["sums"]]
            yield f"| {method['title']} | " + " | ".join(cells) + " |"
        yield ""


def _with_error(value: float | None, error: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _leakage_lines(methods: list[Saved]) -> Iterator[str]:
    yield (
        "| | identified | error of the estimate | error of the mean | recovered | AUC, true model | AUC, estimate "
        "| AUC, mean | strongest estimator |"
    )
    yield "|---" * 9 + "|"
    for row in methods:
        yield (
            f"| {row['title']} | {row['identified']:.1%} | {row['error']:.4f} | {row['error_mean']:.4f} "
            f"| {row['recovered']:.1%} | {row['auc_true']:.3f} | {_with_error(row['auc_apart'], row['auc_error'])} | {row['auc_mean']:.3f} "
            f"| {row['estimator']} |"
        )
    yield ""
    yield f"{methods[0]['receivers']} receivers, drawn at random, attack from the sums of {len(methods[0]['rounds'])} rounds."
    yield ""
