"""`cesar demo` in small: what it says at the end comes from its own figures."""

from importlib import resources

import pytest

from cesar_lab.cli import demo
from cesar_lab.run import config, execute
from cesar_lab.show.results import summarise


def test_the_demo_says_what_it_has_shown(tmp_path):
    pytest.importorskip("torch")
    with resources.as_file(resources.files("cesar_lab.run") / "demo.toml") as file:
        small = config.load(file, ("rounds=2", "settle_rounds=1", "seeds=[1]", "evaluation.every=2"))
    assert len(small.method) == 5
    assert small.method[0].name == "cells"
    execute.execute(small, tmp_path)
    rows = {row.title: row for row in summarise(tmp_path)}
    said = demo.insight([*rows.values()])
    cells, plain = rows[demo.CELLS], rows[demo.PLAIN]
    assert (
        f"{100 * cells.value:.1f} % are right, with {100 * cells.bytes / plain.bytes:.0f} % of the bytes"
        in said
    )
    assert cells.bytes < 0.25 * plain.bytes
