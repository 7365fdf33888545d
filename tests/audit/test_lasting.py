"""The audit of fixed groups: against the ranks of every coalition, and on planned graphs."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from cesar.audit.lasting import GroupSubject, audit_groups
from cesar.errors import ConfigError
from cesar.grouping import groups, plan


def subject(graph, size=3, draws=None, **more):
    table = groups(graph, size, draws=draws)
    return GroupSubject(
        graph=graph, source="test", sparsifier="random", alpha=0.3, group_size=size, groups=table, **more
    )


def test_twenty_planned_graphs_expose_nobody_in_all_rounds():
    leaked = 0
    for seed in range(20):
        graph = nx.random_regular_graph(6, 48, seed=seed)
        leaked += audit_groups(subject(graph), 2).exposed
        found = audit_groups(subject(graph, draws=plan(graph, 3, 2)), 2)
        assert not found.exposed
        assert [row.possible for row in found.sizes] == [48, 1128]
    assert leaked > 5, "the first draws do leak"


def victims_by_rank(table, coalition):
    """Whose unit vector lies in the span of all sums of a coalition, which for so small matrices of 0 and 1 numpy decides well."""
    nodes = sorted(set(table) - set(coalition))
    rows = [[int(node in group) for node in nodes] for r in coalition for group in table[r]]
    rank = np.linalg.matrix_rank(rows)
    units = {node: [int(node == other) for other in nodes] for node in nodes}
    return {node for node, unit in units.items() if np.linalg.matrix_rank([*rows, unit]) == rank}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_overlooked(seed):
    graph = nx.random_regular_graph(4, 9, seed=seed)
    one = subject(graph, 2)
    read = set()
    for size in (1, 2, 3):
        for coalition in combinations(range(9), size):
            read |= victims_by_rank(one.groups, coalition)
    found = audit_groups(one, 3)
    assert found.victims == read
    for finding in found.findings:
        assert set(finding.victims) <= victims_by_rank(one.groups, finding.coalition)
    assert not any(row.exposing for row in found.sizes[:1])


@pytest.mark.parametrize("seed", range(3))
def test_owners_count_with_all_their_nodes(seed):
    graph = nx.random_regular_graph(4, 9, seed=seed)
    owners = {0: "hospital", 1: "hospital", 2: "hospital", 5: "clinic", 6: "clinic"}
    one = subject(graph, 2, owners=owners)
    found = audit_groups(one, 2)
    owned = [(0, 1, 2), (5, 6), (3,), (4,), (7,), (8,)]
    together = [*owned, *(a + b for a, b in combinations(owned, 2))]
    assert found.victims == set().union(*(victims_by_rank(one.groups, some) for some in together))
    assert [row.possible for row in found.sizes] == [6, 15]
    for finding in found.findings:
        if {0, 1, 2} <= set(finding.coalition):
            assert "hospital" in finding.sentence


def test_old_and_new_groups_are_taken_together():
    """Node 6 joins node 0: the totals differ by it, which no draw could help."""
    old = nx.Graph([(0, i) for i in range(1, 6)] + [(i, j) for i in range(1, 6) for j in range(i + 1, 6)])
    new = nx.Graph(old)
    new.add_edges_from([(6, 0), (6, 1), (6, 2)])
    found = audit_groups(subject(new, before=groups(old, 3), names={6: "clinic"}), 1)
    assert {finding.coalition for finding in found.findings} == {(0,), (1,), (2,)}
    assert found.victims == {6}
    assert found.findings[0].sentence.startswith("node 0 alone can compute node clinic's value: ")
    assert not audit_groups(subject(new), 1).exposed
    with pytest.raises(ConfigError, match="leave nobody to protect"):
        audit_groups(subject(new), 7)
