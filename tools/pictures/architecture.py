"""Draw docs/architecture.svg: the rooms of the library and of the laboratory, in the layers that import-linter checks.

What a room is for is the first sentence of its `__init__`.

python tools/pictures/architecture.py
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cesar_lab.show.picture import COLOURS, STYLE

ROOT = Path(__file__).parents[2]
WIDTH = 78  # letters in a line
PACKAGES = {
    "cesar_lab": "The laboratory imports the library …",
    "cesar": "… and the library knows nothing of it.",
}


def layers(package: str) -> list[list[str]]:
    """The package's rooms, from the top; those of a row do not import one another."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one.get("containers") == [package])
    return [row.split(" | ") for row in found]


def purpose(package: str, room: str) -> str:
    """The first sentence of a room, or of a module that is one by itself."""
    place = ROOT / "src" / package / room
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    words = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    return words.partition(". ")[0].rstrip(".").replace("`", "")


def draw(axes: Axes, package: str, words: str, colour: str) -> None:
    """One package, its top room at the top."""
    rows = [room for row in layers(package) for room in row]
    axes.set(xlim=(0, 10), ylim=(len(rows), -1.3))
    axes.axis("off")
    axes.text(0, -0.5, package, fontsize=16, weight="bold")
    axes.text(2.3, -0.5, words, color="#5d6771", fontsize=12)
    for number, room in enumerate(rows):
        axes.barh(number + 0.4, 2.1, height=0.82, left=0, color=colour, alpha=0.14)
        axes.text(0.15, number + 0.4, room, va="center", weight="bold", fontsize=12)
        said = textwrap.fill(purpose(package, room), WIDTH)
        axes.text(2.3, number + 0.4, said, va="center", fontsize=11, linespacing=1.1)


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 13), layout="constrained")
        heights = [sum(map(len, layers(package))) + 1.3 for package in PACKAGES]
        places = figure.subplots(2, 1, height_ratios=heights)
        for axes, (package, words), colour in zip(places, PACKAGES.items(), COLOURS, strict=False):
            draw(axes, package, words, colour)
        figure.savefig(ROOT / "docs" / "architecture.svg", metadata={"Date": None, "Title": "Rooms of cesar"})
