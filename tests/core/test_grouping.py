"""Fixed groups: always the same, every neighbour once, and exactly what coalitions can solve for."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cesar
from cesar.errors import ConfigError, PrivacyError
from cesar.grouping import (
    check_group_collusion,
    check_plan,
    coalitions,
    describe,
    divide,
    exposed,
    group_count,
    group_sizes,
    groups,
    plan,
    sums_of,
)
from cesar.linear import solve
from cesar.topology import parties
from support.harness import random_graph

ids = st.integers(0, 2**32 - 1)
views = st.lists(ids, unique=True, min_size=2, max_size=40).map(lambda nodes: tuple(sorted(nodes)))


# ── the division ────────────────────────────────────────────────────────────────────────────────────────


@given(st.binary(max_size=40), ids, views, st.integers(0, 2**32 - 1), st.data())
def test_every_neighbour_is_in_one_group_always_the_same(network, receiver, view, draw, data):
    m = data.draw(st.integers(2, len(view)))
    found = divide(network, receiver, view, m, draw)
    assert found == divide(network, receiver, view, m, draw)
    assert sorted(node for group in found for node in group) == list(view)
    assert all(list(group) == sorted(group) for group in found)
    assert tuple(map(len, found)) == group_sizes(len(view), m)


@given(st.integers(2, 100), st.data())
def test_sizes(m, data):
    """At least m, no more than it takes, and as equal as they can be."""
    degree = data.draw(st.integers(m, 400))
    sizes = group_sizes(degree, m)
    assert len(sizes) == group_count(degree, m) == degree // m
    assert sum(sizes) == degree
    assert min(sizes) >= m
    assert max(sizes) < 2 * m
    assert max(sizes) - min(sizes) <= 1


def test_groups_change_with_all_they_are_drawn_from_and_nothing_else():
    view = tuple(range(1, 13))
    settings_ = [(b"", 0, 3, 0), (b"", 0, 3, 1), (b"", 20, 3, 0), (b"a", 0, 3, 0), (b"b", 0, 3, 0)]
    found = [divide(network, r, view, m, draw) for network, r, m, draw in settings_]
    assert len(set(found)) == len(found)
    assert divide(b"", 0, (*view[:-1], 13), 3) != found[0]


def test_draws_give_all_divisions_equally_often():
    """Six nodes fall into an ordered pair of threes in 20 ways; 4000 draws, each 200 ± 13.8; 6 errors are p < 1e-8."""
    view = tuple(range(6))
    seen = Counter(divide(b"x", 9, view, 3, draw) for draw in range(4000))
    assert len(seen) == 20
    assert all(abs(count - 200) < 6 * 13.8 for count in seen.values())


def test_groups_of_a_graph():
    graph = nx.random_regular_graph(6, 20, seed=1)
    table = groups(graph, 3, network=b"n", draws={4: 7})
    assert list(table) == sorted(graph)
    for r, found in table.items():
        assert found == divide(b"n", r, tuple(sorted(graph[r])), 3, 7 if r == 4 else 0)
    shuffled = nx.Graph(list(graph.edges)[::-1])
    assert groups(shuffled, 3, network=b"n", draws={4: 7}) == table
    assert cesar.groups(graph, 3) == groups(graph, 3)


@pytest.mark.parametrize("m", [1, 0, -2, 101, 2.0, "3"])
def test_sizes_that_make_no_sense(m):
    with pytest.raises(ConfigError, match="from 2 to 100"):
        groups(nx.complete_graph(5), m)


def test_a_receiver_with_too_few_neighbours_is_named():
    graph = nx.Graph([*nx.complete_graph(5).edges, (5, 0), (5, 1), (6, 2)])
    with pytest.raises(PrivacyError, match=r"node 5 has 2 neighbour.*groups of 3 .*nothing was sent.*5, 6"):
        groups(graph, 3)


# ── what a coalition can solve for ──────────────────────────────────────────────────────────────────────


def random_table(rng):
    """Receivers with disjoint groups, of nodes from few enough that sums overlap."""
    nodes = int(rng.integers(5, 12))
    table = {}
    for r in range(nodes):
        others = rng.permutation([node for node in range(nodes) if node != r])
        cuts = np.cumsum(rng.integers(1, 4, size=6))
        parts = [part for part in np.split(others, cuts) if len(part)][: 1 + rng.integers(4)]
        table[r] = tuple(tuple(sorted(part.tolist())) for part in parts)
    return table


def without_shortcut(table, coalition):
    """By definition: all sums of the coalition, less what it knows, into exact linear algebra."""
    inside = set(coalition)
    rows = [frozenset(group) - inside for r in sorted(inside) for group in table[r]]
    rows = [row for row in rows if row]
    return solve(rows) if rows else {}


@pytest.mark.parametrize("chunk", range(4))
def test_exposed_is_what_all_sums_give(chunk):
    rng, leaks = np.random.default_rng(chunk), 0
    for _ in range(1000):
        table = random_table(rng)
        coalition = rng.permutation(len(table))[: 1 + rng.integers(4)].tolist()
        found = exposed(table, coalition)
        assert found.keys() == without_shortcut(table, coalition).keys(), (table, coalition)
        for node, recipe in found.items():
            total = Counter()
            for factor, r, group in recipe:
                assert r in coalition
                assert group in table[r]
                total.update({member: factor for member in group if member not in coalition})
            assert {member: factor for member, factor in total.items() if factor} == {node: Fraction(1)}
        leaks += bool(found)
    assert 100 < leaks < 900, "tables that leak and tables that do not"


def test_one_receiver_alone_learns_nothing_from_its_groups():
    for seed in range(20):
        graph = random_graph(np.random.default_rng(seed), 6, 11)
        least = min(degree for _, degree in graph.degree)
        if least >= 2:
            table = groups(graph, 2)
            assert not any(exposed(table, [r]) for r in graph)


def test_sums_leave_out_what_the_coalition_knows():
    table = {0: ((1, 2), (3, 4, 5)), 1: ((0, 2),), 2: ((0, 1),)}
    assert sums_of(table, [1, 0, 2]) == [(0, (3, 4, 5), {3, 4, 5})]
    assert sums_of(table, [0]) == [(0, (1, 2), {1, 2}), (0, (3, 4, 5), {3, 4, 5})]


def test_a_recipe_in_words():
    table = {0: ((2, 3),), 1: ((2, 3, 4),)}
    assert describe([1, 0], exposed(table, [0, 1])) == (
        "nodes 0 and 1 together can compute node 4's value: "
        "the sum over 2, 3 and 4 at 1 minus the sum over 2 and 3 at 0"
    )
    cycle = {0: ((3, 4),), 1: ((4, 5),), 2: ((3, 5),)}
    assert describe([0, 1, 2], exposed(cycle, [0, 1, 2])) == (
        "nodes 0, 1 and 2 together can compute node 3's value: 1/2 times the sum over 3 and 4 at 0 "
        "plus 1/2 times the sum over 3 and 5 at 2 minus 1/2 times the sum over 4 and 5 at 1"
    )


# ── coalitions ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunk", range(3))
def test_no_coalition_that_leaks_is_missing(chunk):
    """What any nodes can solve for, the listed coalitions among them can; and each of these is listed once."""
    rng, leaks, spared = np.random.default_rng(chunk), 0, 0
    for _ in range(12):
        graph = nx.cycle_graph(12) if rng.random() < 0.3 else random_graph(rng, 6, 9)
        if min(degree for _, degree in graph.degree) < 2:
            continue
        table = groups(graph, 2, network=rng.bytes(4))
        listed = list(coalitions(graph, 3))
        assert len(listed) == len(set(listed))
        assert all(2 <= len(one) <= 3 for one in listed)
        for size in (2, 3):
            for one in map(frozenset, combinations(sorted(graph), size)):
                found = set(without_shortcut(table, one))
                parts = [part for part in listed if part <= one]
                assert found - one == set().union(*(exposed(table, part) for part in parts)) - one, (
                    table,
                    one,
                )
                leaks += bool(found)
                spared += one not in listed
    assert leaks
    assert spared


def test_coalitions_in_order():
    graph = nx.path_graph(6)
    assert [sorted(one) for one in coalitions(graph, 2)] == [
        [0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [2, 4], [3, 4], [3, 5], [4, 5]
    ]  # fmt: skip
    assert list(coalitions(graph, 1)) == []


# ── planning ────────────────────────────────────────────────────────────────────────────────────────────


def determined(table, coalition):
    """Which unknowns have the same value in all solutions, by floating point: those at which no null vector is."""
    inside = set(coalition)
    rows = [set(group) - inside for r in coalition for group in table[r] if set(group) - inside]
    unknowns = sorted(set().union(*rows))
    matrix = np.array([[node in row for node in unknowns] for row in rows], dtype=float)
    _, sizes, basis = np.linalg.svd(matrix)
    rank = int((sizes > 1e-9).sum())
    free = np.abs(basis[rank:]).max(axis=0, initial=0)
    return {node for node, size in zip(unknowns, free, strict=True) if size < 1e-9}


def test_the_brute_force_sees_leaks():
    assert determined({0: ((2, 3),), 1: ((2, 3, 4),)}, (0, 1)) == {4}
    assert determined({0: ((2, 3),), 1: ((3, 4),)}, (0, 1)) == set()


def test_plans_for_two_colluders_leave_nobody_exposed():
    """20 graphs of 48 nodes, of degree 6, groups of three: every pair of nodes, for the whole training."""
    redrawn = 0
    for seed in range(20):
        graph = nx.random_regular_graph(6, 48, seed=seed)
        draws = plan(graph, 3, 2, network=b"a network")
        redrawn += bool(draws)
        first, table = (groups(graph, 3, network=b"a network", draws=one) for one in ({}, draws))
        leaks = [pair for pair in combinations(sorted(graph), 2) if determined(first, pair)]
        assert bool(leaks) == bool(draws)
        assert not any(determined(table, pair) for pair in combinations(sorted(graph), 2))
        assert {r for r in graph if first[r] != table[r]} <= draws.keys()
    assert 0 < redrawn < 20, "plans that were needed, and graphs that needed none"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2))
def test_plans_count_an_owner_with_all_its_nodes(seed, k):
    """Whatever is not refused: no k owners with all their nodes, near or far, determine anybody."""
    rng = np.random.default_rng(seed)
    graph = nx.random_regular_graph(6, 20, seed=seed)
    owners = {node: f"owner {rng.integers(8)}" for node in graph if rng.random() < 0.6}
    try:
        draws = plan(graph, 3, k, owners=owners)
    except PrivacyError:
        return
    table = groups(graph, 3, draws=draws)
    for some in combinations(parties(graph, owners), k):
        assert not determined(table, frozenset().union(*some))
    check_plan(graph, table, k, owners)


def test_an_owner_alone_is_a_coalition():
    graph = nx.complete_graph(3)
    assert plan(graph, 2, 1) == {}
    with pytest.raises(PrivacyError, match=r"whatever the groups are, hospital \(nodes 0 and 1 together\)"):
        plan(graph, 2, 1, owners={0: "hospital", 1: "hospital"})
    with pytest.raises(ConfigError, match="1 colluders among 1 owners leave nobody"):
        plan(graph, 2, 1, owners=dict.fromkeys(range(3), "hospital"))
    table = groups(nx.complete_graph(5), 2)
    with pytest.raises(PrivacyError, match="the groups do not stop an owner: hospital"):
        check_plan(nx.complete_graph(5), table, 1, dict.fromkeys(range(3), "hospital"))


def test_a_method_plans_for_its_graph():
    graph = nx.random_regular_graph(6, 48, seed=1)
    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.3), group_size=3, collusion=2)
    settled = method.for_graph(graph, network=b"n")
    assert settled.groups == groups(graph, 3, network=b"n", draws=plan(graph, 3, 2, network=b"n"))
    assert settled.for_graph(graph, network=b"n").groups == settled.groups
    given_ = method.for_graph(graph, network=b"n", draws={3: 9})
    assert given_.groups == groups(graph, 3, network=b"n", draws={3: 9})


def close_graph(shift):
    """Two receivers whose neighbourhoods differ by one node, beside or before a ring with chords."""
    a, b = (0, 1) if shift else (12, 13)
    graph = nx.relabel_nodes(nx.circulant_graph(12, [1, 2]), {k: k + shift for k in range(12)})
    first = [k + shift for k in (0, 3, 6)]
    graph.add_edges_from((a, k) for k in first)
    graph.add_edges_from((b, k) for k in (*first, 9 + shift))
    return graph, (a, b, 9 + shift)


@pytest.mark.parametrize("shift", [2, 0], ids=["the first two", "the last two"])
def test_a_hopeless_graph_is_refused_with_names(shift):
    graph, (a, b, victim) = close_graph(shift)
    message = rf"whatever the groups are, nodes {a} and {b} together can compute node {victim}'s value.*{a} and {b} differ"
    with pytest.raises(PrivacyError, match=message):
        plan(graph, 3, 2)


def test_a_graph_for_which_no_draw_is_found_is_refused_with_names():
    """Eight nodes, each next to all but one: two neighbourhoods have five or six nodes in common."""
    graph = nx.complement(nx.Graph([(0, 1), (2, 5), (3, 4), (6, 7)]))
    message = r"no groups of 3 .* 2 colluders learn nothing: nodes \d and \d together can compute .* at \d.*overlap less"
    with pytest.raises(PrivacyError, match=message):
        plan(graph, 3, 2)


@pytest.mark.parametrize(("m", "k"), [(2, 2), (2, 3), (3, 3), (4, 9)])
def test_groups_that_colluders_could_empty_are_refused(m, k):
    graph = nx.random_regular_graph(10, 30, seed=1)
    for refused in (
        lambda: check_group_collusion(m, k),
        lambda: plan(graph, m, k),
        lambda: cesar.Cesar(sparsifier=cesar.TopK(0.1), group_size=m, collusion=k),
        lambda: cesar.SecureAggregation(group_size=m, collusion=k),
    ):
        with pytest.raises(
            PrivacyError, match=rf"groups of {m} do not stop {k} colluders.*group_size={k + 1}"
        ):
            refused()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_colluder_needs_no_plan(seed):
    graph = nx.random_regular_graph(4, 12, seed=seed)
    assert plan(graph, 2, 1) == {}
