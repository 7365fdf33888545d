"""IndexSet: which of d positions are chosen, as a bitmap."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cesar.base.errors import EncodingError
from cesar.base.types import BitWords
from cesar.crypto.keys import digest_positions
from cesar.crypto.subsample import expand_seed
from cesar.kernels import bits


@dataclass(frozen=True, slots=True, eq=False)
class IndexSet:
    """A set of positions below `size` (the paper's I_i).

    A bitmap rather than a list: a third of the positions is a usual choice, and then the bitmap is eleven
    times smaller and every set operation runs on 64 positions at once.

    Attributes:
        words: the bitmap; nobody writes to it after construction.
        size: how many positions there are (d).
        count: how many of them are in the set.
        seed: the 16 bytes the set was drawn from, if it was; then these are all that is ever sent.
    """

    words: BitWords
    size: int
    count: int
    seed: bytes | None = None
    _digest: bytes | None = field(default=None, init=False, repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bitmap, computed when it is first asked for."""
        if self._digest is None:
            object.__setattr__(self, "_digest", digest_positions(self.words))
        assert self._digest is not None
        return self._digest

    @classmethod
    def of_words(cls, words: BitWords, size: int, seed: bytes | None = None) -> IndexSet:
        return cls(words, size, bits.count(words), seed)

    @classmethod
    def full(cls, size: int) -> IndexSet:
        """Every position."""
        return cls(bits.ones(size), size, size)

    @classmethod
    def from_seed(cls, seed: bytes, size: int, alpha: float) -> IndexSet:
        """Each position with probability α, decided by the seed (random subsampling)."""
        return cls.of_words(expand_seed(seed, size, alpha), size, seed)

    @classmethod
    def from_positions(cls, positions: ArrayLike, size: int) -> IndexSet:
        """The set with these members.

        >>> IndexSet.from_positions([5, 2], 8).positions().tolist()
        [2, 5]

        Raises:
            EncodingError: a position is negative, not below `size`, or named twice.
        """
        array = np.asarray(positions, dtype=np.int64)
        if len(array) and not 0 <= array.min() <= array.max() < size:
            raise EncodingError(f"a position is outside 0..{size - 1}")
        flags = np.zeros(size, dtype=np.bool_)
        flags[array] = True
        if int(flags.sum()) != len(array):
            raise EncodingError("a position is named twice")
        return cls(bits.from_bools(flags), size, len(array))

    def positions(self) -> NDArray[np.int32]:
        """The members in ascending order."""
        out = np.empty(self.count, dtype=np.int32)
        bits.positions(self.words, out)
        return out

    def within(self, other: IndexSet) -> IndexSet:
        """This set as seen by the owner of `other`: positions are ranks among the members of `other`.

        That is what a relay tells: it costs α times what the set itself would cost.
        """
        words = np.zeros(bits.words_for(other.count), dtype=np.uint64)
        bits.compress(self.words, other.words, words)
        return IndexSet.of_words(words, other.count)

    def spread_over(self, other: IndexSet) -> IndexSet:
        """The inverse of `within`: the members of `other` whose ranks are in this set."""
        words = np.empty_like(other.words)
        bits.expand(self.words, other.words, words)
        return IndexSet(words, other.size, self.count)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IndexSet)
            and self.size == other.size
            and bool(np.array_equal(self.words, other.words))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IndexSet({self.count} of {self.size})"
