"""Every exception that cesar raises on purpose.

    CesarError
    ├── CanaryError             the test round before training did not come about
    ├── ConfigError             a setting is impossible; nothing was sent          (also a ValueError)
    ├── DataError               a vector or a file cannot be used as it is         (also a ValueError)
    ├── EncodingError           bytes that are not what they claim to be           (also a ValueError)
    │   └── VersionError        they are those of another protocol version
    ├── MembershipError         this peer has no place in its network any more, or its papers have run out
    ├── PassphraseError         a passphrase does not open a private key
    ├── PrivacyError            going on would leak: always fail closed
    ├── ProtocolError
    │   ├── LocalProtocolError  our own caller used the engine wrongly
    │   └── RemoteProtocolError a peer sent something that cannot be accepted
    └── Refusal                 a conversation with a neighbour ends, and both sides know why

`assert` is for our own bugs, never for input.
"""

from __future__ import annotations

from enum import Enum

from cesar.base.types import NodeId, RoundNo


class CesarError(Exception):
    """The root: catch this to catch everything that cesar reports."""


class ConfigError(CesarError, ValueError):
    """A setting that cannot work, found before anything was sent."""


class CanaryError(CesarError):
    """The test round before training did not come about; training has not begun."""


class MembershipError(CesarError):
    """This peer was removed or replaced, or its certificate or roster has ended: it must stop."""


class DataError(CesarError, ValueError):
    """A vector or a file that cannot be used: wrong shape, NaN, missing."""


class EncodingError(CesarError, ValueError):
    """Bytes that do not decode: truncated, out of range, or of an unknown kind."""


class VersionError(EncodingError):
    """The frame is of another protocol version."""


class PassphraseError(CesarError):
    """An envelope does not open; the caller knows which file it is about, and says so."""


class PrivacyError(CesarError):
    """Going on would reveal something; the operation was refused as a whole."""


class ProtocolError(CesarError):
    """Somebody broke the order of the protocol."""


class LocalProtocolError(ProtocolError):
    """The code that drives the engine called it at the wrong moment."""


class Reason(Enum):
    """Why a frame was refused; the value is stable and fit for logs and metrics."""

    MALFORMED = "malformed"
    VERSION = "version"
    SESSION = "session"
    SENDER = "sender"
    STRANGER = "stranger"
    TOO_EARLY = "too-early"
    DUPLICATE = "duplicate"
    STALE_ATTEMPT = "stale-attempt"
    UNEXPECTED = "unexpected"
    UNSAFE_SCALE = "unsafe-scale"
    FAULT = "fault"


class RemoteProtocolError(ProtocolError):
    """A frame from `peer` was refused; the engine is exactly as it was before."""

    def __init__(self, peer: NodeId, reason: Reason, detail: str, round_: RoundNo | None = None) -> None:
        self.peer, self.reason, self.detail, self.round_ = peer, reason, detail, round_
        where = "" if round_ is None else f" in round {round_}"
        super().__init__(f"frame from node {peer}{where} refused ({reason.value}): {detail}")

    @classmethod
    def fault(cls, peer: NodeId, error: Exception, round_: RoundNo) -> RemoteProtocolError:
        """What a peer sent made our own code fail: that is a fault of ours, but its frame is what is refused."""
        return cls(peer, Reason.FAULT, f"it could not be used: {type(error).__name__}", round_)


class Refusal(CesarError):  # noqa: N818  (it is how a conversation ends, not a fault of ours)
    """This conversation with a neighbour ends, and the other side is told why."""
