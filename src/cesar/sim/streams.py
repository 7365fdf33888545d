"""What a simulated network draws from its seed: the names of its streams, so that others can draw a round again."""

from __future__ import annotations

import numpy as np

from cesar.crypto.keys import SESSION_BYTES, Attempt
from cesar.indices import IndexSet
from cesar.seeds import SeedTree
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, RandomSubsampling
from cesar.types import Entropy, NodeId, RoundNo


def session(seeds: SeedTree) -> bytes:
    """The session that all nodes agree on."""
    return seeds.bytes(SESSION_BYTES, "session")


def key_entropy(seeds: SeedTree, node: int) -> Entropy:
    """Of a node's agreement keys."""
    return seeds.entropy("keys", node)


def round_entropy(seeds: SeedTree, round_: int, node: int) -> Entropy:
    """Of what a node draws in a round."""
    return seeds.entropy("round", round_, node)


def selections(
    sparsifier: AnySparsifier, seed: int, round_: int, nodes: int, size: int
) -> list[IndexSet] | None:
    """What the nodes of a simulation select in a round; None if that follows from their models.

    With coordinated subsampling entry r is what is selected towards r.
    """
    seeds = SeedTree(seed)
    if isinstance(sparsifier, RandomSubsampling):
        nothing = np.zeros(size, dtype=np.float32)
        return [sparsifier.select(nothing, None, round_entropy(seeds, round_, i)) for i in range(nodes)]
    if isinstance(sparsifier, CoordinatedSubsampling):
        attempt = Attempt(session=session(seeds), round_=RoundNo(round_))
        return [sparsifier.select_for(NodeId(i), attempt, size) for i in range(nodes)]
    return None
