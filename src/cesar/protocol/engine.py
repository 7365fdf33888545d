"""Engine: the public machine. It guards the door, runs one round at a time and reports its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cesar.base.errors import DataError, LocalProtocolError, RemoteProtocolError
from cesar.base.types import Buffer, Entropy, NodeId, RoundNo
from cesar.crypto.keys import Keyring, RoundId
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import codecs
from cesar.kernels import ring
from cesar.methods.base import EdgeMethod
from cesar.protocol.context import Context
from cesar.protocol.events import AggregateReady, Contribution, Deadlines, Event, FrameRejected, Outbound
from cesar.protocol.inbox import Inbox
from cesar.protocol.masked import MaskedRound
from cesar.protocol.plain import PlainRound
from cesar.protocol.round import Round
from cesar.protocol.wire import Kind


def _early_kinds(method: EdgeMethod) -> frozenset[Kind]:
    """What can come before this node begins: where receivers tell terms, all but announcements answers its own."""
    masked = method.masked
    if masked is None:
        return frozenset((Kind.PLAIN_SHARE,))
    return frozenset((Kind.ANNOUNCE,) if masked.has_terms else (Kind.ANNOUNCE, Kind.SHARE))


class Engine:
    """One node's side of the protocol, whatever the method.

    Args:
        size: d, the number of parameters.
        session: 16 bytes that name the network and the run.
        keys: this node's keys; D-PSGD needs none.
        first_round: frames of earlier rounds are late from the start.
        tensors: the sizes of the model's tensors, each of which gets a scale of its own; by default it is one.
        scale_bits: announcements of values over 2^this times the own (or 1, if those are smaller) are refused.
    """

    def __init__(
        self,
        node: NodeId,
        method: EdgeMethod,
        size: int,
        *,
        session: bytes,
        keys: Keyring | None = None,
        first_round: int = 0,
        tensors: Sequence[int] | None = None,
        scale_bits: int | None = None,
    ) -> None:
        self._scale_bits = scale_bits
        self._node, self._size, self._session, self._keys = node, size, session, keys
        self._method = method
        if method.masked is not None and keys is None:
            raise LocalProtocolError("a masked method needs the keys of the node")
        if tensors is not None and (sum(tensors) != size or min(tensors, default=-1) < 0):
            raise LocalProtocolError(f"the sizes of the tensors do not add up to {size} parameters")
        if tensors is None or method.has_one_scale:
            tensors = (size,)
        self.edges = np.cumsum(tensors, dtype=np.int64)
        # Values of 4 bytes, and an index set; relay frames can be larger (see begin_round).
        self._largest_share = 4 * size + codecs.longest(size) + 65536
        self._inbox = Inbox(node, session, RoundNo(first_round), self._largest_share)
        self._inbox.early_kinds = _early_kinds(method)
        self._round: Round | None = None
        self._own: Contribution | None = None
        self._number = RoundNo(first_round)
        self._events: deque[Event] = deque()

    def use_method(self, method: EdgeMethod) -> None:
        """Average in this way from the next round on; strict mode has another s on every graph.

        Raises:
            LocalProtocolError: a round is running, or the new way needs what the engine was not given.
        """
        if self._inbox.running:
            raise LocalProtocolError("the method can change between rounds only")
        if (method.masked is None) != (self._method.masked is None):
            raise LocalProtocolError("a network cannot change between masked and plain averaging")
        self._method = method
        self._inbox.early_kinds = _early_kinds(method)

    def begin_round(
        self,
        round_: RoundNo,
        hood: Neighbourhood,
        contribution: Contribution,
        entropy: Entropy,
        deadlines: Deadlines,
    ) -> None:
        """Start a round, or another attempt at the current one with fresh seeds.

        Raises:
            LocalProtocolError: the round is over.
            DataError, PrivacyError: the contribution cannot be sent; nothing was.
        """
        self._inbox.check(round_)
        if hood.node != self._node:
            raise LocalProtocolError(f"node {self._node} was given the neighbourhood of node {hood.node}")
        if not hood.views:
            raise LocalProtocolError(f"node {self._node} has no neighbours in this round; skip it")
        if np.may_share_memory(contribution.vector, contribution.out):
            raise LocalProtocolError("the new model needs memory of its own: `out` overlaps `vector`")
        if not len(contribution.vector) == len(contribution.out) == self._size:
            raise DataError(
                f"the model has {len(contribution.vector)} parameters, but the network averages {self._size}"
            )
        round_id = RoundId(session=self._session, round_=round_)
        started = self._make_round(round_id, hood, contribution, entropy, deadlines)
        self._inbox.largest_frame = self.largest_frame(hood)
        kept = self._inbox.open(round_)
        self._round, self._own, self._number = started, contribution, round_
        for sender, payload in kept:
            try:
                self.receive(sender, payload)
            except RemoteProtocolError as error:
                self._events.append(FrameRejected(error=error))
        self._advance()

    def largest_frame(self, hood: Neighbourhood) -> int:
        """No frame of a round in this neighbourhood has more bytes."""
        most_items = max(len(view) for view in hood.views.values())
        return max(self._largest_share, most_items * (codecs.longest(self._size) + 64))

    def _make_round(
        self,
        round_id: RoundId,
        hood: Neighbourhood,
        contribution: Contribution,
        entropy: Entropy,
        deadlines: Deadlines,
    ) -> Round:
        method = self._method.masked
        if method is None:
            return PlainRound(self._method, round_id, hood, contribution, deadlines)
        assert self._keys is not None
        context = Context.drawn(
            method, round_id, hood, contribution, self._keys, self.edges, entropy, self._scale_bits
        )
        return MaskedRound(context, deadlines)

    def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None:
        """Take in a frame that the transport says came from `sender`, in any order.

        Returns:
            The frame's round if that is over, so that the frame was passed over; else None.

        Raises:
            RemoteProtocolError: the frame is refused and nothing has changed.
        """
        kind, round_, body = self._inbox.admit(sender, payload)
        if body is None:  # it is kept for its round, or comes after that
            return round_ if self._inbox.is_over(round_) else None
        if self._round is not None:
            try:
                self._round.handle(sender, kind, body)
            except RemoteProtocolError:
                raise
            except Exception as error:
                raise RemoteProtocolError.fault(sender, error, round_) from error
            self._advance()
        return None

    def outbound(self) -> Iterator[Outbound]:
        """Frames to send. Each is made when it is pulled, so that only one is in memory at a time.

        One that cannot be made from what a neighbour said is left out, and an event names that neighbour.
        """
        while self._round is not None:
            outbox = self._round.outbox
            try:
                out = outbox.pull()
            except Exception as error:
                if outbox.asked_by is None:
                    raise
                self._blame(outbox.asked_by, error)
                continue
            if out is None:
                return
            yield out

    def next_event(self) -> Event | None:
        """What has happened, oldest first."""
        return self._events.popleft() if self._events else None

    def next_deadline(self) -> float | None:
        """When to call `tick` next; None if nothing is waiting."""
        return self._round.course.deadline if self._round is not None and self._inbox.running else None

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the round waits for. A driver that knows that none of them will come need not wait
        for the deadline: it calls `tick(next_deadline())` at once.
        """
        return self._round.course.awaiting if self._round is not None and self._inbox.running else frozenset()

    @property
    def joinable(self) -> bool:
        """Whether a neighbour that comes only now can still take part in the round."""
        return self._round is not None and self._inbox.running and self._round.course.joinable

    def tick(self, now: float) -> None:
        """Time has passed: end the phases that are over."""
        self._advance(now)

    def close(self) -> None:
        """Forget the round and everything secret in it.

        A round, its course and its frames hold one another. Left to the garbage collector, models of several rounds would
        be in memory at once.
        """
        self._inbox.finish()
        if self._round is not None:
            self._round.course.forget()
            self._round.outbox.forget()
        self._round = self._own = None

    def _advance(self, now: float | None = None) -> None:
        """Report what the last input, or the time, has brought about."""
        if self._round is None or not self._inbox.running:
            return
        course = self._round.course
        before = course.phase
        try:
            if now is not None:
                course.tick(now)
            course.advance()
            if course.phase is before:  # most frames end no phase, and nothing else is worth a report
                return
            outcome = self._checked(self._round.aggregate()) if course.finished else None
        except Exception as error:  # noqa: BLE001  (whatever others have brought about must not end this node)
            outcome = self._given_up(error)
        for refused in self._round.rejected():
            self._events.append(FrameRejected(error=refused))
        if outcome is not None:
            self._events.append(outcome)
            self._inbox.finish()

    def _given_up(self, error: Exception) -> AggregateReady:
        """The round ends with the own model, for what arrived cannot be used. Its sender is named, where it is known."""
        assert self._round is not None
        assert self._own is not None
        if isinstance(error, RemoteProtocolError):
            self._blame(error.peer, error)
        self._own.out[:] = self._own.vector
        return AggregateReady(round_=self._number, vector=self._own.out, contributors=(), lost=0, fault=error)

    def _blame(self, peer: NodeId, error: Exception) -> None:
        """Name a neighbour whose words this node failed on."""
        blamed = error
        if not isinstance(blamed, RemoteProtocolError):
            blamed = RemoteProtocolError.fault(peer, error, self._number)
            blamed.__cause__ = error
        self._events.append(FrameRejected(error=blamed))

    def _checked(self, outcome: AggregateReady) -> AggregateReady:
        """A result that can be used, or the own model: any contributor can make a sum as large as it likes."""
        if ring.is_finite(outcome.vector):
            return outcome
        assert self._own is not None
        outcome.vector[:] = self._own.vector
        return replace(outcome, contributors=(), lost=0, overflowed=True)
