"""Figures as plain dictionaries in plotly's schema; colours are names (`css:ink`) that the page fills in."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx

from cesar.experiment.results import Step, Study, judged, mean, standard_error
from cesar.settings import MethodSection

Spec = dict[str, Any]
Units = tuple[tuple[float, str], ...]

BYTES: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SECONDS: Units = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
PALETTE = 8  # told apart with every kind of colour blindness, and 3 : 1 against the page, light and dark
DASHES = {"cesar": "solid", "secagg": "dot", "dpsgd": "dash"}
SYMBOLS = (("circle", ""), ("diamond", "◆"), ("square", "■"), ("triangle-up", "▲"))
SHADES = {"values": "", "coordination": "", "metadata": "/90", "control": "/50"}
NAMES = {"rmse": "RMSE", "rouge_l": "ROUGE-L"}
MOST_EDGES = 6000
HATCH = {"shape": "/", "fgcolor": "css:paper", "size": 6, "solidity": 0.4, "fillmode": "overlay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows of a test step: `key`, in a unit of that size."""

    key: str
    name: str
    size: float = 1.0
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


def unit_for(largest: float, units: Units) -> tuple[float, str]:
    """The unit in which the largest value is a handy number."""
    return max((unit for unit in units if unit[0] <= largest), default=units[0])


def metric_axis(key: str) -> Axis:
    if key == "accuracy":
        return Axis(key=key, name=key, size=0.01, unit="%")
    return Axis(key=key, name=NAMES.get(key, key.replace("_", " ")))


def cost_axis(study: Study, key: str, name: str, units: Units) -> Axis:
    size, unit = unit_for(max(mean(judged(study, method)[-1], key) for method in study.methods), units)
    return Axis(key=key, name=name, size=size, unit=unit)


def json_number(value: float) -> float | None:
    """A number for JSON: six digits are more than a screen shows, and NaN is a gap."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def shown(mean: float, error: float | None, axis: Axis, suffix: str = "") -> str:
    """A mean for people, with its standard error where there is one."""
    digits = 2 if axis.unit == "%" else 4
    spread = "" if error is None else f" ± {error / axis.size:.{digits}f}"
    return f"{mean / axis.size:.{digits}f}{spread}{suffix}"


def plot_axis(title: str, **more: object) -> Spec:
    lines = {"gridcolor": "css:rule", "linecolor": "css:soft", "tickcolor": "css:soft", "ticks": "outside"}
    return {"title": {"text": title, "standoff": 12}, "automargin": True, "zeroline": False, **lines, **more}


def plot_layout(x: Spec, y: Spec, **more: object) -> Spec:
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


def curves(study: Study, colours: dict[str, int], x: Axis, y: Axis) -> Spec:
    """Mean lines over seeds with a band of one standard error."""
    bands, lines = [], []
    for method in study.methods:
        groups, colour = judged(study, method), colours[method.title]
        errors = [standard_error(group, y.key) for group in groups]
        gaps = [i for i, error in enumerate(errors) if error is None or not math.isfinite(error)]
        for before, after in pairwise([-1, *gaps, len(groups)]):
            if after - before > 2:
                bands.append(_band(groups[before + 1 : after], colour, x, y))
        lines.append(_line(groups, method, colour, x, y))
    layout = plot_layout(plot_axis(x.title, rangemode="tozero"), plot_axis(y.title))
    if x.key == "round":
        layout["hovermode"] = "x unified"
        layout["xaxis"]["unifiedhovertitle"] = {"text": "round %{x}"}
    return {"data": [*bands, *lines], "layout": layout}


def _band(groups: list[list[Step]], colour: int, x: Axis, y: Axis) -> Spec:
    across = [json_number(mean(group, x.key) / x.size) for group in groups]
    edges = [
        [
            json_number((mean(group, y.key) + sign * (standard_error(group, y.key) or 0)) / y.size)
            for group in groups
        ]
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


def _line(groups: list[list[Step]], method: MethodSection, colour: int, x: Axis, y: Axis) -> Spec:
    shade, many = f"css:c{colour % PALETTE}", len(groups) > 25
    at = f"<b>%{{fullData.name}}</b><br>%{{text}} after %{{x:.4~g}} {x.unit}, round %{{customdata}}<extra></extra>"
    return {
        "type": "scatter",
        "mode": "lines" if many and colour < PALETTE else "lines+markers",
        "name": plain(method.title),
        "x": [json_number(mean(group, x.key) / x.size) for group in groups],
        "y": [json_number(mean(group, y.key) / y.size) for group in groups],
        "text": [
            shown(mean(group, y.key), standard_error(group, y.key), y, f" {y.unit}") for group in groups
        ],
        "customdata": [int(group[0]["round"]) for group in groups],
        "hovertemplate": "%{text}" if x.key == "round" else at,
        "line": {"color": shade, "width": 2.2, "dash": DASHES[method.name]},
        "marker": {"color": shade, "size": 7, "symbol": symbol(colour)[0], "maxdisplayed": 12 * many},
        "meta": colour,
    }


def symbol(colour: int) -> tuple[str, str]:
    """What tells methods of the same colour apart: a marker, for plotly and as a letter."""
    return SYMBOLS[colour // PALETTE % len(SYMBOLS)]


def three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def plain(text: str) -> str:
    """Text for plotly, which reads some tags and entities."""
    return html.escape(text, quote=False)


def breakdown(study: Study, colours: dict[str, int]) -> Spec:
    """Bytes per node and round, a bar per method in its colour and a texture per category."""
    axis = cost_axis(study, "bytes_per_round", "per node and round", BYTES)
    data, longest = [], 0.0
    for method in study.methods:
        steps, name, colour = judged(study, method)[-1], plain(method.title), colours[method.title]
        for category, shade in SHADES.items():
            sent = mean(steps, f"{category}_per_round")
            marker: Spec = {"color": f"css:c{colour % PALETTE}{shade}", "line": {"width": 0}}
            if category == "coordination":
                marker["pattern"] = HATCH
            hover = f"{category}: {sent:,.0f} B<extra></extra>"
            bar = {"type": "bar", "orientation": "h", "x": [json_number(sent / axis.size)], "y": [name]}
            data.append({**bar, "marker": marker, "hovertemplate": hover, "meta": colour})
        total = mean(steps, "bytes_per_round") / axis.size
        longest = max(longest, total)
        end = {"type": "scatter", "mode": "text", "x": [json_number(total)], "y": [name], "hoverinfo": "skip"}
        text = f" {three_digits(total)} {axis.unit}"
        label = {"text": [text], "textposition": "middle right", "cliponaxis": False}
        data.append({**end, **label, "meta": colour})
    x = plot_axis(axis.title, range=[0, 1.2 * longest or 1])
    count = len(study.methods)
    spare = max(0, 4 - count) / 2  # so that a few bars stay slim
    y = plot_axis("", type="category", range=[count - 0.5 + spare, -0.5 - spare], ticks="", showgrid=False)
    return {"data": data, "layout": plot_layout(x, y, barmode="stack", bargap=0.35)}


def graph_figure(graph: nx.Graph, kind: str) -> Spec:
    """The aggregation graph; a ring where a picture by forces would take long or say nothing."""
    crowded = len(graph) > 400
    ring = crowded or kind in ("ring", "complete")
    place = nx.circular_layout(graph) if ring else nx.spring_layout(graph, seed=1, iterations=200)
    edges = list(graph.edges)[:: stride(graph)]
    ends = [
        [v for i, j in edges for v in (json_number(place[i][k]), json_number(place[j][k]), None)]
        for k in (0, 1)
    ]
    hidden = {"visible": False, "fixedrange": False}
    few = len(graph) <= 64
    lines = {"type": "scatter", "mode": "lines", "x": ends[0], "y": ends[1], "hoverinfo": "skip"}
    nodes = {"type": "scatter", "mode": "markers+text" if few else "markers"}
    return {
        "data": [
            {**lines, "line": {"color": "css:soft/20" if crowded else "css:soft/70", "width": 1}},
            {
                **nodes,
                "x": [json_number(place[node][0]) for node in graph],
                "y": [json_number(place[node][1]) for node in graph],
                "text": [str(node) for node in graph],
                "customdata": [_neighbours(graph, node) for node in graph],
                "hovertemplate": "node %{text}<br>%{customdata}<extra></extra>",
                "textfont": {"size": 11, "color": "css:paper"},
                "marker": {"size": 22 if few else 5, "color": "css:node", "line": {"width": 0}},
            },
        ],
        "layout": plot_layout(
            hidden, {**hidden, "scaleanchor": "x"}, margin={"l": 8, "r": 8, "t": 8, "b": 8}
        ),
    }


def stride(graph: nx.Graph) -> int:
    """Every how manyth link is drawn: a page with half a million lines helps nobody."""
    links: int = graph.number_of_edges()
    return math.ceil(links / MOST_EDGES)


def _neighbours(graph: nx.Graph, node: int) -> str:
    near = sorted(graph[node])
    shown = ", ".join(map(str, near[:12])) + (", …" if len(near) > 12 else "")
    return f"{len(near)} neighbours: {shown}"
