"""Fixed groups over many rounds: whole sums only, always the same groups, and what absence does."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.errors import LocalProtocolError, PrivacyError
from cesar.grouping import groups
from cesar.node import Node
from cesar.sim.wires import Wires
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
    method = cesar.Cesar(sparsifier=sparsifier, group_size=2, ring_bits=32)
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


# ── members that leave and come back ────────────────────────────────────────────────────────────────────


def sums_over_time(method, graph, away, rounds, *, size=8):
    """(round, receiver, group) → who was in the sum; `away` says who is cut off in a round."""
    vectors = np.random.default_rng(1).normal(size=(len(graph), size)).astype(np.float32)
    case = Case(graph=graph, method=method, vectors=vectors)
    nodes, found = {i: case.node(i) for i in graph}, {}
    for round_ in range(rounds):
        gone = away(round_)
        for node in nodes.values():
            replace(case, round_=round_, seed=round_).begin(node)
        outcomes = Wires(nodes, arrives=lambda i, j, _, gone=gone: not {i, j} & gone).run()
        for r in set(graph) - gone:
            for group in case.settled.groups[r]:
                members = tuple(node for node in group if node in outcomes[r].contributors)
                if members:
                    found[round_, r, group] = members
    return case.settled.groups, found


def groups_heard(table, *, without):
    """(receiver, group), but for one receiver."""
    return [(r, group) for r, found in table.items() if r != without for group in found]


def test_without_regrouping_a_group_waits_for_ever_and_goes_on_at_once():
    graph, method = nx.complete_graph(7), cesar.SecureAggregation(group_size=3)
    table, found = sums_over_time(method, graph, lambda t: {2} if 2 <= t < 9 else set(), 12)
    for r, group in groups_heard(table, without=2):
        expected = [t for t in range(12) if 2 not in group or not 2 <= t < 9]
        assert [t for t in range(12) if (t, r, group) in found] == expected
    assert all(members == group for (_, _, group), members in found.items())


def test_a_group_goes_on_without_a_member_after_a_pause_and_with_it_after_another():
    """Sums until round 1; node 2 is away from 2 to 9. With N = 4 the rest goes on in round 5, and all again in 13."""
    graph, method = nx.complete_graph(7), cesar.SecureAggregation(group_size=3, regroup_after=4)
    table, found = sums_over_time(method, graph, lambda t: {2} if 2 <= t < 10 else set(), 16)
    for r, group in groups_heard(table, without=2):
        if 2 not in group:
            continue
        heard = {t: found[t, r, group] for t in range(16) if (t, r, group) in found}
        rest = tuple(node for node in group if node != 2)
        assert heard == dict.fromkeys((0, 1, 13, 14, 15), group) | dict.fromkeys(range(5, 10), rest)


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_sums_with_different_members_are_apart(after):
    """Nodes come and go as they like; nobody is left with fewer than two."""
    graph, rounds, changes = nx.random_regular_graph(6, 9, seed=1), 40, 0
    for seed in range(3):
        rng = np.random.default_rng([after, seed])
        sparsifier = SPARSIFIERS[seed]
        method = cesar.Cesar(sparsifier=sparsifier, group_size=3, regroup_after=after)
        leave, plan = rng.random((rounds, 9)) < 0.12, np.zeros((rounds, 9), dtype=bool)
        for t, i in np.argwhere(leave):
            plan[t : t + 1 + rng.integers(3 * after), i] = True
        _, found = sums_over_time(
            method, graph, lambda t, plan=plan: set(np.flatnonzero(plan[t]).tolist()), rounds
        )
        last = {}
        for (t, r, group), members in sorted(found.items()):
            assert len(members) >= 2
            before, then = last.get((r, group), (t, members))
            assert members == then or t - before >= after, (r, group, before, t)
            changes += members != then
            last[r, group] = (t, members)
    assert changes > 10


def test_colluders_are_counted_in_what_is_left_of_a_group():
    graph = nx.random_regular_graph(6, 48, seed=5)
    method = cesar.SecureAggregation(group_size=3, collusion=2, regroup_after=2)
    _, found = sums_over_time(method, graph, lambda t: {4} if t > 1 else set(), 7)
    assert all(members == group for (_, _, group), members in found.items()), "two would not be enough"


def test_a_node_that_starts_does_not_believe_that_a_member_was_long_away():
    graph = nx.complete_graph(7)
    method = cesar.SecureAggregation(group_size=3, regroup_after=3)
    _, found = sums_over_time(method, graph, lambda t: {2}, 6)
    assert {t for (t, _, group) in found if 2 in group} == {3, 4, 5}
