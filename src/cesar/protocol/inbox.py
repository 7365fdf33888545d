"""Inbox: the door where frames are checked, and where those of the next round wait for it."""

from __future__ import annotations

from collections.abc import Callable

from cesar.base.errors import EncodingError, LocalProtocolError, Reason, RemoteProtocolError, VersionError
from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.protocol.wire import Kind, open_frame

EARLY_ROUNDS = 1
"""A peer can be ahead by a round; frames further ahead are refused, so that memory stays bounded."""


class Inbox:
    """Checks what every frame must satisfy, keeps those of the next round, and passes over late ones.

    Attributes:
        early_kinds: what an honest node can send to one that has not begun the round yet.
        any_round: kinds that are taken whatever their round; others decide what to do with them.
        kept_kinds: kinds of which the newest of each sender is kept, however far ahead its round is.
        longest: kind → bytes that its body has at most, where that is less than the largest frame.
        can_have_come: whether a round can have begun anywhere by now; frames of others are refused.
    """

    def __init__(self, node: NodeId, session: bytes, first_round: RoundNo, largest_frame: int) -> None:
        self.early_kinds = frozenset(Kind)
        self.any_round: frozenset[Kind] = frozenset()
        self.kept_kinds: frozenset[Kind] = frozenset()
        self.longest: dict[Kind, int] = {}
        self.can_have_come: Callable[[RoundNo], bool] = lambda _: True
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

    def admit(self, sender: NodeId, payload: Buffer) -> tuple[Kind, RoundNo, memoryview | None]:
        """Kind and round of a frame, and its body if it is for the current round: others are kept, or late."""
        if len(payload) > self.largest_frame:
            raise RemoteProtocolError(
                sender,
                Reason.MALFORMED,
                f"{len(payload)} bytes, but no frame here has over {self.largest_frame}",
            )
        try:
            kind, round_, named, session, body = open_frame(payload)
        except VersionError as error:
            raise RemoteProtocolError(sender, Reason.VERSION, str(error)) from None
        except EncodingError as error:
            raise RemoteProtocolError(sender, Reason.MALFORMED, str(error)) from None
        # The header is read, and nothing is believed yet. Another session comes first: a neighbour that settles while this node
        # trains, or has another roster, is honest, and all else in its frame would be measured by the wrong rule.
        if session != self._session:
            raise RemoteProtocolError(sender, Reason.SESSION, "it belongs to another session", round_)
        if named != sender or sender == self._node:
            raise RemoteProtocolError(sender, Reason.SENDER, f"its header says node {named}", round_)
        if not self.can_have_come(round_):
            raise RemoteProtocolError(
                sender, Reason.UNEXPECTED, "no network can have come to this round yet", round_
            )
        if len(body) > self.longest.get(kind, self.largest_frame):
            detail = f"{len(body)} bytes, but no {kind.name.lower()} here has over {self.longest[kind]}"
            raise RemoteProtocolError(sender, Reason.MALFORMED, detail, round_)
        # Now, later or over. A frame of a later round is kept as it came, unread: what it must say is known when that round begins.
        if kind in self.any_round or (self.running and round_ == self._expected):
            return kind, round_, body
        if not self.is_over(round_):
            self._keep(sender, kind, round_, payload)
        return kind, round_, None

    def inherit(self, other: Inbox) -> None:
        """Take over what another one has kept."""
        self._early = dict(other._early)

    def _keep(self, sender: NodeId, kind: Kind, round_: RoundNo, payload: Buffer) -> None:
        if kind in self.kept_kinds:
            if (sender, kind) not in self._early or self._early[sender, kind][0] <= round_:
                self._early[sender, kind] = (round_, bytes(payload))
            return
        ahead = self._expected + (EARLY_ROUNDS if self.running else EARLY_ROUNDS - 1)
        if round_ > ahead:
            raise RemoteProtocolError(
                sender, Reason.TOO_EARLY, f"this node takes frames up to round {ahead}", round_
            )
        if kind not in self.early_kinds:
            detail = f"a {kind.name.lower()} to a node that has said nothing in its round yet"
            raise RemoteProtocolError(sender, Reason.UNEXPECTED, detail, round_)
        if (sender, kind) in self._early:
            raise RemoteProtocolError(sender, Reason.DUPLICATE, f"a second {kind.name.lower()}", round_)
        self._early[sender, kind] = (round_, bytes(payload))  # a transport may reuse its buffer
