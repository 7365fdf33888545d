"""Fixed groups over many rounds: whole sums only, always the same groups, and what absence does."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.errors import LocalProtocolError, PrivacyError
from cesar.grouping import groups
from cesar.node import Node
from support.harness import Case

SPARSIFIERS = [cesar.RandomSubsampling(0.4), cesar.TopK(0.3), cesar.FullSharing()]
POINTS = ("before_announce", "after_announce", "after_coordination", "during_share")


def means_of_whole_groups(models: np.ndarray, r: int, table: dict) -> np.ndarray:
    """(k,): what node r may hold: the mean of its own value and all values of some of its groups."""
    chosen = [one for k in range(len(table[r]) + 1) for one in combinations(table[r], k)]
    return np.array(
        [models[[r, *(i for group in one for i in group)], 0].mean(dtype=np.float64) for one in chosen]
    )


@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda one: one.name)
def test_many_rounds_have_whole_groups_in_their_sums_and_nothing_else(sparsifier, rounds):
    """With crashes at any point in every round; runs with other seeds (other sessions) use the same groups."""
    graph, size = nx.random_regular_graph(5, 10, seed=2), 70
    method = cesar.Cesar(sparsifier=sparsifier, group_size=2)
    table = groups(graph, 2)
    rng, seen = np.random.default_rng(3), {r: set() for r in graph}
    models = np.repeat(rng.uniform(1, 100, (10, 1)), size, axis=1).astype(np.float32)
    allowed = {r: means_of_whole_groups(models, r, table) for r in graph}
    for seed in range(4):
        ensemble = cesar.Ensemble(graph, method, size, seed=seed)
        assert ensemble.groups == table
        for _ in range(rounds // 4):
            crashed = rng.permutation(10)[: rng.integers(3)].tolist()
            crashes = {i: str(rng.choice(POINTS)) for i in crashed}
            reference = models * (1 + rng.random(models.shape)).astype(np.float32)
            after = ensemble.round(models, reference=reference, crashes=crashes).vectors
            for r in set(graph) - set(crashed):
                away = np.abs(after[r][:, None] - allowed[r])
                assert away.min(axis=1).max() < 1e-4, (seed, r, crashes)
                seen[r] |= set(away.argmin(axis=1).tolist())
        ensemble.close()
    assert all(len(found) >= 3 for found in seen.values()), "different groups were heard"


def begin(table, group_size=2):
    """Node 0 of a ring with chords begins a round with these groups."""
    graph = nx.circulant_graph(6, [1, 2])
    method = cesar.Cesar(sparsifier=cesar.TopK(0.5), group_size=group_size, groups=table)
    case = Case(graph=graph, method=method, vectors=np.ones((6, 8), dtype=np.float32))
    node = Node(0, method, 8, session=case.session, keys=case.keys(case.session, 0))
    case.begin(node)
    return list(node.outbound())


def test_groups_that_do_not_fit_are_refused():
    graph = nx.circulant_graph(6, [1, 2])
    right = groups(graph, 2)
    assert begin(right)
    with pytest.raises(LocalProtocolError, match=r"for_graph\(graph\)"):
        begin(None)
    for wrong in (
        {r: found for r, found in right.items() if r != 2},
        right | {2: right[2][:1]},
        right | {2: (*right[2], (5,))},
        groups(nx.complete_graph(6), 2),
    ):
        with pytest.raises(LocalProtocolError, match="another graph"):
            begin(wrong)
    for r in (0, 2):  # its own groups, and those of a receiver next to it
        small = right | {r: (right[r][0][:1], (*right[r][0][1:], *right[r][1]))}
        with pytest.raises(PrivacyError, match=f"a group of node {r} has fewer than 2"):
            begin(small)
    with pytest.raises(PrivacyError, match="fewer than 3"):
        begin(right, group_size=3)
