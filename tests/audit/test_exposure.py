"""The audit against brute force, the counterexample to the paper, and strict mode on hundreds of random graphs."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cesar
from cesar.audit import Exchange, audit
from cesar.audit.exchange import draw_patterns
from cesar.audit.exposure import Finding
from cesar.audit.statement import sentence
from cesar.base.errors import ConfigError, PrivacyError
from cesar.graph.neighbourhood import overlaps, strict_requirement
from cesar.kernels import linear
from support.harness import random_graph

R1, R2, I, A, B = range(5)
BAD_GRAPH = nx.Graph([(R1, I), (R1, A), (R1, R2), (R2, I), (R2, A), (R2, B), (I, B), (A, B)])


def rank(rows):
    """Over the rationals, by plain elimination."""
    rows, found = [list(map(Fraction, row)) for row in rows], 0
    for c in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(found, len(rows)) if rows[i][c]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for i in range(found + 1, len(rows)):
            factor = rows[i][c] / rows[found][c]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[found], strict=True)]
        found += 1
    return found


def read_by_definition(graph, selects, s, coalition):
    """Whose unit vector lies in the span of the sums that the coalition receives, without its own values."""
    sums = []
    for r in coalition:
        contributors = {i for i in graph[r] if selects[i]}
        if len(contributors) > s:
            sums.append([int(i in contributors and i not in coalition) for i in sorted(graph)])
    return {
        b
        for b in set(graph) - set(coalition)
        if rank([*sums, [int(i == b) for i in sorted(graph)]]) == rank(sums) > 0
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_against_the_definition(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 4, 9)
    s, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    flags = rng.random((len(graph), 6)) < rng.uniform(0.3, 1)
    exchange = Exchange.complete(graph, flags, s)
    report = audit(exchange, k, top=10_000)
    by_coalition = {finding.coalition: finding for finding in report.findings}
    most = np.zeros(len(graph))
    for size in range(1, k + 1):
        for coalition in combinations(range(len(graph)), size):
            read = [read_by_definition(graph, flags[:, p], s, coalition) for p in range(6)]
            finding = by_coalition.get(coalition)
            victims = {b: sum(b in some for some in read) / 6 for b in set().union(*read)}
            assert (finding.victims if finding else {}) == pytest.approx(victims)
            assert (finding.fraction if finding else 0) == pytest.approx(sum(map(bool, read)) / 6)
            for b, fraction in victims.items():
                most[b] = max(most[b], fraction)
    assert report.read == pytest.approx(most)


def test_owners_are_tried_with_all_their_nodes():
    rng = np.random.default_rng(5)
    graph = nx.random_regular_graph(4, 9, seed=5)
    flags = rng.random((9, 30)) < 0.6
    exchange = Exchange.complete(graph, flags, 1)
    single = {finding.coalition: finding for finding in audit(exchange, 3, top=10_000).findings}
    owners = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}
    report = audit(exchange, 1, owners=owners, top=10_000)
    assert [(tested.size, tested.possible) for tested in report.sizes] == [(1, 6)]
    assert {finding.coalition for finding in report.findings} == {(0, 1), (2, 3, 4)}
    for finding in report.findings:
        assert finding.victims == single[finding.coalition].victims


def test_the_counterexample_in_words():
    exchange = Exchange.complete(BAD_GRAPH, np.ones((5, 1), dtype=bool), 2)
    report = audit(exchange, 2)
    words = "nodes 0 and 1 together: the sum at 1 minus the sum at 0 leaves node 4, at 100 % of the positions"
    assert sentence(report.findings[0]) == words
    assert report.exhaustive
    assert [(t.size, t.exposing) for t in report.sizes] == [(1, 0), (2, 4)]
    with pytest.raises(PrivacyError, match="would never receive anything"):
        cesar.Cesar(sparsifier=cesar.TopK(1.0), collusion=2).for_graph(BAD_GRAPH)


def in_words(coalition, victim, way, reached):
    return sentence(
        Finding(coalition=coalition, fraction=reached, victims={}, victim=victim, way=way, reached=reached)
    )


def test_sentences():
    assert in_words((3,), 5, ((3, Fraction(1)),), 0.0654).endswith(
        "sum at 3 holds only node 5's, at 6.54 % of the positions"
    )
    way = ((1, Fraction(-1, 2)), (2, Fraction(1, 2)), (4, Fraction(3, 2)))
    expected = "nodes 1, 2 and 4 together: the sum at 2 plus 3 times the sum at 4 minus the sum at 1 leaves 2 times node 9, "
    assert in_words((1, 2, 4), 9, way, 1.0) == expected + "at 100 % of the positions"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_prime_agrees_with_fractions(seed):
    """Up to 21 rows, dense and sparse."""
    rng = np.random.default_rng(seed)
    count, columns = int(rng.integers(1, linear.MOST_ROWS + 1)), int(rng.integers(1, 26))
    matrix = rng.random((count, columns)) < rng.uniform(0.1, 0.9)
    basis = np.zeros((linear.MOST_ROWS + 1, columns), dtype=np.int64)
    pivots, size = np.zeros(linear.MOST_ROWS + 1, dtype=np.int64), 0
    for row in matrix:
        basis[size] = row
        size = linear.insert(basis, pivots, size, columns)
    units = {int(pivots[k]) for k in range(size) if linear.is_unit(basis[k], pivots[k], columns)}
    sums = [frozenset(np.flatnonzero(row).tolist()) for row in matrix]
    solved = linear.solve(sums)
    assert solved.keys() == units
    for node, factors in solved.items():
        total = sum(
            (f * row.astype(int) for f, row in zip(factors, matrix, strict=True)),
            np.zeros(columns, dtype=int),
        )
        assert total.tolist() == [int(c == node) for c in range(columns)]
    assert size == rank(matrix.astype(int).tolist())


@pytest.mark.parametrize("leaks", [False, True])
def test_more_sums_than_the_prime_vouches_for(leaks):
    """Two receivers whose neighbours agreed in pairs only have 48 sums, which takes fractions. Where one of them
    got a sum of three instead of two pairs, the third follows, and its partner.
    """
    pairs = 24
    graph = nx.Graph((hub, 2 + i) for hub in range(2) for i in range(2 * pairs))
    exchange = Exchange.complete(graph, np.ones((len(graph), 1), dtype=bool), 1)
    carried = np.zeros_like(exchange.carried)
    for a in range(0, 2 * pairs, 2):
        carried[:2, a, a + 1] = carried[:2, a + 1, a] = True
    if leaks:
        carried[0, 2, 3] = carried[0, 3, 2] = False
        carried[0, 0, 2] = carried[0, 2, 0] = True
    split = replace(exchange, carried=carried, matched=carried)
    assert len(split.sums((0, 1), 0)) == 2 * pairs - leaks
    findings = {finding.coalition: finding for finding in audit(split, 2, top=10_000).findings}
    assert ((0, 1) in findings) == leaks
    if leaks:
        assert findings[0, 1].victims == {4: 1.0, 5: 1.0}


def test_samples_where_there_are_too_many_coalitions():
    graph = nx.random_regular_graph(6, 30, seed=3)
    exchange = Exchange.complete(graph, draw_patterns(30, 60, 0.5, 1), 2)
    whole, part = audit(exchange, 3), audit(exchange, 3, limit=500, seed=1)
    assert whole.exhaustive
    assert not part.exhaustive
    assert [t.possible for t in part.sizes] == [30, 435, 4060]
    assert part.sizes[1] == whole.sizes[1]
    assert 500 <= part.sizes[2].tested < 4060
    assert part.worst == whole.worst  # found by growing the worst pairs, though few triples were drawn


@pytest.mark.parametrize("k, message", [(5, "nobody to protect"), (0, "at least 1")])
def test_impossible_coalitions(k, message):
    with pytest.raises(ConfigError, match=message):
        audit(Exchange.complete(BAD_GRAPH, np.ones((5, 1), dtype=bool), 2), k)


# ── strict mode ─────────────────────────────────────────────────────────────────────────────────────────


def witness(graph, s):
    """A selection at which two receivers whose neighbourhoods overlap in more than s read somebody, if any."""
    shared = overlaps(graph)
    for r, other in np.argwhere(shared > s).tolist():
        further = set(graph[other]) - set(graph[r]) - {r}
        if further:
            chosen = (set(graph[r]) & set(graph[other])) | {r, other, min(further)}
            return np.array([[i in chosen] for i in sorted(graph)])
    return None


def strict_case(rng, most_nodes):
    """A random regular graph on which the strict s leaves something to share, and k."""
    while True:
        n, degree, k = int(rng.integers(8, most_nodes + 1)), int(rng.integers(3, 13)), int(rng.integers(2, 4))
        if degree >= n or n * degree % 2:
            continue
        graph = nx.random_regular_graph(degree, n, seed=int(rng.integers(2**31)))
        if nx.is_connected(graph) and strict_requirement(graph, k) < degree:
            return graph, k


def check_strict_mode(graphs, most_nodes, patterns):
    rng = np.random.default_rng(2026)
    shared = violating = exposed = 0
    for _ in range(graphs):
        graph, k = strict_case(rng, most_nodes)
        alphas = rng.choice([0.3, 0.45, 0.6, 0.8, 0.95, 1.0], size=2, replace=False)
        flags = np.concatenate(
            [draw_patterns(len(graph), patterns, alpha, int(rng.integers(2**31))) for alpha in alphas], axis=1
        )
        safe = strict_requirement(graph, k)
        seen = witness(graph, k)
        if seen is not None:
            flags = np.concatenate([flags, seen], axis=1)
        strict = Exchange.complete(graph, flags, safe)
        shared += bool(strict.kept().any())
        report = audit(strict, k)
        assert report.exhaustive
        assert not report.exposed, (sorted(graph.edges), k, safe, sentence(report.findings[0]))
        if safe > k:
            weak = audit(Exchange.complete(graph, flags, k), 2)
            violating += 1
            exposed += weak.exposed
            assert weak.exposed == (seen is not None) or seen is None
    assert shared > 0.9 * graphs  # nothing is safe merely because nothing was sent
    assert violating > 0.5 * graphs
    assert exposed > 0.5 * violating


def test_strict_mode_on_random_graphs():
    check_strict_mode(graphs=20, most_nodes=26, patterns=20)


@pytest.mark.slow
def test_strict_mode_on_200_random_graphs():
    check_strict_mode(graphs=200, most_nodes=60, patterns=50)


@pytest.mark.parametrize("seed", range(6))
def test_one_mask_less_leaks(seed):
    """For two colluders the condition is tight wherever the other receiver has a neighbour of its own."""
    graph = nx.random_regular_graph(6, 40, seed=seed)
    s = strict_requirement(graph, 2) - 1
    flags = witness(graph, s)
    assert flags is not None
    assert s >= 2
    assert audit(Exchange.complete(graph, flags, s), 2).exposed
    assert not audit(Exchange.complete(graph, flags, s + 1), 2).exposed
