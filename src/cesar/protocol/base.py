"""What every engine has in common: its surface, its events, and the door where frames are checked.

A driver (the simulator, a real peer) does nothing but this:

    engine.begin_round(...)                 start; frames to send appear in `outbound()`
    for out in engine.outbound(): send      pull until there is nothing left
    engine.receive(sender, payload)         hand over what arrived, in any order
    engine.tick(engine.next_deadline())     when that time comes; a round always ends
    engine.next_event()                     AggregateReady at the end

Rules. The engine never calls out and never reads a clock. `receive` is atomic: it accepts a frame, ignores
it because it is late, or raises `RemoteProtocolError` and is exactly as before. Neither aggregates nor
bytes depend on the order of delivery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cesar.errors import EncodingError, LocalProtocolError, Reason, RemoteProtocolError
from cesar.indices import IndexSet
from cesar.types import Buffer, NodeId, RoundNo, Vector
from cesar.wire import Frame, Header, Kind, VersionError, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a node brings to a round.

    Attributes:
        vector: v_i, the whole model; it must not change until the round has ended.
        selected: I_i; None where the receiver decides (coordinated subsampling).
        exponent: the scale of the vector, from `ring.exponent_of`, which also refuses NaN.
        out: where the new model goes; the sum is gathered there too, so that a large model needs no more
            memory than its result. It must not overlap `vector`.
    """

    vector: Vector = field(repr=False)
    selected: IndexSet | None
    exponent: int
    out: Vector = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Latest ends of the phases, as times on the driver's clock."""

    announce: float
    relay: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """One frame and everybody who gets it."""

    recipients: tuple[NodeId, ...]
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateReady:
    """The round has ended for this node.

    Attributes:
        vector: the new model, in the contribution's `out`.
        contributors: whose shares were used.
        lost: parameters that kept the own value because a mask on them did not cancel.
    """

    round_: RoundNo
    vector: Vector = field(repr=False)
    contributors: tuple[NodeId, ...]
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRejected:
    """A frame that was kept for this round turned out to be bad when the round began."""

    error: RemoteProtocolError


Event = AggregateReady | FrameRejected


class Round(Protocol):
    """One attempt at one round, of one method."""

    @property
    def deadline(self) -> float | None:
        """When to call `tick` next."""

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a frame of this round; raises `RemoteProtocolError` before anything changes."""

    def pull(self) -> Outbound | None:
        """Make the next frame to send."""

    def tick(self, now: float) -> None:
        """End the phases whose time is over."""

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the current phase waits for; empty when finished."""

    @property
    def joinable(self) -> bool:
        """Whether a node that comes only now can still take part."""

    @property
    def finished(self) -> bool:
        """Whether nothing more is awaited and everything to be sent is queued."""

    def aggregate(self) -> AggregateReady:
        """The result, once finished."""

    def rejected(self) -> list[RemoteProtocolError]:
        """Frames that were held back and turned out to be bad; each is given once."""


EARLY_ROUNDS = 1
"""A peer can be ahead by a round; frames further ahead are refused, so that memory stays bounded."""


class Door:
    """Checks what every frame must satisfy, keeps those of the next round, and passes over late ones."""

    def __init__(self, node: NodeId, session: bytes, first_round: RoundNo, largest_frame: int) -> None:
        self._node, self._session = node, session
        self.largest_frame = largest_frame
        self._expected = first_round  # the current round, or before the first one the round to come
        self._early: dict[tuple[NodeId, Kind], tuple[RoundNo, Buffer]] = {}
        self.running = False

    def check(self, round_: RoundNo) -> None:
        """Refuse a round that is over: its masks exist already."""
        if self.is_over(round_):
            raise LocalProtocolError(f"round {round_} is over; the next one is {self._expected}")

    def is_over(self, round_: RoundNo) -> bool:
        return round_ < self._expected

    def open(self, round_: RoundNo) -> list[tuple[NodeId, Buffer]]:
        """Begin a round that `check` has passed; returns the frames that were kept for it, sorted."""
        self._expected, self.running = round_, True
        kept = [(sender, p) for (sender, _), (r, p) in sorted(self._early.items()) if r == round_]
        self._early = {key: item for key, item in self._early.items() if item[0] > round_}
        return kept

    def finish(self) -> None:
        """The current round is over: its frames are late from now on."""
        if self.running:
            self._expected, self.running = RoundNo(self._expected + 1), False

    def admit(self, sender: NodeId, payload: Buffer) -> tuple[Header, memoryview | None]:
        """The header of a frame, and its body if it is for the current round: others are kept, or late."""
        if len(payload) > self.largest_frame:
            raise RemoteProtocolError(
                sender,
                Reason.MALFORMED,
                f"{len(payload)} bytes, but no frame here has over {self.largest_frame}",
            )
        try:
            header, body = read_header(payload)
        except VersionError as error:
            raise RemoteProtocolError(sender, Reason.VERSION, str(error)) from None
        except EncodingError as error:
            raise RemoteProtocolError(sender, Reason.MALFORMED, str(error)) from None
        round_ = header.attempt.round_
        if header.attempt.session != self._session:
            raise RemoteProtocolError(sender, Reason.SESSION, "it belongs to another session", round_)
        if header.sender != sender or sender == self._node:
            raise RemoteProtocolError(sender, Reason.SENDER, f"its header says node {header.sender}", round_)
        if self.running and round_ == self._expected:
            return header, body
        if not self.is_over(round_):
            self._keep(sender, header.kind, round_, payload)
        return header, None

    def _keep(self, sender: NodeId, kind: Kind, round_: RoundNo, payload: Buffer) -> None:
        ahead = self._expected + (EARLY_ROUNDS if self.running else EARLY_ROUNDS - 1)
        if round_ > ahead:
            raise RemoteProtocolError(
                sender, Reason.TOO_EARLY, f"this node takes frames up to round {ahead}", round_
            )
        if (sender, kind) in self._early:
            raise RemoteProtocolError(sender, Reason.DUPLICATE, f"a second {kind.name.lower()}", round_)
        self._early[sender, kind] = (round_, bytes(payload))  # a transport may reuse its buffer
