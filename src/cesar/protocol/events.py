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

from cesar.base.errors import RemoteProtocolError
from cesar.base.types import BitWords, NodeId, RoundNo, Vector
from cesar.indices import IndexSet
from cesar.protocol.wire import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a node brings to a round.

    Attributes:
        vector: v_i, the whole model; it must not change until the round has ended.
        selected: I_i.
        exponents: the scale of each tensor, from `ring.exponents_of`, which also refuses NaN.
        out: where the new model goes; the sum is gathered there too, so that a large model needs no more
            memory than its result. It must not overlap `vector`.
    """

    vector: Vector = field(repr=False)
    selected: IndexSet
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
class CellReport:
    """What a round has brought to a member of a cell.

    Attributes:
        members: who is in the sum; nobody if the cell did not add up.
        summed: keepers of the slices that came about.
        missing: members that were not heard.
        behind: members that held another model, and were given what they lacked.
        stranded: whether too few members hold any one model for the others to believe them: then nobody can be given it.
        disputed: (keeper, members) of slices of which these members have another version than most. Either the keeper has
            lied or they have; everybody has gone back to what the model was there before.
        unequal: pairs of members whose masks did not cancel at this keeper.
        heard: cells whose values are in the mean that this keeper made.
        ages: for how many rounds of this cell each of these had waited here.
        objections: how many members have objected to the mean update; None if there was no vote, or not all votes came.
        refusals: in how many votes in a row most have objected, this one included.
        unsure: how many numbers are in doubt.
        metric: the mean of the metrics that all members of the cell handed in with their models; None if there is none, or a part of
            the common model that came of them has not come.
        discarded: what this member has thrown away, if anything: trained on a model that the cell does not hold, or beside a
            member that has to throw away as much, in doubt, or in a sum that most members have refused.
    """

    members: tuple[NodeId, ...] = ()
    summed: tuple[NodeId, ...] = ()
    missing: tuple[NodeId, ...] = ()
    behind: tuple[NodeId, ...] = ()
    stranded: bool = False
    disputed: tuple[tuple[NodeId, tuple[NodeId, ...]], ...] = ()
    unequal: tuple[tuple[NodeId, NodeId], ...] = ()
    heard: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()
    objections: int | None = None
    refusals: int = 0
    unsure: int = 0
    metric: float | None = None
    discarded: Vector | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateReady:
    """The round has ended for this node.

    Attributes:
        vector: the new model, in the contribution's `out`.
        contributors: whose shares were used.
        lost: parameters that kept the own value because a mask on them did not cancel.
        overflowed: what arrived made the model infinite, so nothing of it was used and the own model was kept.
        fault: what went wrong, if this node failed on what had arrived; then it kept its own model, too.
        cell: how the round went in the node's cell, where there are cells.
    """

    round_: RoundNo
    vector: Vector = field(repr=False)
    contributors: tuple[NodeId, ...]
    lost: int
    overflowed: bool = False
    fault: Exception | None = field(default=None, repr=False)
    cell: CellReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRejected:
    """A frame turned out to be bad after it was taken: when its round began, or when it was to be answered."""

    error: RemoteProtocolError


Event = AggregateReady | FrameRejected
