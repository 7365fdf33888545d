"""The report: experiment directories in, one HTML page out that opens anywhere, without a network.

Figures are plain dictionaries in plotly's schema. Colours in them are names (`css:ink`) that the page
replaces by its own CSS variables when it draws, so that one page serves light and dark screens. Everything
that comes from files is escaped, and the page's own security policy forbids it to load anything.
"""

from __future__ import annotations

import csv
import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from plotly.offline import get_plotlyjs, get_plotlyjs_version  # type: ignore[import-untyped]

import cesar
from cesar.errors import ConfigError, DataError
from cesar.experiment import run
from cesar.experiment.config import Experiment, MethodSection
from cesar.wire import CATEGORIES

Step = dict[str, float]
Spec = dict[str, Any]
Units = tuple[tuple[float, str], ...]

# --- Results: what the files of a run directory say -----------------------------------------------------------


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

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One method and seed, as far as it has come; `steps` are its test steps with all that led to them."""

    finished: bool
    steps: list[Step]
    settings: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """One experiment directory. `methods` have been tested at least once; `runs` go by title."""

    folder: str
    experiment: Experiment
    metric: str
    methods: list[MethodSection]
    runs: dict[str, list[_Run]]


def summarise(directory: Path) -> list[MethodRow]:
    """One row per method that has been tested, in the order of the experiment file.

    A method is judged by its finished runs; while there is none, by the last test step that all its runs
    have reached.

    Raises:
        DataError: the directory is no experiment, or nothing in it was tested yet.
    """
    return _rows(_load(directory))


def _rows(study: _Study) -> list[MethodRow]:
    full = [method for method in study.methods if method.name == "dpsgd" and method.sparsifier is None]
    full.sort(key=lambda method: method.paper)
    per_round = _mean(_judged(study, full[0])[-1], "bytes_per_round") if full else None
    return [_row(study, method, per_round) for method in study.methods]


def _row(study: _Study, method: MethodSection, full: float | None) -> MethodRow:
    steps = _judged(study, method)[-1]
    return MethodRow(
        title=method.title,
        metric=study.metric,
        value=_mean(steps, study.metric),
        error=_error(steps, study.metric),
        test_loss=_mean(steps, "test_loss"),
        shared=_mean(steps, "shared"),
        bytes=_mean(steps, "bytes"),
        bytes_ratio=_mean(steps, "bytes_per_round") / full if full else None,
        seconds_training=_mean(steps, "training"),
        seconds_protocol=_mean(steps, "protocol"),
        seconds_evaluation=_mean(steps, "evaluation"),
        round_=int(steps[0]["round"]),
        rounds=study.experiment.rounds,
        seeds=len(steps),
        seeds_finished=sum(one.finished for one in study.runs[method.title]),
        seeds_planned=len(study.experiment.seeds),
    )


def _judged(study: _Study, method: MethodSection) -> list[list[Step]]:
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


def _mean(steps: Sequence[Step], key: str) -> float:
    return float(np.mean([step[key] for step in steps]))


def _error(steps: Sequence[Step], key: str) -> float | None:
    """The standard error of the mean; one seed has none."""
    if len(steps) < 2:
        return None
    with np.errstate(invalid="ignore"):  # the table says it if a run diverged
        return float(np.std([step[key] for step in steps], ddof=1) / math.sqrt(len(steps)))


def _load(directory: Path) -> _Study:
    if not (directory / "experiment.json").is_file():
        raise DataError(f"{directory} holds no experiment.json; give a directory that cesar run has made")
    try:
        experiment = run.read(directory)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{directory / 'experiment.json'} cannot be read: {error}") from None
    runs = {
        method.title: [_read_run(directory / method.title / f"seed-{seed}") for seed in experiment.seeds]
        for method in experiment.method
    }
    tested = [method for method in experiment.method if any(one.steps for one in runs[method.title])]
    if not tested:
        first = min(experiment.evaluation.every, experiment.rounds)
        raise DataError(f"{directory} has no test step yet; the first comes after {first} rounds")
    known = next(one.steps[0] for one in runs[tested[0].title] if one.steps)
    metric = next(name for name in ("accuracy", "rmse", "test_loss") if name in known)
    folder = directory.resolve().name
    return _Study(folder=folder, experiment=experiment, metric=metric, methods=tested, runs=runs)


def _read_run(folder: Path) -> _Run:
    metrics, ledger, timing = (_table(folder / f"{name}.csv") for name in ("metrics", "ledger", "timing"))
    summary, versions = _json(folder / "summary.json"), _json(folder / "versions.json")
    try:
        steps = list(_steps(metrics, ledger, timing))
    except KeyError as error:
        raise DataError(f"{folder}: the tables of this run have no column {error}") from None
    return _Run(
        finished=bool(summary and steps),
        steps=steps,
        settings=str(summary.get("settings", "")),
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


# --- Figures: dictionaries in plotly's schema -----------------------------------------------------------------

BYTES: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SECONDS: Units = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
PALETTE = 8  # told apart with every kind of colour blindness, and 3 : 1 against the page, light and dark
DASHES = {"cesar": "solid", "secagg": "dot", "dpsgd": "dash"}
SYMBOLS = (("circle", ""), ("diamond", "◆"), ("square", "■"), ("triangle-up", "▲"))
SHADES = {"values": "", "coordination": "", "metadata": "/90", "control": "/50"}
MOST_EDGES = 6000
HATCH = {"shape": "/", "fgcolor": "css:paper", "size": 6, "solidity": 0.4, "fillmode": "overlay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """What an axis shows of a test step: `key`, in a unit of that size."""

    key: str
    name: str
    size: float = 1.0
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


def _unit(largest: float, units: Units) -> tuple[float, str]:
    """The unit in which the largest value is a handy number."""
    return max((unit for unit in units if unit[0] <= largest), default=units[0])


def _metric_axis(key: str) -> _Axis:
    if key == "accuracy":
        return _Axis(key=key, name=key, size=0.01, unit="%")
    return _Axis(key=key, name="RMSE" if key == "rmse" else key.replace("_", " "))


def _cost_axis(study: _Study, key: str, name: str, units: Units) -> _Axis:
    size, unit = _unit(max(_mean(_judged(study, method)[-1], key) for method in study.methods), units)
    return _Axis(key=key, name=name, size=size, unit=unit)


def _number(value: float) -> float | None:
    """A number for JSON: six digits are more than a screen shows, and NaN is a gap."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _text(mean: float, error: float | None, axis: _Axis, suffix: str = "") -> str:
    """A mean for people, with its standard error where there is one."""
    digits = 2 if axis.unit == "%" else 4
    spread = "" if error is None else f" ± {error / axis.size:.{digits}f}"
    return f"{mean / axis.size:.{digits}f}{spread}{suffix}"


def _axis(title: str, **more: object) -> Spec:
    lines = {"gridcolor": "css:rule", "linecolor": "css:soft", "tickcolor": "css:soft", "ticks": "outside"}
    return {"title": {"text": title, "standoff": 12}, "automargin": True, "zeroline": False, **lines, **more}


def _layout(x: Spec, y: Spec, **more: object) -> Spec:
    ink = {"family": "system-ui, sans-serif", "size": 13, "color": "css:ink"}
    return {
        "font": ink,
        "paper_bgcolor": "css:paper",  # the page's own: against a transparent one hover labels turn illegible
        "plot_bgcolor": "css:paper",
        "modebar": {"bgcolor": "css:paper", "color": "css:soft", "activecolor": "css:ink"},
        "hoverlabel": {"bgcolor": "css:paper", "bordercolor": "css:soft", "font": ink, "namelength": -1},
        "margin": {"l": 48, "r": 16, "t": 24, "b": 44},
        "showlegend": False,
        "uirevision": "same",  # hiding a method keeps the zoom
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def _curves(study: _Study, colours: dict[str, int], x: _Axis, y: _Axis) -> Spec:
    """Mean lines over seeds with a band of one standard error."""
    bands, lines = [], []
    for method in study.methods:
        groups, colour = _judged(study, method), colours[method.title]
        errors = [_error(group, y.key) for group in groups]
        gaps = [i for i, error in enumerate(errors) if error is None or not math.isfinite(error)]
        for before, after in pairwise([-1, *gaps, len(groups)]):
            if after - before > 2:
                bands.append(_band(groups[before + 1 : after], colour, x, y))
        lines.append(_line(groups, method, colour, x, y))
    layout = _layout(_axis(x.title, rangemode="tozero"), _axis(y.title))
    if x.key == "round":
        layout["hovermode"] = "x unified"
        layout["xaxis"]["unifiedhovertitle"] = {"text": "round %{x}"}
    return {"data": [*bands, *lines], "layout": layout}


def _band(groups: list[list[Step]], colour: int, x: _Axis, y: _Axis) -> Spec:
    across = [_number(_mean(group, x.key) / x.size) for group in groups]
    edges = [
        [_number((_mean(group, y.key) + sign * (_error(group, y.key) or 0)) / y.size) for group in groups]
        for sign in (1, -1)
    ]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*across, *across[::-1]],
        "y": [*edges[0], *edges[1][::-1]],
        "fill": "toself",
        "fillcolor": f"css:c{colour % PALETTE}/28",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": colour,
    }


def _line(groups: list[list[Step]], method: MethodSection, colour: int, x: _Axis, y: _Axis) -> Spec:
    shade, many = f"css:c{colour % PALETTE}", len(groups) > 25
    at = f"<b>%{{fullData.name}}</b><br>%{{text}} after %{{x:.4~g}} {x.unit}, round %{{customdata}}<extra></extra>"
    return {
        "type": "scatter",
        "mode": "lines" if many and colour < PALETTE else "lines+markers",
        "name": _plain(method.title),
        "x": [_number(_mean(group, x.key) / x.size) for group in groups],
        "y": [_number(_mean(group, y.key) / y.size) for group in groups],
        "text": [_text(_mean(group, y.key), _error(group, y.key), y, f" {y.unit}") for group in groups],
        "customdata": [int(group[0]["round"]) for group in groups],
        "hovertemplate": "%{text}" if x.key == "round" else at,
        "line": {"color": shade, "width": 2.2, "dash": DASHES[method.name]},
        "marker": {"color": shade, "size": 7, "symbol": _symbol(colour)[0], "maxdisplayed": 12 * many},
        "meta": colour,
    }


def _symbol(colour: int) -> tuple[str, str]:
    """What tells methods of the same colour apart: a marker, for plotly and as a letter."""
    return SYMBOLS[colour // PALETTE % len(SYMBOLS)]


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def _plain(text: str) -> str:
    """Text for plotly, which reads some tags and entities."""
    return html.escape(text, quote=False)


def _breakdown(study: _Study, colours: dict[str, int]) -> Spec:
    """Bytes per node and round, a bar per method in its colour and a texture per category."""
    axis = _cost_axis(study, "bytes_per_round", "per node and round", BYTES)
    data, longest = [], 0.0
    for method in study.methods:
        steps, name, colour = _judged(study, method)[-1], _plain(method.title), colours[method.title]
        for category, shade in SHADES.items():
            sent = _mean(steps, f"{category}_per_round")
            marker: Spec = {"color": f"css:c{colour % PALETTE}{shade}", "line": {"width": 0}}
            if category == "coordination":
                marker["pattern"] = HATCH
            hover = f"{category}: {sent:,.0f} B<extra></extra>"
            bar = {"type": "bar", "orientation": "h", "x": [_number(sent / axis.size)], "y": [name]}
            data.append({**bar, "marker": marker, "hovertemplate": hover, "meta": colour})
        total = _mean(steps, "bytes_per_round") / axis.size
        longest = max(longest, total)
        end = {"type": "scatter", "mode": "text", "x": [_number(total)], "y": [name], "hoverinfo": "skip"}
        text = f" {_three_digits(total)} {axis.unit}"
        label = {"text": [text], "textposition": "middle right", "cliponaxis": False}
        data.append({**end, **label, "meta": colour})
    x = _axis(axis.title, range=[0, 1.2 * longest or 1])
    count = len(study.methods)
    spare = max(0, 4 - count) / 2  # so that a few bars stay slim
    y = _axis("", type="category", range=[count - 0.5 + spare, -0.5 - spare], ticks="", showgrid=False)
    return {"data": data, "layout": _layout(x, y, barmode="stack", bargap=0.35)}


def _graph_figure(graph: nx.Graph, kind: str) -> Spec:
    """The aggregation graph; a ring where a picture by forces would take long or say nothing."""
    crowded = len(graph) > 400
    ring = crowded or kind in ("ring", "complete")
    place = nx.circular_layout(graph) if ring else nx.spring_layout(graph, seed=1, iterations=200)
    edges = list(graph.edges)[:: _stride(graph)]
    ends = [[v for i, j in edges for v in (_number(place[i][k]), _number(place[j][k]), None)] for k in (0, 1)]
    hidden = {"visible": False, "fixedrange": False}
    few = len(graph) <= 64
    lines = {"type": "scatter", "mode": "lines", "x": ends[0], "y": ends[1], "hoverinfo": "skip"}
    nodes = {"type": "scatter", "mode": "markers+text" if few else "markers"}
    return {
        "data": [
            {**lines, "line": {"color": "css:soft/20" if crowded else "css:soft/70", "width": 1}},
            {
                **nodes,
                "x": [_number(place[node][0]) for node in graph],
                "y": [_number(place[node][1]) for node in graph],
                "text": [str(node) for node in graph],
                "customdata": [_neighbours(graph, node) for node in graph],
                "hovertemplate": "node %{text}<br>%{customdata}<extra></extra>",
                "textfont": {"size": 11, "color": "css:paper"},
                "marker": {"size": 22 if few else 5, "color": "css:node", "line": {"width": 0}},
            },
        ],
        "layout": _layout(hidden, {**hidden, "scaleanchor": "x"}, margin={"l": 8, "r": 8, "t": 8, "b": 8}),
    }


def _stride(graph: nx.Graph) -> int:
    """Every how manyth link is drawn: a page with half a million lines helps nobody."""
    links: int = graph.number_of_edges()
    return math.ceil(links / MOST_EDGES)


def _neighbours(graph: nx.Graph, node: int) -> str:
    near = sorted(graph[node])
    shown = ", ".join(map(str, near[:12])) + (", …" if len(near) > 12 else "")
    return f"{len(near)} neighbours: {shown}"


# --- The page: plotly.js, the figures as data, and a short script that draws them ---------------------------

POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data: blob:; '
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
)
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --soft: #5d6771; --rule: #e3e6e9; --node: #4b5a68;
  --c0: #0f4c8e; --c1: #b43600; --c2: #01844c; --c3: #8b4e78; --c4: #0a9cef; --c5: #d08405; --c6: #4a2c07; --c7: #a09092; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e4e7ea; --soft: #98a2ab; --rule: #2b3137; --node: #a9b6c2;
  --c0: #2880db; --c1: #e46311; --c2: #26cc85; --c3: #c486bd; --c4: #c8f2ff; --c5: #fede67; --c6: #93552d; --c7: #6b7068; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1100px; margin: 0 auto; padding: 24px; }
footer, figcaption, .note, small { color: var(--soft); font-size: 14px; }
h1, h2 { margin: 4px 0 8px; line-height: 1.2; } h1 { font-size: 30px; } h2 { font-size: 24px; } h3 { margin: 0; font-size: 17px; }
nav { margin-bottom: 40px; } nav a { color: inherit; margin-right: 16px; } footer { margin-top: 24px; } p { margin: 0 0 16px; max-width: 800px; } section + section { margin-top: 56px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin-bottom: 8px; }
th, td { padding: 6px 0 6px 20px; text-align: right; font-weight: 400; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; padding-left: 0; } thead th { color: var(--soft); font-size: 14px; vertical-align: bottom; white-space: normal; }
th small { display: block; }
.swatch { display: inline-block; position: relative; width: 30px; margin-right: 8px; height: 11px; font: 11px/1 sans-serif; text-align: center; }
.swatch::before { content: ""; position: absolute; inset: 4px 0 auto 0; border-top: 2.5px solid; }
.swatch.dpsgd::before { border-top-style: dashed; } .swatch.secagg::before { border-top-style: dotted; }
.key { position: sticky; top: 0; z-index: 9; background: var(--paper); border-bottom: 1px solid var(--rule); padding: 8px 0; margin: 24px 0; }
.key button { font: inherit; font-size: 14px; color: inherit; background: none; border: 0; padding: 2px 0; margin-right: 20px; cursor: pointer; }
.key button[aria-pressed=false] { opacity: 0.35; text-decoration: line-through; }
.figures { display: grid; grid-template-columns: 1fr 1fr; gap: 0 32px; } h3 { align-self: end; }
figure { display: grid; grid-row: span 3; grid-template-rows: subgrid; margin: 0 0 32px; min-width: 0; } .wide { grid-column: 1 / -1; }
.plot { height: 360px; } .wide .plot { height: 420px; } @media (max-width: 800px) { figure { grid-column: 1 / -1; } }
.cats { display: block; } .cat { margin-right: 16px; white-space: nowrap; } .cat i { display: inline-block; width: 12px; height: 12px; margin-right: 5px; background: var(--node); }
.coordination i { background: repeating-linear-gradient(135deg, var(--node) 0 3px, var(--paper) 3px 5px); }
.metadata i { opacity: 0.56; } .control i { opacity: 0.31; }
details { margin-top: 24px; } summary { cursor: pointer; } pre { columns: 300px; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; } pre span { display: block; break-inside: avoid; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 24px; font-size: 14px; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""
SCRIPT = """
const config = { responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
function draw(figure) {
  const css = getComputedStyle(document.documentElement);
  const off = [...figure.closest("section").querySelectorAll("[aria-pressed=false]")].map((b) => Number(b.dataset.method));
  const colour = (_, name, alpha) => `"${css.getPropertyValue("--" + name).trim()}${alpha || ""}"`;
  const spec = JSON.parse(figure.querySelector("script").textContent.replace(/"css:(\\w+)(?:\\/(\\w\\w))?"/g, colour));
  for (const trace of spec.data) trace.visible = !off.includes(trace.meta);
  return Plotly.react(figure.querySelector(".plot"), spec.data, spec.layout, config);
}
async function drawAll(root) {
  for (const plot of root.querySelectorAll(".plot")) {
    const figure = plot.parentElement;
    try { await draw(figure); figure.dataset.state = "drawn"; }
    catch (error) { figure.dataset.state = "failed"; plot.textContent = "This plot could not be drawn: " + error; }
  }
}
for (const button of document.querySelectorAll("[aria-pressed]")) button.addEventListener("click", () => {
  button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
  drawAll(button.closest("section"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
drawAll(document);
"""


def write_report(directories: Sequence[Path], out: Path) -> Path:
    """Write one self-contained page about all these experiments; where it lies.

    Raises:
        DataError: a directory is no experiment, or nothing in it was tested yet.
    """
    if not directories:
        raise DataError("a report needs at least one experiment directory")
    studies = [_load(directory) for directory in directories]
    titles = dict.fromkeys(method.title for study in studies for method in study.experiment.method)
    colours = {title: number for number, title in enumerate(titles)}
    path = out / "report.html" if out.is_dir() else out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(studies, colours), encoding="utf-8")
    return path


def _page(studies: list[_Study], colours: dict[str, int]) -> str:
    names = [_name(study, studies) for study in studies]
    several = len(studies) > 1
    links = "".join(f'<a href="#e{i}">{name}</a>' for i, name in enumerate(names))
    head = f"<h1>{len(names)} experiments</h1><nav>{links}</nav>" if several else f"<h1>{names[0]}</h1>"
    sections = (
        f'<section id="e{i}">{f"<h2>{name}</h2>" if several else ""}{_section(study, colours)}</section>'
        for i, (name, study) in enumerate(zip(names, studies, strict=True))
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{", ".join(names)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{POLICY}'
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>{head}{''.join(sections)}"
        f"<footer>Made by cesar {cesar.__version__} with plotly.js {get_plotlyjs_version()}. "
        f"This page loads nothing from elsewhere.</footer><script>{SCRIPT}</script></body></html>\n"
    )


def _name(study: _Study, studies: list[_Study]) -> str:
    """The experiment's name, with its folder where two have the same."""
    name, names = study.experiment.name, [other.experiment.name for other in studies]
    return html.escape(name if names.count(name) == 1 else f"{name} ({study.folder})")


def _section(study: _Study, colours: dict[str, int]) -> str:
    metric, rounds = _metric_axis(study.metric), _Axis(key="round", name="round")
    sent = _cost_axis(study, "bytes", "sent per node", BYTES)
    spent = _cost_axis(study, "seconds", "training and protocol", SECONDS)
    loss = study.metric == "test_loss"
    better = "Higher" if study.metric == "accuracy" else "Lower"
    figures = [
        _figure(
            f"{metric.name} by round",
            f"Test set, mean over nodes. {better} is better; lines that coincide learn equally fast."
            + (" Band: one standard error over seeds." if len(study.experiment.seeds) > 1 else ""),
            _curves(study, colours, rounds, metric),
            wide=True,
        ),
        _figure(
            f"{metric.name} by bytes",
            "The further left a line gets there, the less its nodes had to send.",
            _curves(study, colours, sent, metric),
        ),
        _figure(
            f"{metric.name} by time",
            "All nodes on one machine, testing not counted. The further left, the faster.",
            _curves(study, colours, spent, metric),
        ),
        "" if loss else _loss_figure(study, colours, rounds),
        _figure(
            "What a node sends per round",
            f"Values are parameters; all else is overhead.{_categories()}",
            _breakdown(study, colours),
            wide=loss,
        ),
        _topology(study),
    ]
    return (
        f"<p>{html.escape(_sentence(study.experiment))}</p>{_summary(study, colours)}"
        f"{_key(study, colours)}<div class=figures>{''.join(figures)}</div>{_details(study)}"
    )


def _loss_figure(study: _Study, colours: dict[str, int], rounds: _Axis) -> str:
    caption = "Lower is better. A line that turns upwards overfits or diverges."
    return _figure("Test loss by round", caption, _curves(study, colours, rounds, _metric_axis("test_loss")))


def _figure(title: str, caption: str, spec: Spec, *, wide: bool = False) -> str:
    """A plot with its heading; `<` cannot end the data, whatever a file says."""
    data = json.dumps(spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure{' class=wide' if wide else ''}><h3>{title[:1].upper()}{title[1:]}</h3><figcaption>{caption}"
        f'</figcaption><div class=plot></div><script type="application/json">{data}</script></figure>'
    )


def _topology(study: _Study) -> str:
    topology, seed = study.experiment.topology, study.experiment.seeds[0]
    try:
        graph = run.graph_of(study.experiment, seed)(0)
    except ConfigError as error:
        return f"<figure class=wide><h3>Who averages with whom</h3><p>No picture: {html.escape(str(error))}</p></figure>"
    which = f"Round 1 of seed {seed}; drawn anew every round" if topology.dynamic else f"Seed {seed}"
    degrees = sorted({degree for _, degree in graph.degree})
    each = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    caption = (
        f"{which}. {len(graph)} nodes, {graph.number_of_edges():,} links, {each} neighbours per node. "
        f"{f'One link in {_stride(graph)} is drawn. ' if _stride(graph) > 1 else ''}Point at a node to see them."
    )
    return _figure("Who averages with whom", caption, _graph_figure(graph, topology.kind), wide=True)


def _sentence(experiment: Experiment) -> str:
    topology, training, data = experiment.topology, experiment.training, experiment.data
    graphs = {
        "regular": f"a random {topology.degree}-regular graph",
        "small-world": f"a small world of degree {topology.degree}",
        "file": f"the graph of {topology.path.name if topology.path else 'a file'}",
    }
    spread = {"iid": "spread evenly", "shards": "in label shards", "user": "by user"}
    skew = f"with label skew (Dirichlet, α = {data.dirichlet_alpha:g})"
    crashes = f" In each round a node crashes with probability {experiment.faults.crash_rate:g}."
    return (
        f"{topology.nodes} nodes on {graphs.get(topology.kind, f'a {topology.kind} graph')} train {experiment.model.name} "
        f"on {data.dataset}, {spread.get(data.partition, skew)}, for {experiment.rounds} rounds of "
        f"{training.steps_per_round} SGD steps (batch size {training.batch_size}, learning rate "
        f"{training.learning_rate:g}); seeds: {', '.join(map(str, experiment.seeds))}."
        f"{' Sparse D-PSGD shares what CESAR was measured to share.' if experiment.match_share else ''}"
        f"{crashes if experiment.faults.crash_rate else ''}"
    )


def _summary(study: _Study, colours: dict[str, int]) -> str:
    rows, metric = _rows(study), _metric_axis(study.metric)
    size, unit = _unit(max(row.bytes for row in rows), BYTES)
    second, clock = _unit(max(row.seconds_training + row.seconds_protocol for row in rows), SECONDS)
    heads = "".join(
        f"<th>{head}" for head in ("share", metric.title, f"sent per node ({unit})", "of full D-PSGD")
    )
    body = ""
    for method, row in zip(study.methods, rows, strict=True):
        cells = [f"{row.shared:.1%}", _text(row.value, row.error, metric), f"{row.bytes / size:.2f}"]
        cells.append("–" if row.bytes_ratio is None else f"{row.bytes_ratio:.3f}")
        times = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
        cells += [f"{seconds / second:.{1 if clock == 's' else 2}f}" for seconds in times]
        body += f"<tr><th>{_swatch(method, colours[row.title])}{html.escape(row.title)}{_state(row)}"
        body += "".join(f"<td>{cell}" for cell in cells)
    waiting = [m.title for m in study.experiment.method if m not in study.methods]
    note = f"<p class=note>Not tested yet: {html.escape(', '.join(waiting))}.</p>" if waiting else ""
    return (
        f"<div class=scroll><table><thead><tr><th>method{heads}<th>training ({clock})<th>protocol ({clock})"
        f"<th>testing ({clock})<tbody>{body}</table></div>"
        "<p class=note>Means over nodes and seeds, ± standard error over seeds where there are several. Share: "
        f"fraction of the parameters that was sent, as measured. 1 kB is 1000 bytes.</p>{note}"
    )


def _state(row: MethodRow) -> str:
    """What is to be said about a method that has not ended."""
    if row.seeds_finished == row.seeds_planned:
        return ""
    seeds = f"{row.seeds_finished} of {row.seeds_planned} seeds finished"
    return f"<small>running: {seeds if row.seeds_finished else f'round {row.round_} of {row.rounds}'}</small>"


def _swatch(method: MethodSection, colour: int) -> str:
    return (
        f'<i class="swatch {method.name}" style="color:var(--c{colour % PALETTE})">{_symbol(colour)[1]}</i>'
    )


def _categories() -> str:
    names = "".join(f'<span class="cat {name}"><i></i>{name}</span>' for name in SHADES)
    return f"<span class=cats>{names}</span>"


def _key(study: _Study, colours: dict[str, int]) -> str:
    """One legend for all plots of an experiment; a click hides a method everywhere."""
    buttons = (
        f'<button type=button aria-pressed=true data-method="{colours[method.title]}">'
        f"{_swatch(method, colours[method.title])}{html.escape(method.title)}</button>"
        for method in study.methods
    )
    return f"<div class=key>{''.join(buttons)}<small>click to hide</small></div>"


def _details(study: _Study) -> str:
    """Everything that is needed to run it again."""
    runs = [(title, one) for title, several in study.runs.items() for one in several]
    names = dict.fromkeys(name for _, one in runs for name in one.versions)
    facts = {
        name: ", ".join(dict.fromkeys(one.versions[name] for _, one in runs if name in one.versions))
        for name in names
    }
    facts |= {title: one.settings for title, one in runs if one.settings}
    tables = _toml(study.experiment).rstrip().split("\n\n")
    config = "".join(f"<span>{html.escape(table)}\n\n</span>" for table in tables)
    lines = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in facts.items())
    return (
        "<details><summary>Configuration and versions</summary><p>The experiment file with all defaults:</p>"
        f"<pre>{config}</pre><dl>{lines}</dl></details>"
    )


def _toml(experiment: Experiment) -> str:
    """The experiment as a file that `cesar run` takes."""
    tables = experiment.model_dump(mode="json", exclude_none=True)
    methods = tables.pop("method")
    nested = {key: value for key, value in tables.items() if isinstance(value, dict)}
    parts = [("", {key: value for key, value in tables.items() if key not in nested})]
    parts += [(f"[{key}]\n", table) for key, table in nested.items()]
    parts += [("[[method]]\n", method) for method in methods]
    return "\n".join(
        head + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
        for head, table in parts
    )
