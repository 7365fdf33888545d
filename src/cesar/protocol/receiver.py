"""One receiver's sum: shares in, the new model out, with everything removed whose masks did not cancel.

A share from i says whose masks it carries (P_i). Position p of it carries the mask of the pair (i, j) iff
p was sent by i and selected by j. The mask is gone from the sum iff j's share arrived, says that it carries
i's mask, shows the same check word, and sent p as well. Any other case spoils p: the receiver keeps its own
value there, and only there. Nobody has to agree on who has crashed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from cesar import bits, ring
from cesar.types import BitWords, NodeId, Vector


@dataclass(frozen=True, slots=True)
class Arrived:
    """What is remembered of a share after its values were added to the sum."""

    kept: BitWords
    checks: Mapping[NodeId, bytes]


class Receiver:
    """The sum of what one node's neighbours send it in one round.

    Args:
        size: d.
        degree: δ, the most shares that can come.
        sets: I_j of every neighbour j that takes part, as far as this node holds them.
        masking_requirement: s.

    """

    def __init__(
        self, size: int, degree: int, sets: Mapping[NodeId, BitWords], masking_requirement: int
    ) -> None:
        self._size, self._degree, self._sets, self._s = size, degree, sets, masking_requirement
        self._enough: dict[frozenset[NodeId], BitWords] = {}
        self._total = np.empty(0, dtype=np.uint32)
        self._counts = np.empty(0, dtype=np.uint8)
        self.arrived: dict[NodeId, Arrived] = {}

    def expected_positions(self, sender: NodeId, partners: Collection[NodeId]) -> BitWords | None:
        """I_{i→r} of a share that carries these partners' masks; None if a set that it needs is missing."""
        group = frozenset((sender, *partners))
        if not group <= self._sets.keys():
            return None
        if group not in self._enough:
            sets = [self._sets[node] for node in sorted(group)]
            self._enough[group] = bits.at_least(sets, self._s + 1, bits.words_for(self._size))
        return self._enough[group] & self._sets[sender]

    def add(self, sender: NodeId, checks: Mapping[NodeId, bytes], kept: BitWords, words: np.ndarray) -> None:  # type: ignore[type-arg]
        """Add a share's words, which lie at the kept positions."""
        if not self.arrived:
            self._total = np.zeros(self._size, dtype=np.uint32)
            self._counts = np.zeros(self._size, dtype=np.uint8 if self._degree < 256 else np.uint16)
        ring.accumulate(self._total, self._counts, kept, words)
        self.arrived[sender] = Arrived(kept, checks)

    def spoiled(self) -> BitWords:
        """Positions where some mask that arrived is not cancelled."""
        words = np.zeros(bits.words_for(self._size), dtype=np.uint64)
        for i, mine in self.arrived.items():
            for j, check in mine.checks.items():
                theirs = self.arrived.get(j)
                if theirs is None or theirs.checks.get(i) != check:
                    words |= mine.kept & self._sets[j]
                elif mine.checks.keys() | {i} != theirs.checks.keys() | {j}:
                    words |= mine.kept & self._sets[j] & ~theirs.kept
        return words

    def consistent(self) -> bool:
        """Whether every mask that arrived met its opposite, whatever the positions."""
        return all(
            j in self.arrived and self.arrived[j].checks.get(i) == check
            for i, mine in self.arrived.items()
            for j, check in mine.checks.items()
        )

    def average(self, own: Vector, grid: ring.Grid, *, check: bool) -> tuple[Vector, int]:
        """The new model and how many parameters were lost.

        Args:
            check: look for masks that did not cancel; unnecessary once `consistent` is known for full groups.

        """
        if not self.arrived:
            return own.copy(), 0
        lost = 0
        if check:
            spoiled = self.spoiled()
            lost = bits.count(spoiled)
            if lost:
                ring.erase(self._total, self._counts, spoiled)
        ring.average(own, self._total, self._counts, grid.bits, 1.0 / grid.scale)
        return self._total.view(np.float32), lost
