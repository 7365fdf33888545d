"""Node: a model in, frames out and in, a new model out. No socket, no clock, no torch.

The simulator and a real peer are two thin drivers around this. Frames pass through one door in each
direction, and bytes are counted there and nowhere else, as `len(payload)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cesar.base.types import Entropy, NodeId, RoundNo, Vector
from cesar.crypto.keys import Keyring
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import IndexSet
from cesar.kernels import ring
from cesar.methods.base import EdgeMethod
from cesar.protocol import Contribution, Deadlines, Engine, Outbound
from cesar.protocol.wire import CATEGORIES, Frame, Kind

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
        scale_bits: announcements of values over 2^this times the own are refused; see `Engine`.

    Attributes:
        engine: the protocol of this node; a driver asks it whom the round waits for.
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
        self.id, self.size = node, size
        self._method = method
        self.engine = Engine(
            node,
            method,
            size,
            session=session,
            keys=keys,
            first_round=first_round,
            tensors=tensors,
            scale_bits=scale_bits,
        )
        # To these a node adds nothing: they are the engine's own.
        self.receive, self.largest_frame = self.engine.receive, self.engine.largest_frame
        self.next_event, self.next_deadline = self.engine.next_event, self.engine.next_deadline
        self.tick = self.engine.tick
        self.ledger = Ledger()
        self.selected: IndexSet | None = None
        self._vector = np.empty(0, dtype=np.float32)
        self._unsent = np.empty(0, dtype=np.uint64)  # selected, and not yet in a share that left
        self.memory: Vector | None = (
            None  # what was last sent; a driver may set it to go on with what it saved
        )

    def use_method(self, method: EdgeMethod) -> None:
        """Average in this way from the next round on."""
        self.engine.use_method(method)
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
        exponents = ring.exponents_of(vector, self.engine.edges)
        sparsifier = self._method.sparsifier
        if sparsifier.memory and self.memory is None:
            self.memory = np.zeros_like(vector) if reference is None else reference.copy()
        selected = sparsifier.select(vector, self.memory if sparsifier.memory else reference, entropy)
        contribution = Contribution(
            vector=vector,
            selected=selected,
            exponents=exponents,
            out=np.empty_like(vector) if out is None else out,
        )
        self.engine.begin_round(round_, hood, contribution, entropy, deadlines)
        self.selected, self.ledger = selected, Ledger()
        if sparsifier.memory:
            self._vector, self._unsent = vector, selected.words.copy()

    def outbound(self, leaves: Leaves | None = None) -> Iterator[Outbound]:
        """Frames to send, counted as they leave.

        Args:
            leaves: (recipient, frame) → whether it can be sent at all; what cannot is not counted.
        """
        for made in self.engine.outbound():
            out = made
            if leaves is not None:
                out = made._replace(recipients=tuple(to for to in made.recipients if leaves(to, made.frame)))
            self.ledger.record(out)
            self._remember(out)
            yield out

    def _remember(self, out: Outbound) -> None:
        """What has left in a share counts as sent; what a node selected while it was cut off does not."""
        if (
            self.memory is None
            or not self._method.sparsifier.memory
            or out.positions is None
            or not out.recipients
        ):
            return
        leaving = self._unsent & out.positions
        if leaving.any():
            ring.copy_at(self.memory, self._vector, leaving)
            self._unsent &= ~out.positions

    def close(self) -> None:
        """Forget the round."""
        self.engine.close()
