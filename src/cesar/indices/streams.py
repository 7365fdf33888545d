"""Bits in 32-bit words, lowest bit first: how the codes of gaps and of patterns lie in bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import EncodingError
from cesar.base.types import ByteArray

Stream = NDArray[np.uint32]


def expect(condition: bool, message: str) -> None:
    """Refuse an encoding for which this does not hold."""
    if not condition:
        raise EncodingError(message)


def stream_bytes(words: Stream, used_bits: int) -> bytes:
    """The bytes that hold the bits which were used."""
    return words.astype("<u4", copy=False).tobytes()[: (used_bits + 7) // 8]


def stream_words(data: ByteArray) -> Stream:
    """The bytes as words, with two words of zeros behind them so that a reader never runs off the end."""
    padded = np.zeros((len(data) + 11) // 4, dtype="<u4")
    padded.view(np.uint8)[: len(data)] = data
    return padded.astype(np.uint32, copy=False)


def expect_consumed(data: ByteArray, used_bits: int) -> None:
    """The code must end in the last byte, and what is left of that byte must be zero."""
    expect((used_bits + 7) // 8 == len(data), "the code is truncated or has something behind its end")
    if used_bits % 8:
        expect(int(data[-1]) >> (used_bits % 8) == 0, "the padding is not zero")
