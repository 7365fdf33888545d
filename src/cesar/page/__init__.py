"""A self-contained HTML page with plots: opens anywhere, without a network, on light and dark screens.

Figures are plain dictionaries in plotly's schema. Colours in them are names (`css:ink`) that the page
replaces by its own CSS variables when it draws, so that one page serves light and dark screens. The page's own
security policy forbids it to load anything. What a page says stands in `templates`; the laboratory has its own
beside these.
"""

from __future__ import annotations

import html
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx

from cesar.base import files

if TYPE_CHECKING:
    from jinja2 import Environment

Spec = dict[str, Any]

MOST_EDGES = 6000
PALETTE = 8  # told apart with every kind of colour blindness, and 3 : 1 against the page, light and dark


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot with its heading, plain text all of it."""

    title: str
    caption: str
    spec: Spec
    wide: bool = False

    @property
    def heading(self) -> str:
        return f"{self.title[:1].upper()}{self.title[1:]}"

    @property
    def data(self) -> str:
        """The plot for the page's script; `<` cannot end the data, whatever a file says."""
        return json.dumps(self.spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _templates(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape  # noqa: PLC0415

    found = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__name__)]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["thousands"] = "{:,}".format
    return found


def render(template: str, *, package: str = __name__, **values: object) -> str:
    """A template with these values, of that package or of this one; HTML has them escaped."""
    return _templates(package).get_template(template).render(values)


def write_page(
    out: Path, template: str, *, title: str, version: str, package: str = __name__, **values: object
) -> Path:
    """Write a page around plots, whose template extends page.html; where it lies."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # type: ignore[import-untyped]  # noqa: PLC0415

    plotly = {"plotly": get_plotlyjs(), "plotly_version": get_plotlyjs_version()}
    text = render(template, package=package, title=title, version=version, **plotly, **values)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(out, text)
    return out


def json_number(value: float) -> float | None:
    """A number for JSON: six digits are more than a screen shows, and NaN is a gap."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


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


def plain(text: str) -> str:
    """Text for plotly, which reads some tags and entities."""
    return html.escape(text, quote=False)


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
