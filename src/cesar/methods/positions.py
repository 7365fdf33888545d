"""The positions that all members of a cell hand in, drawn from public data, and how they fall into slices."""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cesar.crypto.keys import SEED_BYTES, RoundId, hkdf_expand_block
from cesar.indices import IndexSet
from cesar.kernels.slicing import Piece, piece_of, spans


class CellPositions:
    """U, the positions that all members of a cell hand in, and how they fall into slices."""

    def __init__(self, chosen: IndexSet) -> None:
        self.chosen = chosen
        self._pieces: dict[tuple[int, bytes], tuple[Piece, ...]] = {}

    def slices(self, parts: int, edges: NDArray[np.int64]) -> tuple[Piece, ...]:
        """The pieces of this number of members, in ascending order of the members; kept, because all of them ask."""
        key = (parts, edges.tobytes())
        found = self._pieces.get(key)
        if found is None:
            words = self.chosen.words
            found = tuple(piece_of(words, *span, edges) for span in spans(len(words), parts))
            self._pieces[key] = found
        return found


@lru_cache(maxsize=4)
def everything(size: int) -> CellPositions:
    """Every position."""
    return CellPositions(IndexSet.full(size))


@lru_cache(maxsize=4)
def drawn(alpha: float, attempt: RoundId, size: int) -> CellPositions:
    """Each position with probability α, drawn from the session and the round.

    The set is the same for all cells. So the positions that a heard cell sends are those of this cell, and
    gathering costs α of a model; with a set for each cell the union had to be gathered, 2α − α².
    """
    seed = hkdf_expand_block(attempt.session, b"cesar cell positions" + struct.pack("<I", attempt.round_))
    return CellPositions(IndexSet.from_seed(seed[:SEED_BYTES], size, alpha))
