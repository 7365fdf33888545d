"""A change of the roster as people say it, the log that keeps all of them, and a site's approval.

roster.log             every version that was signed, held, approved or taken up: when, which, and what it changed
roster.held.json       a newer roster that waits for this site's approval
roster.approved        the digest of the roster that this site has approved
roster.used.json       the one that holds as long as a newer one waits
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from cesar import files
from cesar.peer.member import Member
from cesar.peer.roster import FILE, Roster
from cesar.peer.words import braced, called, listed
from cesar.types import NodeId

LOG, HELD, APPROVED, USED = "roster.log", "roster.held.json", "roster.approved", "roster.used.json"


def told(old: Roster, new: Roster, me: NodeId | None = None) -> list[str]:
    """What a newer roster changes, in words; `me` is called "you"."""
    return [
        *_members(old, new, me),
        *_edges(old, new, me),
        *_groups(old, new, me),
        *(
            f"{key} becomes {new.settings.get(key)!r} (it was {old.settings.get(key)!r})"
            for key in sorted(old.settings.keys() | new.settings.keys())
            if old.settings.get(key) != new.settings.get(key)
        ),
        *([f"it holds until {new.expires:%Y-%m-%d}"] if new.expires != old.expires else []),
    ]


def _name(roster: Roster, node: int, me: NodeId | None) -> str:
    return "you" if node == me else called(roster, node)


def _members(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    for node in sorted(new.members.keys() - old.members.keys()):
        owner = new.members[node].owner
        near = [_name(new, other, me) for other in sorted(new.graph[node], key=lambda i: (i != me, i))]
        yield f"adds {called(new, node)}{f' of {owner}' if owner else ''}, next to {', '.join(near)}"
    for node in sorted(old.members.keys() - new.members.keys()):
        yield f"removes {_name(old, node, me)}"
    for node in sorted(old.members.keys() & new.members.keys()):
        yield from _member(_name(old, node, me), old.members[node], new.members[node])


def _member(name: str, old: Member, new: Member) -> Iterator[str]:
    if old.name != new.name:
        yield f"{name} is now called {new.name}"
    if old.owner != new.owner:
        yield f"{name} belongs to {new.owner or 'itself'} now, not to {old.owner or 'itself'}"
    if old.address != new.address:
        yield f"{name} is reached at {new.address or 'no address'} now, not at {old.address or 'none'}"
    if old.fingerprint != new.fingerprint:
        keys = "" if old.agreement_key == new.agreement_key else " and new keys"
        yield f"{name} has a new certificate{keys}, until {new.expires:%Y-%m-%d}"


def _edges(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    """Between those who stay."""
    stay = old.members.keys() & new.members.keys()
    for one, other, what in ((new, old, "become neighbours"), (old, new, "are no longer neighbours")):
        for i, j in sorted(tuple(sorted(edge)) for edge in one.graph.edges):
            if {i, j} <= stay and not other.graph.has_edge(i, j):
                yield f"{_name(new, i, me)} and {_name(new, j, me)} {what}"


def _groups(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    changed = [r for r in new.groups if r in old.groups and old.groups[r] != new.groups[r]]
    if me is not None and me in changed:
        yield f"your groups become {' and '.join(braced(new, group) for group in new.groups[me])}"
    if others := [r for r in changed if r != me]:
        yield f"groups change at {listed(new, others)}"


def note(folder: Path, what: str, roster: Roster, lines: list[str], now: datetime) -> None:
    """Add a line to the log, which nothing else ever changes."""
    text = (
        f"{now:%Y-%m-%dT%H:%M:%SZ} {what} version {roster.version} ({roster.digest.hex()}): "
        f"{'; '.join(lines) or 'nothing changes but the signature'}\n"
    )
    handle = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, text.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def approve(folder: Path, roster: Roster) -> None:
    """This site agrees to a roster."""
    files.write(folder / APPROVED, roster.digest.hex() + "\n")


def approved(folder: Path) -> str:
    """The digest of the roster that this site agreed to last, in hexadecimal; empty if there is none."""
    try:
        return (folder / APPROVED).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def waiting(places: Iterable[Path], ca: bytes) -> tuple[Roster, Roster] | None:
    """What holds and the newest that waits for approval, if there is one.

    Args:
        places: the folder of the state, and others in which a roster may lie.
    """
    first, *others = places
    paths = dict.fromkeys([first / USED, first / FILE, first / HELD, *(place / FILE for place in others)])
    found = [Roster.load(path, ca) for path in paths if path.is_file()]
    newest = max(found, key=lambda roster: roster.version, default=None)
    if newest is None or newest is found[0] or approved(first) == newest.digest.hex():
        return None
    return found[0], newest
