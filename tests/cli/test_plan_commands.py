"""`cesar plan`: fractions, graphs and risks before anything runs."""

import pytest

from cesar.base.errors import CesarError
from support.browser import browse
from support.commands import call, read


def test_fractions():
    assert read("plan", "alpha", "--share", "0.30", "--degree", "6")["alpha"] == pytest.approx(
        0.3422, abs=1e-4
    )
    assert read("plan", "share", "--alpha", "0.3422", "--degree", "6")["share"] == pytest.approx(
        0.3, abs=1e-3
    )
    assert "0.4253" in call("plan", "alpha", "--share", "0.3", "--degree", "6", "--masks", "2")


def test_collusion_risk(tmp_path):
    page = tmp_path / "risk.html"
    found = read(
        "plan",
        "collusion",
        "--nodes",
        30,
        "--degree",
        8,
        "--adversaries",
        3,
        "--adversaries",
        5,
        "--graphs",
        320,
        "--seed",
        1,
        "--out",
        page,
    )
    assert {row["adversaries"] for row in found["risks"]} == {3, 5}
    row = next(row for row in found["risks"] if (row["adversaries"], row["masks"]) == (5, 2))
    low, high = row["paper"]["interval"]
    assert low <= row["paper"]["value"] <= high
    assert row["paper"]["value"] <= row["at_least"]["value"] <= row["at_most"]["value"]
    assert "95 % interval" in call(
        "plan", "collusion", "--nodes", 20, "--degree", 6, "--adversaries", 3, "--graphs", 16
    )
    dom = browse(page, tmp_path)
    assert dom.count('data-state="drawn"') == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("topology", "--nodes", 12, "--degree", 7),
            "there is no 7-regular graph of 12 nodes on which",
        ),
        (("topology", "--nodes", 7, "--degree", 3), "must be even"),
        (("collusion", "--adversaries", 100), "between 1 and 99"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(CesarError, match=message):
        call("plan", *arguments)
