"""The audit: for every coalition, what it can compute exactly from one round, at how many positions, and how.

What coalition A learns at position p from the shares that reach its member r: connect two honest shares at p
if both carry the mask of their pair. A carries away the sum of each connected group from which no mask leads
out, and nothing else about it (docs/privacy.md). With full coordination the group is H_r(p), everybody who
contributed to r at p, without A. A node is exposed if its value follows from these sums (`linear`).

Positions at which the same nodes selected are alike, so the audit works on distinct patterns.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cesar.audit.exchange import Exchange, Flags, Ints
from cesar.base.seeds import SeedTree
from cesar.graph.neighbourhood import Owners, check_collusion, parties
from cesar.kernels import linear
from cesar.kernels.bits import jit

Progress = Callable[[str, int, int], None]
"""(what, done, of how many)."""

Way = tuple[tuple[int, Fraction], ...]
"""How a value is read: (receiver, factor) of the sums to add up."""

LIMIT = 200_000
"""Coalitions of one size that are all tried; of more, that many are drawn, and the worst are searched for."""
BEAM = 40
_CHUNK = 512


@jit
def _groups(
    view: Ints,
    kept: Flags,
    chosen: Flags,
    traitor: Flags,
    carried: Flags,
    matched: Flags,
    label: Ints,
    stack: Ints,
) -> int:
    """Label the honest shares that reached a receiver by connected group, 0, 1, …; negative where nothing can be summed.

    Two shares hang together if both carry the mask of their pair. Masks with colluders are known to them and hold nothing
    together. A mask whose other half did not arrive, or does not match, never cancels: then the whole group is noise.

    Say 1–2 and 2–3 share masks, and 4 shares one with 5, whose share got lost. {1, 2, 3} is group 0, and 4 is noise.
    """
    # −1: not looked at yet; −2: in a group that does not cancel.
    label[:] = -1
    found = 0
    for first in range(len(view)):
        if label[first] != -1 or view[first] < 0 or not kept[first] or traitor[view[first]]:
            continue
        label[first], stack[0], depth, closed = found, first, 1, True  # depth first from here, over masks
        while depth:
            depth -= 1
            a = stack[depth]
            for b in range(len(view)):
                if not carried[a, b] or traitor[view[b]] or not chosen[view[b]]:
                    continue
                if not (matched[a, b] and kept[b]):
                    closed = False  # go on all the same: all that hang on this group must be labelled
                elif label[b] == -1:
                    label[b], stack[depth] = found, b
                    depth += 1
        if closed:
            found += 1
        else:
            for a in range(len(view)):
                if label[a] == found:
                    label[a] = -2
    return found


@jit
def _exposed(
    coalitions: Ints,
    views: Ints,
    selected: Flags,
    weights: Ints,
    kept: Flags,
    carried: Flags,
    matched: Flags,
    counts: Ints,
    worst: Ints,
    hits: Flags,
) -> int:
    """For each coalition the positions at which it reads somebody; for each node the most that one reads of it;
    and the patterns at which somebody is read at all.

    Returns how many times the rows were too many for the prime; the caller must then not trust the counts.
    """
    # For each coalition and each pattern of who selected: the sums of all its receivers are rows of a linear system, reduced as
    # they come. A row with a single one in it is somebody's value. Columns are numbered as nodes turn up, so that the system is as
    # small as its unknowns; `names` leads back.
    (nodes, degree), width, too_many = views.shape, coalitions.shape[1] * views.shape[1] + 1, 0
    basis, pivots = np.zeros((linear.MOST_ROWS, width), np.int64), np.zeros(linear.MOST_ROWS, np.int64)
    column, names = np.full(nodes, -1, dtype=np.int64), np.zeros(width, dtype=np.int64)
    label, stack = np.zeros(degree, dtype=np.int64), np.zeros(degree, dtype=np.int64)
    traitor, read = np.zeros(nodes, dtype=np.bool_), np.zeros(nodes, dtype=np.int64)
    for k in range(len(coalitions)):
        traitor[:] = False
        for r in coalitions[k]:
            traitor[r] = True
        read[:] = 0
        for q in range(len(selected)):
            columns, rank = 0, 0
            for r in coalitions[k]:
                view, chosen, here = views[r], selected[q], kept[q, r]
                groups = _groups(view, here, chosen, traitor, carried[r], matched[r], label, stack)
                for group in range(groups):
                    if rank == linear.MOST_ROWS:
                        too_many += 1
                        break
                    basis[rank, :] = 0
                    for a in range(degree):
                        if label[a] == group:
                            if column[view[a]] < 0:
                                column[view[a]], names[columns] = columns, view[a]
                                columns += 1
                            basis[rank, column[view[a]]] = 1
                    rank = linear.insert(basis, pivots, rank, columns)
            hit = False
            for row in range(rank):
                if linear.is_unit(basis[row], pivots[row], columns):
                    read[names[pivots[row]]] += weights[q]
                    hit = True
            if hit:
                counts[k] += weights[q]
                hits[q] = True
            for c in range(columns):  # cheaper than clearing all: few nodes turn up
                column[names[c]] = -1
        worst[:] = np.maximum(worst, read)
    return too_many


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one coalition reads.

    Attributes:
        fraction: of the positions, those at which it reads somebody's exact value.
        victims: node → fraction of the positions at which it is read.
        victim, way: the combination that reads most, and whom.
        reached: fraction of the positions at which this combination reads.
    """

    coalition: tuple[int, ...]
    fraction: float
    victims: dict[int, float]
    victim: int
    way: Way
    reached: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The coalitions of one size.

    Attributes:
        possible: how many there are; `tested` of them were tried, and the `worst` is among those.
        exposing: how many of the tested read somebody somewhere.
    """

    size: int
    possible: int
    tested: int
    exposing: int
    worst: float

    @property
    def exhaustive(self) -> bool:
        return self.tested == self.possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The outcome.

    Attributes:
        nodes, masks, collusion: n, s and k.
        positions, patterns: parameter positions looked at, and different patterns among them.
        read: (n,) of each node the largest fraction of positions that one tested coalition reads.
        pairs: (n, n) what each pair reads, if all pairs were tried.
        findings: the worst coalitions, worst first; empty if nobody reads anything.
    """

    nodes: int
    masks: int
    collusion: int
    positions: int
    patterns: int
    sizes: tuple[Tested, ...]
    findings: tuple[Finding, ...]
    read: NDArray[np.float64] = field(repr=False)
    pairs: NDArray[np.float64] | None = field(repr=False)

    @property
    def exposed(self) -> bool:
        """Whether any tested coalition reads anything."""
        return any(tested.exposing for tested in self.sizes)

    @property
    def exhaustive(self) -> bool:
        """Whether every coalition up to the size was tried."""
        return all(tested.exhaustive for tested in self.sizes)

    @property
    def worst(self) -> float:
        """The largest fraction of positions at which a coalition reads somebody."""
        return max(tested.worst for tested in self.sizes)


class _Auditor:
    """Tries coalitions on all cores."""

    def __init__(self, exchange: Exchange, progress: Progress | None) -> None:
        self._exchange, self._progress = exchange, progress
        self.read = np.zeros(exchange.nodes, dtype=np.int64)

    @cached_property
    def _kept(self) -> Flags:
        return self._exchange.kept()

    def positions_read(self, coalitions: Ints) -> Ints:
        """(c,) at how many positions each coalition reads somebody."""
        counts = np.zeros(len(coalitions), dtype=np.int64)
        chunks = [slice(at, at + _CHUNK) for at in range(0, len(coalitions), _CHUNK)]
        done = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for chunk, read in zip(
                chunks, pool.map(lambda c: self._try(coalitions[c], counts[c]), chunks), strict=True
            ):
                np.maximum(self.read, read, out=self.read)
                done += len(coalitions[chunk])
                if self._progress is not None:
                    self._progress(f"coalitions of {coalitions.shape[1]}", done, len(coalitions))
        return counts

    def _try(self, coalitions: Ints, counts: Ints, hits: Flags | None = None) -> Ints:
        one, read = self._exchange, np.zeros(self._exchange.nodes, dtype=np.int64)
        too_many = _exposed(
            coalitions,
            one.views,
            one.selected,
            one.weights,
            self._kept,
            one.carried,
            one.matched,
            counts,
            read,
            np.zeros(len(one.selected), dtype=bool) if hits is None else hits,
        )
        if too_many:  # beyond what the prime vouches for: with fractions instead
            for k, coalition in enumerate(coalitions.tolist()):
                seen = {q: exposed_at(one, tuple(coalition), q) for q in range(len(one.selected))}
                if hits is not None:
                    hits[[q for q, victims in seen.items() if victims]] = True
                counts[k] = sum(int(one.weights[q]) for q, victims in seen.items() if victims)
                for node in range(one.nodes):
                    total = sum(int(one.weights[q]) for q, victims in seen.items() if node in victims)
                    read[node] = max(read[node], total)
        return read

    def explain(self, coalition: tuple[int, ...]) -> Finding:
        """Look again at the patterns at which a coalition reads somebody, with fractions, and say how."""
        exchange, hits = self._exchange, np.zeros(len(self._exchange.selected), dtype=bool)
        self._try(np.array([coalition]), np.zeros(1, dtype=np.int64), hits)
        victims: Counter[int] = Counter()
        ways: Counter[tuple[int, Way]] = Counter()
        total = 0
        for pattern in np.flatnonzero(hits).tolist():
            weight = int(exchange.weights[pattern])
            total += weight
            for victim, terms in exposed_at(exchange, coalition, pattern).items():
                victims[victim] += weight
                ways[victim, tuple((r, factor) for r, _, factor in terms)] += weight
        positions = max(exchange.positions, 1)
        (victim, way), count = ways.most_common(1)[0]
        return Finding(
            coalition=coalition,
            fraction=total / positions,
            victims={node: weight / positions for node, weight in victims.most_common()},
            victim=victim,
            way=way,
            reached=count / positions,
        )


def exposed_at(
    exchange: Exchange, coalition: tuple[int, ...], pattern: int
) -> dict[int, tuple[tuple[int, frozenset[int], Fraction], ...]]:
    """Who is read at a pattern, and how: victim → (receiver, members, factor) of the sums to add up."""
    sums = exchange.sums(coalition, pattern)
    if not sums:
        return {}
    return {
        victim: tuple(
            (r, members, factor) for (r, members), factor in zip(sums, factors, strict=True) if factor
        )
        for victim, factors in linear.solve([members for _, members in sums]).items()
    }


def audit(
    exchange: Exchange,
    collusion: int,
    *,
    owners: Owners | None = None,
    limit: int = LIMIT,
    top: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Try every coalition of up to `collusion` owners, each with all its nodes, or where there are over `limit` of a size, that many
    drawn at random and those that grow from the worst smaller ones.

    Args:
        owners: who runs which node; a node that is not listed is its own.
        top: how many of the worst coalitions are explained.

    Raises:
        ConfigError: there cannot be that many colluders.
    """
    owned = [sorted(party) for party in parties(range(exchange.nodes), owners)]
    check_collusion(collusion, len(owned), "owners" if owners else "nodes")
    auditor, positions = _Auditor(exchange, progress), max(exchange.positions, 1)
    sizes, ranked, pairs = [], [], None
    seeds: list[tuple[int, ...]] = [()]
    for size in range(1, collusion + 1):
        coalitions = _coalitions(len(owned), size, limit, seeds, SeedTree(seed))
        counts = auditor.positions_read(_nodes(coalitions, owned))
        fractions = counts / positions
        order = np.argsort(-counts, kind="stable")[: max(top, BEAM)]
        worst = [(tuple(coalitions[k].tolist()), float(fractions[k])) for k in order]
        ranked += [
            (tuple(sorted(node for k in coalition for node in owned[k])), fraction)
            for coalition, fraction in worst
            if fraction
        ]
        seeds = [coalition for coalition, _ in worst[:BEAM]]
        sizes.append(
            Tested(
                size=size,
                possible=(possible := math.comb(len(owned), size)),
                tested=len(coalitions),
                exposing=int(np.count_nonzero(counts)),
                worst=float(fractions.max()),
            )
        )
        if size == 2 and len(coalitions) == possible and len(owned) == exchange.nodes:
            pairs = _matrix(coalitions, fractions, exchange.nodes)
    ranked.sort(key=lambda found: (-found[1], len(found[0]), found[0]))
    return Audit(
        nodes=exchange.nodes,
        masks=exchange.masks,
        collusion=collusion,
        positions=exchange.positions,
        patterns=len(exchange.selected),
        sizes=tuple(sizes),
        findings=tuple(auditor.explain(coalition) for coalition, _ in ranked[:top]),
        read=auditor.read / positions,
        pairs=pairs,
    )


def _matrix(coalitions: Ints, fractions: NDArray[np.float64], nodes: int) -> NDArray[np.float64]:
    """What every pair of nodes reads, row by column."""
    pairs = np.zeros((nodes, nodes))
    pairs[coalitions[:, 0], coalitions[:, 1]] = fractions
    pairs += pairs.T
    return pairs


def _nodes(coalitions: Ints, owned: list[list[int]]) -> Ints:
    """The nodes of owners; where some have fewer, their last one is repeated, which adds nothing."""
    together = [[node for k in one for node in owned[k]] for one in coalitions.tolist()]
    width = max(map(len, together))
    return np.array([few + few[-1:] * (width - len(few)) for few in together], dtype=np.int64)


def _coalitions(nodes: int, size: int, limit: int, smaller: list[tuple[int, ...]], seeds: SeedTree) -> Ints:
    if math.comb(nodes, size) <= limit:
        return np.array(list(combinations(range(nodes), size)), dtype=np.int64)
    draw = seeds.generator("coalitions", size)
    drawn = {tuple(sorted(draw.choice(nodes, size, replace=False).tolist())) for _ in range(limit)}
    drawn |= {tuple(sorted((*few, node))) for few in smaller for node in range(nodes) if node not in few}
    return np.array(sorted(drawn), dtype=np.int64)
