"""Fingerprints: whether an array is what it was, without a copy of it to compare with.

Each of 32 lanes takes every 32nd word, in the manner of xxHash (multiply, rotate, multiply), so that processors with vector
instructions read as fast as memory gives. The start is random and no secret of anybody: it keeps a model from being chosen such
that it has the fingerprint of another. A fingerprint is no signature.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cesar.base.types import BitWords, ByteArray
from cesar.kernels.bits import ZERO, jit

_LANES = 32
_P1, _P2, _P3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)


@jit
def _lanes(words: BitWords, lanes: NDArray[np.uint64]) -> np.uint64:
    """Take whole rows of words in; the bits that any of them has."""
    seen = ZERO
    for row in range(np.uint64(len(words) // _LANES)):
        start = np.uint64(_LANES) * row
        for lane in range(np.uint64(_LANES)):
            word = words[start + lane]
            seen |= word
            mixed = lanes[lane] + word * _P2
            lanes[lane] = ((mixed << np.uint64(31)) | (mixed >> np.uint64(33))) * _P1
    return seen


@jit
def _fold(lanes: NDArray[np.uint64], length: np.uint64) -> np.uint64:
    found = length * _P3
    for lane in range(len(lanes)):
        found ^= lanes[lane] ^ (lanes[lane] >> np.uint64(29))
        found = ((found << np.uint64(27)) | (found >> np.uint64(37))) * _P1 + _P3
    found = (found ^ (found >> np.uint64(33))) * _P2
    return found ^ (found >> np.uint64(29))


class Fingerprint:
    """Of bytes that come in pieces; all but the last have a multiple of 256 bytes.

    Args:
        start: two arrays can be compared if it was the same for both.
    """

    __slots__ = ("_lanes", "_length", "_seen")

    def __init__(self, start: int) -> None:
        self._lanes = np.arange(1, _LANES + 1, dtype=np.uint64) * _P3 + np.uint64(start)
        self._length, self._seen = 0, 0

    def add(self, data: ByteArray) -> None:
        """Take further bytes in."""
        if self._length % (8 * _LANES):
            raise ValueError("a piece that is not the last has whole rows")
        whole = len(data) - len(data) % (8 * _LANES)
        self._length += len(data)
        self._seen |= int(_lanes(data[:whole].view(np.uint64), self._lanes))
        if whole < len(data):
            rest = np.zeros(8 * _LANES, dtype=np.uint8)
            rest[: len(data) - whole] = data[whole:]
            self._seen |= int(_lanes(rest.view(np.uint64), self._lanes))

    @property
    def zero(self) -> bool:
        """Whether all bytes are zero."""
        return not self._seen

    @property
    def value(self) -> int:
        """64 bits."""
        return int(_fold(self._lanes, np.uint64(self._length)))
