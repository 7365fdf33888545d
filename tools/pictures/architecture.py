"""Draw docs/architecture.svg: the layers of the import contract, with the two ways of a vector through them.

python tools/pictures/architecture.py
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
OUT = ROOT / "docs" / "architecture.svg"
WIDTH, ROW, LEFT, BOX, GAP = 980, 46, 24, 132, 12
WAYS = {"run": "#1b6ca8", "average": "#b3541e"}


def layers() -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [row.split(" | ") for row in found]


def stops(heading: str) -> list[str]:
    """The modules of a numbered list under a heading of the page, in order."""
    text = PAGE.read_text(encoding="utf-8")
    part = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. `([\w.]+)`", part, re.MULTILINE)


def draw() -> str:
    rows = layers()
    height = ROW * len(rows) + 86
    place: dict[str, tuple[float, float]] = {}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">',
        "<title>The layers of cesar, and how often a vector stops in each module</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="16" fill="#222">A module imports only from rows below its own.</text>',
    ]
    x = LEFT + 420
    for name, colour in WAYS.items():
        parts.append(f'<circle cx="{x}" cy="23" r="6" fill="{colour}"/>')
        label = "stops of cesar run" if name == "run" else "stops of peer.average"
        parts.append(f'<text x="{x + 12}" y="28" fill="#222">{label}</text>')
        x += 190
    for r, row in enumerate(rows):
        y = 48 + r * ROW
        for c, module in enumerate(row):
            x = LEFT + c * (BOX + GAP)
            place[module] = (x, y)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{BOX}" height="{ROW - 12}" rx="5" fill="#f1f4f7" stroke="#9aa7b3"/>'
                f'<text x="{x + 10}" y="{y + 22}" fill="#222">{escape(module)}</text>'
            )
    for k, (heading, colour) in enumerate(
        (("The way of `cesar run`", WAYS["run"]), ("The way of `peer.average`", WAYS["average"]))
    ):
        counts: dict[str, int] = {}
        for stop in stops(heading):
            top = stop.split(".")[0]
            counts[top] = counts.get(top, 0) + 1
        for module, count in counts.items():
            x, y = place[module]
            parts += [
                f'<circle cx="{x + BOX + 2 - 8 * (count - n)}" cy="{y + 9 + 17 * k}" r="3.4" fill="{colour}"/>'
                for n in range(count)
            ]
    parts.append(
        f'<text x="{LEFT}" y="{height - 12}" fill="#555">One dot is one stop; the lists stand in docs/architecture.md.</text></svg>'
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
