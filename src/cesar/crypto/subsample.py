"""A set of positions from a 16-byte seed: each position is in it with probability α, independently.

Everybody who holds the seed gets the same set, which is why random subsampling never sends indices.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cesar.base import memory
from cesar.base.types import BitWords
from cesar.crypto.keystream import Keystream
from cesar.kernels import bits

_TILES = 64
"""Tiles of 64 words expanded at a time: 256 KiB of keystream, which stays in the cache."""


def threshold_of(alpha: float) -> int:
    """α as a fraction of 2^32."""
    return round(alpha * 2.0**32)


KEPT_SIZE = 1 << 18
"""Sets of larger models are drawn whenever they are needed: they take memory, and a node needs few."""

KEPT = 1024
"""How many smaller ones are kept, 32 MB at most: those of a round of a thousand simulated nodes."""


def expand_seed(seed: bytes, size: int, alpha: float) -> BitWords:
    """The bitmap of the set that `seed` stands for (`bits.bernoulli` says which bits decide); not to be written to.

    All neighbours of a node expand its seed, in a simulation in one process, so those drawn last are kept.
    """
    draw = _draw_and_keep if size <= KEPT_SIZE else _draw
    return draw(seed, size, threshold_of(alpha))


def _draw(seed: bytes, size: int, threshold: int) -> BitWords:
    if threshold >= 1 << 32:
        return bits.ones(size)
    stream = Keystream(seed)  # drawn for this one set: it is the key of AES-128 as it is
    words: BitWords = memory.empty(bits.words_for(size), np.uint64)
    for start in range(0, len(words), 64 * _TILES):
        part = words[start : start + 64 * _TILES]
        planes = 512 * -(-len(part) // 64)
        drawn = np.empty(planes + len(part), dtype="<u8")
        stream.fill(drawn)
        while bits.bernoulli(drawn[:planes], drawn[planes:], threshold, part) < 0:
            more = np.empty(len(part), dtype="<u8")
            stream.fill(more)
            drawn = np.concatenate([drawn, more])
    bits.clear_tail(words, size)
    return words


@lru_cache(maxsize=KEPT)
def _draw_and_keep(seed: bytes, size: int, threshold: int) -> BitWords:
    words = _draw(seed, size, threshold)
    words.flags.writeable = False
    return words
