"""Plots of the document, as SVG files that stand beside it and need nothing to be shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, count, cycle

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 440, 62, 24, 44, 52
LINE = 18
"""Pixels from one label to the next."""
RADIUS = 5
LETTER = 7.0
"""About how wide a letter is."""
COLOURS = ("#1a7f37", "#0550ae", "#8250df", "#bf3989", "#9a6700", "#0f766e", "#57606a", "#cf222e")
PLAIN = "#8c959f"
"""Methods whose neighbours see models are grey."""
STYLE = "text { fill: #1f2328 } .soft { fill: #57606a } .grid { stroke: #d8dee4 } .paper { fill: #ffffff }"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A method in a plot: one point, or a line with a band around it.

    Attributes:
        x, y, error: by point; half the height of the band or the bar, 0 for none.
        plain: neighbours see models.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float]
    plain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A plot; `log` is the scale of the x axis, `unit` comes after numbers of the y axis."""

    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    unit: str = " %"
    log: bool = False


def draw(panels: Sequence[Panel]) -> str:
    """All panels side by side."""
    starts = [0.0, *accumulate(WIDTH + _aside(panel) for panel in panels)]
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {starts[-1]:g} {HEIGHT}" role="img" font-size="13" '
            "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\">"
        ),
        f"<title>{escape('; '.join(panel.title for panel in panels))}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{starts[-1]:g}" height="{HEIGHT}"/>',
    ]
    for start, panel in zip(starts, panels, strict=False):
        lines += [f'<g transform="translate({start:g} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _aside(panel: Panel) -> float:
    """How much room the names of lines need that end at the same place; they stand behind their ends."""
    ends = {mark.x[-1] for mark in panel.marks}
    lines = len(ends) == 1 and all(len(mark.x) > 1 for mark in panel.marks)
    return LETTER * max(len(mark.name) for mark in panel.marks) if lines else 0.0


def _panel(panel: Panel) -> Iterator[str]:
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    across, columns = _scale([x for mark in panel.marks for x in mark.x], log=panel.log)
    down, rows = _scale(
        [y + side * e for m in panel.marks for y, e in zip(m.y, m.error, strict=True) for side in (-1, 1)]
    )
    place = (lambda x: LEFT + wide * across(x)), (lambda y: TOP + tall * (1 - down(y)))
    yield f'<text x="{LEFT}" y="26" font-size="16" font-weight="600">{escape(panel.title)}</text>'
    for value in rows:
        yield f'<path class="grid" d="M{LEFT} {place[1](value):.1f}h{wide}"/>'
        yield f'<text x="{LEFT - 8}" y="{place[1](value) + 4:.1f}" text-anchor="end">{value:g}{panel.unit}</text>'
    for value in columns:
        yield f'<path class="grid" d="M{place[0](value):.1f} {TOP}v{tall}"/>'
        yield f'<text x="{place[0](value):.1f}" y="{TOP + tall + 19}" text-anchor="middle">{value:g}</text>'
    yield f'<text class="soft" x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x)}</text>'
    yield f'<text class="soft" x="{WIDTH - RIGHT}" y="26" text-anchor="end">{escape(panel.y)}</text>'
    ends = [(place[0](mark.x[-1]), place[1](mark.y[-1])) for mark in panel.marks]
    names = [mark.name for mark in panel.marks]
    labels = _column(ends) if _aside(panel) else _labels(ends, names)
    colours = cycle(COLOURS)
    for mark, end, (x, y, anchor) in zip(panel.marks, ends, labels, strict=True):
        colour = PLAIN if mark.plain else next(colours)
        yield from _mark(mark, place, colour)
        if abs(y - end[1]) > LINE / 2:  # it stands somewhere else: a thin line leads there
            near = x + 3 if anchor == "end" else x - 3
            yield f'<path class="leader" d="{_path([end, (near, y)])}" stroke="{colour}" stroke-width="0.75"/>'
        ink = "" if mark.plain else f' style="fill:{colour}"'
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}"{ink}>{escape(mark.name)}</text>'


def _mark(mark: Mark, place: tuple[Callable[[float], float], ...], colour: str) -> Iterator[str]:
    points = [(place[0](x), place[1](y)) for x, y in zip(mark.x, mark.y, strict=True)]
    edges = [
        [(place[0](x), place[1](y + side * e)) for x, y, e in zip(mark.x, mark.y, mark.error, strict=True)]
        for side in (1, -1)
    ]
    if len(points) > 1:
        yield f'<path d="{_path([*edges[0], *reversed(edges[1])])}Z" fill="{colour}" opacity="0.15"/>'
        dash = ' stroke-dasharray="5 4"' if mark.plain else ""
        yield f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    else:
        yield f'<path d="{_path([edges[0][0], edges[1][0]])}" stroke="{colour}" stroke-width="1.5"/>'
    x, y = points[-1]
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}"/>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _scale(values: Sequence[float], *, log: bool = False) -> tuple[Callable[[float], float], list[float]]:
    """(value → 0 to 1 along the axis, where lines are drawn)."""
    if log:
        first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
        last = max(last, first + 1)
        ticks = [2.0**power for power in range(first, last + 1, 1 + (last - first) // 8)]
        return (lambda x: (math.log2(x) - first) / (last - first)), ticks
    low, high = min(values), max(values)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    step *= next(factor for factor in (0.2, 0.5, 1, 2) if (high - low) / (step * factor) <= 8)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    ticks = [round(step * k, 10) for k in range(first, last + 1)]
    return (lambda x: (x / step - first) / (last - first)), ticks


def _column(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    """(x, y, anchor) of each label: behind its point, or as near as the others leave room."""
    order = sorted(range(len(points)), key=lambda k: points[k][1])
    heights: list[float] = []
    for k in order:
        heights.append(max(points[k][1], heights[-1] + LINE if heights else TOP))
    for n in reversed(range(len(heights))):  # back up from the lower edge
        heights[n] = min(heights[n], heights[n + 1] - LINE if n + 1 < len(heights) else HEIGHT - BOTTOM)
    found = dict(zip(order, heights, strict=True))
    return [(points[k][0] + 11, found[k], "start") for k in range(len(points))]


def _labels(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[tuple[float, float, str]]:
    """(x, y, anchor) of each label: beside its point, or the nearest free line; on no other point."""
    placed = [
        (x - RADIUS, x + RADIUS, y, LINE / 2 + RADIUS) for x, y in points
    ]  # left, right, height, distance
    found = [(0.0, 0.0, "")] * len(points)
    for k in sorted(range(len(points)), key=lambda k: points[k][1]):
        x, y = points[k]
        wide = LETTER * len(names[k])
        sides = {"start": x + 11, "end": x - 11 - wide}
        inside = {anchor: left for anchor, left in sides.items() if left >= LEFT and left + wide <= WIDTH}
        free = {
            anchor: _nearest(
                y, [(height, far) for a, b, height, far in placed if a < left + wide and left < b]
            )
            for anchor, left in (inside or sides).items()
        }
        anchor = min(free, key=lambda side: abs(free[side] - points[k][1]))
        left, y = sides[anchor], free[anchor]
        placed.append((left, left + wide, y, LINE))
        found[k] = (left + wide if anchor == "end" else left, y, anchor)
    return found


def _nearest(y: float, taken: Sequence[tuple[float, float]]) -> float:
    """The height nearest to y that is as far from each of those taken as it has to be."""
    tried = (y + side * n for n in count() for side in (1, -1))
    return next(place for place in tried if all(abs(height - place) >= far for height, far in taken))
