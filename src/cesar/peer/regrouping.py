"""Edges and groups where neighbours change, and what sums before and after the change give away together.

A receiver whose neighbours stay the same keeps its groups. One that gets or loses a neighbour needs new ones, and it has
seen the old sums: the totals before and after differ by whoever came or went, which no draw can help, and an
unlucky draw gives others away, too. So several are tried, and the one that exposes least is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import networkx as nx

from cesar.errors import ConfigError
from cesar.grouping import Group, check_plan, coalitions, divide, exposed, groups, plan
from cesar.peer.member import Member
from cesar.peer.roster import Roster
from cesar.topology import Owners, parties
from cesar.types import NodeId

TRIES = 24
"""How many divisions of a receiver's neighbours are compared."""

PASSES = 3
"""How often all receivers with new groups are gone through, where colluders still learn something."""

Edge = tuple[int, int]
Table = dict[NodeId, tuple[Group, ...]]


@dataclass(frozen=True, slots=True)
class Leak:
    """Nodes that can compute another's value once they hold the sums before and after a change."""

    coalition: tuple[NodeId, ...]
    node: NodeId


def told(leaks: Iterable[Leak], name: Callable[[NodeId], str]) -> list[str]:
    """In words; `name` says what a node is called."""
    alone: dict[NodeId, list[str]] = {}
    together = []
    for leak in leaks:
        who = list(map(name, leak.coalition))
        if len(who) == 1:
            alone.setdefault(leak.node, []).extend(who)
        else:
            together.append((f"{' and '.join(who)} together can", leak.node))
    each = [(f"{', '.join(who)} can{' each' if len(who) > 1 else ''}", node) for node, who in alone.items()]
    return [
        f"after this change {who} compute {name(node)}'s value from sums before and after"
        for who, node in (*each, *together)
    ]


def first_draws(
    graph: nx.Graph, group_size: int, collusion: int | None, network: bytes, owners: Owners
) -> dict[int, int]:
    """The draws of a new network.

    Raises:
        PrivacyError: no draw stops the colluders, or a node has too few neighbours.
    """
    groups(graph, group_size, network=network)
    if collusion is None and not owners:
        return {}
    return plan(graph, group_size, collusion or 1, network=network, owners=owners)


def redraw(
    before: Roster, graph: nx.Graph, group_size: int, collusion: int | None, owners: Owners
) -> tuple[dict[int, int], tuple[Leak, ...]]:
    """The draws of a network whose graph changes, and what old and new sums together give away.

    Args:
        before: the roster that holds until now, with groups of the same size.
        owners: of the nodes from now on.

    Raises:
        PrivacyError: a node has too few neighbours, or no draw was found that stops the colluders.
    """
    network = before.network_id
    same = {r for r in graph if r in before.graph and set(graph[r]) == set(before.graph[r])}
    draws = {r: draw for r, draw in before.draws.items() if r in same}
    table = groups(graph, group_size, network=network, draws=draws)
    both = nx.compose(before.graph, graph)
    everybody = {**before.owners, **owners}
    known = parties(both, everybody)
    known += [one for one in coalitions(both, collusion or 1, everybody) if one not in known]
    for _ in range(PASSES):
        for r in sorted(set(graph) - same):
            near = [one for one in known if r in one]
            draws[r] = _best(r, graph, group_size, network, (table, before.groups), near)
            table[NodeId(r)] = _divided(r, graph, group_size, network, draws[r])
        if not _leaks(table, known):
            break
    if collusion is not None or owners:
        check_plan(graph, table, collusion or 1, owners)
    return {r: draw for r, draw in draws.items() if draw}, _least(
        _leaks(_joined(before.groups, table), known)
    )


def _best(
    r: int,
    graph: nx.Graph,
    group_size: int,
    network: bytes,
    tables: tuple[Table, Mapping[NodeId, tuple[Group, ...]]],
    near: list[frozenset[int]],
) -> int:
    """The draw with which those who know r's sums learn least: first from the new groups alone, then with the old."""
    table, old = tables

    def score(draw: int) -> tuple[int, int]:
        tried = {**table, NodeId(r): _divided(r, graph, group_size, network, draw)}
        return len(_leaks(tried, near)), len(_leaks(_joined(old, tried), near))

    return min(range(TRIES), key=score)


def _divided(r: int, graph: nx.Graph, group_size: int, network: bytes, draw: int) -> tuple[Group, ...]:
    return divide(network, NodeId(r), tuple(sorted(map(NodeId, graph[r]))), group_size, draw)


def _joined(old: Mapping[NodeId, tuple[Group, ...]], new: Mapping[NodeId, tuple[Group, ...]]) -> Table:
    """All sums that a receiver has seen."""
    return {
        r: tuple(dict.fromkeys((*old.get(r, ()), *new.get(r, ())))) for r in sorted(old.keys() | new.keys())
    }


def _leaks(table: Table, known: Iterable[frozenset[int]]) -> list[Leak]:
    return [
        Leak(tuple(NodeId(a) for a in sorted(one)), NodeId(node))
        for one in known
        for node in sorted(exposed(table, one))
    ]


def _least(leaks: list[Leak]) -> tuple[Leak, ...]:
    """Without what follows from others: whoever joins those who know already."""
    by_node: dict[NodeId, list[set[NodeId]]] = {}
    kept = []
    for leak in sorted(leaks, key=lambda leak: len(leak.coalition)):
        smaller = by_node.setdefault(leak.node, [])
        if not any(one <= set(leak.coalition) for one in smaller):
            smaller.append(set(leak.coalition))
            kept.append(leak)
    return tuple(kept)


def missing_edges(graph: nx.Graph, members: Mapping[NodeId, Member], least: int) -> list[Edge]:
    """Edges that make the graph connected and give every node `least` neighbours, between nodes with few.

    Raises:
        ConfigError: there are too few nodes, or too few with an address.
    """
    graph = nx.Graph(graph)
    added: list[Edge] = []
    while True:
        parts = sorted(nx.connected_components(graph), key=min)
        poor = min(graph, key=lambda i: (graph.degree[i], i), default=None)
        if len(parts) > 1:
            pairs = product(parts[0], set().union(*parts[1:]))
        elif poor is not None and graph.degree[poor] < least:
            pairs = product([poor], set(graph) - {poor, *graph[poor]})
        else:
            return added
        usable = [(i, j) for i, j in pairs if members[i].address or members[j].address]
        if not usable:
            raise ConfigError(
                f"no edges can give each of the {len(graph)} peers that remain {least} neighbours, one of each two "
                "with an address; add a peer first, or give one an address"
            )
        i, j = min(usable, key=lambda pair: (sum(graph.degree[k] for k in pair), sorted(pair)))
        graph.add_edge(i, j)
        added.append((min(i, j), max(i, j)))
