"""Who is next to whom: what one node may know of the graph, and the checks on the graph as a whole."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError, PrivacyError
from cesar.base.types import NodeId
from cesar.crypto.keys import RoundId

View = tuple[NodeId, ...]
"""Neighbours of a node, ascending: the order in which bitmaps over them are written."""

Owners = Mapping[int, str]
"""Node → who runs it. The nodes of an owner pool what they know; a node that is not listed is its own."""


@dataclass(frozen=True)
class Neighbourhood:
    """All that a node knows of this round's aggregation graph: its neighbours and their neighbours.

    Attributes:
        node: whose neighbourhood this is.
        views: View(r) for each neighbour r.
    """

    node: NodeId
    views: Mapping[NodeId, View]

    @cached_property
    def view(self) -> View:
        """View(i): the direct neighbours."""
        return tuple(sorted(self.views))

    @cached_property
    def view2(self) -> View:
        """View2(i): the neighbours' neighbours, which may include direct neighbours, without i."""
        return tuple(sorted({j for view in self.views.values() for j in view} - {self.node}))

    @cached_property
    def _candidates(self) -> dict[tuple[NodeId, NodeId], View]:
        """The common neighbours of each pair that needs a relay, as far as it concerns this node: pairs
        of its neighbours, and itself with the nodes two steps away.
        """
        table = {
            (i, j): tuple(sorted(set(self.views[i]) & set(self.views[j])))
            for i, j in combinations(self.view, 2)
            if j not in self.views[i]
        }
        for j in set(self.view2) - set(self.view):
            pair = (min(self.node, j), max(self.node, j))
            table[pair] = tuple(r for r in self.view if j in self.views[r])
        return table

    def relay(self, i: NodeId, j: NodeId, round_id: RoundId) -> NodeId | None:
        """The common neighbour that relays between i and j in this round; None if they are neighbours.

        A hash spreads the load over the common neighbours; everybody who needs to know computes the same.
        """
        low, high = min(i, j), max(i, j)
        candidates = self._candidates.get((low, high))
        if candidates is None:
            return None
        if len(candidates) == 1:
            return candidates[0]
        label = round_id.session + struct.pack("<III", round_id.round_, low, high)
        digest = hashlib.sha256(b"cesar relay" + label).digest()
        return candidates[int.from_bytes(digest[:8], "little") % len(candidates)]


def neighbourhoods(graph: nx.Graph, nodes: Iterable[int] | None = None) -> dict[NodeId, Neighbourhood]:
    """What each node of a (checked) graph may know, or each of some nodes."""
    views = {NodeId(i): tuple(sorted(NodeId(j) for j in graph[i])) for i in graph}
    wanted = views if nodes is None else map(NodeId, nodes)
    return {i: Neighbourhood(i, {r: views[r] for r in views[i]}) for i in wanted}


def mean_degree(graph: nx.Graph) -> int:
    """δ, the neighbours of a node on average, from which α follows."""
    return round(2 * int(graph.number_of_edges()) / len(graph))


def check_graph(graph: nx.Graph, nodes: int) -> None:
    """Refuse a graph on which nothing sensible can be averaged, or whose nodes are not 0 to `nodes` - 1.

    Raises:
        ConfigError: says what is wrong with the graph and how to mend it.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise ConfigError("the graph must be undirected and simple: pass networkx.Graph(graph)")
    if set(graph) != set(range(nodes)):
        raise ConfigError(
            f"the graph's nodes must be exactly 0..{nodes - 1}, one per row of the vectors; "
            "networkx.convert_node_labels_to_integers(graph) renames them"
        )
    check_shape(graph)


def check_shape(graph: nx.Graph) -> None:
    """Refuse a simple graph, whatever its nodes are called, on which nothing sensible can be averaged."""
    if len(graph) < 2:
        raise ConfigError("a network needs at least two nodes; one node has nobody to average with")
    loops = list(nx.nodes_with_selfloops(graph))
    if loops:
        raise ConfigError(f"node {loops[0]} is its own neighbour; remove self-loops from the graph")
    if not nx.is_connected(graph):
        parts = nx.number_connected_components(graph)
        raise ConfigError(f"the graph falls into {parts} parts; connect them, or run each part by itself")


def overlaps(graph: nx.Graph) -> NDArray[np.int64]:
    """(n, n): for two receivers, their common neighbours, and one more if they are adjacent; 0 for one node
    with itself. It is what the sums of two colluders can have in common.
    """
    adjacent = nx.to_numpy_array(graph, nodelist=sorted(graph), dtype=np.int64)
    found: NDArray[np.int64] = adjacent @ adjacent + adjacent
    np.fill_diagonal(found, 0)
    return found


def parties(nodes: Iterable[int], owners: Owners | None = None) -> list[frozenset[int]]:
    """The nodes that each owner has, ordered by the lowest of them.

    >>> [sorted(party) for party in parties(range(4), {0: "hospital", 2: "hospital"})]
    [[0, 2], [1], [3]]
    """
    found: dict[object, set[int]] = {}
    for node in sorted(nodes):
        found.setdefault((owners or {}).get(node, node), set()).add(node)
    return [frozenset(party) for party in found.values()]


def strict_requirement(graph: nx.Graph, collusion: int, owners: Owners | None = None) -> int:
    """The smallest s that provably keeps single values from any `collusion` owners that pool what they know.

    With k colluders of one node each: max(k, max over r of the sum of the k − 1 largest overlaps of r). With owners: the
    same over all nodes that r's owner and the k − 1 worst others have. The proof stands in
    docs/privacy.md; it holds for every selection, and when some pairs failed to agree on a mask.

    >>> strict_requirement(nx.cycle_graph(5), 2), strict_requirement(nx.complete_graph(6), 2)
    (2, 5)
    >>> strict_requirement(nx.complete_graph(6), 1, {0: "hospital", 1: "hospital"})
    5

    Raises:
        ConfigError: there cannot be that many colluders.
    """
    owned = parties(graph, owners)
    check_collusion(collusion, len(owned), "owners" if owners else "nodes")
    row = {name: k for k, name in enumerate(sorted(graph))}
    rows = [[row[node] for node in party] for party in owned]
    shared = overlaps(graph)
    joint = np.stack([shared[:, party].sum(axis=1) for party in rows], axis=1)
    own = np.zeros(len(graph), dtype=np.int64)
    for k, party in enumerate(rows):
        own[party], joint[party, k] = joint[party, k], 0
    others = np.sort(joint, axis=1)[:, len(owned) - collusion + 1 :].sum(axis=1)
    most = sum(sorted(map(len, owned))[-collusion:])
    return max(most, int((own + others).max()))


def check_collusion(collusion: int, parties: int, what: str = "nodes") -> None:
    """Refuse a number of colluders that makes no sense.

    Raises:
        ConfigError: below 1, or nobody would be left to protect.
    """
    if not isinstance(collusion, int) or collusion < 1:
        raise ConfigError(f"collusion is {collusion}, but it must be an integer of at least 1")
    if collusion >= parties:
        raise ConfigError(
            f"{collusion} colluders among {parties} {what} leave nobody to protect; "
            f"collusion can be at most {parties - 1}"
        )


def check_strict(
    graph: nx.Graph, collusion: int, masking_requirement: int, owners: Owners | None = None
) -> None:
    """Refuse s that colluders could get around, and a graph on which a safe s leaves nothing to share.

    Raises:
        PrivacyError: names the receivers that are too close to each other, and the remedy.
    """
    safe = strict_requirement(graph, collusion, owners)
    if masking_requirement < safe and owners:
        raise PrivacyError(
            f"masking_requirement={masking_requirement} does not stop {collusion} owner(s) on this graph, where it takes "
            f"{safe}: {_largest(graph, owners)}. Use cells, or let collusion = {collusion} take "
            "masking_requirement from the graph"
        )
    if masking_requirement < safe:
        raise PrivacyError(
            f"masking_requirement={masking_requirement} does not stop {collusion} colluders on this graph, which "
            f"needs {safe} ({_closest(graph, collusion)}); leave masking_requirement out, or change the graph: "
            f"`cesar plan topology --collusion {collusion}` makes graphs on which {collusion} is enough"
        )
    poor = sorted(i for i in graph if graph.degree[i] <= masking_requirement)
    if poor:
        raise PrivacyError(
            f"on this graph {collusion} colluders are only stopped by {masking_requirement} masks "
            f"({_largest(graph, owners) if owners else _closest(graph, collusion)}), but node {poor[0]} has {graph.degree[poor[0]]} neighbour(s) and would "
            "never receive anything. Use more nodes, another degree, or a graph whose neighbourhoods overlap "
            f"less: `cesar plan topology --collusion {collusion}` makes one"
        )


def _largest(graph: nx.Graph, owners: Owners) -> str:
    """The owner with most nodes, in words."""
    party = max(parties(graph, owners), key=len)
    nodes = sorted(party)
    return f"{owners.get(nodes[0], f'node {nodes[0]}')} has node(s) {', '.join(map(str, nodes))}, which know one another's sums"


def _closest(graph: nx.Graph, collusion: int) -> str:
    """The receiver whose sum has most in common with the sums of others, in words."""
    if collusion == 1:
        return "every value needs a mask"
    shared, names = overlaps(graph), sorted(graph)
    order = np.argsort(shared, axis=1, kind="stable")[:, ::-1][:, : collusion - 1]
    row = int(np.argmax(np.take_along_axis(shared, order, axis=1).sum(axis=1)))
    others = ", ".join(
        f"node {names[k]} ({int(shared[row, k])})" for k in sorted(order[row].tolist()) if shared[row, k]
    )
    return f"the neighbourhood of node {names[row]} overlaps with that of {others}"


def check_degrees(graph: nx.Graph, masking_requirement: int) -> None:
    """Refuse a receiver whose neighbours could never mask one another.

    Raises:
        PrivacyError: some node has too few neighbours for s.
    """
    poor = sorted(i for i in graph if graph.degree[i] <= masking_requirement)
    if poor:
        raise PrivacyError(
            f"node {poor[0]} has {graph.degree[poor[0]]} neighbour(s), but with masking_requirement="
            f"{masking_requirement} every receiver needs at least {masking_requirement + 1}; nothing was sent. "
            f"Add edges at node(s) {', '.join(map(str, poor[:5]))} or lower masking_requirement."
        )
