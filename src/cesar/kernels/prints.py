"""Fingerprints: whether an array is what it was, without a copy of it to compare with.

Each of 32 lanes takes every 32nd word, in the manner of xxHash (multiply, rotate, multiply), so that processors with vector
instructions read as fast as memory gives. The factors follow from the start, which is random and stays in the file: others choose part
of what is compared, and with factors that they know they could choose it such that it has the fingerprint of something else.
A fingerprint is no signature.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from cesar.base.types import BitWords, ByteArray
from cesar.kernels.bits import ONE, ZERO, jit

_LANES = 32


@jit
def _lanes(words: BitWords, lanes: NDArray[np.uint64], factors: NDArray[np.uint64]) -> np.uint64:
    """Take whole rows of words in; the bits that any of them has."""
    first, second = factors[0], factors[1]
    seen = ZERO
    for row in range(np.uint64(len(words) // _LANES)):
        start = np.uint64(_LANES) * row
        for lane in range(np.uint64(_LANES)):
            word = words[start + lane]
            seen |= word
            mixed = lanes[lane] + word * first
            lanes[lane] = ((mixed << np.uint64(31)) | (mixed >> np.uint64(33))) * second
    return seen


@jit
def _fold(lanes: NDArray[np.uint64], length: np.uint64, factors: NDArray[np.uint64]) -> np.uint64:
    found: np.uint64 = length * factors[2]
    for lane in range(len(lanes)):
        found ^= lanes[lane] ^ (lanes[lane] >> np.uint64(29))
        found = ((found << np.uint64(27)) | (found >> np.uint64(37))) * factors[1] + factors[2]
    found = (found ^ (found >> np.uint64(33))) * factors[0]
    return found ^ (found >> np.uint64(29))


class Fingerprint:
    """Of bytes that come in pieces; all but the last have a multiple of 256 bytes.

    Args:
        start: two arrays can be compared if it was the same for both.
    """

    __slots__ = ("_factors", "_lanes", "_length", "_seen")

    def __init__(self, start: int) -> None:
        drawn = hashlib.shake_256(start.to_bytes(8, "little")).digest(8 * (3 + _LANES))
        numbers = np.frombuffer(drawn, dtype="<u8").astype(np.uint64)
        self._factors, self._lanes = numbers[:3] | ONE, numbers[3:].copy()
        self._length, self._seen = 0, 0

    def add(self, data: ByteArray) -> None:
        """Take further bytes in."""
        if self._length % (8 * _LANES):
            raise ValueError("a piece that is not the last has whole rows")
        whole = len(data) - len(data) % (8 * _LANES)
        self._length += len(data)
        self._seen |= int(_lanes(data[:whole].view(np.uint64), self._lanes, self._factors))
        if whole < len(data):
            rest = np.zeros(8 * _LANES, dtype=np.uint8)
            rest[: len(data) - whole] = data[whole:]
            self._seen |= int(_lanes(rest.view(np.uint64), self._lanes, self._factors))

    @property
    def zero(self) -> bool:
        """Whether all bytes are zero."""
        return not self._seen

    @property
    def value(self) -> int:
        """64 bits."""
        return int(_fold(self._lanes, np.uint64(self._length), self._factors))
