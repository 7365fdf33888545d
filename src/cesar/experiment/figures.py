"""Figures as plain dictionaries in plotly's schema; colours are names (`css:ink`) that the page fills in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from cesar.experiment.paired import Difference
from cesar.experiment.results import (
    Step,
    Study,
    judged,
    last,
    mean,
    mean_if_known,
    settling,
    standard_error,
)
from cesar.page import PALETTE, Spec, json_number, plain, plot_axis, plot_layout
from cesar.settings import MethodSection

Units = tuple[tuple[float, str], ...]

BYTES: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SECONDS: Units = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
SYMBOLS = (("circle", ""), ("diamond", "◆"), ("square", "■"), ("triangle-up", "▲"))
SHADES = {"values": "", "coordination": "", "metadata": "/90", "control": "/50"}
NAMES = {"rmse": "RMSE", "rouge_l": "ROUGE-L"}
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
    size, unit = unit_for(max(mean(last(study, method), key) for method in study.methods), units)
    return Axis(key=key, name=name, size=size, unit=unit)


def shown(mean: float, error: float | None, axis: Axis, suffix: str = "") -> str:
    """A mean for people, with its standard error where there is one."""
    digits = 2 if axis.unit == "%" else 4
    spread = "" if error is None else f" ± {error / axis.size:.{digits}f}"
    return f"{mean / axis.size:.{digits}f}{spread}{suffix}"


def difference(found: Difference, axis: Axis) -> tuple[str, str]:
    """A difference for people: with its standard error, and its 95 % interval."""
    digits = 2 if axis.unit == "%" else 4
    middle = found.mean / axis.size
    if found.error is None or found.margin is None:
        return f"{middle:+.{digits}f}", "–"
    margin = found.margin / axis.size
    return (
        f"{middle:+.{digits}f} ± {found.error / axis.size:.{digits}f}",
        f"{middle - margin:+.{digits}f} to {middle + margin:+.{digits}f}",
    )


def curves(study: Study, colours: dict[str, int], x: Axis, y: Axis) -> Spec:
    """Means over nodes and seeds with a band for the spread between nodes; dashed, the mean of all models.

    Over settling rounds only those are drawn; over all rounds they are shaded.
    """
    bands, lines = [], []
    for method in study.methods:
        groups = settling(study, method) if x.key == "settle_round" else judged(study, method)
        if not groups:
            continue
        colour = colours[method.title]
        halves = [_half(group, y.key) for group in groups]
        gaps = [i for i, half in enumerate(halves) if half is None or not math.isfinite(half)]
        for before, after in pairwise([-1, *gaps, len(groups)]):
            if after - before > 2:
                bands.append(_band(groups[before + 1 : after], colour, x, y, len(study.methods)))
        if all(mean_if_known(group, f"mean_model_{y.key}") is not None for group in groups):
            lines.append(_mean_model_line(groups, method, colour, x, y))
        lines.append(_line(groups, method, colour, x, y))
    layout = plot_layout(plot_axis(x.title, rangemode="tozero"), plot_axis(y.title))
    if x.key in ("round", "settle_round"):
        layout["hovermode"] = "x unified"
        layout["xaxis"]["unifiedhovertitle"] = {"text": f"{x.name} %{{x}}"}
    if x.key == "settle_round":
        layout["xaxis"]["dtick"] = 1
    if x.key == "round":
        layout |= _shaded(study)
    return {"data": [*bands, *lines], "layout": layout}


def _half(group: list[Step], key: str) -> float | None:
    """Half the width of a band: the spread between nodes; in older runs, which lack it, the standard error over seeds."""
    spread = mean_if_known(group, f"{key}_spread")
    return standard_error(group, key) if spread is None else spread


def _shaded(study: Study) -> Spec:
    """The settling rounds, in grey, with a word on what they are."""
    ends = [mean(last(study, method), "round") for method in study.methods if settling(study, method)]
    if not ends:
        return {}
    first, end = study.experiment.rounds, max(ends)
    area: Spec = {"type": "rect", "xref": "x", "x0": first, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    # At the left: the buttons are at the right.
    word: Spec = {"text": f"grey: {settled_words(study)}", "xref": "paper", "x": 0, "xanchor": "left"}
    word |= {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    return {
        "shapes": [{**area, "fillcolor": "css:soft/30", "line": {"width": 0}, "layer": "below"}],
        "annotations": [{**word, "font": {"color": "css:soft"}}],
    }


def settled_words(study: Study) -> str:
    """How many settling rounds there were, and what a node sent in them; nothing if there were none."""
    ends = [last(study, method) for method in study.methods if settling(study, method)]
    if not ends:
        return ""
    counts = [step["settle_round"] for steps in ends for step in steps]
    sent = [mean(steps, "settle_bytes") for steps in ends]
    size, unit = unit_for(max(sent), BYTES)
    rounds = " to ".join(dict.fromkeys(f"{count:.0f}" for count in (min(counts), max(counts))))
    amounts = " to ".join(dict.fromkeys(three_digits(amount / size) for amount in (min(sent), max(sent))))
    return f"{rounds} settling round{'' if rounds == '1' else 's'}, {amounts} {unit} per node"


def _band(groups: list[list[Step]], colour: int, x: Axis, y: Axis, methods: int) -> Spec:
    across = [json_number(mean(group, x.key) / x.size) for group in groups]
    edges = [
        [json_number((mean(group, y.key) + sign * (_half(group, y.key) or 0)) / y.size) for group in groups]
        for sign in (1, -1)
    ]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*across, *across[::-1]],
        "y": [*edges[0], *edges[1][::-1]],
        "fill": "toself",
        "fillcolor": f"css:c{colour % PALETTE}/{'20' if methods <= 4 else '10'}",  # many lie on one another
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": colour,
    }


def _mean_model_line(groups: list[list[Step]], method: MethodSection, colour: int, x: Axis, y: Axis) -> Spec:
    """Without markers, and thinner: it belongs to the line of the nodes."""
    common = Axis(key=f"mean_model_{y.key}", name=y.name, size=y.size, unit=y.unit)
    line = _line(groups, method, colour, x, common)
    line["name"] += ", mean of all models"
    return {**line, "mode": "lines", "line": {**line["line"], "width": 1.6, "dash": "dash"}}


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
        "hovertemplate": "%{text}" if x.key in ("round", "settle_round") else at,
        "line": {"color": shade, "width": 2.2},
        "marker": {"color": shade, "size": 7, "symbol": symbol(colour)[0], "maxdisplayed": 12 * many},
        "meta": colour,
    }


def symbol(colour: int) -> tuple[str, str]:
    """What tells methods of the same colour apart: a marker, for plotly and as a letter."""
    return SYMBOLS[colour // PALETTE % len(SYMBOLS)]


def three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def breakdown(study: Study, colours: dict[str, int]) -> Spec:
    """Bytes per node and round, a bar per method in its colour and a texture per category."""
    axis = cost_axis(study, "bytes_per_round", "per node and round", BYTES)
    data, longest = [], 0.0
    for method in study.methods:
        steps, name, colour = last(study, method), plain(method.title), colours[method.title]
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
