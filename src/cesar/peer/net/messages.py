"""What peers say to one another beside frames and rosters: a greeting, and where each of them stands.

Whatever reads here raises `Refusal` for what a neighbour cannot have meant.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from cesar.base.errors import Refusal
from cesar.base.types import __version__
from cesar.crypto.keys import VERSION
from cesar.peer.trust.foreign import MOST, escaped

RELEASE = __version__

TRAINS, HAS_SETTLED = 0, 0xFFFFFFFF
"""Modes of a peer, beside settling: it trains, or it has settled and will train if it does anything."""

CELL_HOLDS, CELL_SETTLES = 1, 2
"""Modes of a peer in a cell that trains no more: it has something that is in no sum yet, or it settles."""

_MOST = 1_000_000


def share_in(mode: int) -> int:
    """The share that a mode is about, in millionths; 0 if it is not about settling. Peers average with one another iff
    it is the same.
    """
    return TRAINS if mode == HAS_SETTLED else mode


@dataclass(frozen=True, slots=True)
class Status:
    """Where a peer stands.

    Attributes:
        current: the round that it is in or begins next: frames of earlier ones never come again.
        joinable: the first round that one can still join with it.
        mode: whether it trains (0), settles (the share, in millionths; in cells a number of their own) or has settled.
        phase: how long its local phases take, in milliseconds; 0 if it does not know.
    """

    current: int = 0
    joinable: int = 0
    mode: int = TRAINS
    phase: int = 0

    _LAYOUT = struct.Struct("<IIII")

    @property
    def share(self) -> int:
        """What it settles with, in millionths; 0 while it trains or has settled."""
        return share_in(self.mode)

    def averages_with(self, other: Status) -> bool:
        """Whether both do the same thing: one that trains does not settle, and those that settle send the same share."""
        return self.share == other.share

    def to_bytes(self) -> bytes:
        return self._LAYOUT.pack(self.current, self.joinable, self.mode, self.phase)

    @classmethod
    def from_bytes(cls, body: bytes) -> Status:
        try:
            said = cls._LAYOUT.unpack(body)
        except struct.error:
            raise Refusal("a status of the wrong length") from None
        return cls.checked(*said)

    @classmethod
    def checked(cls, current: int, joinable: int, mode: int, phase: int) -> Status:
        """What a neighbour said, if it can be."""
        if not 0 <= current <= joinable <= current + 1 or joinable >= 1 << 31:
            raise Refusal("a status that cannot be")
        if not 0 <= mode <= _MOST and mode != HAS_SETTLED:
            raise Refusal("a mode that cannot be")
        if not 0 <= phase < 1 << 32:
            raise Refusal("a phase that cannot be")
        return cls(current, joinable, mode, phase)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a peer has seen last of the one that it greets.

    Attributes:
        roster, round: the newest version under which it was, and its latest round there.
        twice: two processes with its identity have greeted in turns.
    """

    roster: int
    round: int
    twice: bool = False

    @classmethod
    def of(cls, value: object) -> Seen | None:
        """As it stands in a greeting; None if nothing does."""
        match value:
            case None:
                return None
            case [int() as roster, int() as round_, bool() as twice] if min(roster, round_) >= 0:
                return cls(roster, round_, twice)
            case _:
                raise Refusal("what it says it has seen of this peer cannot be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What either side says first, and again when it knows more: who it is, and what must be the same at both ends.

    Attributes:
        network: the roster's network id, in hexadecimal.
        roster: its version.
        digest: of what was signed in it, in hexadecimal.
        purpose: what the peer is there for; only peers with the same purpose average with one another.
        size: of its model, once it has one.
        layout: how that is cut into tensors, in words.
        time: seconds since 1970 by its clock.
        satisfied: it has checked all that it wanted to check.
        instance: names the process that speaks; another one after every start.
        seen: what it has seen last of the one that it greets.
    """

    node: int
    network: str
    roster: int
    digest: str
    purpose: str
    size: int | None
    layout: str | None = None
    status: Status
    time: float
    satisfied: bool = False
    instance: str = ""
    seen: Seen | None = None
    protocol: int = VERSION
    release: str = RELEASE

    def to_bytes(self) -> bytes:
        fields = {
            "protocol": self.protocol,
            "cesar": self.release,
            "node": self.node,
            "network": self.network,
            "roster": self.roster,
            "digest": self.digest,
            "purpose": self.purpose,
            "satisfied": self.satisfied,
            "size": self.size,
            "layout": self.layout,
            "status": [self.status.current, self.status.joinable, self.status.mode, self.status.phase],
            "time": self.time,
            "instance": self.instance,
            "seen": None if self.seen is None else [self.seen.roster, self.seen.round, self.seen.twice],
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Hello:
        """Keys beside the known ones are for later releases, and passed over."""
        try:
            fields = json.loads(data)
            json.dumps(
                fields, ensure_ascii=False, allow_nan=False
            ).encode()  # no half characters, no time that is none
        except (ValueError, RecursionError):
            fields = None
        match fields:
            case {
                "protocol": int() as protocol,
                "cesar": str() as release,
                "node": int() as node,
                "network": str() as network,
                "roster": int() as roster,
                "digest": str() as digest,
                "purpose": str() as purpose,
                "size": int() | None as size,
                "layout": str() | None as layout,
                "status": [int() as current, int() as joinable, int() as mode, int() as phase],
                "time": float() as time,
            }:
                pass
            case _:
                raise Refusal("its hello cannot be read; install the same release at both peers")
        return cls(
            node=node,
            network=network,
            roster=roster,
            digest=digest,
            purpose=escaped(purpose, 40),
            size=size,
            layout=layout,
            status=Status.checked(current, joinable, mode, phase),
            time=time,
            satisfied=fields.get("satisfied") is True,
            instance=escaped(str(fields.get("instance", "")), 40),
            seen=Seen.of(fields.get("seen")),
            protocol=protocol,
            release=escaped(release, 40),
        )

    def accept(self, there: Hello) -> None:
        """Refuse somebody with whom averages could not work; `self` is what this peer says, `there` what came."""
        if there.protocol != self.protocol:
            raise Refusal(
                f"it speaks protocol version {there.protocol} (cesar {there.release}), and this peer speaks "
                f"{self.protocol} (cesar {self.release}); install the same release at both"
            )
        if there.network != self.network:
            raise Refusal("it belongs to another network")
        if there.roster == self.roster and there.digest != self.digest:
            raise Refusal(
                f"it has another roster of version {self.roster} than this peer: members, cells or settings differ. Two "
                "were signed under one number; ask the authority for a newer version"
            )
        alike = self.purpose == there.purpose
        if alike and None not in (there.size, self.size) and there.size != self.size:
            raise Refusal(
                f"its model has {there.size} parameters, and this peer's has {self.size}; both must train the "
                "same model"
            )
        if alike and None not in (there.layout, self.layout) and there.layout != self.layout:
            raise Refusal(
                f"its model has {escaped(there.layout or '', MOST)}, and this peer's has {self.layout}: as many parameters, cut into tensors in "
                "another way; both must train the same model, and average it in the same way"
            )
