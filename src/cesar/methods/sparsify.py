"""Which parameters a node shares in a round. Sparsifiers are values: what TopK remembers lives in the node."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from cesar.base.errors import ConfigError, DataError, EncodingError
from cesar.base.types import Buffer, ByteArray, Entropy, Vector
from cesar.crypto.keys import SEED_BYTES, RoundId
from cesar.indices import Code, IndexSet, decode, encode
from cesar.kernels import bits, ring
from cesar.methods.positions import CellPositions, drawn, everything


class Choice(Protocol):
    """What every sparsifier says of itself, whether it chooses for a node or for a cell.

    Attributes:
        name: what settings call it.
        ranks: whether nodes must be handed the model before local training in every round, to compare with.
    """

    name: ClassVar[str]
    ranks: ClassVar[bool]

    @property
    def alpha(self) -> float:
        """α: the fraction of parameters that it selects."""

    @property
    def memory(self) -> bool:
        """Whether it ranks by the distance from what was last sent, which the node then keeps."""


class Sparsifier(Choice, Protocol):
    """Chooses a node's index set I_i, and says how such a set travels.

    A new one is a frozen dataclass with these members, listed in `KNOWN` for settings files.

    Attributes:
        drawn: whether its sets follow from a draw alone and say nothing about the model.
    """

    drawn: ClassVar[bool]

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        """The positions to share; `reference` is the model before local training, or what was last sent, if known."""

    def write(self, indices: IndexSet, code: Code | None) -> bytes:
        """A set of its own as it goes to others, in this code if one has to be named."""

    def read(self, data: Buffer, size: int, *, within: int | None = None) -> IndexSet:
        """The inverse; it takes nothing but what `write` writes.

        Args:
            size: d, which a seed is expanded over.
            within: if the set was restricted to the members of another, how many these are.

        Raises:
            EncodingError: something else.
        """


def write_set(indices: IndexSet, code: Code | None) -> bytes:
    """Any index set: a seed wherever there is one, a word for all positions, else `code` or the code that suits it."""
    free = indices.seed is not None or indices.count == indices.size
    return encode(indices, None if free else code)


def read_counted(data: Buffer, size: int, count: int, *, within: int | None = None) -> IndexSet:
    """A set of exactly `count` positions below `size`, or any set `within` another.

    Raises:
        EncodingError: it has more or fewer.
    """
    return decode(data, size, count=count) if within is None else decode(data, within)


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
    ranks: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
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

    def write(self, indices: IndexSet, code: Code | None) -> bytes:
        return write_set(indices, code)

    def read(self, data: Buffer, size: int, *, within: int | None = None) -> IndexSet:
        return read_counted(data, size, self.count(size), within=within)


@dataclass(frozen=True, slots=True)
class RandomSubsampling:
    """Each parameter with probability α. Peers get the 16-byte seed instead of the set."""

    name: ClassVar[str] = "random"
    block: ClassVar[int] = 0
    ranks: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    memory: ClassVar[bool] = False
    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        return IndexSet.from_seed(entropy(SEED_BYTES), len(vector), self.alpha)

    def for_cell(self, attempt: RoundId, size: int, scores: ByteArray) -> CellPositions:
        """What all cells hand in in this round."""
        return drawn(self.alpha, attempt, size)

    def write(self, indices: IndexSet, code: Code | None) -> bytes:
        return write_set(indices, code)

    def read(self, data: Buffer, size: int, *, within: int | None = None) -> IndexSet:
        if len(data) == 0 or data[0] != Code.SEED:
            raise EncodingError("a set is a seed in this network")
        return decode(data, size, self.alpha)


@dataclass(frozen=True, slots=True)
class FullSharing:
    """Every parameter."""

    name: ClassVar[str] = "full"
    ranks: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    memory: ClassVar[bool] = False
    alpha: ClassVar[float] = 1.0
    block: ClassVar[int] = 0

    def for_cell(self, attempt: RoundId, size: int, scores: ByteArray) -> CellPositions:
        """Everything, in every round."""
        return everything(size)

    def select(self, vector: Vector, reference: Vector | None, entropy: Entropy) -> IndexSet:
        return IndexSet.full(len(vector))

    def write(self, indices: IndexSet, code: Code | None) -> bytes:
        return write_set(indices, None)

    def read(self, data: Buffer, size: int, *, within: int | None = None) -> IndexSet:
        return read_counted(data, size, size, within=within)


class Maker(Protocol):
    """Makes a sparsifier from α; those that can remember take `memory`, too."""

    __name__: str

    def __call__(self, alpha: float, /) -> Sparsifier: ...


AnyChoice = TypeVar("AnyChoice", bound=Choice)

KNOWN: dict[str, Maker] = {kind.name: kind for kind in (TopK, RandomSubsampling)}
"""By the names that settings files use. A sparsifier that stands here can be used in experiments and by peers."""


def make(name: str, alpha: float, *, memory: bool = False) -> Sparsifier:
    """The sparsifier of that name.

    Raises:
        ConfigError: there is none, or it does not remember.
    """
    if name not in KNOWN:
        raise ConfigError(f"there is no sparsifier {name!r}; known are {', '.join(KNOWN)}")
    made = KNOWN[name](alpha)
    if not memory:
        return made
    if "memory" not in {field.name for field in fields(made)}:  # type: ignore[arg-type]
        raise ConfigError(f'memory is for sparsifiers that rank, such as "topk"; {name} does not')
    return replace(made, memory=True)  # type: ignore[type-var]


def selecting(sparsifier: AnyChoice, alpha: float) -> AnyChoice:
    """The same with another α."""
    return replace(sparsifier, alpha=alpha)  # type: ignore[type-var]
