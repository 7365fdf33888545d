"""What bounds a liar in cells: a vote on the cell's mean update, and a limit on what is heard of other cells.

*A ballot* must hide who objects, and nobody may take back the objection of another. A masked count does the first only: a liar that
adds −3 in place of its vote cancels three objections. So a ballot is a row of boxes. A member that objects puts a random number that is
not zero into a box drawn at random; the others leave all boxes at zero. Ballots are added up under masks. The number of boxes that are not zero is the number of
objections. A liar can add to it, and so hold up its own cell, which it can do anyway; to take one away it would have to guess a box and
a number. Two objections can meet in one box, so there are several draws, and the largest number counts.

*Distances.* What is heard of other cells moves the model of a cell by a distance, by which we mean the root of the mean square over the
positions of a slice. It may be at most twice the median of the last ones. Members compute it from what the keeper of the slice has sent to all of
them, one operation after the other in double precision, so that all come to the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cesar.base.types import Entropy, RingWords
from cesar.crypto.keys import MaskKey
from cesar.crypto.keystream import Keystream
from cesar.kernels.bits import jit
from cesar.kernels.slicing import Span, spans

BALLOT_BITS = 16
DRAWS = 8
MOST_BOXES = 4096
WINDOW = 6
"""How many rounds are recent."""

FACTOR = 2.0
"""How many times the usual is too much: of the own length, and of the distance to other cells."""


def boxes(members: int) -> int:
    """Of one draw: with the square of the members two of half of them meet in one draw of eight."""
    return min(members * members, MOST_BOXES)


def fill_ballot(objects: bool, members: int, entropy: Entropy) -> RingWords:
    """One member's ballot, not masked yet."""
    count = boxes(members)
    row = np.zeros(DRAWS * count, dtype=np.uint32)
    if objects:
        for draw in range(DRAWS):
            box = int.from_bytes(entropy(8), "little") % count
            row[draw * count + box] = 1 + int.from_bytes(entropy(8), "little") % (2**BALLOT_BITS - 1)
    return row


def mask_ballot(row: RingWords, masks: Sequence[tuple[MaskKey, bool]]) -> RingWords:
    """The ballot under the masks of all partners, modulo 2^16; (key, whether it is subtracted)."""
    total = row.copy()
    for key, negate in masks:
        words = Keystream(key.key).words(len(row))
        total += -words if negate else words
    return total & np.uint32(2**BALLOT_BITS - 1)


def count_objections(total: RingWords, members: int) -> int:
    """How many have objected, from the sum of all ballots; more than there are members if somebody has filled in noise."""
    words = (total & np.uint32(2**BALLOT_BITS - 1)).reshape(DRAWS, boxes(members))
    return int(np.count_nonzero(words, axis=1).max())


def is_refused(objections: int, members: int) -> bool:
    """What most members refuse is not applied."""
    return 2 * objections > members


def offers_digest(digests: Sequence[bytes]) -> bytes:
    """Names what a member has seen of all slices: it votes on that, and masks of its ballot are made for that."""
    return hashlib.sha256(b"cesar cell offers" + b"".join(digests)).digest()


@jit
def products(mean: NDArray[np.float64], own: NDArray[np.float32]) -> tuple[float, float, float]:
    """Σ mean², Σ mean·own and Σ own², one after the other."""
    both, long, short = 0.0, 0.0, 0.0
    for p in range(len(mean)):
        mine = np.float64(own[p])
        long += mean[p] * mean[p]
        both += mean[p] * mine
        short += mine * mine
    return long, both, short


def objects_to(mean: float, both: float, own: float) -> bool:
    """Whether a member says no, from the squares and the product: the mean points the other way, or is more than twice as long.

    Who has nothing to compare with does not object.
    """
    return own > 0.0 and (both < 0.0 or mean > FACTOR**2 * own)


@jit
def root_mean_square(values: NDArray[np.float64]) -> float:
    """In the order of the values, so that everybody gets the same bits."""
    total = 0.0
    for p in range(len(values)):
        total += values[p] * values[p]
    return float(np.sqrt(total / max(1, len(values))))


def yard_of(announced: Sequence[Sequence[int]], counts: Sequence[int]) -> float:
    """How long an update is in a slice, by the exponents that members have announced, as long as nothing better is known.

    Of each tensor the lower median counts, so that few cannot stretch it, and a quarter of the largest value stands for the
    root of the mean square.

    Args:
        announced: of each member, for each tensor of the slice.
        counts: positions of each tensor in the slice.
    """
    usual = [sorted(column)[(len(column) - 1) // 2] for column in zip(*announced, strict=True)]
    total = sum(count * 4.0**exponent for count, exponent in zip(counts, usual, strict=True))
    return float(np.sqrt(total / max(1, sum(counts)))) / 4


def no_distances(members: int) -> NDArray[np.float32]:
    """Nothing heard yet, in any slice of the whole cell."""
    return np.zeros((members, WINDOW), dtype=np.float32)


def _rows(known: NDArray[np.float32], words: int, span: Span) -> list[int]:
    """Which slices of the whole cell a range reaches into."""
    return [k for k, own in enumerate(spans(words, len(known))) if len(own.meet(span))]


def most_distance(known: NDArray[np.float32], words: int, span: Span, otherwise: float) -> float:
    """The distance that is believed in a range of words; `otherwise` where nothing is known."""
    found = known[_rows(known, words, span)].astype(np.float64)
    found = found[found > 0]
    return FACTOR * float(np.median(found)) if len(found) else otherwise


def remember(
    known: NDArray[np.float32], words: int, parts: int, recent: Mapping[int, float]
) -> NDArray[np.float32]:
    """With the distances of a gathering of `parts` slices: number of a slice → its distance."""
    found = known.copy()
    cut = spans(words, parts) if parts else ()
    for row, own in enumerate(spans(words, len(known))):
        values = [recent[n] for n in sorted(recent) if len(own.meet(cut[n]))]
        if values:
            found[row] = np.append(found[row, 1:], np.float32(sum(values) / len(values)))
    return found
