"""Patterns: a Huffman code for eight positions at a time, after the density class of their block."""

from __future__ import annotations

import heapq
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cesar.base.types import BitWords, ByteArray
from cesar.indices.blocks import BLOCK_BYTES, BLOCK_WORDS, CLASSES, POPCOUNTS, blocks_of, survey
from cesar.indices.indexset import IndexSet
from cesar.indices.streams import Stream, expect, expect_consumed, stream_bytes
from cesar.kernels import bits
from cesar.kernels.bits import ZERO, jit

LONGEST_PATTERN = 13
"""No code is longer, so the decoder's table has 2^13 entries and fits the cache."""


@cache
def pattern_lengths() -> NDArray[np.uint8]:
    """Code length of each of the 256 patterns, for each density class k.

    Weights are exact integers, k^ones · (32 − k)^(8 − ones), raised to at least 2^28 so that no code is
    longer than 13 bits. Huffman's rule: join the two lightest; of equal weights the one made first.
    """
    table = np.zeros((CLASSES, 256), dtype=np.uint8)
    for k in range(1, CLASSES):
        weights = [max(k ** int(o) * (CLASSES - k) ** (8 - int(o)), 1 << 28) for o in POPCOUNTS]
        heap: list[tuple[int, int, list[int]]] = [(w, s, [s]) for s, w in enumerate(weights)]
        heapq.heapify(heap)
        made = 256
        while len(heap) > 1:
            (w1, _, left), (w2, _, right) = heapq.heappop(heap), heapq.heappop(heap)
            members = left + right
            table[k, members] += 1  # whatever is joined moves down a level: its codes are one bit longer
            heapq.heappush(heap, (w1 + w2, made, members))
            made += 1
    return table


@cache
def _pattern_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Encoder and decoder of each class: (code << 8 | length), and length << 8 | pattern by 13 bits read."""
    lengths = pattern_lengths()
    encoder = np.zeros((CLASSES, 256), dtype=np.uint32)
    decoder = np.zeros((CLASSES, 1 << LONGEST_PATTERN), dtype=np.uint16)
    # Canonical codes: shorter ones first, equally long ones in the order of their patterns, each one more than the one before.
    # Lengths are all that both ends must agree on. Bits lie lowest first in the stream, so codes are stored reversed: a reader that
    # looks at the next 13 bits finds the code in the lowest of them and anything above it. Every entry with these low bits is
    # therefore the same: `reversed_`, and from there on in steps of 2^length.
    for k in range(1, CLASSES):
        code, previous = 0, 0
        for length, symbol in sorted((int(n), s) for s, n in enumerate(lengths[k])):
            code <<= length - previous
            previous = length
            reversed_ = int(f"{code:0{length}b}"[::-1], 2)
            encoder[k, symbol] = reversed_ << 8 | length
            decoder[k, reversed_ :: 1 << length] = length << 8 | symbol
            code += 1
    return encoder, decoder


@jit
def _write_patterns(data: ByteArray, classes: ByteArray, codes: NDArray[np.uint32], out: Stream) -> int:
    """Returns how many bits were written."""
    # `window` collects codes of up to 13 bits above the `filled` ones that wait, at most 31: 44 bits, and a word leaves at 32.
    window, filled, k = ZERO, ZERO, 0
    for block in range(len(classes)):
        row = codes[classes[block]]
        for i in range(block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, len(data))):
            entry = np.uint64(row[data[i]])
            window |= (entry >> np.uint64(8)) << filled
            filled += entry & np.uint64(255)
            if filled >= np.uint64(32):
                out[k] = np.uint32(window & np.uint64(0xFFFFFFFF))
                k += 1
                window >>= np.uint64(32)
                filled -= np.uint64(32)
    out[k] = np.uint32(window)
    return 32 * k + int(filled)


@jit
def _read_patterns(
    data: ByteArray, classes: ByteArray, codes: NDArray[np.uint16], size: int, words: BitWords
) -> int:
    """Returns how many bits were read, or −1 if there is no such density class. Behind the data there are zeros."""
    window, filled, k, used = ZERO, ZERO, 0, np.int64(0)
    mask = np.uint64((1 << LONGEST_PATTERN) - 1)
    for block in range(len(classes)):
        if not 0 < classes[block] < CLASSES:
            return -1
        row = codes[classes[block]]
        for w in range(block * BLOCK_WORDS, min((block + 1) * BLOCK_WORDS, len(words))):
            word = ZERO
            for i in range(min(8, (size - 64 * w + 7) // 8)):
                # Four more bytes when fewer than 32 bits are left, so that 13 are always there. Behind the end there are zeros: a
                # code that is cut off reads them as if they were its own, `used` is then too large, and the caller sees it.
                if filled < np.uint64(32):
                    for b in range(k, min(k + 4, len(data))):
                        window |= np.uint64(data[b]) << (filled + np.uint64(8 * (b - k)))
                    k += 4
                    filled += np.uint64(32)
                entry = np.uint64(row[window & mask])
                word |= (entry & np.uint64(255)) << np.uint64(8 * i)
                length = entry >> np.uint64(8)
                window >>= length
                filled -= length
                used += np.int64(length)
            words[w] = word
    return int(used)


def encode(indices: IndexSet, classes: ByteArray | None = None) -> bytes:
    """The body of a set; a caller that has surveyed it knows its density classes."""
    data = bits.to_bytes(indices.words, indices.size)
    classes = survey(indices).classes if classes is None else classes
    out = np.empty(len(data) * LONGEST_PATTERN // 32 + 1, dtype=np.uint32)
    used = _write_patterns(data, classes, _pattern_tables()[0], out)
    return classes.tobytes() + stream_bytes(out, used)


def decode(body: ByteArray, size: int) -> BitWords:
    """The bitmap of a body."""
    blocks = blocks_of(size)
    expect(len(body) >= blocks, "the density classes are truncated")
    rest = body[blocks:]
    words = np.empty(bits.words_for(size), dtype=np.uint64)
    used = _read_patterns(rest, body[:blocks], _pattern_tables()[1], size, words)
    expect(used >= 0, "there is no such density class")
    expect_consumed(rest, used)
    return words
