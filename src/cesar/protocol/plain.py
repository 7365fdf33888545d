"""PlainRound: D-PSGD, the baseline that protects nothing, with the same frames and the same counting.

v'_r = v_r + Σ_j w_rj (v_j − v_r) over the positions that j sent, with Metropolis–Hastings weights
w_rj = 1 / (1 + max(δ_r, δ_j)). A parameter that a neighbour did not send counts as the receiver's own. With
weights="arrived" it is the mean of v_r[p] and of what arrived at p instead, as in CESAR.
Floating-point sums depend on their order, so shares are added in ascending order of sender, whatever the
order in which they come.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import EncodingError, Reason, RemoteProtocolError
from cesar.base.types import BitWords, NodeId, Vector
from cesar.crypto.keys import RoundId
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import IndexSet
from cesar.kernels.bits import ONE, ZERO, jit, lowest_bit
from cesar.methods.base import EdgeMethod
from cesar.protocol.events import AggregateReady, Contribution, Deadlines, Outbound
from cesar.protocol.round import Course, Outbox, Phase, Step
from cesar.protocol.wire import Header, Kind, PlainShare


@jit
def _gather(vector: Vector, members: BitWords, out: Vector) -> None:
    k = 0
    for w in range(len(members)):
        word = members[w]
        while word != ZERO:
            out[k] = vector[64 * w + lowest_bit(word)]
            k += 1
            word &= word - ONE


@jit
def _mix(result: Vector, own: Vector, members: BitWords, values: Vector, weight: float) -> None:
    k = 0
    for w in range(len(members)):
        word = members[w]
        while word != ZERO:
            p = 64 * w + lowest_bit(word)
            change = weight * (np.float64(values[k]) - np.float64(own[p]))
            result[p] = np.float32(np.float64(result[p]) + change)
            k += 1
            word &= word - ONE


@jit
def _add(result: Vector, heard: NDArray[np.uint16], members: BitWords, values: Vector) -> None:
    k = 0
    for w in range(len(members)):
        word = members[w]
        while word != ZERO:
            p = 64 * w + lowest_bit(word)
            result[p] += values[k]
            heard[p] += np.uint16(1)
            k += 1
            word &= word - ONE


class PlainRound:
    """One node's attempt at one round of D-PSGD: one phase, one kind of frame."""

    def __init__(
        self,
        method: EdgeMethod,
        round_id: RoundId,
        hood: Neighbourhood,
        contribution: Contribution,
        deadlines: Deadlines,
    ) -> None:
        self._method, self._round_id, self._hood = method, round_id, hood
        self._own, self._size = contribution, len(contribution.vector)
        self._arrived: set[NodeId] = set()
        self._waiting: dict[NodeId, tuple[IndexSet, Vector]] = {}  # shares whose predecessors are missing
        self._todo = deque(hood.view)  # senders in the order in which they are added
        self._result = contribution.out
        self._result[:] = contribution.vector
        self._heard = np.ones(self._size, dtype=np.uint16) if method.weights == "arrived" else None
        self.outbox = Outbox()
        self.outbox.add(self._make_share)
        law = {Phase.SHARE: Step(lambda: set(self._todo) - self._waiting.keys(), self._leave_out)}
        self.course = Course(law, deadlines)

    def rejected(self) -> list[RemoteProtocolError]:
        return []

    def _leave_out(self) -> None:
        """Go on without those who are missing."""
        self._todo = deque(sorted(self._waiting))
        self._add_in_order()

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a share."""
        if kind is not Kind.PLAIN_SHARE:
            raise self._refusal(sender, Reason.UNEXPECTED, "this network does not mask what it shares")
        if sender not in self._hood.views:
            raise self._refusal(sender, Reason.STRANGER, "it is not a neighbour in this round")
        if sender in self._arrived:
            raise self._refusal(sender, Reason.DUPLICATE, "it has sent its share already")
        try:
            share = PlainShare.decode(body)
            indices = self._method.sparsifier.read(share.indices, self._size)
        except EncodingError as error:
            raise self._refusal(sender, Reason.MALFORMED, str(error)) from None
        if len(share.values) != 4 * indices.count:
            raise self._refusal(
                sender, Reason.MALFORMED, f"{indices.count} values do not fill {len(share.values)} bytes"
            )
        values = np.frombuffer(share.values.tobytes(), dtype="<f4").astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise self._refusal(sender, Reason.MALFORMED, "a value is NaN or infinite")
        self._arrived.add(sender)
        self._waiting[sender] = (indices, values)
        self._add_in_order()

    def aggregate(self) -> AggregateReady:
        """The mixed model."""
        contributors = tuple(sorted(self._arrived))
        if self._heard is not None:
            self._result /= self._heard
        return AggregateReady(
            round_=self._round_id.round_, vector=self._result, contributors=contributors, lost=0
        )

    def _make_share(self) -> Outbound:
        """The share, which everybody gets."""
        indices = self._own.selected
        assert indices is not None, "a node selects for itself here"
        values = np.empty(indices.count, dtype=np.float32)
        _gather(self._own.vector, indices.words, values)
        message = PlainShare(
            indices=self._method.sparsifier.write(indices, self._method.index_code),
            values=values.astype("<f4", copy=False).view(np.uint8),
        )
        header = Header(kind=Kind.PLAIN_SHARE, round_id=self._round_id, sender=self._hood.node)
        return Outbound(recipients=self._hood.view, frame=message.encode(header), positions=indices.words)

    def _add_in_order(self) -> None:
        degree = len(self._hood.view)
        while self._todo and self._todo[0] in self._waiting:
            sender = self._todo.popleft()
            indices, values = self._waiting.pop(sender)
            if self._heard is not None:
                _add(self._result, self._heard, indices.words, values)
            else:
                weight = 1.0 / (1 + max(degree, len(self._hood.views[sender])))
                _mix(self._result, self._own.vector, indices.words, values, weight)

    def _refusal(self, sender: NodeId, reason: Reason, detail: str) -> RemoteProtocolError:
        return RemoteProtocolError(sender, reason, detail, self._round_id.round_)
