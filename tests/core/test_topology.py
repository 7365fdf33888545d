"""Neighbourhoods: what a node may know, and that all who need to know who relays compute the same."""

from collections import Counter
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import ConfigError, PrivacyError
from cesar.crypto.keys import RoundId
from cesar.graph.neighbourhood import check_degrees, check_graph, neighbourhoods

SESSION = b"0123456789abcdef"


def round_id(round_=0, session=SESSION):
    return RoundId(session=session, round_=round_)


@st.composite
def graphs(draw):
    """Connected, of any shape: a random tree and random further edges."""
    nodes = draw(st.integers(2, 14))
    edges = [(i, draw(st.integers(0, i - 1))) for i in range(1, nodes)]
    edges += draw(st.lists(st.sampled_from(list(combinations(range(nodes), 2))), max_size=25))
    return nx.Graph(edges)


@given(graphs())
def test_views(graph):
    hoods = neighbourhoods(graph)
    assert hoods.keys() == set(graph)
    for i, hood in hoods.items():
        assert hood.node == i
        assert hood.view == tuple(sorted(graph[i]))
        assert hood.views == {r: tuple(sorted(graph[r])) for r in graph[i]}
        two_steps = {j for r in graph[i] for j in graph[r]} - {i}
        assert hood.view2 == tuple(sorted(two_steps))


@given(graphs(), st.integers(0, 5))
def test_all_who_need_to_know_compute_the_same_relay(graph, round_):
    """The two ends, and each common neighbour that might be it. Neighbours need no relay."""
    hoods = neighbourhoods(graph)
    for i, j in combinations(sorted(graph), 2):
        common = sorted(nx.common_neighbors(graph, i, j))
        if not common:
            continue
        knowing = [hoods[k] for k in (i, j, *common)]
        found = {hood.relay(a, b, round_id(round_)) for hood in knowing for a, b in ((i, j), (j, i))}
        assert len(found) == 1
        relay = found.pop()
        assert relay is None if graph.has_edge(i, j) else relay in common


def test_relays_spread_the_load():
    """Two nodes with five common neighbours over 2000 rounds: each relays about 400 times. Six standard
    deviations (18 each) are p < 1e-8.
    """
    graph = nx.complete_bipartite_graph(2, 5)
    hood = neighbourhoods(graph)[0]
    load = Counter(hood.relay(0, 1, round_id(round_)) for round_ in range(2000))
    assert set(load) == {2, 3, 4, 5, 6}
    assert all(abs(count - 400) < 6 * 18 for count in load.values())


def test_relays_change_with_the_session():
    hood = neighbourhoods(nx.complete_bipartite_graph(2, 5))[0]
    relays = {hood.relay(0, 1, round_id(0, bytes([k]) * 16)) for k in range(50)}
    assert relays == {2, 3, 4, 5, 6}


@given(graphs())
def test_connected_graphs_pass(graph):
    check_graph(graph, len(graph))


@settings(max_examples=50)
@given(graphs(), st.integers(1, 5))
def test_degrees_must_exceed_the_masking_requirement(graph, s):
    poor = [i for i in sorted(graph) if graph.degree[i] <= s]
    if not poor:
        check_degrees(graph, s)
        return
    with pytest.raises(
        PrivacyError, match=f"node {poor[0]} has .*nothing was sent.*Add edges at node"
    ) as caught:
        check_degrees(graph, s)
    assert f"at least {s + 1}" in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "nodes", "message"),
    [
        (nx.DiGraph([(0, 1), (1, 0)]), 2, r"undirected and simple: pass networkx\.Graph"),
        (nx.MultiGraph([(0, 1), (0, 1)]), 2, "undirected and simple"),
        (nx.MultiDiGraph([(0, 1)]), 2, "undirected and simple"),
        (nx.empty_graph(1), 1, "at least two nodes"),
        (nx.empty_graph(0), 0, "at least two nodes"),
        (nx.Graph([("a", "b")]), 2, r"exactly 0\.\.1.*convert_node_labels_to_integers"),
        (nx.Graph([(1, 2)]), 2, r"exactly 0\.\.1"),
        (nx.path_graph(3), 4, r"exactly 0\.\.3"),
        (nx.path_graph(4), 3, r"exactly 0\.\.2"),
        (nx.Graph([(0, 1), (1, 1)]), 2, "node 1 is its own neighbour; remove self-loops"),
        (nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(4)), 7, "2 parts; connect them"),
        (nx.empty_graph(3), 3, "3 parts"),
    ],
)
def test_other_graphs_are_refused_with_a_remedy(graph, nodes, message):
    with pytest.raises(ConfigError, match=message):
        check_graph(graph, nodes)
