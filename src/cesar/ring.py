"""Fixed point in the ring of integers modulo 2^b: scale, round, sum, and pack to exactly b bits.

A model value v becomes the integer q = round(v · 2^f), masks are added to it modulo 2^b, and the sum of
the shares is turned back with 2^-f. Two things must never happen: a value that does not fit, and a sum
that wraps around after the masks have cancelled.

*Scale.* Node i announces e_i, the smallest exponent with max|v_i| ≤ 2^e_i. The receiver takes the largest
announced exponent E and tells every sender. With δ senders and h = ⌈log2 δ⌉ + 1 bits of headroom,
f = b − 1 − h − E, so |q| ≤ 2^(b−1−h), and the sum of δ of them stays below 2^(b−1) in magnitude.
A sender whose own exponent is above E refuses to send: nothing is ever clipped.

*Rounding.* At 32 bits to nearest. Below that the step is coarse enough to bias a model that moves slowly,
so rounding is stochastic: up with the probability of the remainder, E[q] = v · 2^f exactly. The randomness
is a counter hash of a fresh seed. It is not a mask and hides nothing.

*Six decimals.* The paper multiplies by 10^6 and takes 32-bit words. `decimal_grid` keeps that; a value that
could overflow the sum is refused before anything is sent.

Arithmetic wraps in this module only, on `uint32`, in `add_masks`, `seal` and `accumulate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar.bits import FULL, ONE, ZERO, jit, lowest_bit
from cesar.errors import DataError, PrivacyError
from cesar.types import BitWords, ByteArray, RingWords, Vector

RING_BITS = (16, 20, 24, 32)
EXPONENT_BIAS = 127
LOWEST_EXPONENT = -90
"""Exponents below this are announced as this: 2^-90 is zero for every model, and scales stay finite."""


def exponent_of(vector: Vector) -> int:
    """The smallest e with max|v| ≤ 2^e, the public scale of a model.

    >>> exponent_of(np.array([0.3, -1.5], dtype=np.float32))
    1

    Raises:
        DataError: the vector holds NaN or infinity; nothing of it may be sent.
    """
    largest = float(max(vector.max(), -vector.min())) if len(vector) else 0.0
    if not math.isfinite(largest):
        bad = np.flatnonzero(~np.isfinite(vector))
        raise DataError(
            f"the model holds {len(bad)} value(s) that are NaN or infinite, the first at position "
            f"{bad[0]}; nothing was sent. Lower the learning rate or restore an earlier model."
        )
    if largest == 0.0:
        return LOWEST_EXPONENT
    mantissa, exponent = math.frexp(largest)  # largest = mantissa · 2^exponent, 0.5 ≤ mantissa < 1
    return max(exponent - (mantissa == 0.5), LOWEST_EXPONENT)


@dataclass(frozen=True, slots=True)
class Grid:
    """The fixed point of one receiver's sum: q = round(v · scale), modulo 2^bits."""

    bits: int
    scale: float

    @property
    def stochastic(self) -> bool:
        return self.bits < 32


def headroom(contributors: int) -> int:
    """Bits kept free so that a sum of that many values cannot wrap."""
    return math.ceil(math.log2(max(contributors, 1))) + 1


def binary_grid(bits: int, exponent: int, contributors: int) -> Grid:
    """The grid on which `contributors` values of magnitude up to 2^exponent can be summed."""
    return Grid(bits=bits, scale=math.ldexp(1.0, bits - 1 - headroom(contributors) - exponent))


def decimal_grid(decimals: int) -> Grid:
    """The paper's fixed point: 32-bit words that keep so many decimal places."""
    return Grid(bits=32, scale=10.0**decimals)


def check_decimals(decimals: int, exponent: int, contributors: int) -> None:
    """Refuse a model whose sum could wrap around on a decimal grid.

    Raises:
        PrivacyError: it could, and the sum would be corrupt without anybody noticing.
    """
    if math.ldexp(10.0**decimals, exponent) * contributors >= 2.0**31:
        raise PrivacyError(
            f"values up to 2^{exponent} with {decimals} decimals do not fit a 32-bit sum of {contributors}; "
            "use Cesar() instead of Cesar.paper(): its scale follows the model."
        )


@jit
def add_masks(
    acc: RingWords, own: BitWords, theirs: BitWords, stream: RingWords, negate: bool, first: bool
) -> None:
    """Add (or subtract) one mask word per common position to `acc`, which has one word per position.

    The k-th word of the stream belongs to the k-th common position. The first of several masks finds anything in `acc`,
    which is forgotten.
    """
    k = ZERO
    sign = np.uint32(0xFFFFFFFF) if negate else np.uint32(1)
    for w in range(len(own)):
        members = own[w] & theirs[w]
        if first:
            acc[64 * w : 64 * w + 64] = 0
        base = np.uint64(64 * w)  # without a sign: an index that could be negative takes a test more
        if members == FULL:
            for t in range(64):
                acc[base + np.uint64(t)] += sign * stream[k + np.uint64(t)]
            k += np.uint64(64)
            continue
        while members != ZERO:
            acc[base + lowest_bit(members)] += sign * stream[k]
            k += ONE
            members &= members - ONE


@jit
def _dither(counter: np.uint64) -> float:
    """A uniform number in [0, 1) from a counter (the finaliser of splitmix64)."""
    z = counter * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@jit
def seal(
    acc: RingWords, values: Vector, kept: BitWords, scale: float, dither: np.uint64, out: RingWords
) -> int:
    """Add the rounded values to the masks at the kept positions and write them without gaps to `out`.

    `dither` is zero for rounding to nearest (halves up), else the seed of stochastic rounding. Returns how many.
    """
    k = ZERO
    for w in range(len(kept)):
        members = kept[w]
        base = np.uint64(64 * w)
        while members != ZERO:
            p = base + lowest_bit(members)
            scaled = np.float64(values[p]) * scale
            up = _dither(dither + p) if dither != ZERO else 0.5
            rounded = np.floor(scaled + up)
            out[k] = acc[p] + np.uint32(np.int64(rounded))
            k += ONE
            members &= members - ONE
    return int(k)


@jit
def accumulate(total: RingWords, kept: BitWords, words: RingWords, first: bool) -> int:
    """Add one share's words to the receiver's sum at the kept positions; how many there were.

    The first share finds anything in `total`, which is forgotten.
    """
    k = ZERO
    for w in range(len(kept)):
        members = kept[w]
        if first:
            total[64 * w : 64 * w + 64] = 0
        base = np.uint64(64 * w)
        while members != ZERO:
            total[base + lowest_bit(members)] += words[k]
            k += ONE
            members &= members - ONE
    return int(k)


@jit
def average(
    own: Vector, total: RingWords, kept: NDArray[np.uint64], spoiled: BitWords, bits: int, step: float
) -> None:
    """v'[p] = mean of the own value and the contributions at p, written over the sum as float32.

    Row i of `kept` has the positions of share i. Where there are no contributions total[p] is 0, so the own value
    stays as it is; at the spoiled positions (none if that bitmap is empty) there are none that count. In place, by
    way of a small block, because the sum of a large model is as large as the model.
    """
    shift = np.int32(32 - bits)
    block = np.empty(64, dtype=np.float32)
    voices = np.empty(64, dtype=np.uint32)
    out = total.view(np.float32)
    for w in range(kept.shape[1]):
        base = 64 * w
        width = min(64, len(own) - base)
        gone = spoiled[w] if len(spoiled) else ZERO
        voices[:] = 1
        for i in range(len(kept)):
            members = kept[i, w] & ~gone
            for t in range(64):
                voices[t] += np.uint32((members >> np.uint64(t)) & ONE)
        while gone != ZERO:
            total[base + lowest_bit(gone)] = 0
            gone &= gone - ONE
        for t in range(width):
            number = np.int32(total[base + t] << np.uint32(shift)) >> shift  # the sign of the b-bit word
            block[t] = (np.float64(own[base + t]) + np.float64(number) * step) / np.float64(voices[t])
        out[base : base + width] = block[:width]


def packed_size(words: int, bits: int) -> int:
    """Bytes that hold `words` words of `bits` bits."""
    return (words * bits + 7) // 8


@jit
def _pack(words: RingWords, bits: int, out: ByteArray) -> None:
    """Two words of any width that we allow fill a whole number of bytes."""
    mask = np.uint64((1 << bits) - 1)
    step = bits // 4
    for i in range(len(words) // 2):
        pair = (np.uint64(words[2 * i]) & mask) | ((np.uint64(words[2 * i + 1]) & mask) << np.uint64(bits))
        for b in range(step):
            out[i * step + b] = np.uint8((pair >> np.uint64(8 * b)) & np.uint64(255))
    if len(words) % 2:
        last = np.uint64(words[-1]) & mask
        start = (len(words) // 2) * step
        for b in range(len(out) - start):
            out[start + b] = np.uint8((last >> np.uint64(8 * b)) & np.uint64(255))


@jit
def _unpack(data: ByteArray, bits: int, out: RingWords) -> None:
    mask = np.uint64((1 << bits) - 1)
    step = bits // 4
    for i in range(len(out) // 2):
        pair = ZERO
        for b in range(step):
            pair |= np.uint64(data[i * step + b]) << np.uint64(8 * b)
        out[2 * i] = pair & mask
        out[2 * i + 1] = (pair >> np.uint64(bits)) & mask
    if len(out) % 2:
        last = ZERO
        start = (len(out) // 2) * step
        for b in range(len(data) - start):
            last |= np.uint64(data[start + b]) << np.uint64(8 * b)
        out[-1] = last & mask


def pack(words: RingWords, bits: int, out: ByteArray) -> None:
    """Write the low `bits` bits of each word, little end first, without gaps.

    >>> out = np.empty(5, np.uint8); pack(np.array([0x12345, 0xABCDE], np.uint32), 20, out); out.tobytes().hex()
    '4523e1cdab'
    """
    if bits == 32:
        out[:] = words.astype("<u4", copy=False).view(np.uint8)
    else:
        _pack(words, bits, out)


def unpack(data: ByteArray, bits: int, count: int) -> RingWords:
    """The inverse of `pack`; at 32 bits it looks at the data without a copy where it can."""
    if bits == 32 and data.ctypes.data % 4 == 0:
        return data.view("<u4").astype(np.uint32, copy=False)
    words = np.empty(count, dtype=np.uint32)
    if bits == 32:
        words.view(np.uint8)[:] = data
    else:
        _unpack(data, bits, words)
    return words
