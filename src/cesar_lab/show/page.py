"""Charts for pages: plotly's schema, with colours that the page fills in for light and dark screens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from cesar.page import PALETTE, Figure, Spec, json_number, plain, plot_axis, plot_layout
from cesar_lab.show.chart import Axis, Chart, Series

LONG = 20
"""Names of more letters stand beside a chart that lies on its side, not below it."""
MANY = 25
"""A line of more points has markers at some of them only."""
SYMBOLS = (("circle", ""), ("diamond", "◆"), ("square", "■"), ("triangle-up", "▲"))
"""Of series with the same colour, for plotly and as a letter."""
SHADES = ("", "", "/90", "/50")
HATCH = {"shape": "/", "fgcolor": "css:paper", "size": 6, "solidity": 0.4, "fillmode": "overlay"}


def figure(chart: Chart) -> Figure:
    """The chart as a page draws it."""
    spec = _bars(chart) if any(one.look == "bar" for one in chart.series) else _curves(chart)
    return Figure(title=chart.title, caption=chart.caption, spec=spec, wide=chart.wide)


def symbol(colour: int) -> tuple[str, str]:
    """What tells series of the same colour apart: a marker, for plotly and as a letter."""
    return SYMBOLS[colour // PALETTE % len(SYMBOLS)]


def _curves(chart: Chart) -> Spec:
    lying = chart.longest_name > LONG
    numbered = [
        (one, number if one.colour is None else one.colour) for number, one in enumerate(chart.series)
    ]
    faint = len({number for _, number in numbered}) > 4  # many bands lie on one another
    bands = [
        band for one, number in numbered if one.look == "line" for band in _bands(one, number, faint=faint)
    ]
    lines = [_trace(one, number, chart, lying=lying) for one, number in numbered]
    x, y = _axis(chart.x, named=chart.longest_name > 0), _axis(chart.y)
    if lying:
        x, y = y, {**x, "autorange": "reversed"}
    more: Spec = {}
    if chart.legend and len(chart.series) > 1:
        room = 24 + 22 * ((len(chart.series) + 1) // 2)
        more["showlegend"] = True
        more["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        more["margin"] = {"l": 48, "r": 16, "t": room, "b": 44}
    if chart.x.whole:
        more["hovermode"] = "x unified"
        x["unifiedhovertitle"] = {"text": f"{plain(chart.x.name)} %{{x}}"}
    return {"data": [*bands, *lines], "layout": plot_layout(x, y, **more, **_shading(chart))}


def _axis(axis: Axis, *, named: bool = False) -> Spec:
    more: Spec = {"type": "category"} if named else {}
    if axis.log:  # a tick at every power of two
        more = {"type": "log", "dtick": math.log10(2), "tickformat": "~g"}
    if axis.zero:
        more["rangemode"] = "tozero"
    return plot_axis(axis.title, **more)


def _shading(chart: Chart) -> Spec:
    if chart.shaded is None:
        return {}
    begin, end, words = chart.shaded
    area: Spec = {"type": "rect", "xref": "x", "x0": begin, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    # At the left: the buttons are at the right.
    word: Spec = {"text": f"grey: {plain(words)}", "xref": "paper", "x": 0, "xanchor": "left"}
    word |= {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    return {
        "shapes": [{**area, "fillcolor": "css:soft/30", "line": {"width": 0}, "layer": "below"}],
        "annotations": [{**word, "font": {"color": "css:soft"}}],
    }


def _bands(one: Series, number: int, *, faint: bool) -> Iterator[Spec]:
    """One area for each stretch of points whose error is known, as plotly cannot fill around gaps."""
    if not one.error:
        return
    gaps = [n for n, error in enumerate(one.error) if not math.isfinite(error)]
    for before, after in pairwise([-1, *gaps, len(one.error)]):
        points = range(before + 1, after)
        if len(points) < 2:
            continue
        edges = [[json_number(one.y[n] + side * one.error[n]) for n in points] for side in (1, -1)]
        across = [one.x[n] for n in points]
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": [*across, *reversed(across)],
            "y": [*edges[0], *reversed(edges[1])],
            "fill": "toself",
            "fillcolor": f"css:c{number % PALETTE}/{'10' if faint else '20'}",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "meta": number,
        }


def _trace(one: Series, number: int, chart: Chart, *, lying: bool) -> Spec:
    colour, many = f"css:c{number % PALETTE}", len(one.x) > MANY
    along, up = ("y", "x") if lying else ("x", "y")
    markers = one.look == "points" or not (many and number < PALETTE)
    mode = {"points": "markers", "thin": "lines"}.get(one.look, "lines+markers" if markers else "lines")
    shape = symbol(number)[0] + ("-open" if one.open else "")
    trace: Spec = {
        "type": "scatter",
        "mode": mode,
        "name": plain(one.name),
        along: [json_number(x) if isinstance(x, float) else x for x in one.x],
        up: [json_number(y) for y in one.y],
        "line": {"color": colour, "width": 1.6 if one.look == "thin" else 2.2},
        "marker": {"color": colour, "size": 8, "symbol": shape, "maxdisplayed": 12 * many},
        "meta": number,
    }
    if one.look == "thin" or one.open:
        trace["line"]["dash"] = "dash" if one.look == "thin" else "dot"
    if one.hover:
        trace["text"] = list(one.hover)
        named = "<b>%{fullData.name}</b><br>%{text}<extra></extra>"
        trace["hovertemplate"] = "%{text}" if chart.x.whole else named
    if one.error and one.look == "points":
        trace[f"error_{up}"] = {
            "type": "data",
            "array": [json_number(error) for error in one.error],
            "color": colour,
        }
    return trace


def _bars(chart: Chart) -> Spec:
    """Bars from left to right, the parts of one name behind one another, with their sum at the end."""
    data: list[Spec] = []
    sums: dict[str, float] = {}
    colours: dict[str, int] = {}
    for number, one in enumerate(chart.series):
        colour = number if one.colour is None else one.colour
        marker: Spec = {"color": f"css:c{colour % PALETTE}{SHADES[one.texture]}", "line": {"width": 0}}
        if one.texture == 1:
            marker["pattern"] = HATCH
        for name, length in zip(map(str, one.x), one.y, strict=True):
            sums[name] = sums.get(name, 0.0) + length
            colours[name] = colour
        bar: Spec = {"type": "bar", "orientation": "h", "x": [json_number(y) for y in one.y]}
        bar |= {"y": [plain(str(x)) for x in one.x], "marker": marker, "meta": colour}
        hover = [f"{plain(one.name)}: {text}" for text in one.hover]
        data.append({**bar, "hovertext": hover, "hovertemplate": "%{hovertext}<extra></extra>"})
    for name, total in sums.items():
        end: Spec = {"type": "scatter", "mode": "text", "x": [json_number(total)], "y": [plain(name)]}
        text = f" {total:#.3g}".rstrip(".") + f" {chart.y.unit}"
        label = {"text": [text], "textposition": "middle right", "cliponaxis": False, "hoverinfo": "skip"}
        data.append({**end, **label, "meta": colours[name]})
    x = plot_axis(chart.y.title, range=[0, 1.3 * max(sums.values()) or 1])
    spare = max(0, 4 - len(sums)) / 2  # so that a few bars stay slim
    y = plot_axis(
        "", type="category", range=[len(sums) - 0.5 + spare, -0.5 - spare], ticks="", showgrid=False
    )
    # In a narrow window long names leave the bars little room: figures and the axis' title reach into the margin.
    room = {"l": 48, "r": 48, "t": 24, "b": 44}
    return {"data": data, "layout": plot_layout(x, y, barmode="stack", bargap=0.35, margin=room)}
