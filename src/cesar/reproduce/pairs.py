"""A plot and the table beside it: how results read, on the page and in the document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cesar.page import PALETTE, Figure, Spec, json_number, plot_axis, plot_layout

Row = Sequence[str]
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
        data = [_trace(one, number) for number, one in enumerate(self.series)]
        legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        x = plot_axis(self.axes[0], type="category") if _by_name(self.series) else plot_axis(self.axes[0])
        margin = {"l": 48, "r": 16, "t": 24 + 22 * ((len(self.series) + 1) // 2), "b": 44}
        layout = plot_layout(x, plot_axis(self.axes[1]), showlegend=True, legend=legend, margin=margin)
        return Figure(title=self.title, caption=self.caption, spec={"data": data, "layout": layout})


def _by_name(series: list[Series]) -> bool:
    return any(isinstance(value, str) for one in series for value in one.x)


def _trace(one: Series, number: int) -> Spec:
    colour, printed = f"css:c{number % PALETTE}", one.name == "paper" or one.name.startswith("paper,")
    trace: Spec = {
        "type": "scatter",
        "mode": "lines+markers" if one.line else "markers",
        "name": one.name,
        "x": list(one.x),
        "y": [json_number(value) for value in one.y],
        "line": {"color": colour, "dash": "dot" if printed else "solid"},
        "marker": {"color": colour, "size": 9, "symbol": "circle-open" if printed else "circle"},
    }
    if one.error is not None:
        trace["error_y"] = {"type": "data", "array": [json_number(e) for e in one.error], "color": colour}
    return trace
