"""`cesar plan`: fractions, graphs and risks before anything runs."""

import pytest

from cesar import graphs
from cesar.errors import CesarError
from cesar.grouping import coalitions, exposed, groups, hears
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


def test_fractions_of_groups():
    """A union of TopK in groups of two shares 30 % if 16.3 % is selected; with random subsampling nothing is lost."""
    alpha = read("plan", "alpha", "--share", 0.3, "--degree", 6, "--group-size", 2)["alpha"]
    assert 1 - (1 - alpha) ** 2 == pytest.approx(0.3)
    found = read("plan", "share", "--alpha", alpha, "--degree", 5, "--group-size", 2)
    assert found["members"] == "3, 2"
    assert found["share"] == pytest.approx((3 * (1 - (1 - alpha) ** 3) + 2 * 0.3) / 5)
    drawn = ("--degree", 6, "--group-size", 3, "--sparsifier", "random")
    assert read("plan", "alpha", "--share", 0.3, *drawn)["alpha"] == 0.3
    assert read("plan", "share", "--alpha", 0.3, *drawn)["share"] == 0.3


def test_groups_are_planned_for_all_rounds(tmp_path):
    out = tmp_path / "groups.edges"
    found = read("plan", "groups", "--nodes", 48, "--degree", 6, "--seed", 0, "--out", out)
    graph = graphs.from_file(out)
    assert graph.number_of_edges() == 144
    table = {int(r): tuple(map(tuple, sets)) for r, sets in found["groups"].items()}
    for r, sets in table.items():
        assert sorted(node for group in sets for node in group) == sorted(graph[r])
        assert [len(group) for group in sets] == [3, 3]
    pairs = list(coalitions(graph, 2))
    assert (found["possible"], found["looked_at"]) == (48 + 48 * 47 // 2, len(pairs))
    assert not any(exposed(table, pair) for pair in pairs)
    first = groups(graph, 3)
    assert len(found["leaks"]) == sum(bool(exposed(first, pair)) for pair in pairs) > 0
    changed = {r for r in graph if table[r] != first[r]}
    assert changed <= set(found["drew_again"])
    assert changed
    said = call("plan", "groups", "--graph", out)
    assert f"node 0 hears {{{', '.join(map(str, table[0][0]))}}} and {{" in said
    assert f"{len(pairs):,} have sums that overlap" in said
    assert "Drew again: " in said
    assert hears("node 0", table[0]) in out.read_text()


def test_no_groups_help_where_neighbourhoods_differ_by_one_node(tmp_path):
    file = tmp_path / "bad.edges"
    file.write_text("0 2\n0 3\n0 1\n1 2\n1 3\n1 4\n2 4\n3 4\n")
    with pytest.raises(
        CesarError, match="whatever the groups are, nodes 0 and 1 together can compute node 4's"
    ):
        call("plan", "groups", "--graph", file)


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
        (("groups", "--group-size", 2), "groups of 2 do not stop 2 colluders"),
        (("groups", "--degree", 2, "--collusion", 1), "has 2 neighbour"),
        (("alpha", "--share", 0.3, "--degree", 6, "--masks", 1, "--group-size", 2), "leave --masks out"),
        (("share", "--alpha", 0.3, "--degree", 2, "--group-size", 3), "has no group of 3"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(CesarError, match=message):
        call("plan", *arguments)
