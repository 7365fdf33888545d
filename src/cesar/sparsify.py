"""Which parameters a node shares in a round. Sparsifiers are values: what TopK remembers lives in the node."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np

from cesar import bits, memory, ring
from cesar.crypto.keys import SEED_BYTES, RoundId, hkdf_expand_block
from cesar.crypto.subsample import KEPT, KEPT_SIZE, expand_seed
from cesar.errors import ConfigError, DataError, EncodingError
from cesar.indices import Code, IndexSet, decode, encode
from cesar.types import BitWords, Buffer, Entropy, NodeId, Vector


class Sparsifier(Protocol):
    """Chooses a node's index set I_i."""

    name: ClassVar[str]

    @property
    def alpha(self) -> float:
        """α: the fraction of parameters that it selects."""

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        """The positions to share; `reference` is the model before local training, if known."""


def _check_alpha(alpha: float) -> None:
    if not 0.0 < alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}, but the fraction selected must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class TopK:
    """The α·d parameters that local training changed most: largest |v − reference|.

    Without a reference, the largest |v|. Of equal values the one at the lower position wins.

    Attributes:
        memory: rank by the distance from what was last sent of a parameter, instead of by the change of this round. A
            change that was not sent then counts until it is. The node keeps one vector for this; it never leaves it.
    """

    name: ClassVar[str] = "topk"
    alpha: float
    memory: bool = False

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        if not isinstance(self.memory, bool):
            raise ConfigError(f"memory is {self.memory!r}, but it is true or false")

    def count(self, size: int) -> int:
        """How many of `size` parameters it selects: α·d, but at least one."""
        return max(1, round(self.alpha * size))

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        if reference is not None and not ring.is_finite(reference):
            raise DataError("the reference holds NaN or infinity; pass the model as it was before training")
        with np.errstate(over="ignore"):
            change = vector.copy() if reference is None else vector - reference
        np.abs(change, out=change)
        wanted = self.count(len(vector))
        words = np.empty(bits.words_for(len(vector)), dtype=np.uint64)
        bits.largest(change.view(np.int32), wanted, words)  # non-negative floats sort as integers
        return IndexSet(words, len(vector), wanted)


@dataclass(frozen=True, slots=True)
class RandomSubsampling:
    """Each parameter with probability α. Peers get the 16-byte seed instead of the set."""

    name: ClassVar[str] = "random"
    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        return IndexSet.from_seed(entropy(SEED_BYTES), len(vector), self.alpha)

    def in_turns(
        self, receiver: NodeId, attempt: RoundId, size: int, groups: int
    ) -> Callable[[int], IndexSet]:
        """What the fixed groups of a receiver send it in this round: number of a group → its positions.

        At every position α of the groups are active: w = α·g, so ⌊w⌋ of them and, with the probability of what is
        left, one more. They take turns, by position and by round. Everybody knows all of it without a word.
        """
        draw = _turns.draw if size <= KEPT_SIZE else _draw_turn
        return lambda number: draw(self.alpha, receiver, attempt, size, groups, number)


@dataclass(frozen=True, slots=True)
class FullSharing:
    """Every parameter."""

    name: ClassVar[str] = "full"
    alpha: ClassVar[float] = 1.0

    def count(self, size: int) -> int:
        """All of them."""
        return size

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        return IndexSet.full(len(vector))


@dataclass(frozen=True, slots=True)
class CoordinatedSubsampling:
    """All neighbours of a receiver send it the same random set, drawn from (session, round, receiver).

    Nobody announces a set, nothing is discarded, and every sum has all of the receiver's neighbours in it.
    As long as nobody drops out and the graph stays, sums of different rounds have the same members and
    cannot be subtracted from one another to single a node out.
    """

    name: ClassVar[str] = "coordinated"
    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def select_for(self, receiver: NodeId, attempt: RoundId, size: int) -> IndexSet:
        """The set that everybody uses towards `receiver` in this round."""
        label = b"cesar coordinated" + struct.pack("<II", attempt.round_, receiver)
        seed = hkdf_expand_block(attempt.session, label)[:SEED_BYTES]
        return IndexSet.from_seed(seed, size, self.alpha)


def _draw_turn(
    alpha: float, receiver: NodeId, attempt: RoundId, size: int, groups: int, number: int
) -> IndexSet:
    whole = int(alpha * groups)
    rate = alpha * groups - whole
    extra = np.empty(0, dtype=np.uint64)
    if rate > 0:
        label = b"cesar turns" + struct.pack("<II", attempt.round_, receiver)
        extra = expand_seed(hkdf_expand_block(attempt.session, label)[:SEED_BYTES], size, rate)
    words: BitWords = memory.empty(bits.words_for(size), np.uint64)
    bits.take_turns(extra, (number - attempt.round_) % groups, groups, whole, words)
    bits.clear_tail(words, size)
    return IndexSet.of_words(words, size)


class _Turns:
    """What was drawn for groups in the latest round: a receiver and all members of its groups draw the same, in a
    simulation in one process. Not to be written to.
    """

    def __init__(self) -> None:
        self._round: tuple[RoundId | None, dict[tuple[float, NodeId, int, int, int], IndexSet]] = (None, {})

    def draw(
        self, alpha: float, receiver: NodeId, attempt: RoundId, size: int, groups: int, number: int
    ) -> IndexSet:
        """As `_draw_turn`, from memory if it can be."""
        of, kept = self._round
        if of != attempt or len(kept) >= 4 * KEPT:
            of, kept = self._round = attempt, {}
        key = (alpha, receiver, size, groups, number)
        if key not in kept:
            kept[key] = _draw_turn(alpha, receiver, attempt, size, groups, number)
        return kept[key]


_turns = _Turns()


AnySparsifier = Sparsifier | CoordinatedSubsampling


class SparsifierName(StrEnum):
    """How a node selects, by the name that settings use."""

    TOPK = "topk"
    RANDOM = "random"
    COORDINATED = "coordinated"

    def make(self, alpha: float, *, memory: bool = False) -> AnySparsifier:
        """The sparsifier of that name; memory is for those that rank."""
        match self:
            case SparsifierName.TOPK:
                return TopK(alpha, memory)
            case SparsifierName.RANDOM:
                return RandomSubsampling(alpha)
            case SparsifierName.COORDINATED:
                return CoordinatedSubsampling(alpha)


def write_set(indices: IndexSet | None, code: Code | None) -> bytes:
    """An index set as it goes to others: nothing for None, a seed wherever there is one, else `code`."""
    if indices is None:
        return b""
    free = indices.seed is not None or indices.count == indices.size
    return encode(indices, None if free else code)


def read_set(
    sparsifier: AnySparsifier, data: Buffer, size: int, *, within: int | None = None
) -> IndexSet | None:
    """The inverse; it takes nothing but what that sparsifier would send.

    Args:
        size: d, which a seed is expanded over.
        within: if the set was restricted to the members of another, how many these are.

    Raises:
        EncodingError: something else.
    """
    if isinstance(sparsifier, CoordinatedSubsampling):
        if len(data):
            raise EncodingError("sets follow from the receiver here; none may be sent")
        return None
    if isinstance(sparsifier, RandomSubsampling):
        if len(data) == 0 or data[0] != Code.SEED:
            raise EncodingError("a set is a seed in this network")
        return decode(data, size, sparsifier.alpha)
    if within is not None:
        return decode(data, within)
    indices = decode(data, size, again=True)
    if isinstance(sparsifier, TopK | FullSharing) and indices.count != sparsifier.count(size):
        raise EncodingError(
            f"a set of {indices.count} positions, but everybody selects {sparsifier.count(size)} here"
        )
    return indices
