"""What averaging has brought: one round, and all of them so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cesar.node import Node
from cesar.protocol import AggregateReady
from cesar.wire import CATEGORIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one call of `average` has brought.

    Attributes:
        contributors: the neighbours whose shares are in the new model.
        missing: the other neighbours.
        shared: the mean fraction of its parameters that this peer sent to a neighbour.
        lost: parameters that kept their own value because a mask on them did not cancel.
        silent: fixed groups that lacked a member, so that nothing came of them: (group, who is missing; nobody
            if they are back and `regroup_after` keeps the next sum apart from the last one).
        overflowed: what arrived made the model infinite, so that it kept its own.
        fault: the kind of error, if this peer failed on what had arrived; then it kept its own model, too.
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
    silent: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    overflowed: bool = False
    fault: str = ""

    @classmethod
    def of(
        cls, outcome: AggregateReady, node: Node, neighbours: Iterable[int], size: int, seconds: float
    ) -> Report:
        """What a round of a node with so many parameters has brought."""
        ledger = node.ledger
        return cls(
            round=outcome.round_,
            contributors=outcome.contributors,
            missing=tuple(sorted(set(neighbours) - set(outcome.contributors))),
            shared=ledger.parameters / (max(1, ledger.shares) * max(1, size)),
            lost=outcome.lost,
            bytes=dict(ledger.sent),
            seconds=seconds,
            silent=outcome.silent,
            overflowed=outcome.overflowed,
            fault="" if outcome.fault is None else type(outcome.fault.__cause__ or outcome.fault).__name__,
        )

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


@dataclass(slots=True, kw_only=True)
class Totals:
    """All rounds of a peer since it was started.

    Attributes:
        last: the latest report.
        dropouts: neighbours that were missing, over all rounds.
        sent: bytes by category.
        figures: what the training code wants to show on the status page.
    """

    last: Report | None = None
    rounds: int = 0
    dropouts: int = 0
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        self.last = report
        self.rounds += 1
        self.dropouts += len(report.missing)
        for category, count in report.bytes.items():
            self.sent[category] += count
