"""What peers say to one another beside frames and rosters: a greeting, and where each of them stands.

Whatever reads here raises `Refusal` for what a neighbour cannot have meant.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from cesar.crypto.keys import VERSION
from cesar.peer.chunks import Refusal
from cesar.types import __version__

RELEASE = __version__

TRAINS, HAS_SETTLED = 0, 0xFFFFFFFF
"""Modes of a peer, beside settling: it trains, or it has settled and will train if it does anything."""

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
        mode: whether it trains (0), settles (the share, in millionths) or has settled.
    """

    current: int = 0
    joinable: int = 0
    mode: int = TRAINS

    _LAYOUT = struct.Struct("<III")

    @property
    def share(self) -> int:
        """What it settles with, in millionths; 0 while it trains or has settled."""
        return share_in(self.mode)

    def to_bytes(self) -> bytes:
        return self._LAYOUT.pack(self.current, self.joinable, self.mode)

    @classmethod
    def from_bytes(cls, body: bytes) -> Status:
        try:
            said = cls._LAYOUT.unpack(body)
        except struct.error:
            raise Refusal("a status of the wrong length") from None
        return cls.told(*said)

    @classmethod
    def told(cls, current: int, joinable: int, mode: int) -> Status:
        """What a neighbour said, if it can be."""
        if not 0 <= current <= joinable <= current + 1 or joinable >= 1 << 31:
            raise Refusal("a status that cannot be")
        if not 0 <= mode <= _MOST and mode != HAS_SETTLED:
            raise Refusal("a mode that cannot be")
        return cls(current, joinable, mode)


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
    protocol: int = VERSION
    release: str = RELEASE

    def to_bytes(self) -> bytes:
        words = {
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
            "status": [self.status.current, self.status.joinable, self.status.mode],
            "time": self.time,
        }
        return json.dumps(words).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Hello:
        """Keys beside the known ones are for later releases, and passed over."""
        try:
            words = json.loads(data)
            json.dumps(
                words, ensure_ascii=False, allow_nan=False
            ).encode()  # no half characters, no time that is none
        except (ValueError, RecursionError):
            words = None
        match words:
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
                "status": [int() as current, int() as joinable, int() as mode],
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
            purpose=purpose,
            size=size,
            layout=layout,
            status=Status.told(current, joinable, mode),
            time=time,
            satisfied=words.get("satisfied") is True,
            protocol=protocol,
            release=release,
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
                f"it has another roster of version {self.roster} than this peer: members, groups or settings differ. Whoever "
                "signs for this network has signed two; ask for a newer version"
            )
        alike = self.purpose == there.purpose
        if alike and None not in (there.size, self.size) and there.size != self.size:
            raise Refusal(
                f"its model has {there.size} parameters, and this peer's has {self.size}; both must train the "
                "same model"
            )
        if alike and None not in (there.layout, self.layout) and there.layout != self.layout:
            raise Refusal(
                f"its model has {there.layout}, and this peer's has {self.layout}: as many parameters, cut into tensors in "
                "another way; both must train the same model, and average it in the same way"
            )
