"""The rank test: from the engine's own frames, which single values follow from all that a coalition holds in all rounds.

Nobody trains here, so a round's values are combinations of the first ones, and sums of later rounds are further
equations about the same unknowns. The test finds the leak of every method in which the same values enter sum after sum:
secure aggregation among neighbours, and cells whose members keep models of their own. Fixed groups, which version 0.2
had, were found out in the same way (docs/design/020-fixed-groups-refuted.md). What cells
show is in test_rank_cells.py.
"""

from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.audit.transcript import Recorder
from cesar.sim.wires import Wires
from support.harness import Case
from support.rank import PRIME, Knowledge, Sum, contained, inverse, opened, rank, reduced, solved


def as_cesar(method):
    return method.masked


class Network:
    """Rounds of real nodes and frames without training, and what a coalition makes of the frames it gets.

    Args:
        lost: (round) → the frames that get lost in it, or are withheld.

    Attributes:
        unlike: how far the engine was from what the coefficients say, at most.

    """

    def __init__(self, graph, method, size, coalition, *, lost=lambda _: frozenset(), seed=1):
        draw = np.random.default_rng(seed)
        self.start = draw.uniform(-1, 1, size=(len(graph), size)).astype(np.float32)
        self.case = Case(graph=graph, method=method, vectors=self.start, seed=seed)
        self.method, self.lost = as_cesar(method), lost
        self.coalition = tuple(coalition)
        self.knowledge = Knowledge(len(graph), size, self.coalition)
        self.unlike = 0.0

    def run(self, rounds):
        for _ in range(rounds):
            self.round()
        return self

    def round(self):
        case = replace(self.case, lost=self.lost(self.case.round_))
        size, graph = case.vectors.shape[1], case.graph
        everybody = Recorder(graph, self.method)
        outcomes = Wires(
            case.nodes(), arrives=lambda i, j, f: case.arrives(i, j, f) and not everybody.see(i, j, f)
        ).run()
        transcripts = everybody.transcripts
        ours = {a: transcripts[a] for a in self.coalition}
        self.knowledge.hold(opened(ours, graph, self.method, size))
        self.knowledge.average(
            {r: opened({r: seen}, graph, self.method, size) for r, seen in transcripts.items()}
        )
        after = np.stack([outcomes[i].vector for i in sorted(outcomes)])
        self.unlike = max(self.unlike, self.off_from(after))
        self.case = replace(self.case, vectors=after, round_=case.round_ + 1)

    def off_from(self, after):
        """How far the engine's models are from what the coefficients say: the map is the engine's own."""
        return float(np.abs(np.einsum("pij,jp->ip", self.knowledge.factors, self.start) - after).max())

    def found(self):
        """(d, others): which single values of others are solved for."""
        others = [i for i in range(len(self.start)) if i not in self.coalition]
        return solved(self.knowledge.rows)[:, others]


# ── the arithmetic ──────────────────────────────────────────────────────────────────────────────────────


def exact_rank(rows):
    """By elimination over the rationals."""
    rows, result = [[Fraction(int(x)) for x in row] for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(result, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[result], rows[pivot] = rows[pivot], rows[result]
        for r in range(result + 1, len(rows)):
            factor = rows[r][column] / rows[result][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[result], strict=True)]
        result += 1
    return result


def test_ranks_and_solved_unknowns_are_those_of_exact_elimination():
    draw = np.random.default_rng(0)
    some = 0
    for _ in range(60):
        rows = draw.integers(-1, 2, size=(5, int(draw.integers(1, 7)), int(draw.integers(1, 6))))
        unit = np.eye(rows.shape[2], dtype=np.int64)
        expected = [exact_rank(one) for one in rows]
        assert rank(rows).tolist() == expected
        told = [[exact_rank([*one, e]) == r for e in unit] for one, r in zip(rows, expected, strict=True)]
        assert solved(rows).tolist() == told
        assert contained(rows, rows)
        some += np.sum(told)
    assert some > 50
    assert not contained(np.int64([[[0, 1]]]), np.int64([[[1, 0]]]))
    assert inverse(np.int64([3]))[0] * 3 % PRIME == 1
    assert reduced(np.int64([[[2, 4], [1, 3]]])).tolist() == [[[1, 0], [0, 1]]]


# ── leaks that it must find ─────────────────────────────────────────────────────────────────────────────


def test_sharing_everything_gives_every_node_away():
    """16 nodes with six neighbours each: after 15 rounds one node solves for all others."""
    graph, method = nx.random_regular_graph(6, 16, seed=1), cesar.SecureAggregation()
    network = Network(graph, method, 2, (0,)).run(14)
    assert not network.found().all()
    network.round()
    assert network.found().all()
    assert network.unlike < 1e-3


def silence(rng, graph, coalition, chance=0.1, selective=0.5):
    """Shares that get lost; and those of colluders that they keep from somebody they choose, the same in all rounds."""
    shunned = {(a, j) for a in coalition for j in graph[a] if rng.random() < selective}

    def lost(_):
        by_accident = {(i, j) for i in graph for j in graph[i] if rng.random() < chance}
        return frozenset(("share", i, j) for i, j in shunned | by_accident)

    return lost


def test_selective_silence_reads_a_node_that_honest_rounds_hide():
    """Four peers who share everything have the same mean after one round, for ever. If node 0 keeps
    its share from node 1, that one keeps its own value, and it is alone in not being the mean.
    """
    graph, method = nx.complete_graph(4), cesar.SecureAggregation()
    assert not Network(graph, method, 2, (0,)).run(8).found().any()
    lying = Network(graph, method, 2, (0,), lost=lambda _: frozenset({("share", 0, 1)})).run(2)
    assert lying.found().tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("cases", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_the_map_from_starting_values_is_the_engines_own(cases):
    """On random graphs, with losses and withheld shares: coefficients and engine agree on every model of every round, so
    what is solved for is solved for. On most of them something is.
    """
    leaks = 0
    for seed in range(cases):
        rng = np.random.default_rng(seed)
        nodes = int(rng.integers(8, 13))
        degree = int(rng.choice([4, 5, 6])) if nodes % 2 == 0 else int(rng.choice([4, 6]))
        graph = nx.random_regular_graph(degree, nodes, seed=seed)
        coalition = tuple(rng.choice(nodes, int(rng.integers(1, 3)), replace=False).tolist())
        lost = silence(rng, graph, coalition, chance=rng.choice([0.0, 0.02]), selective=0.2)
        network = Network(graph, cesar.SecureAggregation(), 2, coalition, lost=lost, seed=seed).run(15)
        assert network.unlike < 1e-5
        leaks += network.found().any()
    assert leaks > cases / 2


def cells_of_private_models(rng, cells, rounds, *, lossy):
    """A variant of cells as equations alone: members average their own models with the sums of cells that they hear. The
    coalition is given the sums of all cells, in all rounds, and has one member.
    """
    nodes = sum(map(len, cells))
    knowledge = Knowledge(nodes, 1, (0,))
    everywhere = np.ones(1, dtype=bool)
    for _ in range(rounds):
        sums = [Sum(cell, everywhere) for cell in cells]
        knowledge.hold(sums)
        knowledge.average(
            {i: [one for one in sums if not lossy or rng.random() > 0.2] for cell in cells for i in cell}
        )
    return knowledge


@pytest.mark.parametrize("lossy", [True, False])
def test_cells_of_private_models_leak_as_soon_as_messages_are_lost(lossy):
    """With equal weights a sum of a cell follows from sums of cells. With weights by what arrived it does not."""
    cells = [tuple(range(start, start + 4)) for start in range(0, 24, 4)]
    knowledge = cells_of_private_models(np.random.default_rng(1), cells, 40, lossy=lossy)
    unit = np.eye(24, dtype=np.int64)
    sums = np.stack([unit[list(cell)].sum(axis=0) for cell in cells] + [unit[0]])[None]
    found = solved(knowledge.rows)[0, 1:]
    assert found.all() if lossy else not found.any()
    assert contained(knowledge.rows, sums) is not lossy
