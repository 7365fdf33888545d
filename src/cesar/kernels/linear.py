"""Which unknowns a set of sums gives away: exact linear algebra over 0/1 rows.

A coalition holds sums of unknown values. Value b follows from them iff the unit vector of b lies in the span
of the sums' indicator rows, over the rationals: the values are integers on a public grid whose sums never wrap.
In reduced row echelon form that is easy to see: e_b is in the span iff some row *is* e_b.

The kernels compute modulo the prime 2^31 − 1, and the answer is still exact. Whether e_b is in the span
depends only on which minors of the 0/1 matrix with at most `MOST_ROWS` + 1 rows vanish. A minor of order m of
such a matrix is at most (m + 1)^((m + 1)/2) / 2^m in size (Hadamard), which for m ≤ 22 is below 1.1 · 10^9
and so below the prime: a minor that is zero modulo the prime is zero.

`solve` does the same with fractions and says how; it is slower, has no limit and checks the kernels in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from cesar.kernels.bits import jit

PRIME = (1 << 31) - 1
MOST_ROWS = 21

Rows = NDArray[np.int64]


@jit
def _reduce(value: int) -> int:
    """A product of two residues, modulo the prime.

    2^31 is 1 modulo 2^31 − 1. So high · 2^31 + low is high + low, and no division is needed. A product is below 2^62: the first
    fold leaves less than 2^32, the second at most the prime, and one subtraction does the rest.
    """
    value = (value & PRIME) + (value >> 31)
    value = (value & PRIME) + (value >> 31)
    return value - PRIME if value >= PRIME else value


@jit
def _inverse(value: int) -> int:
    """By Fermat: value^(prime − 2)."""
    result, exponent = 1, PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduce(result * value)
        value = _reduce(value * value)
        exponent >>= 1
    return result


@jit
def _subtract(target: NDArray[np.int64], factor: int, source: NDArray[np.int64], columns: int) -> None:
    """Target − factor · source, in place."""
    negative = (
        PRIME - factor
    )  # residues are never negative: −f is p − f, and a residue plus a product stays below 2^62
    for c in range(columns):
        if source[c]:
            target[c] = _reduce(target[c] + negative * source[c])


@jit
def insert(basis: Rows, pivots: NDArray[np.int64], rank: int, columns: int) -> int:
    """Add row `rank` of `basis` to the reduced rows above it; the new rank.

    Args:
        basis: the first `rank` rows are in reduced row echelon form (in any order), with these pivots.
    """
    row = basis[rank]
    # Each earlier row has a one in its own pivot column and zeros in the pivot columns of the others. One pass therefore clears
    # all pivot columns of the new row, in any order.
    for k in range(rank):
        if row[pivots[k]]:
            _subtract(row, row[pivots[k]], basis[k], columns)
    pivot = 0
    while pivot < columns and row[pivot] == 0:
        pivot += 1
    if pivot == columns:
        return rank  # nothing is left of it: it says nothing new
    if row[pivot] != 1:
        inverse = _inverse(row[pivot])
        for c in range(pivot, columns):
            if row[c]:
                row[c] = _reduce(inverse * row[c])
    # The earlier rows lose the new pivot column, so that all rows are reduced again.
    for k in range(rank):
        if basis[k, pivot]:
            _subtract(basis[k], basis[k, pivot], row, columns)
    pivots[rank] = pivot
    return rank + 1


@jit
def is_unit(row: NDArray[np.int64], pivot: int, columns: int) -> bool:
    """Whether a reduced row holds nothing but its pivot."""
    others = 0
    for c in range(columns):
        others += row[c] != 0 and c != pivot
    return others == 0


def solve(sums: Sequence[frozenset[int]]) -> dict[int, tuple[Fraction, ...]]:
    """The unknowns that sums give away, each with the factors by which the sums are to be added up.

    >>> solve([frozenset({1, 2}), frozenset({1, 2, 3})])
    {3: (Fraction(-1, 1), Fraction(1, 1))}
    """
    unknowns = sorted(set().union(*sums))
    # Each row: the sum as a vector over the unknowns, and beside it how it was made of the given sums.
    rows = [
        [Fraction(int(node in members)) for node in unknowns]
        + [Fraction(int(i == j)) for j in range(len(sums))]
        for i, members in enumerate(sums)
    ]
    rank = 0
    for c in range(len(unknowns)):
        found = next((i for i in range(rank, len(rows)) if rows[i][c]), None)
        if found is None:
            continue
        rows[rank], rows[found] = rows[found], rows[rank]
        rows[rank] = [value / rows[rank][c] for value in rows[rank]]
        for i, row in enumerate(rows):
            if i != rank and row[c]:
                rows[i] = [a - row[c] * b for a, b in zip(row, rows[rank], strict=True)]
        rank += 1
    exposed = {}
    for row in rows[:rank]:
        inside = [c for c, value in enumerate(row[: len(unknowns)]) if value]
        if len(inside) == 1:
            exposed[unknowns[inside[0]]] = tuple(row[len(unknowns) :])
    return exposed
