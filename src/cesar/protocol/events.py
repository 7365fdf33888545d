"""What goes into a round and what comes out of it.

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
from typing import NamedTuple

from cesar.errors import RemoteProtocolError
from cesar.indices import IndexSet
from cesar.types import BitWords, NodeId, RoundNo, Vector
from cesar.wire import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a node brings to a round.

    Attributes:
        vector: v_i, the whole model; it must not change until the round has ended.
        selected: I_i; None where the receiver decides (coordinated subsampling, random subsampling in groups).
        exponents: the scale of each tensor, from `ring.exponents_of`, which also refuses NaN.
        out: where the new model goes; the sum is gathered there too, so that a large model needs no more
            memory than its result. It must not overlap `vector`.
    """

    vector: Vector = field(repr=False)
    selected: IndexSet | None
    exponents: tuple[int, ...]
    out: Vector = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Latest ends of the phases, as times on the driver's clock."""

    announce: float
    relay: float
    share: float


class Outbound(NamedTuple):
    """One frame and everybody who gets it; `positions` are those of the values in a share."""

    recipients: tuple[NodeId, ...]
    frame: Frame
    positions: BitWords | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateReady:
    """The round has ended for this node.

    Attributes:
        vector: the new model, in the contribution's `out`.
        contributors: whose shares were used.
        lost: parameters that kept the own value because a mask on them did not cancel.
        silent: groups without a whole sum because of absence: (group, who had not announced itself). If nobody is named,
            somebody has come back and the group waits until `regroup_after` rounds have passed.
        overflowed: what arrived made the model infinite, so nothing of it was used and the own model was kept.
        fault: what went wrong, if this node failed on what had arrived; then it kept its own model, too.
    """

    round_: RoundNo
    vector: Vector = field(repr=False)
    contributors: tuple[NodeId, ...]
    lost: int
    silent: tuple[tuple[tuple[NodeId, ...], tuple[NodeId, ...]], ...] = ()
    overflowed: bool = False
    fault: Exception | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRejected:
    """A frame turned out to be bad after it was taken: when its round began, or when it was to be answered."""

    error: RemoteProtocolError


Event = AggregateReady | FrameRejected
