"""Draw docs/accuracy-bytes.svg: what each method reached against what it sent, from all CSV files in docs/results/.

A file is a panel, named as the file is. Its columns: method, masked (yes or no), megabytes (sent by a node in all
rounds), accuracy (in percent, mean over nodes and seeds), error (standard error over seeds, or empty), seeds.

python tools/pictures/accuracy_bytes.py                                # draw
python tools/pictures/accuracy_bytes.py --collect shards RUN [RUN …]    # first write docs/results/shards.csv from runs
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RESULTS, OUT = DOCS / "results", DOCS / "accuracy-bytes.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 440, 62, 24, 44, 52
MASKED, PLAIN = "#1a7f37", "#8c959f"
LINE = 19
STYLE = """
  text { fill: #1f2328 } .soft { fill: #57606a } .grid { stroke: #d8dee4 } .paper { fill: #ffffff }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One method in one setting."""

    method: str
    masked: str
    megabytes: float
    accuracy: float
    error: float | None
    seeds: int


def collect(runs: list[Path]) -> list[Point]:
    """One point per method over all these experiment directories; a method's seeds may lie in several."""
    from cesar.experiment.paired import standard_error_of  # noqa: PLC0415
    from cesar.experiment.results import read_study, rows_of  # noqa: PLC0415

    values: dict[str, list[float]] = defaultdict(list)
    sent: dict[str, list[float]] = defaultdict(list)
    masked: dict[str, bool] = {}
    for run in runs:
        study = read_study(run)
        for method, row in zip(study.methods, rows_of(study), strict=True):
            if row.metric != "accuracy":
                raise SystemExit(f"{run} has no accuracy")
            values[row.title] += row.by_seed.values()
            sent[row.title] += [row.bytes] * len(row.by_seed)
            masked[row.title] = method.name != "dpsgd"
    return [
        Point(
            method=title,
            masked="yes" if masked[title] else "no",
            megabytes=round(sum(sent[title]) / len(found) / 1e6, 3),
            accuracy=round(100 * sum(found) / len(found), 2),
            error=None if len(found) < 2 else round(100 * standard_error_of(found), 2),
            seeds=len(found),
        )
        for title, found in values.items()
    ]


def write(path: Path, points: list[Point]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def read(path: Path) -> list[Point]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Point(
                method=row["method"],
                masked=row["masked"],
                megabytes=float(row["megabytes"]),
                accuracy=float(row["accuracy"]),
                error=float(row["error"]) if row["error"] else None,
                seeds=int(row["seeds"]),
            )
            for row in csv.DictReader(file)
        ]


def draw(panels: dict[str, list[Point]]) -> str:
    """All panels side by side, with a legend below."""
    wide, tall = WIDTH * len(panels), HEIGHT + 40
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" role="img" font-size="14" '
            "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\">"
        ),
        f"<title>Accuracy against bytes sent</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{wide}" height="{tall}"/>',
    ]
    for number, (name, points) in enumerate(panels.items()):
        lines.append(f'<g transform="translate({WIDTH * number} 0)">')
        lines += _panel(name, points)
        lines.append("</g>")
    x = LEFT
    for text, colour in (("masked: nobody sees a model", MASKED), ("plain: neighbours see models", PLAIN)):
        lines.append(f'<circle cx="{x}" cy="{HEIGHT + 15}" r="6" fill="{colour}"/>')
        lines.append(f'<text x="{x + 14}" y="{HEIGHT + 20}">{text}</text>')
        x += 240
    return "\n".join([*lines, "</svg>", ""])


def _panel(name: str, points: list[Point]) -> Iterator[str]:
    low = 5 * math.floor(min(p.accuracy - (p.error or 0) for p in points) / 5)
    high = max(5 * math.ceil(max(p.accuracy + (p.error or 0) for p in points) / 5), low + 5)
    first = math.floor(math.log2(min(p.megabytes for p in points)))
    last = max(math.ceil(math.log2(max(p.megabytes for p in points))), first + 1)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(megabytes: float) -> float:
        return LEFT + wide * (math.log2(megabytes) - first) / (last - first)

    def y(accuracy: float) -> float:
        return TOP + tall * (high - accuracy) / (high - low)

    yield f'<text x="{LEFT}" y="26" font-size="16" font-weight="600">{escape(name)}</text>'
    for accuracy in range(low, high + 1, 5):
        yield f'<path class="grid" d="M{LEFT} {y(accuracy):.1f}h{wide}"/>'
        yield f'<text x="{LEFT - 8}" y="{y(accuracy) + 5:.1f}" text-anchor="end">{accuracy} %</text>'
    for power in range(first, last + 1, 1 + (last - first) // 8):
        yield f'<path class="grid" d="M{x(2.0**power):.1f} {TOP}v{tall}"/>'
        yield f'<text x="{x(2.0**power):.1f}" y="{TOP + tall + 20}" text-anchor="middle">{2.0**power:g}</text>'
    middle = LEFT + wide / 2
    yield f'<text class="soft" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">megabytes sent by a node</text>'
    places = _labels([(x(p.megabytes), y(p.accuracy)) for p in points])
    for point, place in zip(points, places, strict=True):
        yield from _mark(point, x(point.megabytes), y, place)


def _mark(point: Point, across: float, y: object, place: float) -> Iterator[str]:
    assert callable(y)
    colour, down = MASKED if point.masked == "yes" else PLAIN, y(point.accuracy)
    if point.error:
        top, bottom = y(point.accuracy + point.error), y(point.accuracy - point.error)
        yield f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="1.5"/>'
    yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="6" fill="{colour}"/>'
    left = across > WIDTH * 0.6
    aside, anchor = (across - 11, "end") if left else (across + 11, "start")
    yield f'<text x="{aside:.1f}" y="{place + 5:.1f}" text-anchor="{anchor}">{escape(point.method)}</text>'


def _labels(points: list[tuple[float, float]]) -> list[float]:
    """Heights of the labels: that of the point, or the next free line below the label above it on the same side."""
    heights = [down for _, down in points]
    for side in (True, False):
        above = -math.inf
        for k in sorted(range(len(points)), key=lambda k: points[k][1]):
            if (points[k][0] > WIDTH * 0.6) is side:
                heights[k] = above = max(heights[k], above + LINE)
    return heights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--collect", metavar="NAME", help="write docs/results/NAME.csv from runs first")
    parser.add_argument("runs", type=Path, nargs="*", help="experiment directories")
    arguments = parser.parse_args()
    if arguments.collect:
        write(RESULTS / f"{arguments.collect}.csv", collect(arguments.runs))
    panels = {path.stem: read(path) for path in sorted(RESULTS.glob("*.csv"))}
    if panels:
        OUT.write_text(draw(panels), encoding="utf-8")
    else:
        print("no figures in docs/results yet; nothing was drawn")


if __name__ == "__main__":
    main()
