"""What averaging has brought: one round, and all of them so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cesar.node import Node
from cesar.protocol import AggregateReady
from cesar.protocol.wire import CATEGORIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one call of `average` has brought.

    Attributes:
        contributors: the neighbours whose shares are in the new model.
        missing: the other neighbours.
        shared: the mean fraction of its parameters that this peer sent to a neighbour.
        lost: parameters that kept their own value because a mask on them did not cancel.
        overflowed: what arrived made the model infinite, so that it kept its own.
        fault: the kind of error, if this peer failed on what had arrived; then it kept its own model, too.
        disk: why nothing could be written, if so; then nothing was sent, and the model is its own.
        summed: what this peer trained is in a sum. In a cell it may be later: then training goes on, and nothing is lost.
        landed: the round of an earlier call's offer that was added up meanwhile; None if none was.
        heard: in a network of cells, the cells that were heard, and for how many rounds what they said had waited here.
        unsent: the length of what was trained and is in no sum yet.
        discarded: the length of what was thrown away since the last report: in doubt, or trained on a model that not all of the cell hold.
        accused: members that have told different things about the model, or were said to have.
        metric: the mean of the metrics that all members of the cell handed in with their models; None if there is none.
        settled: at the end of `settle`, whether every cell that this one hears was there; None otherwise.
        present: at the end of `settle`, where the network asks for a quorum: the share of all cells that are in the final model, in the slice
            that this peer looks after; None otherwise.
        bytes: what this peer sent, by category.
        seconds: how long it took.
    """

    round: int
    contributors: tuple[int, ...]
    missing: tuple[int, ...]
    shared: float
    lost: int
    bytes: dict[str, int]
    seconds: float
    overflowed: bool = False
    fault: str = ""
    disk: str = ""
    summed: bool = False
    landed: int | None = None
    heard: dict[int, int] = field(default_factory=dict)
    unsent: float = 0.0
    discarded: float = 0.0
    accused: tuple[int, ...] = ()
    metric: float | None = None
    settled: bool | None = None
    present: float | None = None

    @classmethod
    def without_disk(cls, round_: int, neighbours: Iterable[int], why: str, seconds: float) -> Report:
        """A round that could not be, since what must be on disk before anything leaves could not be put there."""
        return cls(
            round=round_,
            contributors=(),
            missing=tuple(sorted(neighbours)),
            shared=0.0,
            lost=0,
            bytes=dict.fromkeys(CATEGORIES, 0),
            seconds=seconds,
            disk=why,
        )

    @classmethod
    def of(
        cls, outcome: AggregateReady, node: Node, neighbours: Iterable[int], size: int, seconds: float
    ) -> Report:
        """What a round of a node has brought; `size` is the number of parameters."""
        ledger = node.ledger
        return cls(
            round=outcome.round_,
            contributors=outcome.contributors,
            missing=tuple(sorted(set(neighbours) - set(outcome.contributors))),
            shared=ledger.parameters / (max(1, ledger.shares) * max(1, size)),
            lost=outcome.lost,
            bytes=dict(ledger.sent),
            seconds=seconds,
            summed=bool(outcome.contributors),
            overflowed=outcome.overflowed,
            fault="" if outcome.fault is None else type(outcome.fault.__cause__ or outcome.fault).__name__,
        )

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


RECENT = 8
"""Rounds that the status page tells one by one."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """All rounds of a peer since it was started.

    Attributes:
        recent: the latest reports, oldest first. A new tuple each time: the status page reads it from another thread.
        dropouts: neighbours that were missing, over all rounds.
        sent: bytes by category.
        figures: what the training code wants to show on the status page.
    """

    recent: tuple[Report, ...] = ()
    rounds: int = 0
    dropouts: int = 0
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        self.recent = (*self.recent, report)[-RECENT:]
        self.rounds += 1
        self.dropouts += len(report.missing)
        for category, count in report.bytes.items():
            self.sent[category] += count
