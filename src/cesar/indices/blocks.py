"""Blocks of 4096 positions, by which densities adapt, and what there is to know of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cesar.base.types import BitWords, ByteArray
from cesar.indices.indexset import IndexSet
from cesar.kernels import bits
from cesar.kernels.bits import ONE, ZERO, jit, popcount

BLOCK_WORDS = 64
"""Words of the bitmap in a block. Densities adapt once per block: every 4096 positions."""

BLOCK_BYTES = 8 * BLOCK_WORDS
BLOCK_BITS = 64 * BLOCK_WORDS

CLASSES = 32
"""Density classes of `patterns`: class k stands for density k/32, 1 ≤ k < 32."""

POPCOUNTS = np.bitwise_count(np.arange(256, dtype=np.uint8))
"""Members in each byte of a bitmap."""


def blocks_of(size: int) -> int:
    """How many blocks a set of this size has."""
    return -(-bits.words_for(size) // BLOCK_WORDS)


class Survey(NamedTuple):
    """What all codes that adapt by block want to know of a set.

    Attributes:
        classes: the density class of each block.
        entropy: the sum of the blocks' entropies in bits.
        runs: runs of members, but for those that start at the beginning of a word after a member.
        expected_runs: of as many members at independent positions.
    """

    classes: ByteArray
    entropy: float
    runs: int
    expected_runs: float


def survey(indices: IndexSet) -> Survey:
    """Look at every block of a set once."""
    classes = np.empty(blocks_of(indices.size), dtype=np.uint8)
    return Survey(classes, *_survey(indices.words, indices.size, classes))


@jit
def _survey(words: BitWords, size: int, classes: ByteArray) -> tuple[float, int, float]:
    entropy, runs, expected = 0.0, ZERO, 0.0
    for block in range(len(classes)):
        start, stop = block * BLOCK_WORDS, min((block + 1) * BLOCK_WORDS, len(words))
        found = ZERO
        for w in range(start, stop):
            found += popcount(words[w])
            # A run begins at a member without one just below it: 0111 0011 & ~1110 0110 = 0001 0001, two runs.
            runs += popcount(words[w] & ~(words[w] << ONE))
        width = min(64 * stop, size) - 64 * start
        members = int(np.int64(found))
        # 32 · members / width, rounded to nearest, in integers only: both ends must agree on the class.
        classes[block] = min(max((2 * CLASSES * members + width) // (2 * width), 1), CLASSES - 1)
        expected += members * (
            1 - members / BLOCK_BITS
        )  # a member begins a run if the position below it is empty
        if 0 < members < width:
            share = members / width
            entropy -= width * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return entropy, int(runs), expected
