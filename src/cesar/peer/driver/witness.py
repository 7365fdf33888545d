"""What neighbours remember of one another, since a machine cannot notice by itself that it was set back, or that it runs twice.

A backup or a snapshot takes a folder back, and with it the knowledge of what was handed in already. A copied folder
is a second peer of the same identity. Neither shows on the machine itself. Neighbours know: every greeting says which process speaks
(`instance`), and what its sender has seen last of the one that it greets (`Seen`).

    set back    a neighbour has seen this peer in a later round, or under a later roster, than this peer's folder knows of
    twice       a neighbour was greeted by process A, then B, then A again: a restart never comes back

A neighbour can lie about either. A lie about being set back costs what was not handed in yet, once for each neighbour and start; a lie
about a second process costs a line in the log.
"""

from __future__ import annotations

import contextlib
import json
import operator
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cesar.base.types import NodeId
from cesar.peer.net.messages import Hello, Seen

FILE = "seen.json"
_FORMER = 8


@dataclass(slots=True)
class _Known:
    """One neighbour."""

    roster: int = 0
    round: int = 0
    instance: str = ""
    where: str = ""
    former: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_FORMER))
    turns: int = 0
    accused: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.roster, self.round


class Witness:
    """Keeps account of all neighbours of one peer, and looks at what they say about this peer.

    Args:
        instance: names this process.
        path: where it is kept from start to start; None for a check, which leaves no trace.
    """

    def __init__(self, instance: str, path: Path | None) -> None:
        self.instance, self._path = instance, path
        self._known: dict[NodeId, _Known] = {}
        self._load()

    def said(self, peer: NodeId, roster: int, round_: int) -> None:
        """A neighbour says where it is."""
        known = self._of(peer)
        if (roster, round_) > known.place:
            known.roster, known.round = roster, round_

    def greeted(self, peer: NodeId, hello: Hello, where: str) -> str:
        """A neighbour has greeted from an address; in words, if two processes do so in turns."""
        known = self._of(peer)
        if hello.instance in ("", known.instance):
            return ""
        old = dict(known.former).get(hello.instance)
        if known.instance:
            known.former.append((known.instance, known.where))
        before, known.instance, known.where = known.where, hello.instance, where
        if old is None:
            return ""
        known.turns += 1
        places = f"at {where} and at {before}" if where != before else f"both at {where}"
        return (
            f"two processes have the identity of node {peer}, {places}; they take each other's links away. "
            "Its site must end one of them, and renew its keys if it does not know that one"
        )

    def about(self, peer: NodeId) -> Seen | None:
        """What to tell a neighbour about itself."""
        known = self._known.get(peer)
        return None if known is None else Seen(known.roster, known.round, known.turns > 0)

    def turns(self, peer: NodeId) -> int:
        """How often two processes of a neighbour have taken turns."""
        return self._of(peer).turns

    def accuses(self, peer: NodeId, seen: Seen | None, roster: int, next_round: int) -> bool:
        """Whether a neighbour has seen more of this peer than its folder knows of; each neighbour is heard once."""
        known = self._of(peer)
        if seen is None or known.accused or (seen.roster, seen.round) <= (roster, next_round):
            return False
        known.accused = True
        return True

    def save(self) -> None:
        """Keep it for the next start. It need not survive a power cut: others remember, too."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({str(peer): known.place for peer, known in self._known.items()}))
            draft.replace(self._path)

    def _of(self, peer: NodeId) -> _Known:
        return self._known.setdefault(peer, _Known())

    def _load(self) -> None:
        """A file that is missing or damaged is no reason to stop."""
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            found = json.loads(self._path.read_text(encoding="ascii")) if self._path is not None else {}
            if isinstance(found, Mapping):
                for name, (roster, round_) in found.items():
                    known = self._of(NodeId(int(name)))
                    known.roster, known.round = operator.index(roster), operator.index(round_)
