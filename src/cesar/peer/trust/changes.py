"""A change of the roster as people say it, the log that keeps all of them, and a site's approval.

roster.log             every version that was signed, held, approved or taken up: when, which, and what it changed. Every line
                       names the SHA-256 of the one before it, so that none can be changed or taken out unnoticed; that the
                       last ones are missing shows only to people who have noted the hash of the last
roster.held.json       a newer roster that waits for this site's approval
roster.approved        the digest of the roster that this site has approved
roster.used.json       the one that holds as long as a newer one waits
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from cesar.base import files, sentences
from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.peer.trust.member import Member
from cesar.peer.trust.naming import called
from cesar.peer.trust.roster import FILE, Roster

_AFTER = re.compile(rb"^[^:]*:[^:]*:[^ ]* [^(]*\([0-9a-f]{64}, after ([0-9a-f]{64})\): ")
LOG, HELD, APPROVED, USED = "roster.log", "roster.held.json", "roster.approved", "roster.used.json"


_WAIT = re.compile(r"wait:([1-9][0-9]{0,4})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class Consent:
    """Which changes a site wants to agree to before its peer follows them.

    Attributes:
        mode: "auto" for none, "cells" for changes of cells and of who stands behind a partner's id, "ask" for all; or
            "wait:24h": all, and silence is consent after that time.
    """

    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "cells", "ask") and _WAIT.fullmatch(self.mode) is None:
            raise ConfigError(
                f'approve = {self.mode!r} is none of "auto", "cells", "ask" and a time such as "wait:24h"'
            )

    @property
    def patience(self) -> timedelta | None:
        """After which silence is consent; None if it never is."""
        found = _WAIT.fullmatch(self.mode)
        return None if found is None else int(found[1]) * _UNITS[found[2]]

    def asks(self, old: Roster, new: Roster, me: NodeId) -> bool:
        """Whether somebody at this node's site has to agree to this change."""
        if self.mode != "cells":
            return self.mode != "auto"
        if old.plan is None:
            return False
        if new.plan is None or old.plan.cells != new.plan.cells:
            return me in new.members  # a removal of this node itself needs nobody's consent
        # The same ids can be other people: with keys of its own for all partners of a site, the authority would be its cell.
        return not all(new.members[i].continues(old.members[i]) for i in new.plan.place(me).view)

    def given(self, folder: Path, roster: Roster, now: datetime) -> bool:
        """Whether the site has agreed to a roster, or has had its time."""
        if approved(folder) == roster.digest.hex():
            return True
        held = folder / HELD
        try:
            since = datetime.fromtimestamp(held.stat().st_mtime, UTC)
            same = held.read_bytes() == roster.raw
        except OSError:
            return False
        return self.patience is not None and same and now >= since + self.patience


def differences(old: Roster, new: Roster, me: NodeId | None = None) -> list[str]:
    """What a newer roster changes, in words; `me` is called "you"."""
    return [
        *_members(old, new, me),
        *(_edges(old, new, me) if new.plan is None else _cells(old, new, me)),
        *(
            f"{key} becomes {new.settings.get(key)!r} (it was {old.settings.get(key)!r})"
            for key in sorted(old.settings.keys() | new.settings.keys())
            if old.settings.get(key) != new.settings.get(key)
        ),
        *_signers(old, new),
        *([f"it holds until {new.expires:%Y-%m-%d}"] if new.expires != old.expires else []),
    ]


def _name(roster: Roster, node: int, me: NodeId | None) -> str:
    return "you" if node == me else called(roster, node)


def _members(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    for node in sorted(new.members.keys() - old.members.keys()):
        owner = new.members[node].owner
        near = [_name(new, other, me) for other in sorted(new.graph[node], key=lambda i: (i != me, i))]
        where = "" if new.plan is not None else f", next to {', '.join(near)}"
        yield f"adds {called(new, node)}{f' of {owner}' if owner else ''}{where}"
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
        doubt = "" if new.continues(old) else ", for which its old key has not asked"
        yield f"{name} has a new certificate{keys}, until {new.expires:%Y-%m-%d}{doubt}"


def _edges(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    """Between those who stay."""
    stay = old.members.keys() & new.members.keys()
    for one, other, what in ((new, old, "become neighbours"), (old, new, "are no longer neighbours")):
        for i, j in sorted(tuple(sorted(edge)) for edge in one.graph.edges):
            if {i, j} <= stay and not other.graph.has_edge(i, j):
                yield f"{_name(new, i, me)} and {_name(new, j, me)} {what}"


def _cells(old: Roster, new: Roster, me: NodeId | None) -> Iterator[str]:
    """Which cells became which, as few sentences as will say it."""
    assert new.plan is not None
    before = [set(cell) for cell in (old.plan.cells if old.plan is not None else ())]
    after = [set(cell) for cell in new.plan.cells]
    if not before:
        yield from (f"{_listed(new, cell, me)} are a cell" for cell in after)
        return
    stay = old.members.keys() & new.members.keys()
    told: set[NodeId] = set()
    for cell in before:
        parts = [one & stay for one in after if one & cell]
        if len(parts) > 1 and all(one & stay <= cell for one in after if one & cell):
            yield f"the cell of {_listed(old, cell, me)} is divided: {' and '.join(_listed(new, one, me) for one in parts)}"
            told |= cell
    for cell in after:
        origins = [one & stay for one in before if one & cell]
        if len(origins) > 1 and all(one <= cell for one in origins):
            yield f"the cells of {' and of '.join(_listed(new, one, me) for one in origins)} become one"
            told |= cell
    for cell in after:
        main = max(before, key=lambda one: len(one & cell))
        for node in sorted((cell & stay) - main - told):
            there = _listed(new, cell - {node}, me)
            verb = "move" if node == me else "moves"
            yield f"{_name(new, node, me)} {verb} to the cell of {there}"
        for node in sorted(cell - stay):
            yield f"{_name(new, node, me)} joins the cell of {_listed(new, (cell & stay) or (cell - {node}), me)}"
    if me is not None and me in stay:
        mine = set(new.plan.place(me).view)
        if old.plan is not None and mine != set(old.plan.place(me).view):
            yield f"what you train is from now on only ever seen added to what {_listed(new, mine, None)} train"


def _listed(roster: Roster, nodes: set[NodeId], me: NodeId | None) -> str:
    return sentences.listed(_name(roster, node, me) for node in sorted(nodes))


def _signers(old: Roster, new: Roster) -> Iterator[str]:
    if old.signers != new.signers:
        named = new.signers
        yield (
            "the authority alone signs from now on"
            if named is None
            else f"{named.threshold} of {sentences.listed(sorted(named.keys))} must sign from now on"
        )


def append_to_log(folder: Path, what: str, roster: Roster, lines: list[str], now: datetime) -> None:
    """Add a line to the log, which nothing else ever changes."""
    handle = os.open(folder / LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "r+b", 0) as file:
        fcntl.flock(
            handle, fcntl.LOCK_EX
        )  # between reading the last line and adding the next, nobody else adds one
        before = file.read()
        text = (
            f"{now:%Y-%m-%dT%H:%M:%SZ} {what} version {roster.version} ({roster.digest.hex()}, after {_hash_of_last(before)}): "
            f"{'; '.join(lines) or 'nothing changes but the signature'}\n"
        )
        file.write(text.encode())
        os.fsync(handle)


def _hash_of_last(log: bytes) -> str:
    """SHA-256 of the last line, without its end; of nothing, if there is none."""
    return hashlib.sha256(log.rstrip(b"\n").rpartition(b"\n")[2]).hexdigest()


def check_log(folder: Path) -> tuple[int, str]:
    """How many lines the log has, and the hash of the last, to be compared with what somebody has noted.

    Lines that an earlier release wrote, without hashes, may stand at its beginning.

    Raises:
        ConfigError: a line is not what the next one says it was.
    """
    try:
        data = (folder / LOG).read_bytes()
    except FileNotFoundError:
        data = b""
    lines = data.splitlines()
    first = _AFTER.search(lines[0]) if lines else None
    if first is not None and first[1].decode() != _hash_of_last(b""):
        raise ConfigError(
            f"{folder / LOG}: line 1 is not what was written there first, or lines before it are missing; compare it with the log "
            "of another site"
        )
    for number, (line, following) in enumerate(pairwise(lines), 1):
        named = _AFTER.search(following)
        if named is None and _AFTER.search(line) is None:
            continue
        if named is None or named[1].decode() != hashlib.sha256(line).hexdigest():
            raise ConfigError(
                f"{folder / LOG}: line {number} is not what was written there, or a line after it is missing; compare it with the "
                "log of another site"
            )
    return len(lines), _hash_of_last(data)


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
    # In the order of trust: what was used last, what lies beside the state, what was held, and what the site has put elsewhere. The
    # first one that exists is what holds; the newest of all may be one that waits.
    first, *others = places
    paths = dict.fromkeys([first / USED, first / FILE, first / HELD, *(place / FILE for place in others)])
    found = [Roster.load(path, ca) for path in paths if path.is_file()]
    newest = max(found, key=lambda roster: roster.version, default=None)
    if newest is None or newest is found[0] or approved(first) == newest.digest.hex():
        return None
    return found[0], newest
