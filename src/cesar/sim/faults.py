"""Faults: who crashes in a round, at which point of it, and which of its frames still leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId, RoundNo
from cesar.graph.cells import CellPlace
from cesar.graph.neighbourhood import Neighbourhood
from cesar.protocol.wire import Frame, Kind
from cesar.sim.wires import Fate

CrashPoint = Literal[
    "before_announce",
    "after_announce",
    "after_coordination",
    "during_share",
    "after_scatter",
    "during_gather",
]
"""When a node vanishes. The last two are for cells: after it has sent all its masked slices, or when half of the other
members have got its answer. In cells "announce" is the agreement, and "share" the masked slices."""

Crashes = Mapping[int, CrashPoint]
"""Node → when it vanishes."""

_SHARES = (Kind.SHARE, Kind.PLAIN_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Each node crashes with this probability in every round, at this point, and is back in the next.

    Attributes:
        calm: rounds without crashes, such as those before a test.
    """

    rate: float = 0.0
    point: CrashPoint = "after_coordination"
    calm: frozenset[int] = frozenset()

    def draw(self, seed: int, round_: int, nodes: int) -> dict[int, CrashPoint]:
        """Who crashes in a round."""
        if round_ in self.calm:
            return {}
        draws = SeedTree(seed).generator("faults", round_).random(nodes)
        return {int(node): self.point for node in np.flatnonzero(draws < self.rate)}


def check_crashes(crashes: Crashes, nodes: int) -> None:
    """Refuse crashes that cannot happen in a network of this size."""
    for node, point in crashes.items():
        if point not in get_args(CrashPoint):
            points = ", ".join(get_args(CrashPoint))
            raise ConfigError(f"unknown crash point {point!r} for node {node}; choose one of {points}")
        if node not in range(nodes):
            raise ConfigError(f"node {node} cannot crash: there are nodes 0..{nodes - 1}")


Departure = Callable[[NodeId, NodeId, Kind], bool]
"""(sender, recipient, kind of frame) → whether it leaves."""


def kinds_that_leave(
    crashes: Crashes, round_: RoundNo, hoods: Mapping[NodeId, Neighbourhood], seeds: SeedTree
) -> Departure:
    """What the nodes of these neighbourhoods still send in a round; of shares cut short a seeded half."""
    half: dict[NodeId, set[NodeId]] = {}
    for node, hood in hoods.items():
        if crashes.get(node) == "during_share":
            order = seeds.generator("crash", round_, node).permutation(len(hood.view))
            half[node] = {hood.view[k] for k in order[: len(hood.view) // 2]}

    def leaves(sender: NodeId, recipient: NodeId, kind: Kind) -> bool:
        match crashes.get(sender):
            case None:
                return True
            case "before_announce":
                return False
            case "after_announce":
                return kind is Kind.ANNOUNCE
            case "after_coordination":
                return kind not in _SHARES
            case "during_share":
                return kind not in _SHARES or recipient in half[sender]
            case "after_scatter" | "during_gather":
                raise ConfigError(f"node {sender} cannot crash {crashes[sender]}: that is for cells")

    return leaves


_CELL_ORDER = {
    Kind.CELL_AGREE: 1,
    Kind.CELL_SCATTER: 3,
    Kind.CELL_OFFER: 4,
    Kind.CELL_VOTE: 4,
    Kind.CELL_EXCHANGE: 4,
    Kind.CELL_GATHER: 5,
}
_CELL_CUT: dict[str, int] = {
    "before_announce": 0,
    "after_announce": 1,
    "after_coordination": 2,
    "during_share": 2,
    "after_scatter": 3,
    "during_gather": 4,
}


def cell_fates(
    crashes: Crashes, round_: RoundNo, places: Mapping[NodeId, CellPlace], seeds: SeedTree
) -> tuple[Fate, Fate]:
    """What still leaves nodes of cells that crash, and what still reaches them.

    A node that is gone gets nothing more: it must not take part in what came after its crash. Of the phase in which it
    vanishes a seeded half of its frames leaves.
    """
    half: dict[NodeId, frozenset[NodeId]] = {}
    for node, place in places.items():
        if crashes.get(node) in ("during_share", "during_gather"):
            order = seeds.generator("crash", round_, node).permutation(len(place.view))
            half[node] = frozenset(place.view[k] for k in order[: len(place.view) // 2])

    def leaves(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
        point = crashes.get(sender)
        if point is None:
            return True
        step, cut = _CELL_ORDER.get(frame.kind, 2), _CELL_CUT[point]
        if recipient in half.get(sender, ()) and step <= cut + 1:
            return True
        return step <= cut

    def arrives(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
        point = crashes.get(recipient)
        return point is None or reaches(point, frame.kind)

    return leaves, arrives


def reaches(point: CrashPoint, kind: Kind) -> bool:
    """Whether a member of a cell that vanishes at this point still gets a frame."""
    return _CELL_ORDER.get(kind, 2) <= _CELL_CUT[point]


def frames_that_leave(
    crashes: Crashes, round_: RoundNo, hoods: Mapping[NodeId, Neighbourhood], seeds: SeedTree
) -> Fate:
    """The same for frames."""
    leaves = kinds_that_leave(crashes, round_, hoods, seeds)

    def fate(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
        return leaves(sender, recipient, frame.kind)

    return fate
