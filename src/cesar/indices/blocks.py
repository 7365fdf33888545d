"""Blocks of 4096 positions, by which densities adapt, and what there is to know of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cesar import bits
from cesar.bits import ONE, ZERO, jit, popcount
from cesar.indices.indexset import IndexSet
from cesar.types import BitWords, ByteArray

BLOCK_WORDS = 64
"""Densities adapt once per so many 64-bit words of the bitmap: every 4096 positions."""

BLOCK_BYTES = 8 * BLOCK_WORDS
BLOCK_BITS = 64 * BLOCK_WORDS

CLASSES = 32
"""Density classes of `patterns`: class k stands for density k/32, 1 ≤ k < 32."""

POPCOUNTS = np.bitwise_count(np.arange(256, dtype=np.uint8))
"""Members in each byte of a bitmap."""


def blocks_of(size: int) -> int:
    """How many blocks so many positions make."""
    return -(-bits.words_for(size) // BLOCK_WORDS)


class Survey(NamedTuple):
    """What all codes that adapt by block want to know of a set.

    Attributes:
        members: of each block.
        classes: their density classes.
        entropy: the sum of the blocks' entropies in bits.
        runs: runs of members, but for those that start at the beginning of a word after a member.
        expected_runs: of as many members at independent positions.
    """

    members: NDArray[np.int64]
    classes: ByteArray
    entropy: float
    runs: int
    expected_runs: float


def survey(indices: IndexSet) -> Survey:
    """Look at every block of a set once."""
    members = np.empty(blocks_of(indices.size), dtype=np.int64)
    classes = np.empty(len(members), dtype=np.uint8)
    return Survey(members, classes, *_survey(indices.words, indices.size, members, classes))


@jit
def _survey(
    words: BitWords, size: int, members: NDArray[np.int64], classes: ByteArray
) -> tuple[float, int, float]:
    entropy, runs, expected = 0.0, ZERO, 0.0
    for block in range(len(members)):
        start, stop = block * BLOCK_WORDS, min((block + 1) * BLOCK_WORDS, len(words))
        found = ZERO
        for w in range(start, stop):
            found += popcount(words[w])
            runs += popcount(words[w] & ~(words[w] << ONE))
        width = min(64 * stop, size) - 64 * start
        members[block] = found
        classes[block] = min(max((2 * CLASSES * members[block] + width) // (2 * width), 1), CLASSES - 1)
        expected += members[block] * (1 - members[block] / BLOCK_BITS)
        if 0 < members[block] < width:
            share = members[block] / width
            entropy -= width * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return entropy, int(runs), expected
