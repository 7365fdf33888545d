"""Writing an index set in few bytes, quickly. The first byte says which code was used.

| tag | code        | body                                                                             |
|-----|-------------|----------------------------------------------------------------------------------|
| 0   | full        | nothing: every position                                                          |
| 1   | bitmap      | ⌈size/8⌉ bytes                                                                   |
| 2   | patterns    | a density class (u8) per 4096 positions, then a Huffman code per 8 positions     |
| 3   | Rice        | count (u32), k (u8), then per gap its quotient in unary and k low bits           |
| 4   | Elias gamma | count (u32), then per gap ⌊log2 gap⌋ zeros, a one, and the low bits              |
| 5   | entropy     | a density (u8) per 4096 positions, then ANS over 8 positions at a time           |
| 6   | seed        | 16 bytes; the set is drawn from them                                             |

A gap is the distance to the previous member (the first one to −1), so it is at least one. Bits fill bytes
from the low end. docs/wire.md has every detail; tools/vectors writes the same bytes without this package.

Which code? `encode` takes the fastest whose size is within 2 % of the smallest. Speed falls down the
table: bitmap is a copy, patterns reads eight positions per table look-up, Rice and Elias gamma one member
at a time, and the entropy coder (constriction) reaches the entropy of each block but takes ten times as
long as patterns. Real TopK selections cluster by layer, which is why densities adapt by block.
docs/design/002-index-codes.md has the measurements.
"""

from __future__ import annotations

import heapq
import struct
from enum import IntEnum
from functools import cache
from typing import Any, assert_never

import constriction
import numpy as np
from numpy.typing import NDArray

from cesar import bits
from cesar.bits import ONE, ZERO, jit, lowest_bit, popcount
from cesar.crypto.keys import SEED_BYTES
from cesar.errors import EncodingError
from cesar.indices.indexset import IndexSet
from cesar.types import BitWords, Buffer, ByteArray

Stream = NDArray[np.uint32]
"""Bits of a gap code or of the patterns, in 32-bit words, lowest bit first."""

SLACK = 0.02
"""A faster code may be this much larger than the smallest."""

BLOCK_WORDS = 64
"""Densities adapt once per so many 64-bit words of the bitmap: every 4096 positions."""

LONGEST_PATTERN = 13
"""No Huffman code of `patterns` is longer, so the decoder's table has 2^13 entries and fits the cache."""

CLASSES = 32
"""Density classes of `patterns`: class k stands for density k/32, 1 ≤ k < 32."""

_HEADER = struct.Struct("<I")
_POPCOUNTS = np.bitwise_count(np.arange(256, dtype=np.uint8))


class Code(IntEnum):
    """The tag on the wire."""

    FULL = 0
    BITMAP = 1
    PATTERNS = 2
    RICE = 3
    ELIAS_GAMMA = 4
    ENTROPY = 5
    SEED = 6


def encode(indices: IndexSet, code: Code | None = None) -> bytes:
    """The tag and the body of a set; without a `code`, the one that suits it.

    >>> encode(IndexSet.from_positions([0, 3], 8)).hex()
    '0109'
    """
    chosen = choose(indices) if code is None else code
    return bytes([chosen]) + _body(indices, chosen)


def decode(data: Buffer, size: int, alpha: float | None = None) -> IndexSet:
    """The set of positions below `size` that `encode` wrote.

    Args:
        alpha: the density that a seed stands for; without it a seed is refused.

    Raises:
        EncodingError: truncated, too long, out of range, or with bits set past the end.
    """
    view = np.frombuffer(data, dtype=np.uint8)
    if len(view) == 0:
        raise EncodingError("an index set needs at least one byte")
    try:
        code = Code(int(view[0]))
    except ValueError:
        raise EncodingError(f"there is no index code {view[0]}") from None
    body = view[1:]
    match code:
        case Code.FULL:
            _expect(len(body) == 0, "a full set has no body")
            return IndexSet.full(size)
        case Code.BITMAP:
            _expect(len(body) == (size + 7) // 8, f"a bitmap of {size} positions has another length")
            words = bits.from_bytes(body, size)
        case Code.SEED:
            _expect(alpha is not None and len(body) == SEED_BYTES, "a seed is not what was agreed on")
            assert alpha is not None
            return IndexSet.from_seed(body.tobytes(), size, alpha)
        case Code.PATTERNS:
            words = _decode_patterns(body, size)
        case Code.RICE | Code.ELIAS_GAMMA:
            words = _decode_gaps(body, size, code)
        case Code.ENTROPY:
            words = _decode_entropy(body, size)
        case _:
            assert_never(code)
    _expect(bits.is_bitmap(words, size), "bits are set past the end of the set")
    return IndexSet.of_words(words, size)


def longest(size: int) -> int:
    """No honest encoding of a set of `size` positions, with its tag, has more bytes than this."""
    return 64 + size  # Elias gamma needs at most 8 bits per position up to gaps far beyond any model


def choose(indices: IndexSet) -> Code:
    """The fastest code whose size is within `SLACK` of the smallest."""
    if indices.seed is not None:
        return Code.SEED
    if indices.count == indices.size:
        return Code.FULL
    members, classes, entropy = survey(indices)
    width = 64 * BLOCK_WORDS
    runs = float((members * (1 - members / width)).sum())  # expected of independent positions
    smallest = entropy / 8 + len(classes)  # what the entropy code needs, to within a few bytes
    if _runs(indices.words) < 0.8 * runs:  # members cluster within blocks: a gap code may do better
        smallest = min(smallest, gap_bytes(indices, rice_parameter(indices)), gap_bytes(indices, None))
    limit = (1 + SLACK) * smallest + 16  # and a few bytes are no reason for a slow code
    if (indices.size + 7) // 8 <= limit:
        return Code.BITMAP
    if _pattern_bytes(indices, classes) <= limit:
        return Code.PATTERNS
    if gap_bytes(indices, rice_parameter(indices)) <= limit:
        return Code.RICE
    if gap_bytes(indices, None) <= limit:
        return Code.ELIAS_GAMMA
    return Code.ENTROPY


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise EncodingError(message)


def _body(indices: IndexSet, code: Code) -> bytes:
    match code:
        case Code.FULL:
            _expect(indices.count == indices.size, "only a full set can be written as full")
            return b""
        case Code.BITMAP:
            return bits.to_bytes(indices.words, indices.size).tobytes()
        case Code.PATTERNS:
            return _encode_patterns(indices)
        case Code.RICE:
            return _encode_gaps(indices, rice_parameter(indices))
        case Code.ELIAS_GAMMA:
            return _encode_gaps(indices, None)
        case Code.ENTROPY:
            return _encode_entropy(indices)
        case Code.SEED:
            _expect(indices.seed is not None, "only a set that was drawn from a seed has one")
            assert indices.seed is not None
            return indices.seed
        case _:
            assert_never(code)


def _blocks(size: int) -> int:
    return -(-bits.words_for(size) // BLOCK_WORDS)


@jit
def _runs(words: BitWords) -> int:
    """Runs of members, but for those that start at the beginning of a word after a member."""
    total = ZERO
    for word in words:
        total += popcount(word & ~(word << ONE))
    return int(total)


def survey(indices: IndexSet) -> tuple[NDArray[np.int64], ByteArray, float]:
    """What all codes that adapt by block want to know: members, density classes, entropy in bits."""
    members = np.empty(_blocks(indices.size), dtype=np.int64)
    classes = np.empty(len(members), dtype=np.uint8)
    return members, classes, _survey(indices.words, indices.size, members, classes)


# ── bits in 32-bit words ────────────────────────────────────────────────────────────────────────────────


def _stream_bytes(words: Stream, used_bits: int) -> bytes:
    return words.astype("<u4", copy=False).tobytes()[: (used_bits + 7) // 8]


def _stream_words(data: ByteArray) -> Stream:
    """The bytes as words, with two words of zeros behind them so that a reader never runs off the end."""
    padded = np.zeros((len(data) + 11) // 4, dtype="<u4")
    padded.view(np.uint8)[: len(data)] = data
    return padded.astype(np.uint32, copy=False)


def _expect_consumed(data: ByteArray, used_bits: int) -> None:
    """The code must end in the last byte, and what is left of that byte must be zero."""
    _expect((used_bits + 7) // 8 == len(data), "the code is truncated or has something behind its end")
    if used_bits % 8:
        _expect(int(data[-1]) >> (used_bits % 8) == 0, "the padding is not zero")


# ── patterns: a Huffman code for eight positions at a time ──────────────────────────────────────────────


@cache
def pattern_lengths() -> NDArray[np.uint8]:
    """Code length of each of the 256 patterns, for each density class k.

    Weights are exact integers, k^ones · (32 − k)^(8 − ones), raised to at least 2^28 so that no code is
    longer than 13 bits. Huffman's rule: join the two lightest; of equal weights the one made first.
    """
    table = np.zeros((CLASSES, 256), dtype=np.uint8)
    for k in range(1, CLASSES):
        weights = [max(k ** int(o) * (CLASSES - k) ** (8 - int(o)), 1 << 28) for o in _POPCOUNTS]
        heap: list[tuple[int, int, list[int]]] = [(w, s, [s]) for s, w in enumerate(weights)]
        heapq.heapify(heap)
        made = 256
        while len(heap) > 1:
            (w1, _, left), (w2, _, right) = heapq.heappop(heap), heapq.heappop(heap)
            members = left + right
            table[k, members] += 1
            heapq.heappush(heap, (w1 + w2, made, members))
            made += 1
    return table


@cache
def _pattern_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Encoder and decoder of each class: (code << 8 | length), and length << 8 | pattern by 13 bits read."""
    lengths = pattern_lengths()
    encoder = np.zeros((CLASSES, 256), dtype=np.uint32)
    decoder = np.zeros((CLASSES, 1 << LONGEST_PATTERN), dtype=np.uint16)
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
def _survey(words: BitWords, size: int, members: NDArray[np.int64], classes: ByteArray) -> float:
    """Members and density class of each block; returns the sum of the blocks' entropies in bits."""
    total = 0.0
    for block in range(len(members)):
        start, stop = block * BLOCK_WORDS, min((block + 1) * BLOCK_WORDS, len(words))
        found = ZERO
        for w in range(start, stop):
            found += popcount(words[w])
        width = min(64 * stop, size) - 64 * start
        members[block] = found
        classes[block] = min(max((2 * CLASSES * members[block] + width) // (2 * width), 1), CLASSES - 1)
        if 0 < members[block] < width:
            share = members[block] / width
            total -= width * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return total


@jit
def _pattern_bits(data: ByteArray, classes: ByteArray, lengths: NDArray[np.uint8]) -> int:
    total = 0
    for block in range(len(classes)):
        row = lengths[classes[block]]
        for i in range(block * 8 * BLOCK_WORDS, min((block + 1) * 8 * BLOCK_WORDS, len(data))):
            total += row[data[i]]
    return total


@jit
def _write_patterns(data: ByteArray, classes: ByteArray, codes: NDArray[np.uint32], out: Stream) -> None:
    window, filled, k = ZERO, ZERO, 0
    for block in range(len(classes)):
        row = codes[classes[block]]
        for i in range(block * 8 * BLOCK_WORDS, min((block + 1) * 8 * BLOCK_WORDS, len(data))):
            entry = np.uint64(row[data[i]])
            window |= (entry >> np.uint64(8)) << filled
            filled += entry & np.uint64(255)
            if filled >= np.uint64(32):
                out[k] = np.uint32(window & np.uint64(0xFFFFFFFF))
                k += 1
                window >>= np.uint64(32)
                filled -= np.uint64(32)
    if filled > ZERO:
        out[k] = np.uint32(window)


@jit
def _read_patterns(stream: Stream, classes: ByteArray, codes: NDArray[np.uint16], out: ByteArray) -> int:
    window, filled, k, used = ZERO, ZERO, 0, 0
    mask = np.uint64((1 << LONGEST_PATTERN) - 1)
    for block in range(len(classes)):
        row = codes[classes[block]]
        for i in range(block * 8 * BLOCK_WORDS, min((block + 1) * 8 * BLOCK_WORDS, len(out))):
            if filled < np.uint64(32):
                if k < len(stream):
                    window |= np.uint64(stream[k]) << filled
                k += 1
                filled += np.uint64(32)
            entry = np.uint64(row[window & mask])
            out[i] = np.uint8(entry & np.uint64(255))
            length = entry >> np.uint64(8)
            window >>= length
            filled -= length
            used += int(length)
    return used


def _pattern_bytes(indices: IndexSet, classes: ByteArray) -> int:
    data = bits.to_bytes(indices.words, indices.size)
    return len(classes) + (_pattern_bits(data, classes, pattern_lengths()) + 7) // 8


def _encode_patterns(indices: IndexSet) -> bytes:
    data, (_, classes, _) = bits.to_bytes(indices.words, indices.size), survey(indices)
    used = _pattern_bits(data, classes, pattern_lengths())
    out = np.zeros(used // 32 + 1, dtype=np.uint32)
    _write_patterns(data, classes, _pattern_tables()[0], out)
    return classes.tobytes() + _stream_bytes(out, used)


def _decode_patterns(body: ByteArray, size: int) -> BitWords:
    blocks = _blocks(size)
    _expect(len(body) >= blocks, "the density classes are truncated")
    classes, rest = body[:blocks], body[blocks:]
    _expect(blocks == 0 or 0 < classes.min() <= classes.max() < CLASSES, "there is no such density class")
    out = np.empty((size + 7) // 8, dtype=np.uint8)
    used = _read_patterns(_stream_words(rest), classes, _pattern_tables()[1], out)
    _expect_consumed(rest, used)
    return bits.from_bytes(out, size)


# ── Rice and Elias gamma: one code per gap ──────────────────────────────────────────────────────────────


def rice_parameter(indices: IndexSet) -> int:
    """The k that suits gaps of this mean: about log2 of ln 2 times the mean."""
    mean = indices.size / max(indices.count, 1)
    return max(0, round(np.log2(np.log(2) * mean))) if mean > 1 else 0


@jit
def _log2(value: np.uint64) -> np.uint64:
    """⌊log2⌋ of a positive number: smear the top one downwards and count."""
    for shift in (1, 2, 4, 8, 16, 32):
        value |= value >> np.uint64(shift)
    return popcount(value) - ONE


@jit
def _gap_bits(words: BitWords, rice: int) -> int:
    total, previous = 0, -1
    for w in range(len(words)):
        members = words[w]
        while members != ZERO:
            position = 64 * w + int(lowest_bit(members))
            gap = position - previous
            previous = position
            members &= members - ONE
            if rice >= 0:
                total += ((gap - 1) >> rice) + 1 + rice
            else:
                total += 2 * int(_log2(np.uint64(gap))) + 1
    return total


@jit
def _write_gaps(words: BitWords, rice: int, out: Stream) -> None:
    """Elias gamma if `rice` is negative. `out` is zeroed, so zeros are written by moving on."""
    at, previous = ZERO, -1
    for w in range(len(words)):
        members = words[w]
        while members != ZERO:
            position = 64 * w + int(lowest_bit(members))
            gap = np.uint64(position - previous)
            previous = position
            members &= members - ONE
            if rice >= 0:
                zeros, tail = (gap - ONE) >> np.uint64(rice), np.uint64(rice)
                low = (gap - ONE) & ((ONE << tail) - ONE)
            else:
                zeros = _log2(gap)
                tail = zeros
                low = gap ^ (ONE << zeros)
            at += zeros
            chunk = (ONE | (low << ONE)) << (at & np.uint64(31))  # at most 1 + 31 bits, moved by at most 31
            slot = at >> np.uint64(5)
            out[slot] |= np.uint32(chunk & np.uint64(0xFFFFFFFF))
            if chunk >> np.uint64(32):
                out[slot + ONE] |= np.uint32(chunk >> np.uint64(32))
            at += tail + ONE


@jit
def _read_gaps(stream: Stream, count: int, rice: int, size: int, words: BitWords) -> int:
    """Returns the number of bits read, or −1 where a position is out of range."""
    window, filled, k, used = ZERO, ZERO, 0, 0
    position = -1
    for _ in range(count):
        zeros = ZERO
        while True:
            if filled < np.uint64(32):
                if k == len(stream):
                    return -1
                window |= np.uint64(stream[k]) << filled
                k += 1
                filled += np.uint64(32)
            run = filled if window == ZERO else min(lowest_bit(window), filled)
            zeros += run
            window = ZERO if run == np.uint64(64) else window >> run
            filled -= run
            if filled > ZERO:
                break
        tail = np.uint64(rice) if rice >= 0 else zeros
        if tail > np.uint64(31):
            return -1
        window >>= ONE
        filled -= ONE
        if filled < np.uint64(32):
            if k == len(stream):
                return -1
            window |= np.uint64(stream[k]) << filled
            k += 1
            filled += np.uint64(32)
        low = window & ((ONE << tail) - ONE)
        window >>= tail
        filled -= tail
        used += int(zeros + ONE + tail)
        gap = (zeros << tail) + low + ONE if rice >= 0 else (ONE << zeros) | low
        if gap > np.uint64(size):
            return -1
        position += int(gap)
        if position >= size:
            return -1
        words[position >> 6] |= ONE << np.uint64(position & 63)
    return used


def gap_bytes(indices: IndexSet, rice: int | None) -> int:
    """Size of the body with Rice's code of that parameter, or Elias gamma for None."""
    if rice is None:
        return _HEADER.size + (_gap_bits(indices.words, -1) + 7) // 8
    return _HEADER.size + 1 + (_gap_bits(indices.words, rice) + 7) // 8


def _encode_gaps(indices: IndexSet, rice: int | None) -> bytes:
    parameter = -1 if rice is None else rice
    used = _gap_bits(indices.words, parameter)
    out = np.zeros(used // 32 + 2, dtype=np.uint32)
    _write_gaps(indices.words, parameter, out)
    head = _HEADER.pack(indices.count) + (b"" if rice is None else bytes([rice]))
    return head + _stream_bytes(out, used)


def _decode_gaps(body: ByteArray, size: int, code: Code) -> BitWords:
    head = _HEADER.size + (code is Code.RICE)
    _expect(len(body) >= head, "the header of a gap code is truncated")
    (count,) = _HEADER.unpack(body[: _HEADER.size].tobytes())
    rice = int(body[_HEADER.size]) if code is Code.RICE else -1
    rest = body[head:]
    _expect(count <= min(size, 8 * len(rest)), f"{count} members do not fit the set or the bytes")
    _expect(rice <= 31, f"a Rice parameter of {rice} is out of range")
    words = np.zeros(bits.words_for(size), dtype=np.uint64)
    used = _read_gaps(_stream_words(rest), count, rice, size, words)
    _expect(used >= 0, "a position is out of range or the code is truncated")
    _expect_consumed(rest, used)
    return words


# ── entropy: asymmetric numeral systems over eight positions at a time ──────────────────────────────────
#
# The density of a block is (level/255)², so that sparse blocks get a fine step. Level 0 means empty and
# 255 means full; such blocks cost nothing more. All blocks of one level are coded with one model.


def _levels(indices: IndexSet) -> NDArray[np.uint8]:
    members, _, _ = survey(indices)
    width = np.full(len(members), 64 * BLOCK_WORDS)
    width[-1:] = indices.size - 64 * BLOCK_WORDS * (len(members) - 1)
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
        one[_POPCOUNTS] * zero[8 - _POPCOUNTS], perfect=False, lazy=False
    )


def _bytes_of_level(levels: NDArray[np.uint8], level: int, total: int) -> NDArray[np.int64]:
    """Which bytes of the bitmap belong to blocks of that level, in order."""
    starts = np.flatnonzero(levels == level) * (8 * BLOCK_WORDS)
    places = (starts[:, None] + np.arange(8 * BLOCK_WORDS)).ravel()
    return places[places < total]


def _coded_levels(levels: NDArray[np.uint8]) -> list[int]:
    return [int(level) for level in np.unique(levels) if 0 < level < 255]


def _encode_entropy(indices: IndexSet) -> bytes:
    data, levels = bits.to_bytes(indices.words, indices.size), _levels(indices)
    coder = constriction.stream.stack.AnsCoder()
    for level in reversed(_coded_levels(levels)):  # a stack: what is pushed last comes out first
        symbols = data[_bytes_of_level(levels, level, len(data))].astype(np.int32)
        coder.encode_reverse(symbols, _pattern_model(level))
    packed: NDArray[np.uint32] = coder.get_compressed()
    return levels.tobytes() + packed.astype("<u4").tobytes()


def _decode_entropy(body: ByteArray, size: int) -> BitWords:
    blocks = _blocks(size)
    _expect(len(body) >= blocks and (len(body) - blocks) % 4 == 0, "the entropy code is truncated")
    levels, packed = body[:blocks], body[blocks:].copy().view("<u4").astype(np.uint32)
    try:
        coder = constriction.stream.stack.AnsCoder(packed)
    except ValueError as error:
        raise EncodingError(f"not an entropy code: {error}") from None
    data = np.zeros((size + 7) // 8, dtype=np.uint8)
    for block in np.flatnonzero(levels == 255):
        data[block * 8 * BLOCK_WORDS : (block + 1) * 8 * BLOCK_WORDS] = 255
    if size % 8 and blocks and levels[-1] == 255:
        data[-1] = (1 << size % 8) - 1
    for level in _coded_levels(levels):
        places = _bytes_of_level(levels, level, len(data))
        data[places] = coder.decode(_pattern_model(level), len(places))
    words = bits.from_bytes(data, size)
    # An exhausted coder goes on with empty patterns, so the end alone does not show that words are missing.
    canonical = _encode_entropy(IndexSet.of_words(words, size))
    _expect(canonical == body.tobytes(), "the entropy code is truncated or has something behind its end")
    return words
