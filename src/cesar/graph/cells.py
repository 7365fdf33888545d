"""Cells: a division of the nodes, made once, and the graph by which cells hear one another.

Every node is in exactly one cell. Members of a cell add up what they train; a cell as a whole is one participant for
everybody else. A coalition of k owners leaves at least two honest members in a cell with members of k + 2 owners, so a
plan with a poorer cell is refused.

*Who hears whom.* In the one-peer exponential graph cell c hears cell c + 2^j (mod n) in round t, j = t mod ⌈log2 n⌉, and takes
the mean of both. The averaging matrix of a round is a circulant with eigenvalues (1 + ω^(f·2^j))/2, of magnitude
|cos(π·f·2^j/n)|. For n a power of two one factor of every pass is 0 for each f ≠ 0, so that a pass of log2 n rounds is exact.
For other n the largest product over f is what is left of the spread after a pass.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, Protocol

import networkx as nx
import numpy as np

from cesar.base.errors import ConfigError, PrivacyError
from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import Owners, check_graph

Cell = tuple[NodeId, ...]
"""The members of a cell, ascending."""

CELLS = "cells"
"""What settings call the method."""

EXPONENTIAL = "exponential"

SPREAD_LEFT = 1e-3
"""Settling goes on until no more than this is left of the spread between cells."""


class Heard(NamedTuple):
    """A cell that is heard, and its weight in the mean; the own value has the rest."""

    cell: int
    weight: float


class CellGraph(Protocol):
    """Which cells hear which, round by round."""

    def heard(self, cell: int, round_: int) -> tuple[Heard, ...]:
        """Whom a cell hears in a round, ascending."""

    def hearing(self, cell: int, round_: int) -> tuple[int, ...]:
        """Who hears a cell in a round, ascending."""

    @property
    def period(self) -> int:
        """After this many rounds the same cells hear one another again."""

    @property
    def settling_rounds(self) -> int:
        """After this many rounds in full at most a thousandth of the spread between cells is left."""


@dataclass(frozen=True, slots=True)
class ExponentialCells:
    """The one-peer exponential graph of this number of cells."""

    count: int

    @property
    def steps(self) -> int:
        """⌈log2 n⌉: rounds in a pass."""
        return max(self.count - 1, 0).bit_length()

    def _hop(self, round_: int) -> int:
        return 1 << round_ % self.steps

    def heard(self, cell: int, round_: int) -> tuple[Heard, ...]:
        if self.count < 2:
            return ()
        return (Heard((cell + self._hop(round_)) % self.count, 0.5),)

    def hearing(self, cell: int, round_: int) -> tuple[int, ...]:
        if self.count < 2:
            return ()
        return ((cell - self._hop(round_)) % self.count,)

    @property
    def period(self) -> int:
        return max(self.steps, 1)

    @property
    def settling_rounds(self) -> int:
        if self.count < 2:
            return 0
        f = np.arange(1, self.count)
        left = np.ones(self.count - 1)
        for j in range(self.steps):
            left *= np.abs(np.cos(np.pi * f * 2**j / self.count))
        worst = float(left.max())
        passes = 1 if worst < 1e-12 else math.ceil(math.log(SPREAD_LEFT) / math.log(worst))
        return self.steps * max(passes, 1)


class StaticCells:
    """The same undirected graph of cells in every round, with Metropolis–Hastings weights.

    They are 1/(1 + the larger degree): rows and columns add up to one, so the mean of all cells stays where it is.
    """

    def __init__(self, graph: nx.Graph) -> None:
        self._heard = {
            c: tuple(Heard(b, 1.0 / (1 + max(graph.degree[c], graph.degree[b]))) for b in sorted(graph[c]))
            for c in graph
        }

    def heard(self, cell: int, round_: int) -> tuple[Heard, ...]:
        return self._heard[cell]

    def hearing(self, cell: int, round_: int) -> tuple[int, ...]:
        return tuple(heard.cell for heard in self._heard[cell])

    @property
    def period(self) -> int:
        return 1

    @cached_property
    def settling_rounds(self) -> int:
        count = len(self._heard)
        if count < 2:
            return 0
        matrix = np.zeros((count, count))
        for c, links in self._heard.items():
            for b, weight in links:
                matrix[c, b] = weight
            matrix[c, c] = 1.0 - sum(link.weight for link in links)
        worst = float(np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2])
        return 1 if worst < 1e-12 else max(1, math.ceil(math.log(SPREAD_LEFT) / math.log(worst)))


def graph_of(named: str | nx.Graph, cells: int, seed: int = 0) -> CellGraph:
    """A graph of this number of cells: "exponential", "regular:d" or another short name, or one of your own.

    Raises:
        ConfigError: it is not connected, has other nodes than 0 to `cells` - 1, or cannot have that number of nodes.
    """
    if isinstance(named, str):
        if named == EXPONENTIAL or cells == 1:
            return ExponentialCells(cells)
        try:
            return StaticCells(graphs.parse(named, cells, SeedTree(seed).generator("cells")))
        except ConfigError as error:
            raise ConfigError(f"the graph of {cells} cells: {error}") from None
    if cells == 1 and set(named) == {0}:
        return ExponentialCells(1)
    try:
        check_graph(named, cells)
    except ConfigError as error:
        raise ConfigError(f"the graph of {cells} cells: {error}") from None
    return StaticCells(named)


def objection(members: Iterable[NodeId], least: int, collusion: int, owners: Owners) -> str | None:
    """Why these may not be the members of a sum; None if they may."""
    members = tuple(members)
    if len(members) < least:
        return f"{len(members)} member(s), but sums are over at least {least}"
    found = len({owners.get(node, node) for node in members})
    if found < collusion + 2:
        return (
            f"members of {found} owner(s), but {collusion} colluding owner(s) leave two honest ones only "
            f"among {collusion + 2}"
        )
    return None


@dataclass(frozen=True)
class CellPlan:
    """A division into cells, checked.

    Attributes:
        cells: their members, ascending.
        graph: which cells hear which.
        least: m; fewer members never add up.
        collusion: k, how many owners may pool what they know.
        owners: who runs which node; a node that is not listed is its own.
    """

    cells: tuple[Cell, ...]
    graph: CellGraph
    least: int
    collusion: int
    owners: Owners = field(default_factory=dict)

    def __post_init__(self) -> None:
        members = [node for cell in self.cells for node in cell]
        if len(set(members)) != len(members):
            raise ConfigError("a node is in two cells")
        for number, cell in enumerate(self.cells):
            if list(cell) != sorted(cell) or len(cell) > 255:
                raise ConfigError(
                    f"the members of cell {number} must be ascending, and 255 of them at the most"
                )
            if reason := self.objection(cell):
                raise PrivacyError(f"cell {number}: {reason}")

    def objection(self, members: Iterable[NodeId]) -> str | None:
        """Why these may not be the members of a sum; None if they may."""
        return objection(members, self.least, self.collusion, self.owners)

    def owner(self, node: NodeId) -> object:
        """Who runs a node."""
        return self.owners.get(node, node)

    @cached_property
    def _numbers(self) -> dict[NodeId, int]:
        return {node: number for number, cell in enumerate(self.cells) for node in cell}

    def cell_of(self, node: NodeId) -> int:
        """The number of a node's cell.

        Raises:
            ConfigError: it is in none; it belongs to another plan.
        """
        try:
            return self._numbers[node]
        except KeyError:
            raise ConfigError(
                f"node {node} is in no cell of this plan; make the plan for all nodes: Cells.plan(nodes)"
            ) from None

    def place(self, node: NodeId) -> CellPlace:
        """What a node knows of the plan."""
        return CellPlace(node, self.cell_of(node), self)

    def links(self) -> nx.Graph:
        """Who holds a link to whom: members of one cell, and, of two cells that hear one another in any round, the members
        that look after the same positions.

        Member s of a cell of n looks after the part from s/n to (s + 1)/n of the model. Parts end at whole words, by
        rounding down, which never makes two of them meet that do not meet here.
        """
        graph = nx.Graph()
        for cell in self.cells:
            graph.add_nodes_from(cell)
            graph.add_edges_from(combinations(cell, 2))
        for number, cell in enumerate(self.cells):
            heard = {one.cell for t in range(self.graph.period) for one in self.graph.heard(number, t)}
            for other in (self.cells[h] for h in heard):
                graph.add_edges_from(
                    (a, b)
                    for s, a in enumerate(cell)
                    for z, b in enumerate(other)
                    if s * len(other) < (z + 1) * len(cell) and z * len(cell) < (s + 1) * len(other)
                )
        return graph


class CellPlace(NamedTuple):
    """Where one node stands in a plan; it takes the place of a neighbourhood."""

    node: NodeId
    number: int
    plan: CellPlan

    @property
    def members(self) -> Cell:
        return self.plan.cells[self.number]

    @property
    def view(self) -> Cell:
        """The other members."""
        return tuple(node for node in self.members if node != self.node)


def divide(
    nodes: Sequence[int], size: int, collusion: int, owners: Owners | None = None, seed: int = 0
) -> tuple[Cell, ...]:
    """Cells of m or a few more members, with members of at least k + 2 owners each.

    Nodes are dealt like cards: those of one owner after the other, the owner with most nodes first, around the table.
    An owner with no more nodes than there are cells is then in as many cells as it has nodes, which is the best
    there is; so if a cell is too poor now, no division into that many cells is better.

    Raises:
        ConfigError: fewer nodes than m.
        PrivacyError: the owners cannot be spread.
    """
    names = [NodeId(node) for node in nodes]
    if len(set(names)) != len(names):
        raise ConfigError("a node is named twice")
    if len(names) < size:
        raise ConfigError(
            f"{len(names)} node(s) make no cell of {size}; lower size to {max(len(names), 3)} or add nodes"
        )
    known: Mapping[int, str] = owners or {}

    def shuffled(node: NodeId) -> bytes:
        return hashlib.sha256(f"cesar cells {seed} {node}".encode()).digest()

    held: dict[object, list[NodeId]] = {}
    for node in sorted(names, key=shuffled):
        held.setdefault(known.get(node, node), []).append(node)
    deck = [node for party in sorted(held.values(), key=len, reverse=True) for node in party]
    count = len(names) // size
    cells = tuple(tuple(sorted(deck[c::count])) for c in range(count))
    fewest = min(len({known.get(node, node) for node in cell}) for cell in cells)
    if fewest < collusion + 2:
        raise PrivacyError(
            f"{len(held)} owner(s) of {len(names)} nodes cannot be spread over {count} cell(s) so that each has members of "
            f"{collusion + 2} owners, which {collusion} colluding owner(s) ask for; use larger cells (size), "
            "lower collusion, or add nodes of other owners"
        )
    return cells
