"""`cesar demo` in small: what it says at the end comes from its own figures."""

from importlib import resources

import numpy as np
import pytest

from cesar_lab.run import config, execute
from cesar_lab.show import demo
from cesar_lab.show.results import read_study, rows_of
from support.browser import browse


def test_the_demo_says_what_it_has_shown(tmp_path):
    pytest.importorskip("torch")
    with resources.as_file(resources.files("cesar_lab.run") / "demo.toml") as file:
        small = config.load(file, ("rounds=2", "settle_rounds=1", "seeds=[1]", "evaluation.every=2"))
    assert len(small.method) == 5
    assert small.method[0].name == "cells"
    execute.execute(small, tmp_path)
    one = read_study(tmp_path)
    rows = {row.title: row for row in rows_of(one)}
    said = demo.insight([*rows.values()])
    cells, plain = rows[demo.CELLS], rows[demo.PLAIN]
    assert (
        f"{100 * cells.value:.1f} % are right, a site sends {100 * cells.bytes / plain.bytes:.0f} % of the bytes"
        in said
    )
    assert cells.bytes < 0.25 * plain.bytes
    shown = demo.table(one, [*rows.values()])
    assert [row[1] for row in shown.rows] == ["nobody"] * 2 + ["its neighbours"] * 2 + [
        "its neighbours, after many rounds"
    ]
    page = browse(demo.write_demo(tmp_path), tmp_path)
    assert page.count('data-state="drawn"') == 3
    assert f"{100 * cells.bytes / plain.bytes:.0f} % of the bytes" in page


def test_the_picture_shows_an_update_noise_and_a_sum():
    pytest.importorskip("sklearn")
    trained, sent, summed = (np.array(one["z"]).ravel() for one in demo.what_a_neighbour_sees().spec["data"])
    assert trained.shape == sent.shape == summed.shape == (64,)
    assert np.unique(sent).size == 64
    assert abs(np.corrcoef(trained, sent)[0, 1]) < 0.4  # of 64 pixels; noise has a correlation of 0 ± 0.13
    assert np.corrcoef(trained, summed)[0, 1] > 0.4
