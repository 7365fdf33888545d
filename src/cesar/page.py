"""A self-contained HTML page with plots: opens anywhere, without a network, on light and dark screens.

Figures are plain dictionaries in plotly's schema. Colours in them are names (`css:ink`) that the page
replaces by its own CSS variables when it draws, so that one page serves light and dark screens. The page's own
security policy forbids it to load anything.
"""

from __future__ import annotations

import html
import json
import math
from typing import Any

import networkx as nx

Spec = dict[str, Any]

MOST_EDGES = 6000
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


def whole_page(title: str, body: str, version: str) -> str:
    """The page around a body; title and body are HTML."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # type: ignore[import-untyped]  # noqa: PLC0415

    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{POLICY}'
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>{body}"
        f"<footer>Made by cesar {version} with plotly.js {get_plotlyjs_version()}. "
        f"This page loads nothing from elsewhere.</footer><script>{SCRIPT}</script></body></html>\n"
    )


def figure(title: str, caption: str, spec: Spec, *, wide: bool = False) -> str:
    """A plot with its heading; `<` cannot end the data, whatever a file says."""
    data = json.dumps(spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure{' class=wide' if wide else ''}><h3>{title[:1].upper()}{title[1:]}</h3><figcaption>{caption}"
        f'</figcaption><div class=plot></div><script type="application/json">{data}</script></figure>'
    )


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
