"""Secrets of a simulated network: all of them follow from the run's seed, so that a round can be drawn again.

Nobody else knows the paths by which they do; real peers take theirs from the operating system.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cesar.base.seeds import SeedTree
from cesar.base.types import Entropy, NodeId, RoundNo
from cesar.crypto.keys import SESSION_BYTES, KeyPair, Keyring, PairSecret, RoundId
from cesar.indices import IndexSet
from cesar.methods.sparsify import Sparsifier


class Secrets:
    """Session, keys and fresh seeds of all nodes of a run; keys are computed when they are first needed."""

    def __init__(self, seed: int) -> None:
        self._seeds = SeedTree(seed)
        self.session = self._seeds.bytes(SESSION_BYTES, "session")
        self._key_pairs: dict[NodeId, KeyPair] = {}
        self._pairs: dict[tuple[NodeId, NodeId], PairSecret] = {}
        self._agreed: dict[frozenset[bytes], bytes] = {}  # until the other side asks for the same

    def round_id(self, round_: RoundNo) -> RoundId:
        """The round's name, which everything drawn in common depends on."""
        return RoundId(session=self.session, round_=round_)

    def key_pair(self, node: NodeId) -> KeyPair:
        """A node's static agreement keys."""
        if node not in self._key_pairs:
            self._key_pairs[node] = KeyPair.generate(self._seeds.entropy("keys", node))
        return self._key_pairs[node]

    def pair(self, node: NodeId, peer: NodeId) -> PairSecret:
        """What a node and a peer have agreed on with these keys."""
        pair = (node, peer) if node < peer else (peer, node)
        if pair not in self._pairs:
            self._pairs[pair] = self.key_pair(node).agree(self.key_pair(peer).public, self.session)
        return self._pairs[pair]

    def _exchange(self, own: KeyPair, public: bytes) -> bytes:
        """Both sides of an agreement get the same, so one of them computes it."""
        both = frozenset((own.public, public))
        found = self._agreed.pop(both, None)
        if found is None:
            found = self._agreed[both] = own.exchange(public)
        return found

    def ring(self, node: NodeId) -> Keyring:
        """A node's keys; its ephemeral ones depend on the epoch alone, so that a resumed run is the same."""

        def ephemeral(epoch: int) -> bytes:
            return self._seeds.entropy("ephemeral", epoch, node)(32)

        return Keyring(partial(self.pair, node), ephemeral, exchange=self._exchange)

    def entropy(self, node: NodeId, round_: RoundNo) -> Entropy:
        """What a node draws from in a round: its selection first, then fresh seeds."""
        return self._seeds.entropy("round", round_, node)

    def selections(
        self, sparsifier: Sparsifier, round_: RoundNo, nodes: int, size: int
    ) -> list[IndexSet] | None:
        """What all nodes select in a round; None if that follows from their models."""
        ids, nothing = map(NodeId, range(nodes)), np.zeros(size, dtype=np.float32)
        if sparsifier.drawn:
            return [sparsifier.select(nothing, None, self.entropy(i, round_)) for i in ids]
        return None
