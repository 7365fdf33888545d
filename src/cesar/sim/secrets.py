"""Secrets of a simulated network: all of them follow from the run's seed, so that the run can be repeated.

Nobody else knows the paths by which they do; real peers take theirs from the operating system.
"""

from __future__ import annotations

import numpy as np

from cesar.crypto.keys import SESSION_BYTES, Attempt, KeyPair, PairSecret
from cesar.indices import IndexSet
from cesar.seeds import SeedTree
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, FullSharing, RandomSubsampling
from cesar.types import Entropy, NodeId, RoundNo


class Secrets:
    """Session, keys and fresh seeds of all nodes of a run; keys are computed when they are first needed."""

    def __init__(self, seed: int) -> None:
        self._seeds = SeedTree(seed)
        self.session = self._seeds.bytes(SESSION_BYTES, "session")
        self._key_pairs: dict[NodeId, KeyPair] = {}
        self._pairs: dict[tuple[NodeId, NodeId], PairSecret] = {}

    def key_pair(self, node: NodeId) -> KeyPair:
        """A node's agreement keys."""
        if node not in self._key_pairs:
            self._key_pairs[node] = KeyPair.generate(self._seeds.entropy("keys", node))
        return self._key_pairs[node]

    def pair(self, node: NodeId, peer: NodeId) -> PairSecret:
        """What a node and a peer have agreed on."""
        if (node, peer) not in self._pairs:
            self._pairs[node, peer] = self.key_pair(node).agree(self.key_pair(peer).public, self.session)
        return self._pairs[node, peer]

    def entropy(self, node: NodeId, round_: RoundNo) -> Entropy:
        """What a node draws its selection and its fresh seeds of a round from, in this order."""
        return self._seeds.entropy("round", round_, node)

    def selection(
        self, sparsifier: AnySparsifier, node: NodeId, round_: RoundNo, size: int
    ) -> IndexSet | None:
        """What a node selects in a round; with coordinated subsampling what is selected towards it.

        None where that depends on its model.
        """
        if isinstance(sparsifier, CoordinatedSubsampling):
            return sparsifier.select_for(node, Attempt(session=self.session, round_=round_), size)
        if isinstance(sparsifier, RandomSubsampling | FullSharing):
            return sparsifier.select(np.zeros(size, dtype=np.float32), None, self.entropy(node, round_))
        return None
