"""Colluders against fixed groups: everything that their transcripts of many rounds and their keys give away.

Nothing here looks into an engine: an attack gets frames that the colluders saw or sent, and their own keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cesar import bits, packing, ring
from cesar.audit.transcript import Keyrings, Transcript, own_mask
from cesar.grouping import Group
from cesar.linear import solve
from cesar.methods import Cesar
from cesar.sparsify import RandomSubsampling, read_set
from cesar.topology import View
from cesar.types import BitWords, NodeId
from cesar.wire import members_to_bytes

GroupSum = tuple[frozenset[int], NDArray[np.float64]]
"""Whose values are in a sum, and the sum: (d,), NaN where nothing was sent."""


def sums(
    transcripts: Mapping[NodeId, Transcript], keys: Keyrings, method: Cesar, size: int
) -> Iterator[GroupSum]:
    """The sums that colluders hold after one round: every complete group, without what the colluders added themselves.

    A group of which a share is missing gives nothing: what is left has a mask on it that no colluder knows, unless all
    whose masks are missing are colluders.
    """
    for r, seen in transcripts.items():
        assert method.groups is not None
        view = tuple(sorted(node for group in method.groups[r] for node in group))
        for number, group in enumerate(method.groups[r]):
            honest = [node for node in group if node not in transcripts]
            if honest and all(node in seen.shares for node in honest):
                where, words = _opened(seen, view, group, number, keys, method, size)
                found = np.full(size, np.nan)
                found[where] = words
                yield frozenset(map(int, honest)), found


def _opened(
    seen: Transcript, view: View, group: Group, number: int, keys: Keyrings, method: Cesar, size: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The sum of the honest members of one group, with the colluders' masks taken off.

    What was sent is the upper end of 64-bit words, so everything is added up modulo 2^64.
    """
    first = next(node for node in group if node in seen.shares)
    terms = seen.terms[first]
    members = tuple(sorted((*seen.shares[first].partners, first)))
    positions = _positions(seen, members, number, method, size)
    count = bits.count(positions)
    edges = np.array([size])
    together = len(view) if method.ring_bits == 32 else max(len(one) for one in method.groups[seen.node])  # type: ignore[index]
    grid = ring.binary_grid(method.ring_bits, edges, terms.exponents, together)
    context = ring.exponents_to_bytes(terms.exponents) + members_to_bytes(members, view)
    total = np.zeros(count, dtype=np.int64)
    for i in (node for node in members if node not in keys):
        total += packing.unpack(seen.shares[i].values, grid.bits, count).astype(np.int64) << (64 - grid.bits)
        for a in (node for node in members if node in keys):
            total -= own_mask(seen, keys, a, i, context, positions, wide=True)
    return bits.to_bools(positions, size), np.ldexp(total / grid.scales[0], grid.bits - 64)


def _positions(seen: Transcript, members: Group, number: int, method: Cesar, size: int) -> BitWords:
    """Where a group's shares have values, as the receiver knows it."""
    assert seen.attempt is not None
    assert method.groups is not None
    if not method.receiver_decides:
        words = np.zeros(bits.words_for(size), dtype=np.uint64)
        for node in members:
            indices = read_set(method.sparsifier, seen.announced[node].indices, size)
            assert indices is not None
            words |= indices.words
        return words
    if isinstance(method.sparsifier, RandomSubsampling):
        count = len(method.groups[seen.node])
        return method.sparsifier.in_turns(seen.node, seen.attempt, size, count)(number).words
    return bits.ones(size)


def attack(held: Sequence[GroupSum], size: int) -> dict[int, NDArray[np.float64]]:
    """Sums in, single values out: node → (d,), NaN where nothing was read. All sums are of one round."""
    read: dict[int, NDArray[np.float64]] = {}
    there = np.array([np.isfinite(values) for _, values in held]) if held else np.zeros((0, size), bool)
    for kind, positions in _alike(there):
        chosen = [held[k] for k in np.flatnonzero(kind).tolist()]
        for node, factors in (solve([members for members, _ in chosen]) if chosen else {}).items():
            value = sum(float(f) * values[positions] for f, (_, values) in zip(factors, chosen, strict=True))
            read.setdefault(node, np.full(size, np.nan))[positions] = value
    return read


def _alike(there: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64]]]:
    """Positions at which the same sums are held."""
    kinds, which = np.unique(there, axis=1, return_inverse=True)
    for k, kind in enumerate(kinds.T):
        yield kind, np.flatnonzero(which.ravel() == k)
