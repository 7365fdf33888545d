"""Collusion risk on random regular graphs (Paper: Fig. 5b), for every s from one pass.

Graphs come from the switch chain: take two edges a–b, c–d at random, put a–c, b–d in their place if the graph stays
simple, else leave it. A switch and its reverse are equally likely and all regular graphs can be reached, so
in the long run all labelled graphs are equally likely (Cooper, Dyer and Greenhill, 2007, bound how long it
takes). Between two graphs that count there are five attempts per edge, before the first a hundred. The adversaries
are drawn anew for every graph.

Four figures for each graph and number of adversaries, each as the largest s at which there is a risk:

paper      some adversary has s adversarial neighbours, and an honest one. Then there is a selection at which
           only these s mask the honest neighbour's value.
at least   there is a selection at which one sum, or the difference of two, is a single honest value. For two
           receivers: all their common honest neighbours select, one more neighbour of one of them, and the
           adversaries. This is the paper's criterion and the attack that it overlooks.
at most    the proof of strict mode does not rule out that some selection exposes somebody (docs/privacy.md).
at random  at one position at which each node selects with probability α the adversaries read somebody, decided
           exactly (`linear`). α is what shares a given fraction at that s.

Whether *some* selection exposes somebody lies between "at least" and "at most"; to decide it is a search over
all selections.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import BitWords
from cesar.graph.shares import required_alpha
from cesar.kernels import linear
from cesar.kernels.bits import ONE, jit, popcount

CHAINS = 16
"""Independent chains; the result does not depend on the number of cores."""
SWITCHES = 5
LOW = (1 << 32) - 1
BURN_IN = 100
SAMPLED = 10
"""Every how manyth graph is looked at for a random position."""

Ints = NDArray[np.int64]
State = NDArray[np.uint64]


@jit
def _next(state: State) -> np.uint64:
    """SplitMix64: chooses graphs and positions of a simulation, nothing secret."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z: np.uint64 = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def _below(state: State, bound: int) -> int:
    """A number below the bound (under 2^32), all equally likely (Lemire's multiplication, with rejection)."""
    product = int(_next(state) >> np.uint64(32)) * bound
    if product & LOW < bound:
        least = ((1 << 32) - bound) % bound
        while product & LOW < least:
            product = int(_next(state) >> np.uint64(32)) * bound
    return product >> 32


@jit
def switch(adjacent: NDArray[np.bool_], edges: Ints, state: State, attempts: int) -> None:
    """This number of steps of the switch chain."""
    count = len(edges)
    for _ in range(attempts):
        first, second = _below(state, count), _below(state, count)
        a, b = edges[first]
        c, d = edges[second]
        if _next(state) & np.uint64(1):
            c, d = d, c
        if a in (c, d) or b in (c, d) or adjacent[a, c] or adjacent[b, d]:
            continue
        adjacent[a, b] = adjacent[b, a] = adjacent[c, d] = adjacent[d, c] = False
        adjacent[a, c] = adjacent[c, a] = adjacent[b, d] = adjacent[d, b] = True
        edges[first, 0], edges[first, 1] = a, c
        edges[second, 0], edges[second, 1] = b, d


@jit
def bounds(
    adjacent: NDArray[np.bool_], bad: Ints, traitor: NDArray[np.bool_], near: Ints, sets: BitWords
) -> tuple[int, int, int]:
    """The largest s at which there is a risk: by the paper, at least, at most; 0 for none.

    Args:
        bad: the adversaries, whom `traitor` marks.
        near: (n,) how many adversaries are next to each node.
        sets: memory for a bitmap of honest neighbours per adversary, and one more.
    """
    twice = sets[len(bad)]  # honest nodes next to two adversaries or more
    sets[: len(bad) + 1] = 0
    for x in range(len(adjacent)):
        if traitor[x]:
            continue
        word, bit = x // 64, ONE << np.uint64(x % 64)
        if near[x] > 1:
            twice[word] |= bit
        for k in range(len(bad)):
            if adjacent[bad[k], x]:
                sets[k, word] |= bit
    paper = at_least = at_most = 0
    for k in range(len(bad)):
        honest = covered = 0
        for w in range(sets.shape[1]):
            honest += int(popcount(sets[k, w]))
            covered += int(popcount(sets[k, w] & twice[w]))
        if honest:
            paper = max(paper, near[bad[k]])
        if covered:
            at_most = max(at_most, near[bad[k]] + covered - 1)
        for other in range(len(bad)):
            common = further = 0  # neighbours of both; neighbours of `other` alone, one of whom is read
            for w in range(sets.shape[1]):
                common += int(popcount(sets[k, w] & sets[other, w]))
                further += int(popcount(sets[other, w] & ~sets[k, w]))
            if common and further:
                at_least = max(at_least, min(common + near[bad[k]] - 1, common + near[bad[other]]))
    return paper, max(paper, at_least), max(paper, at_most)


@jit
def _reads(
    adjacent: NDArray[np.bool_],
    bad: Ints,
    traitor: NDArray[np.bool_],
    luck: NDArray[np.float64],
    alpha: float,
    masks: int,
    basis: Ints,
    pivots: Ints,
    column: Ints,
) -> bool:
    """Whether the adversaries read somebody at a position that node x selects iff luck[x] < α."""
    # One row per adversary: the sum over its contributors, without those of the adversaries themselves. Below s + 1 contributors
    # nothing is sent. Somebody is read if the rows combine to a single unknown.
    nodes, columns, rank = len(adjacent), 0, 0
    column[:] = -1
    for r in bad:
        contributors = 0
        for x in range(nodes):
            contributors += adjacent[r, x] and luck[x] < alpha
        if contributors <= masks:
            continue
        basis[rank, :] = 0
        for x in range(nodes):
            if adjacent[r, x] and luck[x] < alpha and not traitor[x]:
                if column[x] < 0:
                    column[x] = columns
                    columns += 1
                basis[rank, column[x]] = 1
        rank = linear.insert(basis, pivots, rank, columns)
    found = 0
    for k in range(rank):
        found += linear.is_unit(basis[k], pivots[k], columns)
    return found > 0


@jit
def _observe(
    adjacent: NDArray[np.bool_],
    edges: Ints,
    state: State,
    graphs: int,
    sampled: int,
    adversaries: Ints,
    alphas: NDArray[np.float64],
    counts: Ints,
) -> None:
    """Go on with a chain for this number of graphs, and count: `counts[k, figure, s]`."""
    nodes, most = len(adjacent), len(alphas)
    order, luck = np.arange(nodes), np.zeros(nodes)
    traitor, near = np.zeros(nodes, dtype=np.bool_), np.zeros(nodes, dtype=np.int64)
    sets = np.zeros((adversaries[-1] + 1, (nodes + 63) // 64), dtype=np.uint64)
    basis = np.zeros((linear.MOST_ROWS, nodes + 1), dtype=np.int64)
    pivots, column = np.zeros(linear.MOST_ROWS, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    for number in range(graphs):
        switch(adjacent, edges, state, SWITCHES * len(edges))
        # The first places of a shuffle are the adversaries; fewer adversaries are the first of these. All numbers of adversaries
        # are therefore counted on the same graph, and what a node brings is added up once.
        for k in range(adversaries[-1]):
            other = k + _below(state, nodes - k)
            order[k], order[other] = order[other], order[k]
        traitor[:] = False
        near[:] = 0
        for x in range(nodes):
            luck[x] = (_next(state) >> np.uint64(11)) * 2.0**-53
        done = 0
        for k, count in enumerate(adversaries):
            for node in order[done:count]:
                traitor[node] = True
                for x in range(nodes):
                    near[x] += adjacent[node, x]
            done = count
            bad = order[:count]
            for figure, value in enumerate(bounds(adjacent, bad, traitor, near, sets)):
                for s in range(1, min(value, most - 1) + 1):
                    counts[k, figure, s] += 1  # a risk at s = 3 is one at s = 1 and 2, too
            if number % sampled == 0:
                for s in range(1, most):
                    hit = _reads(adjacent, bad, traitor, luck, alphas[s], s, basis, pivots, column)
                    counts[k, 3, s] += hit


class Chain:
    """A random regular graph that changes by switches."""

    def __init__(self, nodes: int, degree: int, seed: bytes) -> None:
        self.adjacent = np.zeros((nodes, nodes), dtype=bool)
        at = np.arange(nodes)
        offsets = [*range(1, degree // 2 + 1), *([nodes // 2] if degree % 2 else [])]
        for step in offsets:  # a ring with chords: any regular graph will do to start from
            self.adjacent[at, (at + step) % nodes] = self.adjacent[(at + step) % nodes, at] = True
        self.edges: Ints = np.argwhere(np.triu(self.adjacent)).astype(np.int64)
        self.state: State = np.frombuffer(seed, dtype=np.uint64).copy()
        self.switch(BURN_IN * len(self.edges))

    def switch(self, attempts: int) -> None:
        """This number of steps."""
        switch(self.adjacent, self.edges, self.state, attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A probability from a simulation, with a 95 % confidence interval (Wilson)."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """From where to where.

        >>> [round(x, 4) for x in Estimate(hits=10, trials=100).interval]
        [0.0552, 0.1744]
        """
        z, n, p = 1.959964, self.trials, self.hits / self.trials
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (0.0 if self.hits == 0 else middle - half, 1.0 if self.hits == n else middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The risk at one s and one number of adversaries; `alpha` is what nodes select at a random position."""

    adversaries: int
    masks: int
    paper: Estimate
    at_least: Estimate
    at_most: Estimate
    alpha: float
    at_random: Estimate


def plan_collusion(
    nodes: int,
    degree: int,
    adversaries: Sequence[int],
    *,
    graphs: int = 250_000,
    share: float = 0.30,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Risk]:
    """The risk for each number of adversaries and each s from 1 to δ − 1.

    Args:
        share: β, which fixes α at each s for the figure at a random position.
        progress: is told (graphs done, of how many).

    Raises:
        ConfigError: no such graph, or too many adversaries.
    """
    counts_of = sorted(set(adversaries))
    _check(nodes, degree, counts_of, graphs)
    alphas = np.array([1.0] + [required_alpha(share, degree, s) for s in range(1, degree)])
    seeds = SeedTree(seed)
    shares = [graphs // CHAINS + (k < graphs % CHAINS) for k in range(CHAINS)]
    sampled = min(SAMPLED, min((part for part in shares if part), default=1))
    steps = 20

    def run(chain: int) -> tuple[Ints, int]:
        found = np.zeros((len(counts_of), 4, degree), dtype=np.int64)
        walk = Chain(nodes, degree, seeds.bytes(8, "chain", chain))
        positions = 0
        for step in range(steps):
            part = shares[chain] // steps + (step < shares[chain] % steps)
            _observe(walk.adjacent, walk.edges, walk.state, part, sampled, np.array(counts_of), alphas, found)
            positions += -(-part // sampled)
            done[chain] += part
            if progress is not None:
                progress(sum(done), graphs)
        return found, positions

    done = [0] * CHAINS
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(run, range(CHAINS)))
    total = np.sum([found for found, _ in results], axis=0)
    positions = sum(part for _, part in results)
    return [
        Risk(
            adversaries=count,
            masks=s,
            paper=Estimate(hits=int(total[k, 0, s]), trials=graphs),
            at_least=Estimate(hits=int(total[k, 1, s]), trials=graphs),
            at_most=Estimate(hits=int(total[k, 2, s]), trials=graphs),
            alpha=float(alphas[s]),
            at_random=Estimate(hits=int(total[k, 3, s]), trials=positions),
        )
        for k, count in enumerate(counts_of)
        for s in range(1, degree)
    ]


def _check(nodes: int, degree: int, adversaries: list[int], graphs: int) -> None:
    if not 2 < degree < nodes or nodes * degree % 2:
        raise ConfigError(
            f"there is no {degree}-regular graph of {nodes} nodes to draw: the degree must be at least 3 and below the "
            "number of nodes, and one of the two must be even"
        )
    if not adversaries or adversaries[0] < 1 or adversaries[-1] >= nodes:
        raise ConfigError(f"the number of adversaries must be between 1 and {nodes - 1}")
    if adversaries[-1] > linear.MOST_ROWS:
        raise ConfigError(
            f"the exact figure is computed for up to {linear.MOST_ROWS} adversaries, not {adversaries[-1]}"
        )
    if graphs < 1:
        raise ConfigError("at least one graph must be drawn")
