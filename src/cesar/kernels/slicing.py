"""Slices of a model: the part of it that one member of a cell looks after, and how its values travel.

A *piece* is a range of bitmap words and the chosen positions in it. Its values are a dense row (one for every position of the
range) while they are computed with, and a compact row (one for every chosen position) on the wire.

*Grids.* What is no secret (a cell's model, and its change) is rounded to b bits per value with a power of two as the
step, which follows from the largest value of each tensor in the piece: |v| ≤ 2^e gives q = ⌊v·2^(b−1−e) + u⌋ with a public
pseudo-random u in [0, 1), so that the mean of q is exact. Everybody adds q·2^(e+1−b) to the same value in the same way: a
product with a power of two is exact in double precision, so that all members hold the same bits afterwards.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import EncodingError
from cesar.base.types import BitWords, ByteArray, RingWords, Vector
from cesar.kernels import bits, packing, ring
from cesar.kernels.bits import FULL, ONE, ZERO, jit, lowest_bit, popcount

HIGHEST_EXPONENT = 100
"""Nobody may claim values above 2^this: sums of them, and models that add them up, stay finite."""


@jit
def _ranks(words: BitWords, borders: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """How many members lie below each border; borders ascend."""
    total = 0
    w = 0
    for k in range(len(borders)):
        border = borders[k]
        while 64 * (w + 1) <= border and w < len(words):
            total += int(popcount(words[w]))
            w += 1
        below = total
        rest = border - 64 * w
        if rest > 0 and w < len(words):
            below += int(popcount(words[w] & ((ONE << np.uint64(rest)) - ONE)))
        out[k] = below


@jit
def take(dense: Vector, members: BitWords, base: int, out: Vector) -> None:
    """The values at the chosen positions; word 0 of `members` is at dense[base]."""
    k = ZERO
    for w in range(len(members)):
        word = members[w]
        start = np.uint64(base + 64 * w)
        if word == FULL:
            for t in range(np.uint64(64)):
                out[k + t] = dense[start + t]
            k += np.uint64(64)
            continue
        while word != ZERO:
            out[k] = dense[start + lowest_bit(word)]
            k += ONE
            word &= word - ONE


@jit
def add_at(dense: Vector, members: BitWords, base: int, values: NDArray[np.float64]) -> None:
    """Add values at the chosen positions, in double precision, and round once."""
    k = ZERO
    for w in range(len(members)):
        word = members[w]
        start = np.uint64(base + 64 * w)
        if word == FULL:
            for t in range(np.uint64(64)):
                dense[start + t] = np.float32(np.float64(dense[start + t]) + values[k + t])
            k += np.uint64(64)
            continue
        while word != ZERO:
            p = start + lowest_bit(word)
            dense[p] = np.float32(np.float64(dense[p]) + values[k])
            k += ONE
            word &= word - ONE


@jit
def _add_words_at(
    dense: Vector,
    patterns: RingWords,
    members: BitWords,
    words: RingWords,
    edges: NDArray[np.int64],
    steps: NDArray[np.float64],
    width: int,
    write: bool,
    top: RingWords,
) -> None:
    """`_from_grid` and `add_at` in one pass: nothing is as large as the row but the row.

    Args:
        patterns: the dense row, as words.
        write: False to find out what the largest would be, where all positions are chosen.
        words: signed, of `width` bits, one for every chosen position; as they travel or wider.
        top: gets the largest magnitudes, as the bits of a float32: in the dense row afterwards, and of what was added.
    """
    shift = np.int32(32 - width)
    sign = np.uint32(0x7FFFFFFF)
    added = np.empty(64, dtype=np.float32)
    sums = np.empty(64, dtype=np.float32)
    bits_of, bits_of_sums = added.view(np.uint32), sums.view(np.uint32)
    most, highest = np.uint32(0), np.uint32(0)
    tensor = 0
    k = ZERO
    for w in range(len(members)):
        word = members[w]
        start = np.uint64(64 * w)
        count = popcount(word)
        while count != ZERO and np.uint64(edges[tensor]) <= k:
            tensor += 1
        if word == FULL and k + np.uint64(64) <= np.uint64(edges[tensor]):
            step = steps[tensor]
            for t in range(np.uint64(64)):
                value = np.float64(np.int32(np.uint32(words[k + t]) << np.uint32(shift)) >> shift) * step
                added[t] = np.float32(value)
                sums[t] = np.float32(np.float64(dense[start + t]) + value)
            for t in range(np.uint64(64)):
                highest = max(highest, bits_of[t] & sign)
                most = max(most, bits_of_sums[t] & sign)
            if write:
                for t in range(np.uint64(64)):
                    dense[start + t] = sums[t]
        else:
            while word != ZERO:
                while np.uint64(edges[tensor]) <= k:
                    tensor += 1
                p = start + lowest_bit(word)
                value = np.float64(np.int32(np.uint32(words[k]) << np.uint32(shift)) >> shift) * steps[tensor]
                added[0] = np.float32(value)
                sums[0] = np.float32(np.float64(dense[p]) + value)
                highest, most = max(highest, bits_of[0] & sign), max(most, bits_of_sums[0] & sign)
                if write:
                    dense[p] = sums[0]
                k += ONE
                word &= word - ONE
            k -= count
            if write:
                for t in range(start, min(start + np.uint64(64), np.uint64(len(dense)))):
                    most = max(most, patterns[t] & sign)
        k += count
    top[0], top[1] = most, highest


@jit
def add_words(total: RingWords, words: RingWords) -> None:
    """Add a row to the sum, modulo 2^32; its words may be shorter."""
    for k in range(np.uint64(len(total))):
        total[k] += np.uint32(words[k])


@jit
def clear_at(dense: Vector, members: BitWords, base: int) -> None:
    """Set the values at the chosen positions to zero."""
    for w in range(len(members)):
        word = members[w]
        start = np.uint64(base + 64 * w)
        if word == FULL:
            for t in range(np.uint64(64)):
                dense[start + t] = np.float32(0)
            continue
        while word != ZERO:
            dense[start + lowest_bit(word)] = np.float32(0)
            word &= word - ONE


@jit
def _to_grid(
    values: Vector,
    edges: NDArray[np.int64],
    scales: NDArray[np.float64],
    width: int,
    dither: np.uint64,
    out: RingWords,
) -> None:
    """Round to signed words of `width` bits; what dither lifts over the largest word becomes that one."""
    top = 2.0 ** (width - 1) - 1.0
    k = np.uint64(0)
    for tensor in range(len(edges)):
        scale = scales[tensor]
        for p in range(k, np.uint64(edges[tensor])):
            # The finaliser of splitmix64; the upper 53 bits make a uniform number (cesar.kernels.ring._dither).
            z = (dither + p) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            up = np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
            number = np.floor(np.float64(values[p]) * scale + up)
            out[p] = np.uint32(np.int64(min(max(number, -top - 1.0), top)))
        k = np.uint64(edges[tensor])


@jit
def _from_grid(
    words: RingWords,
    edges: NDArray[np.int64],
    steps: NDArray[np.float64],
    width: int,
    out: NDArray[np.float64],
) -> None:
    shift = np.int32(32 - width)
    k = np.uint64(0)
    for tensor in range(len(edges)):
        step = steps[tensor]
        for p in range(k, np.uint64(edges[tensor])):
            out[p] = np.float64(np.int32(words[p] << np.uint32(shift)) >> shift) * step
        k = np.uint64(edges[tensor])


class Span(NamedTuple):
    """Words `first` to `last` (not included) of a bitmap over all positions."""

    first: int
    last: int

    def meet(self, other: Span) -> Span:
        """What both have; it may be empty."""
        first = max(self.first, other.first)
        return Span(first, max(first, min(self.last, other.last)))

    def __len__(self) -> int:
        return self.last - self.first


@lru_cache(maxsize=1024)
def spans(words: int, parts: int) -> tuple[Span, ...]:
    """Cuts the words of a bitmap into slices; a slice begins at a whole word, so that kernels need no shifts.

    >>> [tuple(span) for span in spans(10, 3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return tuple(Span(words * s // parts, words * (s + 1) // parts) for s in range(parts))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The chosen positions in a range of words.

    Attributes:
        first, last: the range, in words.
        members: its part of the bitmap.
        count: how many positions are chosen.
        tensor: the first tensor that reaches into the range.
        edges: where each tensor of the range ends in the compact row.
    """

    first: int
    last: int
    members: BitWords = field(repr=False)
    count: int
    tensor: int
    edges: NDArray[np.int64] = field(repr=False)

    @property
    def base(self) -> int:
        """The first position of the range."""
        return 64 * self.first

    def rows(self, model: Vector) -> Vector:
        """The dense row of the range: a view."""
        return model[64 * self.first : 64 * self.last]

    def compact(self, dense: Vector) -> Vector:
        """The values at the chosen positions of a dense row of the range."""
        if self.count == len(dense):
            return dense
        out = np.empty(self.count, dtype=np.float32)
        take(dense, self.members, 0, out)
        return out

    def exponents(self, values: Vector) -> tuple[int, ...]:
        """Of a compact row; raises `DataError` where a value is not finite."""
        return ring.exponents_of(values, self.edges)


def piece_of(words: BitWords, first: int, last: int, edges: NDArray[np.int64]) -> Piece:
    """The piece of a set of positions in a range of its words; `edges` say where tensors end."""
    members = words[first:last]
    size = int(edges[-1])
    low, high = 64 * first, min(64 * last, size)
    if low >= high:
        return Piece(first, last, members, 0, 0, np.zeros(1, dtype=np.int64))
    tensor = int(np.searchsorted(edges, low, side="right"))
    final = int(np.searchsorted(edges, high - 1, side="right"))
    borders = np.minimum(edges[tensor : final + 1], high) - low
    ranks = np.empty(len(borders), dtype=np.int64)
    _ranks(members, borders, ranks)
    return Piece(first, last, members, int(ranks[-1]), tensor, ranks)


def dither_seed(*parts: bytes | int) -> int:
    """A public seed of rounding."""
    label = b"".join(part if isinstance(part, bytes) else struct.pack("<I", part) for part in parts)
    return int.from_bytes(hashlib.sha256(b"cesar cell dither" + label).digest()[:8], "little")


def write_grid(
    values: Vector, piece: Piece, exponents: tuple[int, ...], width: int, dither: int
) -> ByteArray:
    """A compact row as it travels."""
    out = np.empty(packing.packed_size(piece.count, width), dtype=np.uint8)
    fill_grid(values, piece, exponents, width, dither, out)
    return out


def fill_grid(
    values: Vector, piece: Piece, exponents: tuple[int, ...], width: int, dither: int, out: ByteArray
) -> None:
    """Write a compact row where it travels from."""
    scales = np.ldexp(1.0, width - 1 - np.array(exponents, dtype=np.int64))
    if (words := packing.in_place(out, width)) is not None:
        _to_grid(values, piece.edges, scales, width, np.uint64(dither), words)
        return
    words = np.empty(piece.count, dtype=np.uint32)
    _to_grid(values, piece.edges, scales, width, np.uint64(dither), words)
    packing.pack(words, width, out)


def add_row(
    dense: Vector,
    piece: Piece,
    data: ByteArray,
    exponents: tuple[int, ...],
    width: int,
    *,
    write: bool = True,
) -> tuple[float, float]:
    """Add what a row stands for, in double precision, and round once; its length must have been checked. See `add_sum`.

    Args:
        write: False to leave the row as it is, where all positions are chosen.
    """
    if not write and piece.count != len(dense):
        raise ValueError("without all positions nobody looks at those that stay as they are")
    steps = np.ldexp(1.0, np.array(exponents, dtype=np.int64) + 1 - width)
    words = packing.in_place(data, width)
    if words is None:
        words = packing.unpack(data, width, piece.count)
    return add_sum(dense, piece, words, steps, width, write=write)


def add_sum(
    dense: Vector,
    piece: Piece,
    words: RingWords,
    steps: NDArray[np.float64],
    width: int,
    *,
    write: bool = True,
) -> tuple[float, float]:
    """Add signed words times the step of their tensor to a dense row; the largest magnitude in it afterwards, and of what was added."""
    top = np.zeros(2, dtype=np.uint32)
    _add_words_at(dense, dense.view(np.uint32), piece.members, words, piece.edges, steps, width, write, top)
    most, highest = top.view(np.float32).tolist()
    return most, highest


def read_grid(data: ByteArray, piece: Piece, exponents: tuple[int, ...], width: int) -> NDArray[np.float64]:
    """The values that a row stands for; its length must have been checked."""
    steps = np.ldexp(1.0, np.array(exponents, dtype=np.int64) + 1 - width)
    return from_words(packing.unpack(data, width, piece.count), piece, steps, width)


def from_words(words: RingWords, piece: Piece, steps: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Signed words times the step of their tensor."""
    out = np.empty(piece.count, dtype=np.float64)
    _from_grid(words, piece.edges, steps, width, out)
    return out


def check_row(data: ByteArray, count: int, width: int) -> None:
    """Refuse a row of another length, before anything is made of it.

    Raises:
        EncodingError: it is not `count` words of `width` bits.
    """
    if len(data) != packing.packed_size(count, width):
        raise EncodingError(f"{count} values of {width} bits do not fill {len(data)} bytes")
    if count * width % 8 and data[-1] >> (count * width % 8):
        raise EncodingError("the padding is not zero")


def check_exponents(exponents: tuple[int, ...]) -> None:
    """Refuse a scale at which sums could overflow.

    Raises:
        EncodingError: it is out of range.
    """
    if exponents and not ring.LOWEST_EXPONENT <= min(exponents) <= max(exponents) <= HIGHEST_EXPONENT:
        raise EncodingError(
            f"an exponent is outside {ring.LOWEST_EXPONENT}..{HIGHEST_EXPONENT}; no model has such values"
        )


def can_be_told(values: Vector) -> bool:
    """Whether a frame can hold these: finite, and not above what everybody refuses."""
    return is_tellable(ring.largest(values))


def is_tellable(*largest: float) -> bool:
    """The same of values with these largest magnitudes; NaN is none."""
    return all(value <= 2.0**HIGHEST_EXPONENT for value in largest)


@jit
def _block_scores(unsent: Vector, fresh: Vector, sent: BitWords, block: int, out: Vector) -> None:
    """For each block how much of it waits to be handed in: Σ|unsent|, or where it is being handed in now, Σ|fresh|."""
    for b in range(len(out)):
        first, last = block * b, min(block * (b + 1), len(unsent))
        total = 0.0
        going = (sent[first // 64] >> np.uint64(first % 64)) & ONE
        if going == ONE:
            for p in range(first, last):
                total += abs(np.float64(fresh[p]))
        else:
            for p in range(first, last):
                total += abs(np.float64(unsent[p]))
        out[b] = np.float32(total)


def block_scores(unsent: Vector, fresh: Vector, sent: BitWords, block: int) -> Vector:
    """What is left after this round, by blocks, as far as it is known now."""
    out = np.empty(-(-len(unsent) // block), dtype=np.float32)
    _block_scores(unsent, fresh, sent, block, out)
    return out


def expand_blocks(chosen: NDArray[np.bool_], block: int, size: int) -> BitWords:
    """The positions of the chosen blocks."""
    return bits.from_bools(np.repeat(chosen, block)[:size])
