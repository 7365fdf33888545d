"""Draw the pictures of docs/concepts.md, one card for each word, and who talks to whom in docs/deploy.md.

They are legible on light and on dark pages.

python tools/pictures/concepts.py
"""

from __future__ import annotations

import math
from pathlib import Path

from cesar import Cells

OUT = Path(__file__).parents[2] / "docs" / "concepts"
FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
INK, SOFT, NOISE, SUM, LINE = "#1f2328", "#57606a", "#b3400a", "#1a7f37", "#8c959f"
Point = tuple[float, float]


def text(x: float, y: float, words: str, colour: str = INK, size: int = 20, *, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" font-size="{size}"{anchor}>{words}</text>'


def dot(at: Point, label: str = "", fill: str = "#f3f6fa", radius: int = 24, edge: str = LINE) -> str:
    circle = f'<circle cx="{at[0]:.0f}" cy="{at[1]:.0f}" r="{radius}" fill="{fill}" stroke="{edge}" stroke-width="2"/>'
    return circle + text(at[0], at[1] + 7, label, middle=True)


def line(a: Point, b: Point, colour: str = LINE, *, dashed: bool = False, arrow: bool = False) -> str:
    dash = ' stroke-dasharray="3 6"' if dashed else ""
    found = f'<path d="M{a[0]:.0f} {a[1]:.0f} L{b[0]:.0f} {b[1]:.0f}" stroke="{colour}" stroke-width="2.5" fill="none"{dash}/>'
    if arrow:
        turn = math.degrees(math.atan2(b[1] - a[1], b[0] - a[0]))
        found += f'<path d="M0 0 l-14 -7 v14 z" fill="{colour}" transform="translate({b[0]:.0f} {b[1]:.0f}) rotate({turn:.0f})"/>'
    return found


def box(
    x: float, y: float, width: float, height: float, words: str, colour: str = LINE, fill: str = "#f3f6fa"
) -> str:
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    return frame + text(x + width / 2, y + height / 2 + 7, words, middle=True)


def ring(centre: Point, radius: float, count: int, turn: float = 0.0) -> list[Point]:
    angles = [turn + 2 * math.pi * k / count - math.pi / 2 for k in range(count)]
    return [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]


def cell_at(centre: Point, names: tuple[int, ...], label: str) -> list[str]:
    return [
        dot(centre, "", "#eaf5ec", 84, SUM),
        *(dot(at, str(name)) for at, name in zip(ring(centre, 50, len(names)), names, strict=True)),
        text(centre[0], centre[1] + 118, label, SOFT, middle=True),
    ]


def cell() -> list[str]:
    return [
        *cell_at((120, 115), (0, 3, 8, 14), "cell 0"),
        *cell_at((360, 115), (1, 5, 9, 12), "cell 1"),
        *cell_at((600, 115), (2, 4, 7, 10), "cell 2"),
    ]


def common_model() -> list[str]:
    sites = ring((360, 120), 80, 4, math.pi / 4)
    return [
        *(line((360, 120), at, SUM) for at in sites),
        box(270, 92, 180, 56, "common model", SUM, "#eaf5ec"),
        *(
            dot(at, str(name))
            for at, name in zip(ring((360, 120), 100, 4, math.pi / 4), (0, 3, 8, 14), strict=True)
        ),
        text(24, 124, "the same bits", SOFT),
        text(24, 150, "at every site", SOFT),
        text(540, 124, "known to all,", SOFT),
        text(540, 150, "no secret", SOFT),
    ]


def update() -> list[str]:
    return [
        box(24, 80, 190, 64, "common model", SUM, "#eaf5ec"),
        line((222, 112), (298, 112), arrow=True),
        text(222, 98, "train", SOFT),
        box(306, 80, 150, 64, "site's model"),
        text(476, 120, "−  before  ="),
        box(600, 80, 100, 64, "update", NOISE, "#fdf1ea"),
        text(24, 200, "What a site has trained and not handed in. Secret.", SOFT),
    ]


def mask() -> list[str]:
    left, right = (110.0, 120.0), (610.0, 120.0)
    return [
        dot(left, "3", radius=34),
        dot(right, "8", radius=34),
        line((150, 120), (570, 120), NOISE, dashed=True),
        text(360, 100, "a secret random number", NOISE, middle=True),
        text(110, 190, "update + mask", middle=True),
        text(610, 190, "update − mask", middle=True),
        text(360, 190, "each alone: noise", NOISE, middle=True),
    ]


def masked_sum() -> list[str]:
    rows = ["update of 0 + masks", "update of 3 + masks", "update of 8 + masks", "update of 14 + masks"]
    found = [box(24, 24 + 50 * k, 250, 42, words, NOISE, "#fdf1ea") for k, words in enumerate(rows)]
    found += [line((282, 45 + 50 * k), (400, 118), NOISE, arrow=True) for k in range(4)]
    return [
        *found,
        dot((424, 120), "+", "#ffffff", 22),
        line((450, 120), (500, 120), SUM, arrow=True),
        box(508, 88, 190, 64, "sum of 4 updates", SUM, "#eaf5ec"),
    ]


def graph_of_cells() -> list[str]:
    at = ring((130, 122), 88, 8)
    first = [line(at[k], at[(k + 1) % 8], SUM) for k in range(8)]
    second = [line(at[k], at[(k + 2) % 8], LINE, dashed=True) for k in range(8)]
    cells = [dot(point, str(k), "#eaf5ec", 20, SUM) for k, point in enumerate(at)]
    words = [
        "8 cells. In round 0 each hears the next,",
        "in round 1 the next but one (dashed),",
        "in round 2 the fourth. After 3 rounds",
        "each has heard of all.",
    ]
    return [*first, *second, *cells, *(text(270, 84 + 28 * k, words[k], SOFT, 19) for k in range(4))]


def settling() -> list[str]:
    starts, end = (40.0, 90.0, 150.0, 200.0), 120.0
    lines = []
    for y in starts:
        lines += [
            line((60, y), (330, y), LINE),
            line((330, y), (480, (y + end) / 2), SUM),
            line((480, (y + end) / 2), (640, end), SUM),
        ]
    return [
        *lines,
        text(195, 232, "train: models differ", SOFT, middle=True),
        text(510, 232, "settle: only average", SUM, middle=True),
        text(650, 126, "one"),
    ]


def owner() -> list[str]:
    return [
        box(24, 30, 320, 120, "", LINE, "#ffffff"),
        text(44, 62, "owner: hospital", SOFT),
        dot((120, 110), "0"),
        dot((240, 110), "1"),
        *(dot((430 + 90 * k, 110), str(2 + k)) for k in range(3)),
        *(
            text(430 + 90 * k, 62, words, SOFT, 18, middle=True)
            for k, words in enumerate(("clinic", "bank", "lab"))
        ),
        text(24, 200, "Sites 0 and 1 can pool what they know, so they count as one.", SOFT),
    ]


def roster() -> list[str]:
    rows = ["0  hospital  cell 0", "1  clinic  cell 0", "2  lab  cell 0 …"]
    return [
        box(24, 24, 300, 190, "", LINE, "#ffffff"),
        *(text(48, 62 + 34 * k, words) for k, words in enumerate(rows)),
        text(48, 190, "signed by the authority", SUM),
        *(line((332, 118), (470, 50 + 70 * k), LINE, arrow=True) for k in range(3)),
        *(dot((500, 50 + 70 * k), str(k)) for k in range(3)),
        text(540, 126, "every site has it", SOFT),
    ]


def links() -> list[str]:
    """Twelve sites in three cells, and every connection that their plan asks for."""
    plan = Cells(size=4).plan(12)
    centres = ((150, 160), (570, 160), (360, 400))
    places = {  # turned a little, so that no line runs along another
        node: at
        for number, cell in enumerate(plan.cells)
        for node, at in zip(cell, ring(centres[number], 72, len(cell), 0.25 + 0.1 * number), strict=True)
    }
    across = [(a, b) for a, b in plan.links().edges if plan.cell_of(a) != plan.cell_of(b)]
    within = [(a, b) for a, b in plan.links().edges if plan.cell_of(a) == plan.cell_of(b)]
    return [
        *(dot(at, "", "#eaf5ec", 116, SUM) for at in centres),
        *(line(places[a], places[b], SOFT, dashed=True) for a, b in across),
        *(line(places[a], places[b], NOISE) for a, b in within),
        *(dot(at, str(node)) for node, at in places.items()),
        line((24, 560), (74, 560), NOISE),
        text(88, 567, "within a cell: masked updates, and their sums"),
        line((24, 596), (74, 596), SOFT, dashed=True),
        text(88, 603, "between cells: slices of the cells' models, which are no secret"),
    ]


CARDS = {
    "cell": (cell, "Three cells of four sites each"),
    "common-model": (common_model, "The sites of a cell hold one common model"),
    "update": (update, "An update is a site's model minus the common model"),
    "mask": (mask, "Two sites share a mask: one adds it and the other takes it off"),
    "sum": (masked_sum, "Four masked updates add up to a readable sum"),
    "graph-of-cells": (graph_of_cells, "Which cells hear which, on eight cells"),
    "settling": (settling, "While sites settle their models come together"),
    "owner": (owner, "Two peers of one hospital count as one owner"),
    "roster": (roster, "A signed list of members that every site has"),
    "links": (links, "Who talks to whom among twelve sites in three cells"),
}
HEIGHTS = {"links": 630}


def draw(name: str) -> str:
    """One card."""
    (parts, title), height = CARDS[name], HEIGHTS.get(name, 250)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" font-family="{FONT}">',
            f"<title>{title}</title>",
            f'<rect x="1" y="1" width="718" height="{height - 2}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
            *parts(),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for card in CARDS:
        (OUT / f"{card}.svg").write_text(draw(card), encoding="utf-8")
