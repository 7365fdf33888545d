"""Strict mode: s from the graph, graphs that are refused, and a network that changes its graph."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cesar
from cesar.base.errors import ConfigError, LocalProtocolError, PrivacyError
from cesar.graph.neighbourhood import check_strict, overlaps, parties, strict_requirement
from cesar.methods.settings import MethodSection, check
from support.harness import random_graph


def by_definition(graph, k):
    """The condition as the page on privacy states it, over all coalitions."""
    shared = {
        (r, o): len(set(graph[r]) & set(graph[o])) + graph.has_edge(r, o)
        for r in graph
        for o in graph
        if r != o
    }
    worst = max(
        sum(shared[r, o] for o in others)
        for r in graph
        for others in combinations(sorted(set(graph) - {r}), k - 1)
    )
    return max(k, worst)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_requirement_is_the_condition(seed, k):
    graph = random_graph(np.random.default_rng(seed), 5, 9)
    assert strict_requirement(graph, k) == by_definition(graph, k)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_owners_count_with_all_their_nodes(seed, k):
    """The condition over all coalitions of k owners, written down."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 6, 9)
    owners = {node: f"owner {rng.integers(4)}" for node in graph if rng.random() < 0.7}
    owned = parties(graph, owners)
    if len(owned) <= k:
        return
    shared = overlaps(graph)
    worst = 0
    for some in combinations(owned, k):
        together = frozenset().union(*some)
        worst = max(worst, len(together), *(sum(shared[r, o] for o in together) for r in together))
    assert strict_requirement(graph, k, owners) == worst


def test_overlaps_count_common_neighbours_and_the_edge():
    graph = nx.Graph([(0, 1), (0, 2), (1, 2), (2, 3)])
    assert overlaps(graph).tolist() == [[0, 2, 2, 1], [2, 0, 2, 1], [2, 2, 0, 1], [1, 1, 1, 0]]


def test_without_short_cycles_s_is_k():
    graph = nx.petersen_graph()  # girth 5
    assert [strict_requirement(graph, k) for k in (1, 2, 3, 5)] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    "k, message", [(0, "at least 1"), (5, "nobody to protect.*at most 4"), (9, "at most 4")]
)
def test_impossible_coalitions(k, message):
    with pytest.raises(ConfigError, match=message):
        strict_requirement(nx.complete_graph(5), k)


def test_methods_settle_on_a_graph():
    sparsifier, graph = cesar.TopK(0.5), nx.random_regular_graph(6, 30, seed=1)
    safe = strict_requirement(graph, 2)
    assert safe > 2
    open_method = cesar.Cesar(sparsifier=sparsifier, collusion=2)
    assert open_method.masking_requirement is None
    with pytest.raises(ConfigError, match=r"for_graph\(graph\)"):
        _ = open_method.masks
    settled = open_method.for_graph(graph)
    assert (settled.masks, settled.collusion) == (safe, 2)
    assert settled.for_graph(graph) == settled
    more = cesar.Cesar(sparsifier=sparsifier, collusion=2, masking_requirement=safe + 1)
    assert more.for_graph(graph).masks == safe + 1
    with pytest.raises(
        PrivacyError, match=rf"masking_requirement=2 does not stop 2 .* needs {safe}.*plan topology"
    ):
        cesar.Cesar(sparsifier=sparsifier, collusion=2, masking_requirement=2).for_graph(graph)
    plain = cesar.Cesar(sparsifier=sparsifier, masking_requirement=2)
    assert plain.for_graph(graph) is plain
    for other in (cesar.SecureAggregation(), cesar.DPSGD()):
        assert other.for_graph(graph) == other


@pytest.mark.parametrize("k", [0, -1, 1.5, "2"])
def test_collusion_is_a_number_of_nodes(k):
    with pytest.raises(ConfigError, match="collusion is"):
        cesar.Cesar(sparsifier=cesar.TopK(0.5), collusion=k)


def test_a_graph_on_which_nothing_could_be_shared_is_refused():
    graph, models = nx.complete_graph(6), np.ones((6, 8), dtype=np.float32)
    method = cesar.Cesar(sparsifier=cesar.TopK(1.0), collusion=2)
    message = r"2 colluders are only stopped by 5 masks .*node 0 \(5\).* 5 neighbour.*plan topology"
    with pytest.raises(PrivacyError, match=message.replace("node 0", r"node \d")):
        cesar.aggregate(models, graph, method)


def test_no_frame_leaves_an_engine_whose_s_is_open():
    from cesar.graph.neighbourhood import neighbourhoods  # noqa: PLC0415
    from cesar.node import Node  # noqa: PLC0415
    from support.harness import DEADLINES, SESSIONS, FakeKeys  # noqa: PLC0415

    method = cesar.Cesar(sparsifier=cesar.TopK(1.0), collusion=2)
    node = Node(0, method, 4, session=SESSIONS[0], keys=FakeKeys(SESSIONS[0], 0))
    hood = neighbourhoods(nx.complete_graph(5))[0]
    with pytest.raises(ConfigError, match="for_graph"):
        node.begin_round(0, hood, np.ones(4, dtype=np.float32), entropy=bytes, deadlines=DEADLINES)
    assert list(node.outbound()) == []


def test_an_ensemble_takes_s_from_each_graph():
    """The measured share follows the s that the graph of the round asks for."""
    close, far = nx.circulant_graph(20, [1, 2, 3]), nx.random_regular_graph(6, 20, seed=0)
    wanted = {graph: strict_requirement(graph, 2) for graph in (close, far)}
    assert len(set(wanted.values())) == 2
    models = np.ones((20, 4000), dtype=np.float32)
    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6), collusion=2)
    ensemble = cesar.Ensemble(close, method, 4000, seed=3)
    for graph in (close, far, close):
        ensemble.use_graph(graph)
        assert ensemble.method.masks == wanted[graph]
        expected = cesar.graph.shares.expected_share(0.6, 6, wanted[graph])
        assert ensemble.round(models).shared == pytest.approx(expected, abs=0.01)


def test_a_method_cannot_change_within_a_round():
    from support.harness import Case  # noqa: PLC0415

    method = cesar.Cesar(sparsifier=cesar.TopK(1.0))
    case = Case(graph=nx.complete_graph(4), method=method, vectors=np.ones((4, 8), dtype=np.float32))
    nodes = case.nodes()
    with pytest.raises(LocalProtocolError, match="between rounds"):
        nodes[0].use_method(method)
    nodes[0].close()
    with pytest.raises(LocalProtocolError, match="masked and plain"):
        nodes[0].use_method(cesar.DPSGD())


def test_settings_take_collusion():
    section = MethodSection(name="cesar", sparsifier="random", share=0.3, collusion=2)
    graph = nx.random_regular_graph(6, 30, seed=1)
    safe = strict_requirement(graph, 2)
    method = section.build(6, graph=graph)
    assert section.title == "cesar-random-k2-0.3"
    assert (method.collusion, method.masking_requirement) == (2, None)
    assert method.sparsifier.alpha == pytest.approx(cesar.graph.shares.required_alpha(0.3, 6, safe))
    with pytest.raises(PrivacyError, match="does not stop 2"):
        section.model_copy(update={"masks": 2}).build(6, graph=graph)
    with pytest.raises(ConfigError, match="collusion would change nothing"):
        check(MethodSection, {"name": "dpsgd", "collusion": 2})


def test_check_strict_accepts_what_is_safe():
    check_strict(nx.petersen_graph(), 2, 2)
