"""Graphs for few masks, and the risk on random graphs against the paper and against brute force."""

from collections import Counter
from itertools import product

import networkx as nx
import numpy as np
import pytest

from cesar.audit import Exchange, audit
from cesar.audit.collusion import Chain, Estimate, _reads, bounds, plan_collusion
from cesar.audit.exchange import draw_patterns
from cesar.audit.exposure import exposed_at
from cesar.audit.planning import plan_topology, spectral_gap
from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import strict_requirement
from cesar.kernels.linear import MOST_ROWS


def planned(n, degree, k, **more):
    return plan_topology(lambda draw: graphs.regular(n, degree, draw), k, **more)


@pytest.mark.parametrize("n, degree, k", [(48, 6, 2), (60, 5, 3), (100, 8, 2), (16, 3, 2)])
def test_planned_graphs_are_regular_connected_and_safe(n, degree, k):
    plan = planned(n, degree, k, seed=n)
    assert {d for _, d in plan.graph.degree} == {degree}
    assert nx.is_connected(plan.graph)
    assert set(plan.graph) == set(range(n))
    assert (plan.masks, strict_requirement(plan.graph, k)) == (k, k)
    assert plan.masks_before > k or plan.swaps == 0
    assert plan.gap == pytest.approx(spectral_gap(plan.graph))


def test_the_audit_of_a_planned_graph_finds_nothing():
    """All 1,128 pairs of 48 nodes on 1,000 patterns with two masks; on the random graph it finds plenty."""
    plan = planned(48, 6, 2)
    flags = draw_patterns(48, 1000, 0.4253, 5)
    report = audit(Exchange.complete(plan.graph, flags, 2), 2)
    assert [(t.tested, t.exposing) for t in report.sizes] == [(48, 0), (1128, 0)]
    start = graphs.regular(48, 6, SeedTree(0).generator("plan", 0))
    assert 0.05 < audit(Exchange.complete(start, flags, 2), 2).worst < 0.10


def test_a_plan_is_reproducible():
    assert sorted(planned(30, 4, 2, seed=4).graph.edges) == sorted(planned(30, 4, 2, seed=4).graph.edges)


@pytest.mark.parametrize(
    "arguments, more, message",
    [
        ((20, 8, 2), {}, "there is no 8-regular graph of 20 nodes .* 64 times .* at most 38"),
        ((48, 6, 2), {"masks": 1}, "never stop 2 colluders"),
        ((48, 3, 3), {}, "needs 4 neighbours or more, but the degree is 3"),
        ((8, 3, 9), {}, "nobody to protect"),
        ((40, 6, 3), {"attempts": 1, "steps": 2000}, "no graph was found.*--masks 4"),
    ],
)
def test_impossible_plans(arguments, more, message):
    with pytest.raises(ConfigError, match=message):
        planned(*arguments, **more)


def test_spectral_gap_of_known_graphs():
    assert spectral_gap(nx.complete_graph(6)) == pytest.approx(1)
    cycle = 1 - (1 + 2 * np.cos(2 * np.pi / 9)) / 3
    assert spectral_gap(nx.cycle_graph(9)) == pytest.approx(cycle)


def test_the_chain_is_uniform_on_labelled_cubic_graphs():
    """There are 70 labelled 3-regular graphs on 6 nodes. Chi-square has 69 degrees of freedom: above 140 has
    probability under 1e-6.
    """
    chain, seen, trials = Chain(6, 3, SeedTree(1).bytes(8, "test")), Counter(), 21_000
    for _ in range(trials):
        chain.switch(30)
        seen[chain.adjacent.tobytes()] += 1
    assert len(seen) == 70
    expected = trials / 70
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 140


def test_the_chain_keeps_graphs_regular():
    chain = Chain(20, 7, bytes(8))
    start = chain.adjacent.copy()
    chain.switch(1000)
    assert (chain.adjacent.sum(axis=0) == 7).all()
    assert (chain.adjacent == chain.adjacent.T).all()
    assert not chain.adjacent.diagonal().any()
    assert (chain.adjacent != start).any()
    edges = {tuple(sorted(edge)) for edge in chain.edges.tolist()}
    assert edges == {(int(i), int(j)) for i, j in np.argwhere(np.triu(chain.adjacent))}


def marks(graph, bad):
    traitor = np.array([i in bad for i in sorted(graph)])
    adjacent = nx.to_numpy_array(graph, nodelist=sorted(graph)).astype(bool)
    return adjacent, traitor, adjacent[traitor].sum(axis=0)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_for_every_selection(seed):
    """All selections of all honest nodes, with the adversaries selecting everything, which can only help them."""
    rng = np.random.default_rng(seed)
    graph = nx.random_regular_graph(5, 12, seed=seed)
    bad = sorted(rng.choice(12, 3 + seed % 2, replace=False).tolist())
    adjacent, traitor, near = marks(graph, bad)
    sets = np.zeros((len(bad) + 1, 1), dtype=np.uint64)
    paper, at_least, at_most = bounds(adjacent, np.array(bad), traitor, near, sets)
    assert paper == max(near[r] for r in bad if near[r] < 5 or not traitor[list(graph[r])].all())
    honest = [i for i in range(12) if i not in bad]
    flags = np.ones((12, 2 ** len(honest)), dtype=bool)
    flags[honest] = np.array(list(product([False, True], repeat=len(honest)))).T
    truth = 0
    for s in range(1, 5):
        exchange = Exchange.complete(graph, flags, s)
        if any(exposed_at(exchange, tuple(bad), q) for q in range(len(exchange.selected))):
            truth = s
        else:
            break
    assert paper <= at_least <= truth <= min(at_most, 4) or (truth == 4 and at_least >= 4)


def test_reading_at_random_positions_is_what_the_audit_says():
    rng = np.random.default_rng(3)
    graph = nx.random_regular_graph(7, 30, seed=2)
    basis, pivots = np.zeros((MOST_ROWS, 31), dtype=np.int64), np.zeros(MOST_ROWS, dtype=np.int64)
    hits = 0
    for _ in range(150):
        bad = np.sort(rng.choice(30, 6, replace=False))
        adjacent, traitor, _ = marks(graph, bad.tolist())
        luck, s, alpha = rng.random(30), int(rng.integers(1, 4)), float(rng.uniform(0.2, 0.7))
        column = np.zeros(30, dtype=np.int64)
        found = _reads(adjacent, bad, traitor, luck, alpha, s, basis, pivots, column)
        exchange = Exchange.complete(graph, (luck < alpha)[:, None], s)
        assert found == bool(exposed_at(exchange, tuple(bad.tolist()), 0))
        hits += found
    assert 20 < hits < 130


def risks(count):
    table = plan_collusion(100, 25, [15], graphs=count, seed=1)
    return {risk.masks: risk for risk in table}


def test_the_papers_figure():
    """15 adversaries, s = 9: 1.45 % in the paper; four standard deviations at 6,000 graphs are 0.62 %."""
    found = risks(6000)
    assert found[9].paper.value == pytest.approx(0.0145, abs=0.0062)
    assert found[9].at_least.value > 0.99  # while nearly every graph has two sums that can be subtracted
    values = [
        [getattr(found[s], name).value for s in sorted(found)] for name in ("paper", "at_least", "at_most")
    ]
    for row in values:
        assert row == sorted(row, reverse=True)
    assert (np.array(values[0]) <= values[1]).all()
    assert (np.array(values[1]) <= values[2]).all()


@pytest.mark.slow
def test_the_papers_figure_with_as_many_graphs():
    found = risks(250_000)
    assert found[9].paper.value == pytest.approx(0.0145, abs=0.002)
    assert all(found[s].paper.hits == 0 for s in range(13, 25))


def test_intervals():
    assert Estimate(hits=0, trials=250_000).interval == pytest.approx((0, 1.54e-5), abs=1e-6)
    assert Estimate(hits=50, trials=50).interval[1] == 1
    low, high = Estimate(hits=3625, trials=250_000).interval
    assert low < 0.0145 < high


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((10, 3, [10]), "between 1 and 9"),
        ((9, 3, [2]), "no 3-regular graph of 9"),
        ((60, 5, [30]), "up to 21 adversaries"),
        ((10, 12, [2]), "below the number of nodes"),
    ],
)
def test_impossible_risks(arguments, message):
    with pytest.raises(ConfigError, match=message):
        plan_collusion(*arguments, graphs=16)
