"""Peers and their groups as people say them: by number, and by name where a site has one."""

from __future__ import annotations

from collections.abc import Iterable

from cesar.peer.roster import Roster
from cesar.types import NodeId


def called(roster: Roster, node: int) -> str:
    """5, or 5 clinic; one that has left the roster has its number alone."""
    member = roster.members.get(NodeId(node))
    named = member is not None and member.name != f"node-{node}"
    return f"{node} {member.name}" if member is not None and named else str(node)


def listed(roster: Roster, nodes: Iterable[int]) -> str:
    """1, 5 clinic and 9."""
    names = [called(roster, node) for node in nodes]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def braced(roster: Roster, group: Iterable[int]) -> str:
    """{1, 5 clinic, 9}."""
    return "{" + ", ".join(called(roster, node) for node in group) + "}"


def hears(roster: Roster, node: NodeId) -> str:
    """Whose sums a peer gets: peer 3 hears {1, 5, 9} and {2, 4, 7}."""
    groups = [braced(roster, group) for group in roster.groups[node]]
    return f"peer {called(roster, node)} hears {' and '.join(groups)}"
