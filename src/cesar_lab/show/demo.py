"""The page of `cesar demo`: three pictures with one insight each. The report beside it has all figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import cesar
from cesar.page import PALETTE, Figure, Spec, plot_layout, write_page
from cesar_lab.data.datasets import require
from cesar_lab.show import page, study, watched
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.report import PACKAGE
from cesar_lab.show.results import MethodRow, Study, read_study, rows_of
from cesar_lab.show.table import Table

PLAIN, CELLS = "plain averaging, everything", "cells of 4, largest 17 %"
WHO = {
    "cells": "nobody",
    "dpsgd": "its neighbours",
    "cesar": "its neighbours, after many rounds",
}
NEXT = (
    ("cesar explain", "one secure round, step by step"),
    ("cesar network init --peers 8 --out net", "keys for eight real peers on this machine"),
    ("cesar network up net --dataset digits", "… and they train over encrypted connections"),
    ("docs/tutorial.md", "your own PyTorch script, in 15 minutes"),
)
"""What to try, and what it shows."""


def insight(rows: Sequence[MethodRow]) -> str:
    """What the comparison shows, in three sentences, from its own figures."""
    cells, plain = _pair(rows)
    return (
        f"Plain averaging: {100 * plain.value:.1f} % of the digits are right, a site sends {plain.bytes / 1e6:.2f} MB, "
        f"and its neighbours see its model. Cells: {100 * cells.value:.1f} % are right, a site sends "
        f"{100 * cells.bytes / plain.bytes:.0f} % of the bytes, and nobody sees what it alone has trained."
    )


def _pair(rows: Sequence[MethodRow]) -> tuple[MethodRow, MethodRow]:
    found = {row.title: row for row in rows}
    return found[CELLS], found[PLAIN]


def table(one: Study, rows: Sequence[MethodRow]) -> Table:
    """A line for each way to average, narrow enough for 80 columns."""
    who = {method.title: WHO[method.name] for method in one.methods}
    return Table(
        heads=("way to average", "who sees a site's update", "accuracy", "sent"),
        units=("", "", "%", "MB"),
        rows=tuple(
            (row.title, who[row.title], f"{100 * row.value:.1f}", f"{row.bytes / 1e6:.2f}") for row in rows
        ),
        names=2,
    )


def write_demo(folder: Path) -> Path:
    """Write the page of the experiment in this folder; where it lies."""
    one = read_study(folder)
    rows = rows_of(one)
    looks = {
        row.title: {"number": n, "colour": n % PALETTE, "symbol": page.symbol(n)[1]}
        for n, row in enumerate(rows)
    }
    return write_page(
        folder / "demo.html",
        "demo.html",
        package=PACKAGE,
        title="cesar demo",
        version=cesar.__version__,
        insight=insight(rows),
        experiment=one.experiment,
        table=table(one, rows),
        looks=looks,
        figures=[_accuracy(one, rows), _bytes(rows), what_a_neighbour_sees()],
        steps=NEXT,
    )


def _accuracy(one: Study, rows: Sequence[MethodRow]) -> Figure:
    cells, plain = _pair(rows)
    apart = 100 * abs(cells.value - plain.value)
    title = "The same accuracy" if apart < 1 else f"{apart:.1f} points of accuracy apart"
    drawn = study.progress(one, study.ROUND, title=title)
    caption = (
        "Right answers on digits that nobody has trained on, mean over all sites. Broken lines: neighbours see models. "
        "In the last rounds sites average without training."
    )
    return page.figure(replace(drawn, caption=caption, legend=False, wide=True))


def _bytes(rows: Sequence[MethodRow]) -> Figure:
    cells, plain = _pair(rows)
    bars = [
        Series(
            name="sent",
            x=[row.title],
            y=[row.bytes / 1e6],
            hover=[f"{row.bytes:,.0f} B"],
            look="bar",
            colour=n,
        )
        for n, row in enumerate(rows)
    ]
    chart = Chart(
        title=f"{100 * cells.bytes / plain.bytes:.0f} % of the bytes",
        caption="Sent by a site in all rounds. In a cell each number travels about twice, as 16 bits; "
        "in plain averaging six times, as 32 bits.",
        x=Axis(),
        y=Axis(name="sent by a site", unit="MB"),
        series=tuple(bars),
        legend=False,
        wide=True,
    )
    return page.figure(chart)


def what_a_neighbour_sees() -> Figure:
    """What a site has learned about the digit 0: as trained, as sent in a cell, and as the sum of three sites."""
    pixels, labels = require("sklearn.datasets", "lab").load_digits(return_X_y=True)
    parts = np.array_split(
        np.argsort(labels, kind="stable")[: len(labels) // watched.SITES * watched.SITES], watched.SITES
    )
    # Site 1 has the digits 0, 1 and 2, and so on.
    rows = np.stack(list(np.roll(parts, 1, axis=0)), axis=1).ravel()
    seen = watched.one_round(watched.trained(pixels[rows] / 16, labels[rows]))
    inputs = pixels.shape[1]
    site = seen.senders[0]
    shown: dict[str, NDArray[np.floating]] = {
        f"trained by site {site}": seen.values[0, :inputs],
        "what it sends": seen.words[0, :inputs].astype(np.float64),
        f"sum of {len(seen.senders)} sites": seen.sums[:inputs],
    }
    caption = (
        f"What site {site} of four has learned about the digit 0, one square for each pixel; each site has other digits. In plain averaging "
        "a neighbour sees the left picture. In a cell it gets the noise in the middle, and can read the sum at the right. One real round."
    )
    return Figure(title="What a neighbour sees", caption=caption, spec=_squares(shown), wide=True)


def _squares(shown: dict[str, NDArray[np.floating]]) -> Spec:
    data: list[Spec] = []
    width = 1 / len(shown)
    layout = plot_layout({}, {}, margin={"l": 8, "r": 8, "t": 60, "b": 8}, annotations=[])
    for number, (name, values) in enumerate(shown.items()):
        axis = "" if number == 0 else str(number + 1)
        side = round(values.size**0.5)
        middle = width * (number + 0.5)
        ends = [middle - 0.44 * width, middle + 0.44 * width]
        hidden: Spec = {"visible": False, "fixedrange": True}
        layout[f"xaxis{axis}"] = {**hidden, "domain": ends, "constrain": "domain"}
        layout[f"yaxis{axis}"] = {
            **hidden, "anchor": f"x{axis}", "scaleanchor": f"x{axis}", "autorange": "reversed", "constrain": "domain", "constraintoward": "top",
        }  # fmt: skip
        layout["annotations"].append(
            {"text": name, "xref": "paper", "x": middle, "xanchor": "center", "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
        )  # fmt: skip
        data.append(
            {
                "type": "heatmap",
                "z": [[float(f"{v:.6g}") for v in row] for row in values.reshape(side, side)],
                "xaxis": f"x{axis}",
                "yaxis": f"y{axis}",
                "colorscale": [[0, "#0f4c8e"], [0.5, "#f2f2f2"], [1, "#b43600"]],
                "showscale": False,
                "hoverinfo": "skip",
                "xgap": 1,
                "ygap": 1,
            }
        )
    return {"data": data, "layout": layout}
