"""Which single values follow from all that a coalition ever holds, worked out exactly from what was in which sum.

While nobody trains, every value of every round is a fixed combination of the values at the start, since the rules of
averaging are public. So what a coalition holds after many rounds are rows over the unknown starting values, at each
position. A single value follows iff its unit vector lies in their span. All arithmetic is modulo the prime 2^31 − 1: a
row that vanishes there by accident, and not over the rationals, has a chance of about one in two thousand million.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

import cesar
from cesar.audit.transcript import Transcript, exchange_of
from cesar.methods import Cesar

PRIME = (1 << 31) - 1
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Sum:
    """Whose numbers are added up, and at which positions: (d,)."""

    members: tuple[int, ...]
    where: NDArray[np.bool_]


def inverse(values: Rows) -> Rows:
    """By Fermat, one for each; 0 for 0."""
    result, power, exponent = np.ones_like(values), values % PRIME, PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power = power * power % PRIME
        exponent >>= 1
    return result


def reduced(rows: Rows) -> Rows:
    """Reduced row echelon form of many small matrices, (d, m, u), with the rows in any order."""
    rows = rows % PRIME
    used = np.zeros(rows.shape[:2], dtype=bool)
    every = np.arange(len(rows))
    for column in range(rows.shape[2]):
        usable = (rows[:, :, column] != 0) & ~used
        pivot = usable.argmax(axis=1)
        there = usable[every, pivot]
        chosen = rows[every, pivot] * inverse(rows[every, pivot, column])[:, None] % PRIME
        chosen = np.where(there[:, None], chosen, 0)
        rest = (rows - rows[:, :, [column]] * chosen[:, None] % PRIME) % PRIME
        rest[every[there], pivot[there]] = chosen[there]
        rows, used[every[there], pivot[there]] = rest, True
    return rows


def rank(rows: Rows) -> NDArray[np.int64]:
    """(d, m, u) → (d,)."""
    return reduced(rows).any(axis=2).sum(axis=1)


def solved(rows: Rows) -> NDArray[np.bool_]:
    """(d, m, u) → (d, u): the unknowns that the rows determine; in reduced form such a row *is* a unit vector."""
    form = reduced(rows)
    single = (form != 0).sum(axis=2) == 1
    return ((form != 0) & single[:, :, None]).any(axis=1)


def contained(rows: Rows, others: Rows) -> bool:
    """Whether the span of some rows lies in that of others, at all positions."""
    return bool((rank(np.concatenate([others, rows], axis=1)) == rank(others)).all())


class Knowledge:
    """What everybody's values are made of, and what a coalition has seen of them.

    Attributes:
        values: (d, nodes, u), each node's value as a combination of the unknowns.
        factors: the same as floating-point numbers, to be compared with what the engine makes.
        held: (d, u) rows that the coalition holds.
    """

    def __init__(self, nodes: int, size: int, coalition: Iterable[int]) -> None:
        self.values = np.repeat(np.eye(nodes, dtype=np.int64)[None], size, axis=0)
        self.factors = self.values.astype(np.float64)
        self.held: list[Rows] = [self.values[:, node] for node in coalition]

    def hold(self, sums: Iterable[Sum]) -> None:
        for one in sums:
            total = self.values[:, list(one.members)].sum(axis=1) % PRIME
            self.held.append(np.where(one.where[:, None], total, 0))

    def average(self, opened: Mapping[int, Sequence[Sum]]) -> None:
        """Every node takes the mean of its own value and of those in its sums."""
        after, factors = self.values.copy(), self.factors.copy()
        for r, sums in opened.items():
            total, count = self.values[:, r], np.ones(len(self.values), dtype=np.int64)
            for one in sums:
                members, where = list(one.members), one.where[:, None]
                total = (total + np.where(where, self.values[:, members].sum(axis=1), 0)) % PRIME
                factors[:, r] += np.where(where, self.factors[:, members].sum(axis=1), 0.0)
                count += len(members) * one.where
            after[:, r] = total * inverse(count)[:, None] % PRIME
            factors[:, r] /= count[:, None]
        self.values, self.factors = after, factors

    @property
    def rows(self) -> Rows:
        return np.stack(self.held, axis=1)


def opened(transcripts: Mapping[int, Transcript], graph: nx.Graph, method: Cesar, size: int) -> list[Sum]:
    """The sums that some nodes together can read off the frames they got, in one round. Masks of their own are off."""
    assert isinstance(method.sparsifier, cesar.FullSharing), "one pattern for all positions"
    exchange = exchange_of(transcripts, graph, method, size)
    (pattern,) = range(len(exchange.selected))
    everywhere = np.ones(size, dtype=bool)
    return [
        Sum(tuple(sorted(members)), everywhere)
        for _, members in exchange.sums(tuple(map(int, transcripts)), pattern)
    ]
