"""The nodes of a simulated network that live here: neighbours that average along edges, or members of cells.

`Ensemble` takes those that its method asks for (`nodes_of`) and lets rounds run; what the two kinds do differently is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.cell_node import CellNode
from cesar.graph.neighbourhood import Owners, check_graph, neighbourhoods
from cesar.methods import Method
from cesar.methods.base import EdgeMethod
from cesar.methods.cells import Cells
from cesar.node import Node
from cesar.protocol.cell_state import CellState
from cesar.protocol.wire import open_frame
from cesar.sim.faults import Crashes, CrashPoint, cell_fates, frames_that_leave, reaches
from cesar.sim.secrets import Secrets
from cesar.sim.wires import Fate, Participant

Models = NDArray[np.float32]
"""(nodes, d)."""

Start = Callable[..., None]
"""`begin_round` of a node, with its round and its place; the model and what else a round needs is left to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What nodes of every kind need; see `Ensemble`."""

    graph: nx.Graph | None
    size: int
    seed: int
    secrets: Secrets
    first_round: int
    here: Sequence[int] | None
    tensors: Sequence[int] | None
    nodes: int | None
    owners: Owners | None
    samples: Sequence[int] | None


class EdgeNodes:
    """Nodes that average along the edges of a graph, kept from round to round.

    Attributes:
        count: all nodes of the network, here and elsewhere.
        here: those that live here, ascending.
        all: these as nodes.
        method: how they average, on this graph.
        plan: they are in no cells.
        states: what they keep from round to round; they have nothing but their models.
    """

    plan = None

    def __init__(self, method: EdgeMethod, setting: Setting) -> None:
        if setting.graph is None:
            raise ConfigError("these nodes average along the edges of a graph; None goes with Cells(…)")
        for samples in setting.samples or ():
            method.check_samples(samples)
        self._method, self._setting, self._secrets = method, setting, setting.secrets
        self.count = len(setting.graph) if setting.nodes is None else setting.nodes
        self.here = range(self.count) if setting.here is None else setting.here
        self.all: list[Node] = []
        self.states: list[CellState] = []
        self._ready_for: int | None = None  # the round that they can begin; None in mid-round
        self.use_graph(setting.graph)

    def take(self, states: Sequence[CellState | None] | None) -> None:
        """They keep nothing but their models."""

    def use_graph(self, graph: nx.Graph) -> None:
        check_graph(graph, self.count)
        self.method, self._hoods = self._method.for_graph(graph), neighbourhoods(graph, self.here)
        self._graph = graph

    def use_method(self, method: Method) -> None:
        if method.edges is None:
            raise ConfigError("a network cannot change from edges to cells")
        self._method = method.edges
        self.use_graph(self._graph)

    def starts(self, round_: RoundNo, reference: Models | None, memory: Models | None) -> list[Start]:
        """How each of them begins this round; those that did not end the one before it are made anew.

        Args:
            memory: what each of them last sent.
        """
        if self._ready_for == round_:
            for node in self.all:
                node.use_method(self.method)
        else:
            self.all = [self._new(i, round_) for i in map(NodeId, self.here)]
        if memory is not None:
            for node, row in zip(self.all, memory, strict=True):
                node.memory = row
        self._ready_for, self._next_round = None, round_ + 1
        return [partial(node.begin_round, round_, self._hoods[node.id]) for node in self.all]

    def _new(self, node: NodeId, round_: RoundNo) -> Node:
        return Node(
            node,
            self.method,
            self._setting.size,
            session=self._secrets.session,
            keys=self._secrets.ring(node),
            first_round=round_,
            tensors=self._setting.tensors,
        )

    def wired(
        self, crashes: Crashes, round_: RoundNo, seeds: SeedTree
    ) -> tuple[dict[NodeId, Participant], Fate, Fate]:
        """Those that take part, as wires see them; what of their frames leaves, and what arrives."""
        there = (node for node in self.all if crashes.get(node.id) != "before_announce")
        return (
            {node.id: node for node in there},
            frames_that_leave(crashes, round_, self._hoods, seeds),
            lambda *_: True,
        )

    def ended(self, crashes: Crashes) -> list[int]:
        """The round is over. The rows of those that crashed in it and keep the model that they had."""
        self._ready_for = self._next_round
        return [row for row, node in enumerate(self.here) if node in crashes]


class _Vanishing:
    """A member of a cell that crashes in mid-round: it gets nothing that comes later, wherever that comes from."""

    def __init__(self, node: CellNode, point: CrashPoint) -> None:
        self._node, self._point, self.id = node, point, node.id
        self.outbound, self.tick = node.outbound, node.tick
        self.next_event, self.next_deadline = node.next_event, node.next_deadline

    def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None:
        """Take in a frame, or do not."""
        kind, round_, *_ = open_frame(payload)
        return self._node.receive(sender, payload) if reaches(self._point, kind) else round_


class CellNodes:
    """Members of cells, each with its common model and what it has not handed in; attributes as of `EdgeNodes`, and their places."""

    def __init__(self, method: Cells, setting: Setting) -> None:
        nodes = setting.nodes if setting.graph is None else len(setting.graph)
        plan = method.division
        if plan is None:
            if nodes is None:
                raise ConfigError("how many nodes are there? Ensemble(None, Cells(…), size=…, nodes=16)")
            plan = method.plan(nodes, setting.owners, seed=setting.seed)
        members = sorted(node for cell in plan.cells for node in cell)
        self.count = len(members) if nodes is None else nodes
        if members != list(range(self.count)):
            raise ConfigError(
                f"the plan divides {len(members)} nodes, but there are nodes 0..{self.count - 1}: it is of another network; make "
                "one with Cells.plan(nodes)"
            )
        samples = setting.samples
        if samples is not None and len(samples) != self.count:
            raise ConfigError(
                f"samples has {len(samples)} numbers, but there are {self.count} nodes; give one for each"
            )
        if samples is None:
            method.check_samples(None)
        self.method, self._setting, self._secrets = method, setting, setting.secrets
        self.plan = plan
        if setting.graph is not None:
            self.use_graph(setting.graph)
        self.here = range(self.count) if setting.here is None else setting.here
        self.places = {node: plan.place(node) for node in map(NodeId, self.here)}
        self._next_round = setting.first_round
        self.take(None)

    @property
    def states(self) -> list[CellState]:
        return [node.state for node in self.all if not node.fresh]

    def take(self, states: Sequence[CellState | None] | None) -> None:
        kept = [None] * len(self.here) if states is None else states
        if len(kept) != len(self.here):
            raise DataError(f"{len(kept)} states for {len(self.here)} nodes; take all of one run")
        self.all = [self._new(NodeId(i), state) for i, state in zip(self.here, kept, strict=True)]
        self._kept: Sequence[CellState | None] | None = None  # what they had before the round that runs

    def _new(self, node: NodeId, state: CellState | None) -> CellNode:
        return CellNode(
            node,
            self.method,
            self._setting.size,
            session=self._secrets.session,
            keys=self._secrets.ring(node),
            first_round=self._next_round,
            tensors=self._setting.tensors,
            state=state,
            samples=None if self._setting.samples is None else int(self._setting.samples[node]),
        )

    def use_graph(self, graph: nx.Graph) -> None:
        """Its edges do not matter: `Cells.graph` says which cells hear which."""
        if set(graph) != set(range(self.count)):
            raise ConfigError(
                f"the graph's nodes must be exactly 0..{self.count - 1}; which cells hear which is said by Cells(graph=…)"
            )

    def use_method(self, method: Method) -> None:
        if method.cells is None:
            raise ConfigError("a network cannot change from cells to edges")
        self.method = method.cells

    def starts(self, round_: RoundNo, reference: Models | None, memory: Models | None) -> list[Start]:
        """The same; those that did not end the round before it go on with what they had before that."""
        kept = self._kept or [None if node.fresh else node.state for node in self.all]
        if self._kept is not None or round_ != self._next_round:
            self._next_round = round_
            self.take(kept)
        for node in self.all:
            node.use_method(self.method)
        if reference is not None:
            self._check_common(reference)
        self._kept = kept
        return [partial(node.begin_round, round_, self.places[node.id]) for node in self.all]

    def _check_common(self, reference: Models) -> None:
        """Members of a cell begin at one model; else they would find out by themselves and stand still."""
        rows = {node.id: row for row, node in enumerate(self.all) if node.fresh}
        for number, cell in enumerate(self.plan.cells):
            here = [rows[node] for node in cell if node in rows]
            if any(not np.array_equal(reference[row], reference[here[0]]) for row in here[1:]):
                raise DataError(
                    f"members of cell {number} begin at different models; reference has one model for each cell, "
                    "repeated for its members"
                )

    def wired(
        self, crashes: Crashes, round_: RoundNo, seeds: SeedTree
    ) -> tuple[dict[NodeId, Participant], Fate, Fate]:
        there: dict[NodeId, Participant] = {
            node.id: _Vanishing(node, crashes[node.id]) if node.id in crashes else node
            for node in self.all
            if crashes.get(node.id) != "before_announce"
        }
        return there, *cell_fates(crashes, round_, self.places, seeds)

    def ended(self, crashes: Crashes) -> list[int]:
        self._next_round += 1
        self._kept = None
        return [row for row, node in enumerate(self.here) if crashes.get(node) == "before_announce"]


Nodes = EdgeNodes | CellNodes


def nodes_of(method: Method, setting: Setting) -> Nodes:
    """The nodes of a network that averages in this way.

    Raises:
        ConfigError, PrivacyError: it cannot, on this graph or with this number of nodes.
    """
    if isinstance(method, type) or not hasattr(method, "for_graph"):
        raise ConfigError(
            f"{method!r} is not a method; use Cells(…), Cesar(…), SecureAggregation() or DPSGD(…)"
        )
    if method.cells is not None:
        return CellNodes(method.cells, setting)
    assert method.edges is not None, "a method has the one or the other"
    return EdgeNodes(method.edges, setting)
