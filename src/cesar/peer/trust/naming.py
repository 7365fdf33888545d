"""Peers and their cells as people say them: by number, and by name where a site has one."""

from __future__ import annotations

from collections.abc import Iterable

from cesar.base import sentences
from cesar.base.types import NodeId
from cesar.peer.trust.roster import Roster


def called(roster: Roster, node: int) -> str:
    """5, or 5 clinic; one that has left the roster has its number alone."""
    member = roster.members.get(NodeId(node))
    named = member is not None and member.name != f"node-{node}"
    return f"{node} {member.name}" if member is not None and named else str(node)


def all_called(roster: Roster, nodes: Iterable[int]) -> list[str]:
    """What each of them is called."""
    return [called(roster, node) for node in nodes]


def listed(roster: Roster, nodes: Iterable[int]) -> str:
    """1, 5 clinic and 9."""
    return sentences.listed(all_called(roster, nodes))


def braced(roster: Roster, nodes: Iterable[int]) -> str:
    """{1, 5 clinic, 9}."""
    return sentences.braced(all_called(roster, nodes))


def owners(roster: Roster, colluders: int) -> str:
    """Who counts as one colluder, and what that stops, for a roster that was found safe."""
    whose: dict[str, list[NodeId]] = {}
    for node, owner in roster.owners.items():
        whose.setdefault(owner, []).append(NodeId(node))
    several = [f"{owner} runs {listed(roster, nodes)}" for owner, nodes in whose.items() if len(nodes) > 1]
    who = "no owner" if colluders == 1 else f"no {colluders} owners together"
    return f"{'; '.join(several) or 'every peer has its own'}; {who} can compute a peer's values"
