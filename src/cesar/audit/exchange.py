"""One round as an auditor sees it: who selected what, whose shares arrived, and which masks they carry."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.seeds import SeedTree

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One round as an auditor sees it. Receivers index rows; a receiver's neighbours count in ascending order.

    Attributes:
        views: (n, δ) neighbours of each node, −1 behind the last.
        selected: (q, n) distinct patterns; `[p, i]`: node i selected p.
        weights: (q,) at how many positions each pattern occurs.
        masks: s.
        carried: (n, δ, δ) `[r, a, b]`: the share of r's a-th neighbour says that it carries the b-th's masks.
        matched: (n, δ, δ) and the b-th's share carries the same masks (equal check words).
        arrived: (n, δ) whose share reached the receiver.
    """

    views: Ints
    selected: Flags
    weights: Ints
    masks: int
    carried: Flags
    matched: Flags
    arrived: Flags

    @classmethod
    def complete(cls, graph: nx.Graph, selected: Flags, masks: int) -> Exchange:
        """A round in which everything arrived and every pair agreed.

        Args:
            selected: (n, positions).
        """
        views = views_of(graph)
        real = views >= 0
        pairs = real[:, :, None] & real[:, None, :] & ~np.eye(views.shape[1], dtype=bool)
        patterns, weights = distinct(selected)
        return cls(
            views=views,
            selected=patterns,
            weights=weights,
            masks=masks,
            carried=pairs,
            matched=pairs,
            arrived=real,
        )

    @property
    def nodes(self) -> int:
        return len(self.views)

    @property
    def positions(self) -> int:
        return int(self.weights.sum())

    def kept(self, patterns: slice = slice(None)) -> Flags:
        """(q, n, δ): whether the share of r's a-th neighbour holds the positions of a pattern."""
        chosen = self.selected[patterns]
        towards = chosen[:, self.views]  # −1 reads the last node, and `carried` and `arrived` say no
        count = np.einsum("rab,qrb->qra", self.carried.astype(np.uint8), towards.astype(np.uint8))
        held: Flags = towards & self.arrived & (count >= self.masks)
        return held

    def sums(self, coalition: tuple[int, ...], pattern: int) -> list[tuple[int, frozenset[int]]]:
        """What a coalition can add up at a pattern: (receiver, whose values are in the sum). The kernel does the
        same faster.
        """
        kept, chosen = self.kept(slice(pattern, pattern + 1))[0], self.selected[pattern]
        found = []
        for r in coalition:
            view = self.views[r]
            selects = [bool(chosen[i]) for i in view]
            honest = [a for a in np.flatnonzero(kept[r]) if view[a] not in coalition]
            # Shares are nodes, and masks that cancel are edges. A mask that does not cancel is an open end: its part is noise.
            group = nx.Graph()
            group.add_nodes_from(honest)
            open_ends = set()
            for a in honest:
                for b in np.flatnonzero(self.carried[r, a]):
                    if view[b] in coalition or not selects[b]:
                        continue
                    if self.matched[r, a, b] and kept[r, b]:
                        group.add_edge(a, b)
                    else:
                        open_ends.add(a)
            found += [
                (r, frozenset(int(view[a]) for a in part))
                for part in nx.connected_components(group)
                if not part & open_ends
            ]
        return found


def views_of(graph: nx.Graph) -> Ints:
    """(n, δ): neighbours in ascending order, −1 behind the last."""
    width = max((degree for _, degree in graph.degree), default=0)
    views = np.full((len(graph), width), -1, dtype=np.int64)
    for i in graph:
        views[i, : graph.degree[i]] = sorted(graph[i])
    return views


def distinct(selected: Flags) -> tuple[Flags, Ints]:
    """The different columns of (n, positions), as rows, and how often each occurs."""
    packed = np.ascontiguousarray(np.packbits(selected.T, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return np.ascontiguousarray(selected.T[first]), counts.astype(np.int64)


def draw_patterns(nodes: int, positions: int, alpha: float, seed: int) -> Flags:
    """(n, positions): each node selects each position with probability α, as random subsampling does."""
    draw = SeedTree(seed).generator("audit", "patterns")
    return draw.random((nodes, positions)) < alpha
