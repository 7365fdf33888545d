"""Bitmaps over parameter positions, and the kernels that walk them.

A set of positions is a row of 64-bit words (`BitWords`). Intersection, union and "at least s of these
sets" are then a few vector operations per 64 positions, and a walk over the members costs a count of
trailing zeros each: no loop here tests a random bit, because a mispredicted branch per position is what
made the obvious loop eight times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit
from numba.core import types as nbtypes
from numba.extending import intrinsic
from numpy.typing import NDArray

from cesar.base import memory
from cesar.base.types import BitWords, ByteArray

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel. It releases the interpreter lock, so that two nodes can work at once."""
    compiled: Kernel = njit(cache=True, nogil=True, error_model="numpy")(kernel)
    return compiled


if TYPE_CHECKING:

    def popcount(word: np.uint64) -> np.uint64:
        """Number of ones in a 64-bit word."""

    def lowest_bit(word: np.uint64) -> np.uint64:
        """Position of the lowest one of a 64-bit word that is not zero."""

else:

    @intrinsic
    def popcount(typingctx, word):
        def emit(context, builder, signature, args):
            return builder.ctpop(args[0])

        return nbtypes.uint64(nbtypes.uint64), emit

    @intrinsic
    def lowest_bit(typingctx, word):
        def emit(context, builder, signature, args):
            return builder.cttz(args[0], context.get_constant(nbtypes.boolean, True))

        return nbtypes.uint64(nbtypes.uint64), emit


def _instruction(name: str) -> Any:
    """A two-operand instruction of x86's bit manipulation set 2."""

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typingctx: Any, source: Any, members: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            function = ir.FunctionType(word, (word, word))
            return builder.call(builder.module.declare_intrinsic(name, (), function), args)

        return nbtypes.uint64(nbtypes.uint64, nbtypes.uint64), emit

    return call


ONE = np.uint64(1)
ZERO = np.uint64(0)
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


def words_for(size: int) -> int:
    """How many words hold `size` bits."""
    return (size + 63) // 64


def ones(size: int) -> BitWords:
    """The bitmap of every position below `size`."""
    words = np.full(words_for(size), FULL, dtype=np.uint64)
    clear_tail(words, size)
    return words


def clear_tail(words: BitWords, size: int) -> None:
    """Make the bits at and past `size` zero."""
    if size % 64:
        words[-1] &= FULL >> np.uint64(64 - size % 64)


def is_bitmap(words: BitWords, size: int) -> bool:
    """Whether no bit at or past `size` is set (they must be zero everywhere in this code)."""
    return size % 64 == 0 or int(words[-1]) >> (size % 64) == 0


def to_bools(words: BitWords, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The bitmap as one boolean per position."""
    little = words.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(little, count=size, bitorder="little").view(np.bool_)


def from_bools(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> BitWords:
    """The bitmap whose members are the true positions."""
    packed = np.zeros(words_for(len(flags)) * 8, dtype=np.uint8)
    packed[: (len(flags) + 7) // 8] = np.packbits(flags, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)


def at_least(sets: Iterable[BitWords], threshold: int, words: int) -> BitWords:
    """Positions that are in at least `threshold` of the sets.

    One saturating unary counter per position, held as `threshold` bitmaps: `reached[k]` has the positions
    seen more than k times so far.

    >>> int(at_least([np.array([3], np.uint64), np.array([6], np.uint64)], 2, 1)[0])
    2
    """
    if threshold == 0:
        return np.full(words, FULL, dtype=np.uint64)
    reached = memory.empty(threshold * words, np.uint64).reshape(threshold, words)
    reached[:] = ZERO
    for members in sets:
        # From the top down: reached[k] must see what reached[k − 1] was before this set. A position that was seen once and is
        # in this set moves from reached[0] to reached[1] as well.
        for k in range(threshold - 1, 0, -1):
            reached[k] |= reached[k - 1] & members
        reached[0] |= members
    enough: BitWords = reached[-1]
    return enough


def both(one: BitWords, other: BitWords) -> BitWords:
    """Positions that are in both sets."""
    out: BitWords = memory.empty(len(one), np.uint64)
    return np.bitwise_and(one, other, out=out)


@jit
def count(words: BitWords) -> int:
    """Number of members."""
    total = ZERO
    for word in words:
        total += popcount(word)
    return int(total)


@jit
def count_blocks(words: BitWords, block: int, out: NDArray[np.int64]) -> None:
    """Number of members in each block of `block` words, written to `out`."""
    for index in range(len(out)):
        total = ZERO
        for w in range(index * block, min((index + 1) * block, len(words))):
            total += popcount(words[w])
        out[index] = total


@jit
def _gather_bits(source: np.uint64, members: np.uint64) -> np.uint64:
    """The bits of `source` at the members, moved together at the low end."""
    gathered, taken = ZERO, ZERO
    # source 1 0 1 1 with members 1 1 0 1 (highest first): the bits 1, 0, 1 at the members become 101.
    while members != ZERO:
        gathered |= ((source >> lowest_bit(members)) & ONE) << taken
        taken += ONE
        members &= members - ONE  # drops the lowest member: 1100 & 1011 = 1000
    return gathered


@jit
def _scatter_bits(dense: np.uint64, members: np.uint64) -> np.uint64:
    """The inverse: the low bits of `dense` moved to the members."""
    spread = ZERO
    while members != ZERO:
        spread |= (dense & ONE) << lowest_bit(members)
        dense >>= ONE
        members &= members - ONE
    return spread


if not TYPE_CHECKING and get_host_cpu_features().get("bmi2", False):  # eight times as fast as the loops
    _gather_bits = _instruction("llvm.x86.bmi.pext.64")
    _scatter_bits = _instruction("llvm.x86.bmi.pdep.64")


@jit
def compress(source: BitWords, keep: BitWords, out: BitWords) -> None:
    """Write the bits of `source` at the members of `keep`, in order and without gaps, to `out` (zeroed)."""
    filled = ZERO  # bits written so far
    for w in range(len(keep)):
        taken = popcount(keep[w])
        if taken != ZERO:
            gathered = _gather_bits(source[w], keep[w])
            # The gathered bits begin at bit `shift` of word `slot`. Those that do not fit there go to the low end of the next
            # word; then shift is not 0, so that the move by 64 − shift is defined.
            shift, slot = filled & np.uint64(63), filled >> np.uint64(6)
            out[slot] |= gathered << shift
            if shift + taken > np.uint64(64):
                out[slot + ONE] |= gathered >> (np.uint64(64) - shift)
            filled += taken


@jit
def expand(dense: BitWords, keep: BitWords, out: BitWords) -> None:
    """The inverse of `compress`: member k of `keep` goes to `out` where bit k of `dense` is set."""
    read = ZERO  # bits read so far
    for w in range(len(keep)):
        taken = popcount(keep[w])
        out[w] = ZERO
        if taken != ZERO:
            shift, slot = read & np.uint64(63), read >> np.uint64(6)
            low = dense[slot] >> shift
            # Bits above the `taken` lowest belong to later words; scattering to `taken` members does not look at them.
            if shift + taken > np.uint64(64):
                low |= dense[slot + ONE] << (np.uint64(64) - shift)
            out[w] = _scatter_bits(low, keep[w])
            read += taken


@jit
def positions(words: BitWords, out: NDArray[np.int32]) -> None:
    """Write the members in ascending order to `out`."""
    k = 0
    for w in range(len(words)):
        members = words[w]
        while members != ZERO:
            out[k] = 64 * w + lowest_bit(members)
            k += 1
            members &= members - ONE


@jit
def bernoulli(planes: BitWords, ties: BitWords, threshold: int, words: BitWords) -> int:
    """Turn uniform words into a bitmap whose bits are one with probability threshold / 2^32.

    Position p is chosen iff a 32-bit uniform number is below `threshold`. The number's top eight bits
    come from eight bit-planes (tiles of 64 words: plane k of tile T is words 512·T + 64·k onwards), which
    decides all but one position in 256; where a word of 64 positions still has ties, one word of `ties`
    per further bit decides them. Returns how many words of `ties` were used, or −1 if they ran out.
    """
    used, limit = 0, np.uint64(threshold)
    below = np.empty(64, dtype=np.uint64)
    equal = np.empty(64, dtype=np.uint64)
    for tile in range((len(words) + 63) // 64):
        # Compare 64 random numbers with the limit at once, from the highest bit down, as one compares two numbers by hand:
        # `below` has the positions that are decided, `equal` those whose bits so far are the limit's. Where the limit has a
        # one, a drawn zero decides for "below"; where it has a zero, a drawn one decides against it.
        below[:] = ZERO
        equal[:] = FULL
        for k in range(8):
            start = 512 * tile + 64 * k
            if (limit >> np.uint64(31 - k)) & ONE:
                for i in range(64):
                    below[i] |= equal[i] & ~planes[start + i]
                    equal[i] &= planes[start + i]
            else:
                for i in range(64):
                    equal[i] &= ~planes[start + i]
        for i in range(min(64, len(words) - 64 * tile)):
            less, same = below[i], equal[i]
            # The same, one bit after the other, for words that still have ties. After 32 bits a tie is a number equal to the
            # limit, which is not below it.
            k = 8
            while same != ZERO and k < 32:
                if used == len(ties):
                    return -1
                draw = ties[used]
                used += 1
                if (limit >> np.uint64(31 - k)) & ONE:
                    less |= same & ~draw
                    same &= draw
                else:
                    same &= ~draw
                k += 1
            words[64 * tile + i] = less
    return used


@jit
def _digit(keys: NDArray[np.int32], low: int, width: int, left: int) -> tuple[int, int]:
    """The `left`-th largest value that the `width` bits from bit `low` on have, and how many of its keys are wanted."""
    bins = np.zeros(1 << width, dtype=np.int64)
    mask = np.uint32((1 << width) - 1)
    for key in keys:
        bins[(np.uint32(key) >> np.uint32(low)) & mask] += 1
    # From the largest digit down, as long as all keys of a digit are wanted: the wanted-th key has the next one.
    digit = (1 << width) - 1
    while bins[digit] < left:
        left -= bins[digit]
        digit -= 1
    return digit, left


@jit
def largest(keys: NDArray[np.int32], wanted: int, words: BitWords) -> None:
    """Mark the `wanted` largest 31-bit keys; of equal keys the one at the lower position wins.

    A radix selection finds the smallest key that still belongs: by the upper 11 bits of all keys, then by the rest of
    those few that share them. One more pass writes the bitmap.
    """
    upper, left = _digit(keys, 20, 11, wanted)
    near = np.empty(len(keys), dtype=np.int32)
    found = 0
    # Every key is written, and the place moves on only behind one that counts: no branch on what is as good as random.
    for key in keys:
        near[found] = key
        found += (key >> 20) == upper
    middle, left = _digit(near[:found], 9, 11, left)
    near = near[:found]
    near = near[(near >> 9) == (upper << 11 | middle)]
    lower, left = _digit(near, 0, 9, left)
    # All keys above `last` belong, and of those that equal it the first `left`.
    last = np.int32((upper << 20) | (middle << 9) | lower)
    for w in range(len(words)):
        base = np.uint64(64 * w)
        above, equal = ZERO, ZERO
        for t in range(np.uint64(min(64, len(keys) - 64 * w))):
            key = keys[base + t]
            above |= np.uint64(key > last) << t
            equal |= np.uint64(key == last) << t
        while equal != ZERO and left > 0:
            above |= equal & (~equal + ONE)  # its lowest one: 1100 & 0100 = 0100
            equal &= equal - ONE
            left -= 1
        words[w] = above


def to_bytes(words: BitWords, size: int) -> ByteArray:
    """The bitmap as ⌈size / 8⌉ bytes, lowest position in the lowest bit of the first byte."""
    return words.astype("<u8", copy=False).view(np.uint8)[: (size + 7) // 8]


def from_bytes(data: ByteArray, size: int) -> BitWords:
    """The inverse of `to_bytes`; the caller checks the length and the bits past the end."""
    padded = np.zeros(words_for(size) * 8, dtype=np.uint8)
    padded[: len(data)] = data
    return padded.view("<u8").astype(np.uint64, copy=False)
