"""Names for the plain values that travel through every layer; no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType

import numpy as np
from numpy.typing import NDArray

__version__ = "0.3.0"

NodeId = NewType("NodeId", int)
RoundNo = NewType("RoundNo", int)

Vector = NDArray[np.float32]
"""A model: d float32 parameters."""

RingWords = NDArray[np.uint32]
"""Integers modulo 2^b, one per 32-bit word; bits above b carry nothing."""

BitWords = NDArray[np.uint64]
"""A bitmap: bit t of word w stands for position 64·w + t; bits past the end are zero."""

ByteArray = NDArray[np.uint8]

Entropy = Callable[[int], bytes]
"""Gives that many fresh, unpredictable bytes; never the same twice."""

Buffer = bytes | bytearray | memoryview
"""What frames are made of; nobody writes to one that was handed over."""
