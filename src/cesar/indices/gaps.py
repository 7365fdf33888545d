"""Rice and Elias gamma: one code per gap, the distance to the previous member (the first one to −1).

Both write a number of zeros, a one, and a tail of low bits, in the order in which they lie in the stream, lowest bit first.

    Rice with k = 2, gap 11     11 − 1 = 10 = 2 · 4 + 2      2 zeros, a one, 2 in 2 bits       0 0 1 0 1
    gamma, gap 11               11 = 8 + 3, ⌊log2 11⌋ = 3    3 zeros, a one, 3 in 3 bits       0 0 0 1 1 1 0
"""

from __future__ import annotations

import math
import struct

import numpy as np

from cesar.base.types import BitWords, ByteArray
from cesar.indices.indexset import IndexSet
from cesar.indices.streams import Stream, expect, expect_consumed, stream_bytes, stream_words
from cesar.kernels import bits
from cesar.kernels.bits import ONE, ZERO, jit, lowest_bit, popcount

_HEADER = struct.Struct("<I")


def rice_parameter(indices: IndexSet) -> int:
    """The k that suits gaps of this mean: about log2 of ln 2 times the mean."""
    mean = indices.size / max(indices.count, 1)
    return max(0, round(math.log2(math.log(2) * mean))) if mean > 1 else 0


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
    """Returns the number of bits read, or −1 where a position is out of range or the stream ends too early.

    `window` holds the next `filled` bits of the stream, lowest first, and zeros above them. It is filled up by 32 bits whenever
    fewer than 32 are left, so it never overflows, and a tail, which has at most 31, is always whole in it.
    """
    window, filled, k, used = ZERO, ZERO, 0, 0
    position = -1
    for _ in range(count):
        # Zeros up to the next one. A run may be longer than the window: then all of the window is zeros, they are counted, and
        # the search goes on in the next word. It is over when something is left, since that begins with the one.
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
            window = ZERO if run == np.uint64(64) else window >> run  # a shift by 64 is not defined
            filled -= run
            if filled > ZERO:
                break
        # Gamma's tail is as long as its run of zeros. No gap of a set that we allow needs more than 31 bits.
        tail = np.uint64(rice) if rice >= 0 else zeros
        if tail > np.uint64(31):
            return -1
        window >>= ONE  # the one itself
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
            return -1  # before it is added: a gap of a stranger's making could overflow the position
        position += int(gap)
        if position >= size:
            return -1
        words[position >> 6] |= ONE << np.uint64(position & 63)
    return used


def size_of(indices: IndexSet, rice: int | None) -> int:
    """Bytes of the body with Rice's code of that parameter, or with Elias gamma for None."""
    if rice is None:
        return _HEADER.size + (_gap_bits(indices.words, -1) + 7) // 8
    return _HEADER.size + 1 + (_gap_bits(indices.words, rice) + 7) // 8


def encode_rice(indices: IndexSet) -> bytes:
    """The body of a set in Rice's code."""
    rice = rice_parameter(indices)
    return _HEADER.pack(indices.count) + bytes([rice]) + _encode(indices, rice)


def encode_gamma(indices: IndexSet) -> bytes:
    """The body of a set in Elias's gamma code."""
    return _HEADER.pack(indices.count) + _encode(indices, -1)


def _encode(indices: IndexSet, rice: int) -> bytes:
    used = _gap_bits(indices.words, rice)
    out = np.zeros(used // 32 + 2, dtype=np.uint32)
    _write_gaps(indices.words, rice, out)
    return stream_bytes(out, used)


def decode_rice(body: ByteArray, size: int) -> BitWords:
    """The bitmap of a body in Rice's code."""
    members = count(body)
    expect(len(body) > _HEADER.size, "the header of a gap code is truncated")
    rice = int(body[_HEADER.size])
    expect(rice <= 31, f"a Rice parameter of {rice} is out of range")
    return _decode(members, body[_HEADER.size + 1 :], size, rice)


def decode_gamma(body: ByteArray, size: int) -> BitWords:
    """The bitmap of a body in Elias's gamma code."""
    return _decode(count(body), body[_HEADER.size :], size, -1)


def count(body: ByteArray) -> int:
    """How many members a body in either code says it has."""
    expect(len(body) >= _HEADER.size, "the header of a gap code is truncated")
    members: int = _HEADER.unpack(body[: _HEADER.size].tobytes())[0]
    return members


def _decode(members: int, rest: ByteArray, size: int, rice: int) -> BitWords:
    expect(members <= min(size, 8 * len(rest)), f"{members} members do not fit the set or the bytes")
    words = np.zeros(bits.words_for(size), dtype=np.uint64)
    used = _read_gaps(stream_words(rest), members, rice, size, words)
    expect(used >= 0, "a position is out of range or the code is truncated")
    expect_consumed(rest, used)
    return words
