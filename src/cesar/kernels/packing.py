"""Words of the ring, written with exactly b bits each."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cesar.base.types import ByteArray, RingWords
from cesar.kernels.bits import ZERO, jit


def packed_size(words: int, bits: int) -> int:
    """Bytes that hold `words` words of `bits` bits."""
    return (words * bits + 7) // 8


@jit
def _pack(words: RingWords, bits: int, out: ByteArray) -> None:
    """Two words of any width that we allow fill a whole number of bytes."""
    # Widths are multiples of four: 2 · 20 bits are 5 bytes. So each pair begins at a byte, `step` bytes behind the one before,
    # and no bit of it lies in a byte of another pair. The low word has the low bits.
    mask = np.uint64((1 << bits) - 1)
    step = bits // 4
    for i in range(len(words) // 2):
        pair = (np.uint64(words[2 * i]) & mask) | ((np.uint64(words[2 * i + 1]) & mask) << np.uint64(bits))
        for b in range(step):
            out[i * step + b] = np.uint8((pair >> np.uint64(8 * b)) & np.uint64(255))
    if len(words) % 2:
        last = (
            np.uint64(words[-1]) & mask
        )  # an odd word out: its last byte may be half empty, and is filled with zeros
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
    if bits in (16, 32):
        out[:] = words.astype(f"<u{bits // 8}", copy=False).view(np.uint8)
    else:
        _pack(words, bits, out)


def in_place(data: ByteArray, bits: int) -> NDArray[Any] | None:
    """Packed words as they lie there, to be read or written; None where that cannot be."""
    if bits not in (16, 32) or sys.byteorder != "little":
        return None
    seen = data.view(f"u{bits // 8}")
    return seen if seen.flags.aligned else None


def unpack(data: ByteArray, bits: int, count: int) -> RingWords:
    """The inverse of `pack`; at 32 bits it looks at the data without a copy where it can."""
    if bits == 32 and (seen := data.view("<u4")).flags.aligned:
        return seen.astype(np.uint32, copy=False)
    words = np.empty(count, dtype=np.uint32)
    if bits == 32:
        words.view(np.uint8)[:] = data
    elif bits == 16:
        words[:] = data.view("<u2")
    else:
        _unpack(data, bits, words)
    return words
