"""A chart as a value: series over two axes. `page` draws it with plotly, `picture` with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Look = Literal["line", "thin", "points", "bar"]
"""A thin line is broken and has no markers: it belongs to another one. Bars of one name are stacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows.

    Attributes:
        whole: there is nothing between its whole numbers, as with rounds.
        zero: it begins at 0, because what it shows is spent from there on.
    """

    name: str = ""
    unit: str = ""
    log: bool = False
    whole: bool = False
    zero: bool = False

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, one set of points, or a part of each bar.

    Attributes:
        x, y: by point; x are numbers or names.
        error: by point, half the height of the band around a line or of the bar through a point; NaN is a gap.
        open: with open markers and a broken line, to be told from the others at a glance.
        colour: the number of its colour; without one, its place in the chart.
        texture: of bars, what tells parts of one colour apart.
        hover: by point, what a page says when the reader points at it.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    error: Sequence[float] = ()
    look: Look = "line"
    open: bool = False
    colour: int | None = None
    texture: int = 0
    hover: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over two axes.

    Attributes:
        shaded: from and to on the x axis, and a word on what lies between.
        legend: whether the chart says itself what its colours mean; a page can do that for all its charts.
        wide: takes the whole width of a page.
    """

    title: str
    caption: str = ""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    shaded: tuple[float, float, str] | None = None
    legend: bool = True
    wide: bool = False

    @property
    def longest_name(self) -> int:
        """Letters of the longest name along the x axis; 0 if it has numbers."""
        return max((len(x) for one in self.series for x in one.x if isinstance(x, str)), default=0)

    def describe(self) -> str:
        """All figures as text: for who cannot see the chart, and for tests."""
        lines = [f"{self.title}: {self.y.title} by {self.x.title}."]
        for one in self.series:
            across = [x if isinstance(x, str) else f"{x:.4g}" for x in one.x]
            points = ", ".join(f"{y:.4g} at {x}" for x, y in zip(across, one.y, strict=True))
            lines.append(f"{one.name}: {points}.")
        return "\n".join(lines)
