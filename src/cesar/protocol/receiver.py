"""One receiver's sum: shares in, the new model out, with everything removed whose masks did not cancel.

A share from i says whose masks it carries (P_i). Position p of it carries the mask of the pair (i, j) iff
p was sent by i and selected by j. The mask is gone from the sum iff j's share arrived, says that it carries
i's mask, shows the same check word, and sent p as well. Any other case spoils p: the receiver keeps its own
value there, and only there. Nobody has to agree on who has crashed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cesar.base import memory
from cesar.base.types import BitWords, NodeId, RingWords, Vector
from cesar.crypto.keys import digest_positions
from cesar.kernels import bits, ring


@dataclass(frozen=True, slots=True)
class Arrived:
    """What is remembered of a share after its values were added to the sum."""

    kept: BitWords
    checks: Mapping[NodeId, bytes]


class Receiver:
    """The sum of what one node's neighbours send it in one round.

    Args:
        degree: δ, the most shares that can come.
        sets: I_j of every neighbour j that takes part, as far as this node holds them.
        masking_requirement: s.
        out: where the sum grows and the new model is left.
    """

    def __init__(
        self, degree: int, sets: Mapping[NodeId, BitWords], masking_requirement: int, out: Vector
    ) -> None:
        self._size, self._degree, self._sets, self._s = len(out), degree, sets, masking_requirement
        self._group = frozenset(sets)
        self._enough = self._at_least(self._group)
        self._digests = {
            frozenset((i, j)): digest_positions(bits.both(sets[i], sets[j]))
            for i, j in combinations(sorted(sets), 2)
        }
        self._out, self._total = out, out.view(np.uint32)
        self._kept = np.empty((0, 0), dtype=np.uint64)  # a row for each share
        self.arrived: dict[NodeId, Arrived] = {}

    def expected_positions(self, sender: NodeId, partners: Collection[NodeId]) -> BitWords:
        """I_{i→r} of a share that carries these partners' masks."""
        group = frozenset((sender, *partners))
        enough = self._enough if group == self._group else self._at_least(group)
        return bits.both(enough, self._sets[sender])

    def _at_least(self, group: frozenset[NodeId]) -> BitWords:
        """Positions that enough members of a group selected for each to carry s masks."""
        return bits.at_least([self._sets[node] for node in group], self._s + 1, bits.words_for(self._size))

    def common_digest(self, i: NodeId, j: NodeId) -> bytes:
        """Digest of the positions that two members both selected, as their announcements say."""
        return self._digests[frozenset((i, j))]

    def add(self, sender: NodeId, checks: Mapping[NodeId, bytes], kept: BitWords, words: RingWords) -> None:
        """Add a share's words, which lie at the kept positions."""
        if not self.arrived:
            self._kept = memory.empty(self._degree * len(kept), np.uint64).reshape(self._degree, len(kept))
        row = self._kept[len(self.arrived)]
        row[:] = kept
        ring.accumulate(self._total, row, words, 32, not self.arrived)
        self.arrived[sender] = Arrived(row, checks)

    def spoiled(self) -> BitWords | None:
        """Positions where some mask that arrived is not cancelled; None if every mask is."""
        words: BitWords | None = None
        for i, mine in self.arrived.items():
            for j, check in mine.checks.items():
                theirs = self.arrived.get(j)
                if theirs is None or theirs.checks.get(i) != check:
                    bad = mine.kept & self._sets[j]
                elif mine.checks.keys() | {i} != theirs.checks.keys() | {j}:
                    bad = mine.kept & self._sets[j] & ~theirs.kept
                else:
                    continue
                words = bad if words is None else words | bad
        return words

    def consistent(self) -> bool:
        """Whether every mask that arrived met its opposite, whatever the positions."""
        return all(
            j in self.arrived and self.arrived[j].checks.get(i) == check
            for i, mine in self.arrived.items()
            for j, check in mine.checks.items()
        )

    def everything_from(self, view: Collection[NodeId]) -> bool:
        """Whether all these nodes' shares came, each with the masks of all others, and all masks cancel."""
        everybody = set(view)
        full = all(mine.checks.keys() == everybody - {i} for i, mine in self.arrived.items())
        return self.arrived.keys() == everybody and full and self.consistent()

    def average(self, own: Vector, grid: ring.Grid, everybody: int) -> int:
        """Leave the new model in `out`; how many parameters were lost to masks that did not cancel.

        Args:
            everybody: over how many a mean goes, with the own value for those missing; 0 for those that arrived.
        """
        if not self.arrived:
            return self.keep(own)
        spoiled = self.spoiled()
        lost = 0 if spoiled is None else bits.count(spoiled)
        nothing = np.empty(0, dtype=np.uint64)
        ring.average(
            own,
            self._total,
            self._kept[: len(self.arrived)],
            np.ones(len(self.arrived), dtype=np.uint32),
            nothing if spoiled is None else spoiled,
            grid.bits,
            grid.edges,
            1.0 / grid.scales,
            everybody,
        )
        return lost

    def keep(self, own: Vector) -> int:
        """Leave the own model in `out`: nothing was lost, for nothing was used."""
        self._out[:] = own
        return 0
