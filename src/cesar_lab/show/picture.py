"""Charts as SVG files for documents, drawn by matplotlib; text stays text, and the figures stand in the description.

A file is the same whenever it is drawn from the same figures with the same version of matplotlib.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

from cesar.base import files
from cesar_lab.show.chart import Chart, Series

COLOURS = ("#0f4c8e", "#b43600", "#01844c", "#8b4e78", "#0a9cef", "#d08405", "#4a2c07", "#7a7072")
"""Those of our pages on a light screen."""
MARKERS = "oDs^"
WIDTH, HEIGHT = 6.4, 4.2
"""Of a chart, in inches, without its legend."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cesar",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, and is wider than what a reader has instead
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6e9",
    "axes.edgecolor": "#5d6771",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
}


def draw(charts: Sequence[Chart], out: Path) -> Path:
    """Write the charts one below the other, each with its legend at the right; where the file lies."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH + 2.6, len(charts) * HEIGHT), layout="constrained")
        for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
            _draw(axes, chart)
        drawn = io.BytesIO()
        title = "; ".join(chart.title for chart in charts)
        description = "\n".join(chart.describe() for chart in charts)
        about = {"Title": title, "Description": description, "Date": None, "Creator": None}
        figure.savefig(drawn, format="svg", metadata=about)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(out, drawn.getvalue().decode())
    return out


def _draw(axes: Axes, chart: Chart) -> None:
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x.title)
    axes.set_ylabel(chart.y.title)
    if chart.shaded is not None:
        axes.axvspan(*chart.shaded[:2], color="#e3e6e9", linewidth=0)
    for number, one in enumerate(chart.series):
        _series(axes, one, number if one.colour is None else one.colour)
    if chart.x.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
    elif chart.x.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.legend and len(chart.series) > 1:
        # In the order in which lines end, or points lie, from top to bottom.
        handles, names = axes.get_legend_handles_labels()
        ends = {one.name: one.y[-1] if math.isfinite(one.y[-1]) else -math.inf for one in chart.series}
        order = sorted(range(len(names)), key=lambda k: -ends[names[k]])
        axes.legend(
            [handles[k] for k in order],
            [names[k] for k in order],
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.0,
        )


def _series(axes: Axes, one: Series, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
    face = "white" if one.open else colour
    if one.look == "points":
        error = one.error or None
        axes.errorbar(
            one.x, one.y, error, fmt=marker, color=colour, markerfacecolor=face, markersize=7, label=one.name
        )
        return
    few = max(1, len(one.x) // 12)
    dash = (0, (4, 3)) if one.open or one.look == "thin" else "-"
    marks: Any = {} if one.look == "thin" else {"marker": marker, "markerfacecolor": face, "markevery": few}
    axes.plot(one.x, one.y, color=colour, linestyle=dash, label=one.name, markersize=5, **marks)
    if one.error:
        edges = [[y + side * e for y, e in zip(one.y, one.error, strict=True)] for side in (-1, 1)]
        axes.fill_between(one.x, edges[0], edges[1], color=colour, alpha=0.15, linewidth=0)
