"""Fixed point in the ring of integers modulo 2^b: scale, round and sum.

A model value v becomes the integer q = round(v · 2^f), masks are added to it modulo 2^b, and the sum of
the shares is turned back with 2^-f. Two things must never happen: a value that does not fit, and a sum
that wraps around after the masks have cancelled.

*Scale.* A model is a row of tensors, and their sizes differ. Node i announces, for each tensor, the smallest
exponent e with max|v| ≤ 2^e. The receiver takes the largest announced exponent E of each tensor and tells every
sender. With n values in a sum and h = ⌈log2 n⌉ + 1 bits of headroom, f = b − 1 − h − E, so |q| ≤ 2^(b−1−h), and the
sum of n of them stays below 2^(b−1) in magnitude. A sender with an exponent above E refuses to send: nothing is
ever clipped.

*Rounding.* At 32 bits to nearest. Below that the step is coarse enough to bias a model that moves slowly,
so rounding is stochastic: up with the probability of the remainder, E[q] = v · 2^f exactly. The randomness
is a counter hash of a fresh seed. It is not a mask and hides nothing.

*Cells round after masking.* Their values and masks are 64-bit words, of which the upper b bits are sent, rounded
to nearest. Masked words are uniform, so that this is stochastic rounding of the cell's *sum*, without a bias and without
further randomness, and what anybody sees depends on that sum alone, whatever the scale. The sum of m members is off by less
than m/2 steps.

*Six decimals.* The paper multiplies by 10^6 and takes 32-bit words. `decimal_grid` keeps that; a value that
could overflow the sum is refused before anything is sent.

Arithmetic wraps in this module only, on `uint32` and `uint64`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import le

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import DataError, PrivacyError
from cesar.base.types import BitWords, RingWords, Vector
from cesar.kernels.bits import FULL, ONE, ZERO, jit, lowest_bit, popcount

RING_BITS = (16, 20, 24, 32)
EXPONENT_BIAS = 127
LOWEST_EXPONENT = -90
"""Exponents below this are announced as this: 2^-90 is zero for every model, and scales stay finite."""


def exponents_of(vector: Vector, edges: NDArray[np.int64]) -> tuple[int, ...]:
    """For each tensor the smallest e with max|v| ≤ 2^e: the public scales of a model.

    >>> exponents_of(np.array([0.3, -1.5, 9.0], dtype=np.float32), np.array([2, 3]))
    (1, 4)

    Args:
        edges: where each tensor ends.

    Raises:
        DataError: the vector holds NaN or infinity; nothing of it may be sent.
    """
    largest = np.empty(len(edges), dtype=np.uint32)
    _largest_of(vector.view(np.uint32), edges, largest)
    found = []
    for size in largest.view(np.float32).tolist():
        if not math.isfinite(size):
            bad = np.flatnonzero(~np.isfinite(vector))
            raise DataError(
                f"the model holds {len(bad)} value(s) that are NaN or infinite, the first at position "
                f"{bad[0]}; nothing was sent. Lower the learning rate or restore an earlier model."
            )
        mantissa, exponent = math.frexp(size)  # size = mantissa · 2^exponent, 0.5 ≤ mantissa < 1
        found.append(max(exponent - (mantissa == 0.5), LOWEST_EXPONENT) if size else LOWEST_EXPONENT)
    return tuple(found)


@jit
def _largest_of(patterns: RingWords, edges: NDArray[np.int64], out: RingWords) -> None:
    """The largest magnitude of each tensor, as the bits of a float32: without their signs, floats sort as integers, and
    NaN comes last.
    """
    start = np.uint64(0)
    for tensor in range(len(edges)):
        end, largest = np.uint64(edges[tensor]), np.uint32(0)
        for p in range(start, end):
            largest = max(largest, patterns[p] & np.uint32(0x7FFFFFFF))
        out[tensor], start = largest, end


def largest(vector: Vector) -> float:
    """The largest magnitude; NaN if there is one, and 0 if there is nothing."""
    found = np.empty(1, dtype=np.uint32)
    _largest_of(vector.view(np.uint32), np.array([len(vector)]), found)
    return float(found.view(np.float32)[0])


def is_finite(vector: Vector) -> bool:
    """Whether no value is NaN or infinite."""
    return math.isfinite(largest(vector))


def largest_exponents(announced: Sequence[tuple[int, ...]], own: tuple[int, ...]) -> tuple[int, ...]:
    """The scale of a sum: for each tensor the largest that its contributors announced; the own where nobody did."""
    return tuple(map(max, zip(*announced, strict=True))) if announced else own


def fits(exponents: Sequence[int], scale: Sequence[int]) -> bool:
    """Whether no value of a model with these exponents is too large for a scale."""
    assert len(exponents) == len(scale), "one for each tensor"
    return all(map(le, exponents, scale))


def exponents_to_bytes(exponents: Sequence[int]) -> bytes:
    """One byte for each tensor."""
    return _exponent_bytes(tuple(exponents))


@lru_cache(maxsize=1024)  # scales change seldom, and stand in every frame and key
def _exponent_bytes(exponents: tuple[int, ...]) -> bytes:
    return bytes(exponent + EXPONENT_BIAS for exponent in exponents)


@lru_cache(maxsize=1024)
def exponents_from_bytes(data: bytes) -> tuple[int, ...]:
    """The inverse."""
    return tuple(byte - EXPONENT_BIAS for byte in data)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The fixed point of one receiver's sum: q = round(v · scale), modulo 2^bits, with a scale for each tensor.

    Attributes:
        edges: where each tensor ends, ascending; the last one is d.
        scales: a scale for each tensor.
    """

    bits: int
    edges: NDArray[np.int64]
    scales: NDArray[np.float64]

    @property
    def stochastic(self) -> bool:
        return self.bits < 32


def headroom(contributors: int) -> int:
    """Bits kept free so that a sum of that many values cannot wrap."""
    return math.ceil(math.log2(max(contributors, 1))) + 1


def binary_grid(bits: int, edges: NDArray[np.int64], exponents: Sequence[int], contributors: int) -> Grid:
    """The grid on which `contributors` values of magnitude up to 2^exponent can be summed."""
    return Grid(bits, edges, _scales(bits - 1 - headroom(contributors), tuple(exponents)))


@lru_cache(maxsize=1024)
def _scales(spare: int, exponents: tuple[int, ...]) -> NDArray[np.float64]:
    """Not to be written to; the flag that says so would have every kernel compiled once more."""
    return np.ldexp(1.0, spare - np.array(exponents, dtype=np.int64))


def can_be(words: NDArray[np.unsignedinteger], bits: int, members: int, together: int) -> bool:
    """Whether honest members can have brought these sums: each value is at most 2^(bits − 1 − headroom) in magnitude.

    That is a quarter of the ring on either side of zero at most. What does not lie there is garbage, or masks that did not
    cancel; at a single position such noise passes with a probability of one half or less, at many positions never.

    Args:
        members: how many values are in the sum; each is rounded once.
        together: how many the grid was made for.
    """
    most = members * ((1 << (bits - 1 - headroom(together))) + 1)
    return _outside(words, np.uint64(most), np.uint64((1 << bits) - 1)) == 0


@jit
def _outside(words: NDArray[np.unsignedinteger], most: np.uint64, mask: np.uint64) -> int:
    """How many words are further from zero than `most`, in the ring."""
    outside = ZERO
    for k in range(len(words)):
        outside += np.uint64((np.uint64(words[k]) + most) & mask > most + most)
    return int(outside)


def decimal_grid(decimals: int, size: int) -> Grid:
    """The paper's fixed point: 32-bit words that keep this number of decimal places."""
    return Grid(32, np.array([size]), np.array([10.0**decimals]))


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
    sign = np.uint32(0xFFFFFFFF) if negate else np.uint32(1)  # 2^32 − 1 is −1: one of the two sides subtracts
    for w in range(len(own)):
        members = own[w] & theirs[w]
        if first:
            acc[64 * w : 64 * w + 64] = 0
        base = np.uint64(64 * w)  # without a sign: an index that could be negative takes a test more
        if members == FULL:
            # All 64 positions, as without sparsification: the loop has no bit to look for, and is vectorised.
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
def _rounded(value: np.float32, scale: float, dither: np.uint64, position: np.uint64) -> np.uint32:
    """The integer that stands for a value. `dither` is zero for rounding to nearest (halves up), else the seed of
    stochastic rounding.
    """
    # floor(x + u) with u uniform in [0, 1) is the upper neighbour of x with the probability of its fraction: 2.3 becomes 3 for
    # u ≥ 0.7. With u = 1/2 it is the nearest. A negative result wraps when it becomes a word, as the ring wants it.
    up = _dither(dither + position) if dither != ZERO else 0.5
    return np.uint32(np.int64(np.floor(np.float64(value) * scale + up)))


@jit
def _tensor_of(edges: NDArray[np.int64], position: int) -> int:
    """The tensor that a position belongs to."""
    tensor = 0
    while edges[tensor] <= position:
        tensor += 1
    return tensor


DENSE = np.uint64(12)
"""From this number of kept positions on, it pays to round all 64 of a word at once."""


@jit
def seal(
    masks: RingWords,
    vector: Vector,
    kept: BitWords,
    first: int,
    edges: NDArray[np.int64],
    scales: NDArray[np.float64],
    dither: np.uint64,
    out: RingWords,
) -> int:
    """Add the rounded values at the kept positions to their masks and write them without gaps to `out`.

    Args:
        masks: one word per position of this block.
        vector: the whole model.
        kept: a block of its positions, which starts at word `first` of the bitmap.

    Returns how many there were.
    """
    k = ZERO
    edge = ZERO  # where the tensor of the last position ends; its scale holds until then
    scale = 0.0
    block = np.empty(64, dtype=np.uint32)
    for w in range(len(kept)):
        members = kept[w]
        base, start = np.uint64(64 * w), np.uint64(64 * (first + w))
        if dither == ZERO and start + np.uint64(64) <= edge and popcount(members) >= DENSE:
            # Many of these 64 are kept, and all are of one tensor: it is faster to round all 64, vectorised, and pick from them
            # than to go from member to member.
            for i in range(np.uint64(64)):  # `Scale` above says why 32 bits suffice
                number = np.int32(np.floor(np.float64(vector[start + i]) * scale + 0.5))
                block[i] = masks[base + i] + np.uint32(number)
            while members != ZERO:
                out[k] = block[lowest_bit(members)]
                k += ONE
                members &= members - ONE
            continue
        while members != ZERO:
            t = lowest_bit(members)
            if start + t >= edge:
                tensor = _tensor_of(edges, int(start + t))
                edge, scale = np.uint64(edges[tensor]), scales[tensor]
            out[k] = masks[base + t] + _rounded(vector[start + t], scale, dither, start + t)
            k += ONE
            members &= members - ONE
    return int(k)


_TILE = 16
"""Words of a bitmap whose values are worked on together: they stay in the first-level cache."""


@jit
def seal_sum(
    masks: NDArray[np.uint64],
    signs: NDArray[np.uint64],
    vector: Vector,
    kept: BitWords,
    first: int,
    last: int,
    edges: NDArray[np.int64],
    scales: NDArray[np.float64],
    bits: int,
    out: RingWords,
) -> int:
    """Like `seal` for a sum of all members: each row of `masks` has one 64-bit word per *kept* position, and rounding comes last.

    Values are first gathered, bit by bit; all that is computed with them then runs on many at once.

    Args:
        signs: 1 for each mask that is added, 2^64 − 1 for one that is subtracted.
        kept: all positions, of which these are words `first` to `last`.
    """
    # A word has 64 bits, of which the upper `bits` are sent. Adding half of the lowest bit that is sent, and dropping what is below
    # it, rounds to nearest. Values are scaled by 2^(64 − bits) more than on the grid, so that a step of the grid is that bit.
    tensor = 0
    edge = ZERO
    scale = 0.0
    shift = np.uint64(64 - bits)
    half = ONE << (shift - ONE)
    values = np.empty(64 * _TILE, dtype=np.float64)
    sums = np.empty(64 * _TILE, dtype=np.uint64)
    k = ZERO
    for tile in range(first, last, _TILE):
        count = ZERO
        for w in range(tile, min(tile + _TILE, last)):
            members = kept[w]
            start = np.uint64(64 * w)
            if members == FULL and start + np.uint64(64) <= edge:  # one scale for a whole word: all at once
                for t in range(np.uint64(64)):
                    values[count + t] = np.float64(vector[start + t]) * scale
                count += np.uint64(64)
                continue
            while members != ZERO:
                p = start + lowest_bit(members)
                if p >= edge:
                    tensor = _tensor_of(edges, int(p))
                    edge = np.uint64(edges[tensor])
                    scale = scales[tensor] * 2.0 ** (64 - bits)
                values[count] = np.float64(vector[p]) * scale
                count += ONE
                members &= members - ONE
        for i in range(count):
            sums[i] = np.uint64(np.int64(np.floor(values[i] + 0.5))) + half
        for row in range(len(signs)):
            mask, sign = masks[row], signs[row]
            for i in range(count):
                sums[i] += sign * mask[k + i]
        for i in range(count):
            out[k + i] = np.uint32(sums[i] >> shift)
        k += count
    return int(k)


@jit
def accumulate(total: RingWords, kept: BitWords, words: RingWords, bits: int, first: bool) -> int:
    """Add one share's words to the receiver's sum at the kept positions; how many there were.

    With fewer than 32 bits each word is taken as a signed number; where masks have not cancelled yet, the sum still
    ends right modulo 2^bits. The first share finds anything in `total`, which is forgotten.
    """
    k = ZERO
    shift = np.uint32(
        32 - bits
    )  # up and down again with a sign: at 20 bits 0xFFFFF becomes −1 and not 1048575
    for w in range(len(kept)):
        members = kept[w]
        if first:
            total[64 * w : 64 * w + 64] = 0
        base = np.uint64(64 * w)
        while members != ZERO:
            signed = np.int32(words[k] << shift) >> np.int32(shift)
            total[base + lowest_bit(members)] += np.uint32(signed)
            k += ONE
            members &= members - ONE
    return int(k)


@jit
def average(
    own: Vector,
    total: RingWords,
    kept: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    spoiled: BitWords,
    bits: int,
    edges: NDArray[np.int64],
    steps: NDArray[np.float64],
    everybody: int,
) -> None:
    """The new model, written over the sum as float32: the mean of the own value and of what arrived at a position.

    Row i of `kept` has the positions at which counts[i] values are in the sum. Where there are none total[p] is 0, so
    the own value stays as it is; at the spoiled positions (none if that bitmap is empty) there are none that count.
    If `everybody` is not 0, a mean is always over that many and the own value stands for those that did not arrive.
    In place, by way of a small block, because the sum of a large model is as large as the model.
    """
    shift = np.int32(32 - bits)
    block = np.empty(64, dtype=np.float32)
    heard = np.empty(64, dtype=np.uint32)
    out = total.view(np.float32)
    tensor = 0
    for w in range(kept.shape[1]):
        # Without a sign: an index that could be negative keeps loops from being vectorised.
        base = np.uint64(64 * w)
        width = min(64, len(own) - 64 * w)
        gone = spoiled[w] if len(spoiled) else ZERO
        # How many values are in the sum at each of these 64 positions: every row adds its number where it has a member.
        heard[:] = 0
        for i in range(len(kept)):
            members, count = kept[i, w] & ~gone, counts[i]
            for t in range(64):
                heard[t] += count * np.uint32((members >> np.uint64(t)) & ONE)
        while gone != ZERO:
            total[base + lowest_bit(gone)] = 0
            gone &= gone - ONE
        start = 0
        while start < width:  # piece by piece, so that the inner loop knows its scale
            while edges[tensor] <= 64 * w + start:
                tensor += 1
            stop, step = min(width, edges[tensor] - 64 * w), steps[tensor]
            for t in range(np.uint64(start), np.uint64(stop)):
                number = np.int32(total[base + t] << np.uint32(shift)) >> shift  # the sign of the b-bit word
                # The own value counts once; or for all who did not arrive, such as 3 times of 5 where 2 were heard.
                mine = 1.0 if everybody == 0 else np.float64(everybody) - np.float64(heard[t])
                value = mine * np.float64(own[base + t]) + np.float64(number) * step
                block[t] = value / (mine + np.float64(heard[t]))
            start = stop
        for t in range(np.uint64(width)):
            out[base + t] = block[t]


@jit
def copy_at(target: Vector, source: Vector, members: BitWords) -> None:
    """Copy the values at some positions."""
    for w in range(len(members)):
        word = members[w]
        while word != ZERO:
            p = np.uint64(64 * w) + lowest_bit(word)
            target[p] = source[p]
            word &= word - ONE
