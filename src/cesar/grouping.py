"""Fixed groups: whose values a receiver sees added up, for all rounds together.

Every receiver r divides its neighbours once and for all into groups of at least m. A value only ever leaves its node
with the masks of all other members of its group on it, so r learns sums over whole groups, always the same groups.
They follow from public data alone (the network's name, r, its neighbours, a draw), so restarts, new runs and new
sessions of a network keep them.

*What a coalition can solve for.* At any position and over all rounds, a coalition A holds at most the sums over S∖A
for the groups S of all r in A. There are few groups, so `exposed` decides exactly and for the whole training who is
given away, and `plan` looks through all coalitions up to a size before the first round (docs/privacy.md has the proof).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

import networkx as nx

from cesar.errors import ConfigError, PrivacyError
from cesar.linear import solve
from cesar.topology import Owners, View, check_collusion, overlaps, parties
from cesar.types import NodeId

Group = View
"""Members, ascending."""

Groups = Mapping[NodeId, tuple[Group, ...]]
"""Receiver → its groups, in the order that their numbers follow."""

Draws = Mapping[int, int]
"""Receiver → which of all divisions it uses; 0 where none is named."""

LARGEST_SIZE = 100
MOST_DRAWS = 200
"""How often a receiver's groups are drawn anew before a plan is given up; see `plan`."""


def group_count(degree: int, group_size: int) -> int:
    """How many groups a receiver has: g = ⌊δ / m⌋."""
    return degree // group_size


def group_sizes(degree: int, group_size: int) -> tuple[int, ...]:
    """How many members each group of a receiver has.

    >>> group_sizes(6, 3), group_sizes(5, 2)
    ((3, 3), (3, 2))
    """
    count = group_count(degree, group_size)
    return tuple(len(range(k, degree, count)) for k in range(count))


def divide(network: bytes, receiver: NodeId, view: View, group_size: int, draw: int = 0) -> tuple[Group, ...]:
    """The groups of one receiver: a shuffle that everybody can repeat, and every g-th member of it.

    >>> divide(b"", NodeId(0), tuple(map(NodeId, range(1, 7))), 3)
    ((3, 4, 5), (1, 2, 6))
    """
    label = struct.pack(
        f"<I{len(network)}sIIII", len(network), network, receiver, group_size, draw, len(view)
    )
    numbers = hashlib.shake_256(b"cesar groups" + label + struct.pack(f"<{len(view)}I", *view)).digest(
        8 * len(view)
    )
    order = list(view)
    for last in range(len(order) - 1, 0, -1):  # Fisher and Yates
        number = int.from_bytes(numbers[8 * last : 8 * last + 8], "little")
        chosen = number * (last + 1) >> 64
        order[last], order[chosen] = order[chosen], order[last]
    count = group_count(len(view), group_size)
    return tuple(tuple(sorted(order[k::count])) for k in range(count))


def groups(
    graph: nx.Graph, group_size: int, *, network: bytes = b"", draws: Draws | None = None
) -> dict[NodeId, tuple[Group, ...]]:
    """The groups of every receiver of a graph.

    Args:
        group_size: m, the least number of members.
        network: the network's name; another network with the same graph has other groups.
        draws: what `plan` has chosen.

    Raises:
        PrivacyError: a receiver has fewer than m neighbours.
    """
    check_group_size(group_size)
    check_group_degrees(graph, group_size)
    table = draws or {}
    return {
        NodeId(r): divide(
            network,
            NodeId(r),
            tuple(sorted(NodeId(j) for j in graph[r])),
            group_size,
            table.get(r, 0),
        )
        for r in sorted(graph)
    }


def hears(receiver: str, groups: Iterable[Iterable[object]]) -> str:
    """What a receiver's groups are, in words.

    >>> hears("node 3", [(1, 5, 9), (2, 4, 7)])
    'node 3 hears {1, 5, 9} and {2, 4, 7}'
    """
    sets = [f"{{{', '.join(map(str, group))}}}" for group in groups]
    return f"{receiver} hears {_listed(sets)}"


def check_group_size(group_size: int) -> None:
    """Refuse a size that makes no sense.

    Raises:
        ConfigError: below 2, or more than a frame has room for.
    """
    if not isinstance(group_size, int) or not 2 <= group_size <= LARGEST_SIZE:
        raise ConfigError(
            f"group_size is {group_size}, but it must be an integer from 2 to {LARGEST_SIZE}: "
            "a group of one would be sent in the clear"
        )


def check_group_degrees(graph: nx.Graph, group_size: int) -> None:
    """Refuse a receiver that cannot have even one group.

    Raises:
        PrivacyError: some node has too few neighbours.
    """
    poor = sorted(r for r in graph if graph.degree[r] < group_size)
    if poor:
        raise PrivacyError(
            f"node {poor[0]} has {graph.degree[poor[0]]} neighbour(s), but groups of {group_size} need at least "
            f"{group_size}, and {2 * group_size} or more are better; nothing was sent. Add edges at node(s) "
            f"{', '.join(map(str, poor[:5]))} or lower group_size."
        )


def sums_of(table: Groups, coalition: Iterable[int]) -> list[tuple[NodeId, Group, frozenset[int]]]:
    """What a coalition holds: (receiver, group, whose values are in the sum and not known to the coalition)."""
    inside = set(coalition)
    return [
        (NodeId(r), group, frozenset(group) - inside)
        for r in sorted(inside)
        for group in table.get(NodeId(r), ())
        if not inside.issuperset(group)
    ]


Recipe = tuple[tuple[Fraction, NodeId, Group], ...]
"""Which sums, times which factors, give a value away: (factor, receiver, group)."""


def exposed(table: Groups, coalition: Iterable[int]) -> dict[int, Recipe]:
    """Whom a coalition can solve for from all its sums of all rounds, and how.

    >>> table = {0: ((2, 3), (4, 5)), 1: ((3, 4), (2, 6))}
    >>> sorted(exposed(table, [0, 1])), exposed(table, [0])
    ([], {})
    >>> sorted(exposed({0: ((2, 3),), 1: ((2, 3, 4),)}, [0, 1]))
    [4]
    """
    held = sums_of(table, coalition)
    # A sum with two nodes that are in no other sum is of no use: any multiple of it has both in it. Without it
    # others may have such pairs. What is left is rarely more than nothing.
    while useless := [sum_ for sum_ in held if _has_own_pair(sum_[2], held)]:
        held = [sum_ for sum_ in held if sum_ not in useless]
    found = solve([unknown for _, _, unknown in held]) if held else {}
    return {
        node: tuple((factor, *held[k][:2]) for k, factor in enumerate(factors) if factor)
        for node, factors in found.items()
    }


def _has_own_pair(unknown: frozenset[int], held: list[tuple[NodeId, Group, frozenset[int]]]) -> bool:
    left = set(unknown)
    for _, _, other in held:
        if other is not unknown:
            left -= other
    return len(left) > 1


def coalitions(graph: nx.Graph, most: int, owners: Owners | None = None) -> Iterator[frozenset[int]]:
    """All coalitions of up to `most` owners whose sums can have something to do with one another, each once.

    The sums of nodes that have no neighbour in common and are not neighbours cannot be combined, so coalitions that
    fall into such parts add nothing to their parts. Nor is a single node listed: its groups have no member in common.
    """
    owned = parties(graph, owners)
    whose = {node: k for k, party in enumerate(owned) for node in party}
    names, shared = sorted(graph), overlaps(graph)
    near: list[set[int]] = [set() for _ in owned]
    for row, name in enumerate(names):
        near[whose[name]] |= {whose[names[k]] for k in shared[row].nonzero()[0]}
    found = {frozenset((k,)) for k in range(len(owned))}
    for size in range(most):
        if size:
            found = {one | {other} for one in found for member in one for other in near[member] - one}
        together = [frozenset().union(*(owned[k] for k in one)) for one in found]
        yield from sorted((nodes for nodes in together if len(nodes) > 1), key=sorted)


def plan(
    graph: nx.Graph, group_size: int, collusion: int, *, network: bytes = b"", owners: Owners | None = None
) -> dict[int, int]:
    """Draws with which no `collusion` owners together can solve for anybody, in all rounds together.

    Every coalition is looked at. Receivers that take part in a leak draw their groups anew until none is left.

    Returns the draws that are not 0.

    Raises:
        PrivacyError: no draw helps; says who gives whom away, and what to change.
    """
    check_parties(graph, collusion, owners)
    check_group_collusion(group_size, collusion)
    draws: dict[int, int] = {}
    table = groups(graph, group_size, network=network)
    open_ = list(coalitions(graph, collusion, owners))
    for _ in range(MOST_DRAWS):
        leaking = [(one, found) for one in open_ if (found := exposed(table, one))]
        if not leaking:
            return draws
        _refuse_if_hopeless(graph, leaking[0][0], owners)
        moved = {max(r for _, r, _ in next(iter(found.values()))) for _, found in leaking}
        for r in moved:
            draws[r] = draws.get(r, 0) + 1
            view = tuple(sorted(NodeId(j) for j in graph[r]))
            table[NodeId(r)] = divide(network, NodeId(r), view, group_size, draws[r])
        leaked = {one for one, _ in leaking}
        open_ = [one for one in coalitions(graph, collusion, owners) if one & moved or one in leaked]
    one, found = leaking[0]
    raise PrivacyError(
        f"no groups of {group_size} were found with which {_counted(collusion, owners)} learn nothing: "
        f"{describe(one, found, owners=owners)}. {_remedy(owners)}, or larger groups."
    )


def check_plan(graph: nx.Graph, table: Groups, collusion: int, owners: Owners | None = None) -> None:
    """Refuse groups with which so many colluders learn something, whoever has drawn them.

    Raises:
        PrivacyError: says who gives whom away.
    """
    check_parties(graph, collusion, owners)
    for one in coalitions(graph, collusion, owners):
        if found := exposed(table, one):
            raise PrivacyError(
                f"the groups do not stop {_counted(collusion, owners)}: {describe(one, found, owners=owners)}. "
                f"{_remedy(owners)}, or larger groups."
            )


def check_parties(graph: nx.Graph, collusion: int, owners: Owners | None) -> None:
    """Refuse more colluders than there are, but for one to be protected.

    Raises:
        ConfigError: says how many there can be.
    """
    check_collusion(collusion, len(parties(graph, owners)), "owners" if owners else "nodes")


def check_group_collusion(group_size: int, collusion: int) -> None:
    """Refuse groups that colluders could empty.

    Raises:
        PrivacyError: m is below k + 1.
    """
    if group_size <= collusion:
        raise PrivacyError(
            f"groups of {group_size} do not stop {collusion} colluders: a receiver and {collusion - 1} member(s) of a "
            f"group would know all but {group_size - collusion + 1} of it. Use group_size={collusion + 1} or more."
        )


def _counted(collusion: int, owners: Owners | None) -> str:
    if not owners:
        return f"{collusion} colluders"
    return "an owner" if collusion == 1 else f"{collusion} owners together"


def _remedy(owners: Owners | None) -> str:
    if owners:
        return "Give the peers of such owners more neighbours that others own, or leave them fewer peers"
    return "Use a graph whose neighbourhoods overlap less (more nodes, or another degree)"


def _refuse_if_hopeless(graph: nx.Graph, coalition: frozenset[int], owners: Owners | None) -> None:
    """The groups of a receiver add up to all its neighbours; if these totals give somebody away, no draw helps."""
    found = exposed({NodeId(r): (tuple(sorted(graph[r])),) for r in coalition}, coalition)
    if found:
        raise PrivacyError(
            f"whatever the groups are, {describe(coalition, found, owners=owners)}: the neighbourhoods of "
            f"{_listed(sorted(coalition))} differ by too little. "
            + (
                f"{_remedy(owners)}."
                if owners
                else "Change the graph: `cesar plan topology` makes some whose neighbourhoods overlap less."
            )
        )


def describe(
    coalition: Iterable[int],
    found: Mapping[int, Recipe],
    name: Callable[[int], str] = str,
    owners: Owners | None = None,
) -> str:
    """How a coalition reads a value, in words; `name` says what a node is called behind "node"."""
    node, recipe = min(found.items())
    signed = []
    for factor, receiver, group in sorted(recipe, key=lambda term: term[0] < 0):
        sum_ = f"{_factor(factor)}the sum over {_listed(map(name, group))} at {name(receiver)}"
        signed.append(("minus " if factor < 0 else "plus ") + sum_)
    first = signed[0].removeprefix("plus ")
    inside = sorted(coalition)
    names = list(map(name, inside))
    whose = sorted({(owners or {}).get(i, "") for i in inside} - {""})
    who = f"nodes {_listed(names)} together" if len(names) > 1 else f"node {names[0]} alone"
    if whose:
        who = f"{_listed(whose)} ({who})"
    return f"{who} can compute node {name(node)}'s value: {' '.join([first, *signed[1:]])}"


def _factor(factor: Fraction) -> str:
    return "" if abs(factor) == 1 else f"{abs(factor)} times "


def _listed(things: Iterable[object]) -> str:
    names = [str(thing) for thing in things]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
