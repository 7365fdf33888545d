"""A picture of one round: a lane for each peer, a row in it for each kind of work, time from left to right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from cesar.peer.spans import Span, Work

COLOURS = {
    Work.WAIT: "#c4cbd2",
    Work.ANNOUNCE: "#8250df",
    Work.MAKE: "#bc4c00",
    Work.SEND: "#1b6ca8",
    Work.RECEIVE: "#57a9e0",
    Work.ADD: "#1a7f37",
    Work.DISK: "#cf222e",
}
WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 980, 74, 20, 62, 11, 16


def draw(lanes: Sequence[Sequence[Span]], begin: float, end: float, title: str) -> str:
    """What the peers did between two moments, as SVG."""
    lane = ROW * len(Work)
    bottom = TOP + len(lanes) * (lane + GAP)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" role="img" font-size="14" '
            'font-family="system-ui, sans-serif" fill="#1f2328">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{bottom + 30}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="16" font-weight="600">{escape(title)}</text>',
        *_legend(),
        *_axis(1000 * (end - begin), bottom),
    ]
    for number, spans in enumerate(lanes):
        y = TOP + number * (lane + GAP)
        parts.append(f'<text x="{LEFT - 10}" y="{y + lane / 2 + 5}" text-anchor="end">peer {number}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{_wide()}" height="{lane}" fill="#f6f8fa"/>')
        parts += _bars(spans, begin, end, y)
    return "\n".join([*parts, "</svg>", ""])


def _wide() -> int:
    return WIDTH - LEFT - RIGHT


def _legend() -> Iterator[str]:
    x = LEFT
    for work, colour in COLOURS.items():
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="47">{work}</text>'
        x += 44 + 8 * len(work)


def _axis(milliseconds: float, bottom: float) -> Iterator[str]:
    """A line every 1, 2 or 5 times a power of ten, about ten in all."""
    power = 10.0 ** math.floor(math.log10(milliseconds / 10))
    step = power * next(times for times in (1, 2, 5, 10) if 11 * times * power >= milliseconds)
    for k in range(int(milliseconds / step) + 1):
        x = LEFT + _wide() * k * step / milliseconds
        yield f'<path d="M{x:.1f} {TOP - 6}V{bottom - GAP + 6}" stroke="#d8dee4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 8}" text-anchor="middle" fill="#57606a">{k * step:g}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{bottom + 26}" text-anchor="end" fill="#57606a">milliseconds</text>'


def _bars(spans: Sequence[Span], begin: float, end: float, y: float) -> Iterator[str]:
    rows = {work: y + ROW * k for k, work in enumerate(COLOURS)}
    for span in spans:
        first, last = max(span.begin, begin), min(span.end, end)
        if first < last:
            x, width = (first - begin) / (end - begin) * _wide(), (last - first) / (end - begin) * _wide()
            yield (
                f'<rect x="{LEFT + x:.2f}" y="{rows[span.work] + 1:.0f}" width="{max(width, 0.6):.2f}" '
                f'height="{ROW - 2}" fill="{COLOURS[span.work]}" fill-opacity="0.85"/>'
            )
