"""A table and a chart as values, and every writer: terminal, Markdown, page and picture."""

from __future__ import annotations

import io
import json
import math
import re
from xml.etree import ElementTree as ET

import plotly.graph_objects as go
import pytest
from rich.console import Console

from cesar_lab.show import page, picture
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.paired import Difference
from cesar_lab.show.quantity import Quantity, points, signed
from cesar_lab.show.table import NONE, Table

SVG = "{http://www.w3.org/2000/svg}"
DC = "{http://purl.org/dc/elements/1.1/}"


def chart(*series: Series, **more) -> Chart:
    axes = {"x": Axis(name="sent", unit="MB"), "y": Axis(name="accuracy", unit="%")}
    return Chart(title="a & b", series=series, **{**axes, **more})


def line(name: str, x, y, **more) -> Series:
    return Series(name=name, x=x, y=y, **more)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = {("method", ""): ["a|b", "c"], ("sent", "MB"): ["1.0", "2.0"], ("spread", "%"): [NONE, NONE]}


def test_a_column_in_which_nothing_is_known_is_left_out():
    table = Table.of(COLUMNS)
    assert (table.heads, table.titles) == (("method", "sent"), ("method", "sent (MB)"))
    assert table.rows == (("a|b", "1.0"), ("c", "2.0"))
    assert table.without("sent").rows == (("a|b",), ("c",))


def test_markdown_keeps_bars_in_cells():
    lines = Table.of(COLUMNS).markdown().splitlines()
    assert lines == ["| method | sent (MB) |", "|---|---|", r"| a\|b | 1.0 |", "| c | 2.0 |"]


def test_a_terminal_shows_every_cell_and_folds_heads():
    out = io.StringIO()
    Console(file=out, width=40).print(Table.of(COLUMNS, caption="in all rounds").terminal())
    text = out.getvalue()
    assert all(word in text for word in ("a|b", "1.0", "2.0", "in all rounds"))
    assert re.search(r"sent\s*\n.*\(MB\)", text), "the unit stands below"


def test_rows_of_another_length_are_our_own_mistake():
    with pytest.raises(AssertionError):
        Table(heads=("a", "b"), rows=(("1",),))


# ── figures in words ────────────────────────────────────────────────────────────────────────────────────


def test_units_make_numbers_handy():
    assert [Quantity.cost("bytes", "", n).unit for n in (0, 999, 1000, 3e9)] == ["B", "B", "kB", "GB"]
    assert Quantity.metric("accuracy").text(0.51234, 0.004) == "51.23 ± 0.40"
    assert Quantity.metric("rmse").text(0.9) == "0.9000"
    assert Quantity.metric("rmse").text(None) == NONE


def test_differences_have_their_interval():
    found = Difference(mean=-0.012, error=0.002, margin=0.005, seeds=3)
    assert points(found) == "−1.20 (−1.70 to −0.70)"
    assert Quantity.metric("accuracy").difference(found) == ("-1.20 ± 0.20", "-1.70 to -0.70")
    assert points(Difference(mean=0.01, error=None, margin=None, seeds=1)) == "+1.00 (one seed)"
    assert points(None) == "no seed in common"
    assert signed(-0.001) == "−0.00"


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────


def test_plotly_knows_every_attribute():
    charts = [
        chart(line("a", [1.0, 2.0], [1.0, 2.0], error=[0.1, 0.2], hover=["x", "y"]), line("b", [1.0], [1.0])),
        chart(line("p", ["one", "two"], [1.0, 2.0], look="points", error=[0.1, 0.1], open=True)),
        chart(
            line("values", ["m"], [1.0], look="bar", hover=["1 B"]),
            line("rest", ["m"], [1.0], look="bar", texture=1),
        ),
        chart(
            line("t", [1.0, 2.0], [1.0, 2.0], look="thin"),
            shaded=(1.0, 2.0, "settled"),
            x=Axis(name="r", whole=True),
        ),
        chart(line("l", [1.0, 8.0], [1.0, 2.0]), x=Axis(name="b", log=True)),
    ]
    for one in charts:
        spec = re.sub(r'"css:\w+(/\w\w)?"', '"#123456"', page.figure(one).data)
        go.Figure(json.loads(spec))  # raises for a name or value that plotly does not have


def test_a_band_has_gaps_where_the_error_is_not_known():
    errors = [0.1, 0.1, math.nan, 0.1, 0.1, 0.1]
    data = page.figure(chart(line("a", list(range(6)), [1.0] * 6, error=errors))).spec["data"]
    bands = [trace for trace in data if trace.get("fill")]
    assert [trace["x"] for trace in bands] == [[0, 1, 1, 0], [3, 4, 5, 5, 4, 3]]
    assert bands[0]["y"] == pytest.approx([1.1, 1.1, 0.9, 0.9])


def test_long_names_lie_beside_the_chart():
    name = "a name of more than twenty letters"
    spec = page.figure(chart(line("p", [name, "b"], [1.0, 2.0], look="points", error=[0.1, 0.2]))).spec
    (trace,) = spec["data"]
    assert (trace["y"], trace["x"], trace["error_x"]["array"]) == ([name, "b"], [1.0, 2.0], [0.1, 0.2])
    assert spec["layout"]["yaxis"]["type"] == "category"


def test_series_of_the_same_colour_have_other_markers():
    series = [line(f"m{k}", [float(k)], [1.0]) for k in range(16)]
    looks = {(t["marker"]["color"], t["marker"]["symbol"]) for t in page.figure(chart(*series)).spec["data"]}
    assert len(looks) == 16


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────


def drawn(tmp_path, *charts) -> ET.Element:
    return ET.parse(picture.draw(charts, tmp_path / "sub" / "picture.svg")).getroot()


def texts(root: ET.Element) -> list[str]:
    return [node.text for node in root.iter(f"{SVG}text")]


def test_a_picture_has_its_words_as_text_and_its_figures_in_the_description(tmp_path):
    one = chart(
        line("<script>", [1.0, 2.0], [10.0, 20.5], error=[1.0, 1.0]), line("b", [2.0], [15.0], look="points")
    )
    root = drawn(tmp_path, one, one)
    assert texts(root).count("<script>") == 2, "in both legends"
    assert {"a & b", "sent (MB)", "accuracy (%)"} <= set(texts(root))
    (described,) = (node.text for node in root.iter(f"{DC}description"))
    assert described.split("\n")[:3] == [
        "a & b: accuracy (%) by sent (MB).",
        "<script>: 10 at 1, 20.5 at 2.",
        "b: 15 at 2.",
    ]


def test_the_same_figures_give_the_same_file(tmp_path):
    one = chart(line("a", [1.0, 2.0], [1.0, 2.0]), line("b", [1.0], [1.0], look="points"))
    files = [picture.draw([one], tmp_path / name).read_bytes() for name in ("a.svg", "b.svg")]
    assert files[0] == files[1]
    assert b"<script" not in files[0]


def test_legends_go_from_top_to_bottom_as_lines_end(tmp_path):
    series = [line(f"m{k}", [1.0, 2.0], [1.0, float(k)]) for k in (2, 3, 1)]
    names = [text for text in texts(drawn(tmp_path, chart(*series))) if text in ("m1", "m2", "m3")]
    assert names == ["m3", "m2", "m1"]


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis(tmp_path):
    one = chart(line("a", [2.0, 4.0, 8.0], [1.0, 2.0, 3.0]), x=Axis(name="MB", log=True))
    root = drawn(tmp_path, one)
    paths = [node.get("d") for node in root.iter(f"{SVG}path") if picture.COLOURS[0] in node.get("style", "")]
    xs = next(xs for path in paths if len(xs := [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]) == 3)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.01)
    assert {"2", "4", "8"} <= set(texts(root))


@pytest.mark.parametrize("value", [0.0, 1e-9, 51.3, math.nan])
def test_a_single_value_can_be_drawn(tmp_path, value):
    root = drawn(
        tmp_path, chart(line("m", [1.0], [value], look="points"), line("n", [1.0], [1.0], look="points"))
    )
    assert {"m", "n"} <= set(texts(root))
