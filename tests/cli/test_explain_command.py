"""`cesar explain`: one round that a person can follow."""

import pytest

from cesar.sim import explain
from support.commands import call, read


def test_explain():
    result = read("explain")
    assert all(row["largest_error"] < 1e-6 for row in result["learned"])
    assert all(len(row["cell"]) == 4 and row["node"] in row["cell"] for row in result["learned"])
    assert all(5700 < row["handed_in"] < 6300 for row in result["learned"])
    glimpse = result["glimpse"]
    for total, *values in zip(glimpse["sums"], glimpse["own"], *glimpse["values"], strict=True):
        assert total == pytest.approx(sum(values), abs=1e-5)
    assert len({word for words in glimpse["words"] for word in words}) == 12
    assert {row["method"] for row in result["methods"]} >= {"CESAR, TopK", "cells of four, all parameters"}
    assert "and sent" in call("explain")


def test_an_absence_costs_a_cell_the_round_and_nobody_anything_else():
    whole, _, _ = explain.secure_round()
    crashed, learned, glimpse = explain.secure_round(crashes={3: "before_announce"})
    _, models = explain.network()
    assert glimpse is None
    for row in learned:
        assert row.largest_error < 1e-6
        assert (row.handed_in == 0) == (3 in row.cell)
        assert (crashed.vectors[row.node] == models[row.node]).all() == (3 in row.cell)
    assert not (whole.vectors == models).all(axis=1).any()
