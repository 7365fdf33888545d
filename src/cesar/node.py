"""Node: a model in, frames out and in, a new model out. No socket, no clock, no torch.

The simulator and a real peer are two thin drivers around this. Frames pass through one door in each
direction, and bytes are counted there and nowhere else, as `len(payload)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cesar import ring
from cesar.crypto.keys import Keyring, RoundId
from cesar.indices import IndexSet
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.protocol import Continuity, Contribution, Deadlines, Engine, Event, Outbound
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, FullSharing, RandomSubsampling
from cesar.topology import Neighbourhood
from cesar.types import Buffer, Entropy, LastSum, NodeId, RoundNo, Vector
from cesar.wire import CATEGORIES, Frame, Kind


def sparsifier_of(method: Method) -> AnySparsifier:
    """What a method selects with; full sharing where it does not say."""
    if isinstance(method, SecureAggregation):
        return FullSharing()
    if isinstance(method, DPSGD):
        return FullSharing() if method.sparsifier is None else method.sparsifier
    return method.sparsifier


def receiver_decides(method: Method) -> bool:
    """Whether nobody selects: what is sent to a receiver follows from the receiver and the round."""
    if isinstance(method, DPSGD):
        return isinstance(method.sparsifier, CoordinatedSubsampling)
    return (method if isinstance(method, Cesar) else method.as_cesar()).receiver_decides


def drawn_towards(method: Method, receiver: NodeId, attempt: RoundId, size: int) -> IndexSet:
    """What is drawn for a receiver where nobody selects: all positions at which anything may be sent to it."""
    chosen = sparsifier_of(method)
    if isinstance(chosen, CoordinatedSubsampling):
        return chosen.select_for(receiver, attempt, size)
    assert not isinstance(method, DPSGD)
    if not isinstance(chosen, RandomSubsampling) or method.groups is None:
        return IndexSet.full(size)
    count = len(method.groups[receiver])
    drawn = chosen.in_turns(receiver, attempt, size, count)
    return IndexSet.of_words(np.bitwise_or.reduce([drawn(k).words for k in range(count)]), size)


Leaves = Callable[[NodeId, Frame], bool]


class Ledger:
    """Bytes that one node has sent in a round, by what they were for, and how much of its model it shared."""

    def __init__(self) -> None:
        self.sent = dict.fromkeys(CATEGORIES, 0)
        self.shares = 0
        self.parameters = 0

    def record(self, out: Outbound) -> None:
        """Count a frame once for each recipient."""
        copies, frame = len(out.recipients), out.frame
        left = len(frame.payload)
        for category, count in frame.sections.items():
            self.sent[category] += copies * count
            left -= count
        assert left == 0, "every byte has one category"
        if frame.kind in (Kind.SHARE, Kind.PLAIN_SHARE):
            self.shares += copies
            self.parameters += copies * frame.parameters


class Node:
    """One participant.

    Args:
        size: d, the number of parameters.
        session: 16 bytes that name the network and the run.
        keys: this node's keys; D-PSGD needs none.
        tensors: the sizes of the model's tensors, each of which gets a scale of its own; by default it is one.
        continuity: which members were in the last sums; a driver that replaces a node hands it on.
        scale_bits: announcements of values over 2^this times the own are refused; see `Engine`.
    """

    def __init__(
        self,
        node: NodeId,
        method: Method,
        size: int,
        *,
        session: bytes,
        keys: Keyring | None = None,
        first_round: int = 0,
        tensors: Sequence[int] | None = None,
        continuity: Continuity | None = None,
        scale_bits: int | None = None,
    ) -> None:
        self.id, self.size = node, size
        self._method = method
        self._engine = Engine(
            node,
            method,
            size,
            session=session,
            keys=keys,
            first_round=first_round,
            tensors=tensors,
            continuity=continuity,
            scale_bits=scale_bits,
        )
        self.ledger = Ledger()
        self.selected: IndexSet | None = None
        self._vector = np.empty(0, dtype=np.float32)
        self._unsent = np.empty(0, dtype=np.uint64)  # selected, and not yet in a share that left
        self.memory: Vector | None = (
            None  # what was last sent; a driver may set it to go on with what it saved
        )

    @property
    def remembers(self) -> bool:
        """Whether the method ranks by what was last sent; `memory` then has it, once a round has begun."""
        return getattr(sparsifier_of(self._method), "memory", False) is True

    def use_method(self, method: Method) -> None:
        """Average in this way from the next round on."""
        self._engine.use_method(method)
        self._method = method

    def begin_round(
        self,
        round_: RoundNo,
        hood: Neighbourhood,
        vector: Vector,
        *,
        reference: Vector | None = None,
        out: Vector | None = None,
        entropy: Entropy,
        deadlines: Deadlines,
    ) -> None:
        """Select what to share of the model and start.

        Args:
            vector: the model after local training; it must not change before the round has ended.
            reference: the model before local training, for sparsifiers that rank by change; with memory the first
                one is what counts as sent so far.
            out: memory for the new model; without it a new array is made.

        Raises:
            DataError: the model holds NaN or infinity, or has the wrong size. Nothing was sent.
        """
        exponents = ring.exponents_of(vector, self._engine.edges)
        chosen = sparsifier_of(self._method)
        selected = None
        if not receiver_decides(self._method):
            assert not isinstance(chosen, CoordinatedSubsampling)
            if self.remembers and self.memory is None:
                self.memory = np.zeros_like(vector) if reference is None else reference.copy()
            selected = chosen.select(vector, self.memory if self.remembers else reference, entropy)
        contribution = Contribution(
            vector=vector,
            selected=selected,
            exponents=exponents,
            out=np.empty_like(vector) if out is None else out,
        )
        self._engine.begin_round(round_, hood, contribution, entropy, deadlines)
        self.selected, self.ledger = selected, Ledger()
        if self.remembers and selected is not None:
            self._vector, self._unsent = vector, selected.words.copy()

    def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None:
        """Take in a frame; says its round if that is over, and raises `RemoteProtocolError` if it is refused."""
        return self._engine.receive(sender, payload)

    def outbound(self, leaves: Leaves | None = None) -> Iterator[Outbound]:
        """Frames to send, counted as they leave.

        Args:
            leaves: (recipient, frame) → whether it can be sent at all; what cannot is not counted.
        """
        for made in self._engine.outbound():
            out = made
            if leaves is not None:
                out = made._replace(recipients=tuple(to for to in made.recipients if leaves(to, made.frame)))
            self.ledger.record(out)
            self._remember(out)
            yield out

    def _remember(self, out: Outbound) -> None:
        """What has left in a share counts as sent; what a node selected while it was cut off does not."""
        if self.memory is None or not self.remembers or out.positions is None or not out.recipients:
            return
        leaving = self._unsent & out.positions
        if leaving.any():
            ring.copy_at(self.memory, self._vector, leaving)
            self._unsent &= ~out.positions

    def largest_frame(self, hood: Neighbourhood) -> int:
        """No frame of a round in this neighbourhood has more bytes."""
        return self._engine.largest_frame(hood)

    def new_sums(self) -> list[LastSum] | None:
        """Which members are in sums, if that has changed: to be durable before the next frame is sent."""
        return self._engine.new_sums()

    def next_event(self) -> Event | None:
        return self._engine.next_event()

    def next_deadline(self) -> float | None:
        return self._engine.next_deadline()

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the round waits for."""
        return self._engine.awaiting

    @property
    def joinable(self) -> bool:
        """Whether a neighbour that comes only now can still take part in the round."""
        return self._engine.joinable

    def tick(self, now: float) -> None:
        self._engine.tick(now)

    def close(self) -> None:
        """Forget the round."""
        self._engine.close()
