"""Large working memory that is used again: the system takes longer to give it than we take to fill it.

A share of a model with a hundred million parameters is 150 MB. Fresh memory of that size costs up to forty times what
writing to it costs (docs/design/007-memory-that-is-used-again.md), and a round needs several pieces. So a piece goes
to a shelf when its last user is gone, and the next one who needs about as much takes it from there.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST = 1 << 20
"""Smaller pieces are left to the system."""

_MOST = 32
"""Pieces on the shelf; beyond that the one that has lain there longest goes."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3), the same on all processors
_KEPT_FREE, _FROM_SYSTEM = 32 << 20, 4 << 20

_shelf: dict[int, NDArray[np.uint8]] = {}
_numbers = count()


def empty(length: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array like `numpy.empty`, of memory that may have been used before."""
    kind = np.dtype(dtype)
    size = length * kind.itemsize
    if size < LEAST:
        return np.empty(length, kind)
    piece = _from_shelf(size)
    if piece is None:
        piece = np.empty(-(-size // LEAST) * LEAST, np.uint8)
    lease = _lease_type(len(piece)).from_buffer(piece.data)  # every view of the result keeps it alive
    weakref.finalize(lease, _give_back, piece).atexit = False
    return np.frombuffer(memoryview(lease), np.uint8, size).view(kind)


@lru_cache(maxsize=_MOST)
def _lease_type(length: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """Kept, because a type is a cycle: only Python's collector would find one that nobody uses any more."""
    return ctypes.c_ubyte * length


@lru_cache(maxsize=2)
def zeros(length: int) -> NDArray[np.float32]:
    """Zeros that nobody writes to, the same for all who ask: while they are only read they take no memory."""
    found = np.zeros(length, np.float32)
    found.flags.writeable = False
    return found


def keep_freed() -> bool:
    """Have the C library keep what is freed, too: pieces of less than 4 MB, and 32 MB of them in a row.

    A peer's messages are bytes of 1 MB, which gRPC copies to pieces of its own. By itself glibc gives such pieces back to the
    system when they are freed, and every one of them is fresh memory again. This holds for the whole process. Other
    systems have no such switch; returns whether this one has.
    """
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows has no such library, others no such function
        return False
    return bool(option(_MMAP_THRESHOLD, _FROM_SYSTEM) and option(_TRIM_THRESHOLD, _KEPT_FREE))


def clear() -> None:
    """Give what nobody uses back to the system, at the end of a run."""
    _shelf.clear()


def _from_shelf(size: int) -> NDArray[np.uint8] | None:
    """The smallest piece that is large enough, unless it is far too large.

    Any thread may put something there at any moment, even this one in the middle of this function: each step is one
    operation on the dictionary. If nothing fits, what has lain there longest fits nobody any more.
    """
    fitting = [
        (len(piece), key) for key, piece in list(_shelf.items()) if size <= len(piece) <= 1.25 * size + LEAST
    ]
    for _, key in sorted(fitting):
        if (piece := _shelf.pop(key, None)) is not None:
            return piece
    _forget_oldest()
    return None


def _give_back(piece: NDArray[np.uint8]) -> None:
    _shelf[next(_numbers)] = piece
    if len(_shelf) > _MOST:
        _forget_oldest()


def _forget_oldest() -> None:
    for key in list(_shelf)[:1]:
        _shelf.pop(key, None)
