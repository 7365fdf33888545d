"""`cesar explain`: one round that a person can follow."""

import pytest

from cesar.experiment import explain
from support.commands import call, read


def test_explain():
    result = read("explain")
    assert all(row["largest_error"] < 1e-6 for row in result["learned"])
    assert all(len(group) == 2 for row in result["learned"] for group in row["groups"])
    glimpse = result["glimpse"]
    for total, *values in zip(glimpse["sums"], *glimpse["values"], strict=True):
        assert total == pytest.approx(sum(values), abs=1e-5)
    assert len({word for words in glimpse["words"] for word in words}) == 8
    shared = {row["method"]: row["shared"] for row in result["methods"]}
    assert all(0.28 < share < 0.32 for name, share in shared.items() if "all parameters" not in name)
    assert "and sent" in call("explain")


def test_a_crash_costs_the_sums_that_it_was_part_of():
    whole, _, _ = explain.secure_round()
    crashed, learned, _ = explain.secure_round(crashes={3: "after_coordination"})
    assert all(row.largest_error < 1e-6 for row in learned if row.node != 3)
    for row in learned:
        if row.node != 3:
            alone = not any(3 in group for group in row.groups)
            assert (crashed.vectors[row.node] == whole.vectors[row.node]).all() == alone
