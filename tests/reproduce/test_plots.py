"""Plots of the document: drawn to scale, labels that do not lie on one another, nothing taken from files unescaped."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree as ET

import pytest

from cesar.reproduce.plots import HEIGHT, WIDTH, Mark, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"


def mark(name, x, y, *, plain=False, error=0.0):
    return Mark(name=name, x=x, y=y, error=[error] * len(x), plain=plain)


def circles(picture):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in ET.fromstring(picture).iter(f"{SVG}circle")]


def texts(picture):
    return {t.text: t for t in ET.fromstring(picture).iter(f"{SVG}text")}


def test_points_lie_to_scale():
    """On a logarithmic axis equal factors are equal distances; heights go with values."""
    marks = [mark(f"m{k}", [2.0**k], [10.0 * k]) for k in (1, 2, 3)]
    (a, b, c) = circles(draw([Panel(title="t", x="MB", y="%", marks=marks, log=True)]))
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.2)
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.2)
    assert a[1] > b[1], "higher is better, and higher up"


def test_lines_have_bands_and_points_have_bars():
    line = mark("line", [1.0, 2.0, 3.0], [10.0, 20.0, 30.0], error=2.0)
    point = mark("point", [2.0], [15.0], error=1.0, plain=True)
    picture = draw([Panel(title="t", x="round", y="%", marks=[line, point])])
    assert picture.count('opacity="0.15"') == 1
    assert len(circles(picture)) == 2


def test_labels_of_equal_points_stand_below_one_another():
    marks = [mark(f"method {k}", [5.0], [40.0]) for k in range(6)]
    found = texts(draw([Panel(title="t", x="MB", y="%", marks=marks)]))
    heights = sorted(float(found[f"method {k}"].get("y")) for k in range(6))
    assert all(b - a >= 17 for a, b in itertools.pairwise(heights))


def test_a_line_leads_to_labels_that_had_to_move():
    marks = [mark(f"method {k}", [5.0], [40.0]) for k in range(3)]
    assert draw([Panel(title="t", x="MB", y="%", marks=marks)]).count('class="leader"') == 2
    assert 'class="leader"' not in draw([Panel(title="t", x="MB", y="%", marks=marks[:1])])


def test_masked_methods_have_colours_of_their_own():
    marks = [mark(f"method {k}", [float(k)], [1.0], plain=k % 2 == 0) for k in range(16)]
    picture = draw([Panel(title="t", x="MB", y="%", marks=marks)])
    fills = [c.get("fill") for c in ET.fromstring(picture).iter(f"{SVG}circle")]
    assert len(set(fills[1::2])) == 8
    assert len(set(fills[::2])) == 1


def test_labels_lie_on_no_point():
    marks = [mark("a name that is long", [1.0], [40.0]), mark("b", [1.5], [40.2]), mark("c", [9.0], [0.0])]
    picture = draw([Panel(title="t", x="MB", y="%", marks=marks)])
    label = texts(picture)["a name that is long"]
    _, (x, y), _ = circles(picture)
    assert float(label.get("x")) < x < float(label.get("x")) + 7 * 19, "it would"
    assert abs(float(label.get("y")) - 4 - y) >= 13


def test_names_of_lines_stand_behind_their_ends():
    """However close the ends are, in their order, and within the picture."""
    marks = [
        mark(f"method {k}", [1.0, 2.0], [30.0, 40.0 + (0.01 * k if k < 14 else -30.0)]) for k in range(16)
    ]
    picture = draw([Panel(title="t", x="round", y="%", marks=marks)])
    found = {name: t for name, t in texts(picture).items() if name.startswith("method")}
    heights = [float(found[f"method {k}"].get("y")) for k in range(16)]
    order = sorted(range(16), key=lambda k: -marks[k].y[-1])
    assert all(heights[b] - heights[a] >= 17.9 for a, b in itertools.pairwise(order))
    assert 0 < min(heights) < max(heights) < HEIGHT
    right = max(x for x, _ in circles(picture))
    wide = float(re.search(r'viewBox="0 0 ([\d.]+) ', picture)[1])
    assert all(right < float(t.get("x")) < wide - 7 * len("method 10") for t in found.values())


def test_names_from_files_stay_text():
    picture = draw([Panel(title="a & b", x="<x>", y="y", marks=[mark("<script>", [1.0], [1.0])])])
    assert "<script" not in picture
    assert {"a & b", "<x>", "<script>"} <= set(texts(picture))


@pytest.mark.parametrize("value", [0.0, 0.5, 1e-9, 51.3])
def test_a_single_value_can_be_drawn(value):
    picture = draw([Panel(title="t", x="x", y="y", marks=[mark("m", [1.0], [value])], unit="")] * 2)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT and math.isfinite(x) for x, y in circles(picture))
    assert re.search(rf'viewBox="0 0 {2 * WIDTH} {HEIGHT}"', picture)
