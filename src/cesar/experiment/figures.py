"""Figures as plain dictionaries in plotly's schema; colours are names (`css:ink`) that the page fills in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from cesar.experiment.results import Step, Study, judged, mean, standard_error
from cesar.page import PALETTE, Spec, json_number, plain, plot_axis, plot_layout
from cesar.settings import MethodSection

Units = tuple[tuple[float, str], ...]

BYTES: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SECONDS: Units = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
DASHES = {"cesar": "solid", "secagg": "dot", "dpsgd": "dash"}
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
    size, unit = unit_for(max(mean(judged(study, method)[-1], key) for method in study.methods), units)
    return Axis(key=key, name=name, size=size, unit=unit)


def shown(mean: float, error: float | None, axis: Axis, suffix: str = "") -> str:
    """A mean for people, with its standard error where there is one."""
    digits = 2 if axis.unit == "%" else 4
    spread = "" if error is None else f" ± {error / axis.size:.{digits}f}"
    return f"{mean / axis.size:.{digits}f}{spread}{suffix}"


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
