"""Faults: who crashes in a round, at which point of it, and which of its frames still leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cesar.errors import ConfigError
from cesar.seeds import SeedTree
from cesar.sim.wires import Fate
from cesar.topology import Neighbourhood
from cesar.types import NodeId, RoundNo
from cesar.wire import Frame, Kind

CrashPoint = Literal["before_announce", "after_announce", "after_coordination", "during_share"]

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
    """Refuse crashes that cannot happen among so many nodes."""
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

    return leaves


def frames_that_leave(
    crashes: Crashes, round_: RoundNo, hoods: Mapping[NodeId, Neighbourhood], seeds: SeedTree
) -> Fate:
    """The same for frames."""
    leaves = kinds_that_leave(crashes, round_, hoods, seeds)

    def fate(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
        return leaves(sender, recipient, frame.kind)

    return fate
