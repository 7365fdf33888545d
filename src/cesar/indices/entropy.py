"""Entropy: asymmetric numeral systems over eight positions at a time.

The density of a block is (level/255)², so that sparse blocks get a fine step. Level 0 means empty and 255 means full;
such blocks cost nothing more. All blocks of one level are coded with one model.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from cesar import bits
from cesar.errors import EncodingError
from cesar.indices.blocks import BLOCK_BITS, BLOCK_BYTES, POPCOUNTS, blocks_of, survey
from cesar.indices.indexset import IndexSet
from cesar.indices.streams import expect
from cesar.types import BitWords, ByteArray


def _levels(indices: IndexSet) -> NDArray[np.uint8]:
    members = survey(indices).members
    width = np.full(len(members), BLOCK_BITS)
    width[-1:] = indices.size - BLOCK_BITS * (len(members) - 1)
    level = np.rint(255 * np.sqrt(members / width)).astype(np.int64)
    level = np.where(members > 0, np.maximum(level, 1), 0)
    return np.where(members < width, np.minimum(level, 254), 255).astype(np.uint8)


@cache
def _pattern_model(level: int) -> Any:
    """The distribution of a byte of the bitmap. Products, not powers: the same bits on every machine."""
    density = level * level / 65025
    one, zero = np.ones(9), np.ones(9)
    for k in range(1, 9):
        one[k], zero[k] = one[k - 1] * density, zero[k - 1] * (1 - density)
    return constriction.stream.model.Categorical(
        one[POPCOUNTS] * zero[8 - POPCOUNTS], perfect=False, lazy=False
    )


def _bytes_of_level(levels: NDArray[np.uint8], level: int, total: int) -> NDArray[np.int64]:
    """Which bytes of the bitmap belong to blocks of that level, in order."""
    starts = np.flatnonzero(levels == level) * BLOCK_BYTES
    places = (starts[:, None] + np.arange(BLOCK_BYTES)).ravel()
    return places[places < total]


def _coded_levels(levels: NDArray[np.uint8]) -> list[int]:
    return [int(level) for level in np.unique(levels) if 0 < level < 255]


def encode(indices: IndexSet) -> bytes:
    """The body of a set."""
    data, levels = bits.to_bytes(indices.words, indices.size), _levels(indices)
    coder = constriction.stream.stack.AnsCoder()
    for level in reversed(_coded_levels(levels)):  # a stack: what is pushed last comes out first
        symbols = data[_bytes_of_level(levels, level, len(data))].astype(np.int32)
        coder.encode_reverse(symbols, _pattern_model(level))
    packed: NDArray[np.uint32] = coder.get_compressed()
    return levels.tobytes() + packed.astype("<u4").tobytes()


def decode(body: ByteArray, size: int) -> BitWords:
    """The bitmap of a body."""
    blocks = blocks_of(size)
    expect(len(body) >= blocks and (len(body) - blocks) % 4 == 0, "the entropy code is truncated")
    levels, packed = body[:blocks], body[blocks:].copy().view("<u4").astype(np.uint32)
    try:
        coder = constriction.stream.stack.AnsCoder(packed)
    except ValueError as error:
        raise EncodingError(f"not an entropy code: {error}") from None
    data = np.zeros((size + 7) // 8, dtype=np.uint8)
    for block in np.flatnonzero(levels == 255):
        data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = 255
    if size % 8 and blocks and levels[-1] == 255:
        data[-1] = (1 << size % 8) - 1
    for level in _coded_levels(levels):
        places = _bytes_of_level(levels, level, len(data))
        data[places] = coder.decode(_pattern_model(level), len(places))
    words = bits.from_bytes(data, size)
    # An exhausted coder goes on with empty patterns, so the end alone does not show that words are missing.
    canonical = encode(IndexSet.of_words(words, size))
    expect(canonical == body.tobytes(), "the entropy code is truncated or has something behind its end")
    return words
