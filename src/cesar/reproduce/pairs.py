"""A plot and the table beside it: how results read, on the page and in the document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cesar.page import PALETTE, Figure, Spec, json_number, plot_axis, plot_layout

Row = Sequence[str]
LONG = 20
"""Names of more letters stand beside a plot that lies on its side, not below it."""
NONE = "–"
"""What the paper does not print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart; `error` are standard errors."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    error: Sequence[float] | None = None
    line: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plot and the table beside it."""

    title: str
    caption: str
    axes: tuple[str, str]
    series: list[Series]
    heads: Row
    rows: Sequence[Row]

    @property
    def plot(self) -> Figure:
        """The plot; the paper's own figures are open markers."""
        lying = _longest(self.series) > LONG
        data = [_trace(one, number, lying=lying) for number, one in enumerate(self.series)]
        legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        names = {"type": "category"} if _longest(self.series) else {}
        margin = {"l": 48, "r": 16, "t": 24 + 22 * ((len(self.series) + 1) // 2), "b": 44}
        x, y = plot_axis(self.axes[0], **names), plot_axis(self.axes[1])
        if lying:
            x, y = y, {**x, "autorange": "reversed"}
        layout = plot_layout(x, y, showlegend=len(self.series) > 1, legend=legend, margin=margin)
        return Figure(title=self.title, caption=self.caption, spec={"data": data, "layout": layout})


def _longest(series: list[Series]) -> int:
    """Letters of the longest name along the axis; 0 if it has numbers."""
    return max((len(x) for one in series for x in one.x if isinstance(x, str)), default=0)


def _trace(one: Series, number: int, *, lying: bool) -> Spec:
    colour, printed = f"css:c{number % PALETTE}", one.name == "paper" or one.name.startswith("paper,")
    along, up = ("y", "x") if lying else ("x", "y")
    trace: Spec = {
        "type": "scatter",
        "mode": "lines+markers" if one.line else "markers",
        "name": one.name,
        along: list(one.x),
        up: [json_number(value) for value in one.y],
        "line": {"color": colour, "dash": "dot" if printed else "solid"},
        "marker": {"color": colour, "size": 9, "symbol": "circle-open" if printed else "circle"},
    }
    if one.error is not None:
        bars = {"type": "data", "array": [json_number(e) for e in one.error], "color": colour}
        trace[f"error_{up}"] = bars
    return trace
