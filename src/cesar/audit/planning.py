"""Graphs on which few masks stop many colluders.

The graphs are regular and connected, with neighbourhoods that hardly overlap. Start from a random regular graph and swap edges a–b, c–d for a–c, b–d, which keeps every degree. A swap is
taken if it does not raise the cost: how far the strict condition is missed at s, summed over the receivers,
and as a gentle slope towards it the overlaps beyond one. Now and then a worse swap is taken too, so that the
search does not get stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.graph.neighbourhood import check_collusion, overlaps, strict_requirement
from cesar.kernels.bits import jit

STEEP = 64
"""What missing the condition by one costs, in units of the slope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph that was made for a masking requirement.

    Attributes:
        masks: s, which is safe on the graph against that many colluders.
        swaps: edge swaps from the random graph to this one.
        before, after: what the graph was and is: strict s and spectral gap.
    """

    graph: nx.Graph
    collusion: int
    masks: int
    swaps: int
    masks_before: int
    gap_before: float
    gap: float


def spectral_gap(graph: nx.Graph) -> float:
    """1 − the second largest absolute eigenvalue of the averaging matrix with Metropolis–Hastings weights: the
    fraction by which a round of full averaging shrinks disagreement at least. Larger mixes faster.

    >>> round(spectral_gap(nx.complete_graph(5)), 6)
    1.0
    """
    count = len(graph)
    weights = np.zeros((count, count))
    for i, j in graph.edges:
        weights[i, j] = weights[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    weights += np.diag(1 - weights.sum(axis=1))
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1 - sizes[-2])


@jit
def _row_cost(row: NDArray[np.int64], collusion: int, masks: int, largest: NDArray[np.int64]) -> int:
    """How far one receiver misses the condition, and the slope."""
    largest[:] = 0
    slope = 0
    for value in row:
        if value > 1:
            slope += (value - 1) * (value - 1)
        if collusion > 1 and value > largest[0]:  # `largest` ascends; the smallest goes
            at = 0
            while at + 1 < len(largest) and largest[at + 1] < value:
                largest[at] = largest[at + 1]
                at += 1
            largest[at] = value
    total = 0
    for value in largest:
        total += value
    return STEEP * max(0, total - masks) + slope


@jit
def _toggle(
    adjacent: NDArray[np.int64],
    shared: NDArray[np.int64],
    i: int,
    j: int,
    sign: int,
    dirty: NDArray[np.bool_],
) -> None:
    """Add (or remove) the edge i–j and keep the overlaps right; the rows that changed become dirty."""
    for a, b in ((i, j), (j, i)):
        for x in range(len(adjacent)):
            if adjacent[a, x] and x != b:  # x gains b as a node with the common neighbour a
                shared[x, b] += sign
                shared[b, x] += sign
                dirty[x] = True
        dirty[a] = True
    shared[i, j] += sign
    shared[j, i] += sign
    adjacent[i, j] += sign
    adjacent[j, i] += sign


@jit
def _swap(
    adjacent: NDArray[np.int64], shared: NDArray[np.int64], ends: NDArray[np.int64], dirty: NDArray[np.bool_]
) -> None:
    """a–b, c–d become a–c, b–d."""
    a, b, c, d = ends
    _toggle(adjacent, shared, a, b, -1, dirty)
    _toggle(adjacent, shared, c, d, -1, dirty)
    _toggle(adjacent, shared, a, c, 1, dirty)
    _toggle(adjacent, shared, b, d, 1, dirty)


@jit
def _improve(
    adjacent: NDArray[np.int64],
    shared: NDArray[np.int64],
    edges: NDArray[np.int64],
    collusion: int,
    masks: int,
    steps: int,
    seed: int,
) -> tuple[int, int]:
    """Swap until the condition holds or the steps are over; swaps taken, and how far the condition is missed."""
    np.random.seed(seed)  # noqa: NPY002  (numba knows no other generator; it decides swaps, nothing secret)
    count = len(adjacent)
    largest = np.zeros(max(collusion - 1, 0), dtype=np.int64)
    costs = np.zeros(count, dtype=np.int64)
    for r in range(count):
        costs[r] = _row_cost(shared[r], collusion, masks, largest)
    dirty, ends, taken = np.zeros(count, dtype=np.bool_), np.zeros(4, dtype=np.int64), 0
    fresh = np.zeros(count, dtype=np.int64)
    for step in range(steps):
        if costs.max() < STEEP:
            break
        first, second = np.random.randint(len(edges)), np.random.randint(len(edges))  # noqa: NPY002
        a, b = edges[first]
        c, d = edges[second]
        if costs[a] < STEEP and costs[b] < STEEP and costs[c] < STEEP and costs[d] < STEEP and step % 4:
            continue  # mostly work where the trouble is
        if np.random.random() < 0.5:  # noqa: NPY002
            c, d = d, c
        if a in (c, d) or b in (c, d) or adjacent[a, c] or adjacent[b, d]:
            continue
        ends[0], ends[1], ends[2], ends[3] = a, b, c, d
        dirty[:] = False
        _swap(adjacent, shared, ends, dirty)
        change = 0
        for r in range(count):
            if dirty[r]:
                fresh[r] = _row_cost(shared[r], collusion, masks, largest)
                change += fresh[r] - costs[r]
        if change <= 0 or np.random.random() < np.exp(-change / 4.0):  # noqa: NPY002
            taken += 1
            edges[first, 0], edges[first, 1] = a, c
            edges[second, 0], edges[second, 1] = b, d
            for r in range(count):
                if dirty[r]:
                    costs[r] = fresh[r]
        else:
            ends[0], ends[1], ends[2], ends[3] = a, c, b, d
            _swap(adjacent, shared, ends, dirty)
    missed = 0
    for r in range(count):
        missed += costs[r] >= STEEP
    return taken, missed


def plan_topology(
    random_graph: Callable[[np.random.Generator], nx.Graph],
    collusion: int,
    *,
    masks: int | None = None,
    seed: int = 0,
    attempts: int = 8,
    steps: int = 400_000,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """A graph with the degrees of a random one on which s masks stop k colluders.

    Args:
        random_graph: where each attempt starts.
        masks: s; by default k, the least that can be.

    Raises:
        ConfigError: there is no such graph, or none was found; says what to change.
    """
    seeds = SeedTree(seed)
    for attempt in range(attempts):
        graph = random_graph(seeds.generator("plan", attempt))
        wanted = collusion if masks is None else masks
        _check_possible(graph, collusion, wanted)
        adjacent = nx.to_numpy_array(graph, nodelist=range(len(graph)), dtype=np.int64)
        shared, edges = overlaps(graph), np.array(sorted(graph.edges), dtype=np.int64)
        number = int.from_bytes(seeds.bytes(4, "swaps", attempt), "little")
        swaps, missed = _improve(adjacent, shared, edges, collusion, wanted, steps, number)
        if progress is not None:
            progress(attempt + 1, attempts)
        better = nx.Graph()
        better.add_nodes_from(range(len(graph)))
        better.add_edges_from(edges.tolist())
        if missed == 0 and nx.is_connected(better):
            assert strict_requirement(better, collusion) <= wanted
            return Plan(
                graph=better,
                collusion=collusion,
                masks=wanted,
                swaps=swaps,
                masks_before=strict_requirement(graph, collusion),
                gap_before=spectral_gap(graph),
                gap=spectral_gap(better),
            )
    raise ConfigError(
        f"no graph was found on which {wanted} masks stop {collusion} colluders; use more nodes, a lower degree, or "
        f"--masks {wanted + 1}"
    )


def _check_possible(graph: nx.Graph, collusion: int, masks: int) -> None:
    """Refuse what counting alone rules out.

    The overlaps of a node in a δ-regular graph add up to δ². If the k − 1 largest of n − 1 add up to at most s,
    the others are at most s / (k − 1) each.
    """
    check_collusion(collusion, len(graph))
    lowest = min(degree for _, degree in graph.degree)
    if masks < collusion:
        raise ConfigError(f"{masks} mask(s) never stop {collusion} colluders; use at least {collusion}")
    if lowest <= masks:
        raise ConfigError(
            f"with {masks} masks every receiver needs {masks + 1} neighbours or more, but the degree is {lowest}"
        )
    if collusion == 1:
        return
    share = masks // (collusion - 1)
    most = masks + (len(graph) - collusion) * share
    if lowest * lowest > most:
        raise ConfigError(
            f"there is no {lowest}-regular graph of {len(graph)} nodes on which {masks} masks stop {collusion} "
            f"colluders: neighbourhoods overlap {lowest * lowest} times per node, and at most {most} would be "
            f"harmless. Use more nodes, a lower degree, or --masks {masks + 1}"
        )
