"""Ensemble: all nodes of a simulated network, kept from round to round; and `aggregate`, one round of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cesar.base import memory
from cesar.base.errors import ConfigError, DataError, RemoteProtocolError
from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId, RoundNo
from cesar.cell_node import CellNode
from cesar.graph.cells import Cell, CellPlan
from cesar.graph.neighbourhood import Owners
from cesar.indices import IndexSet
from cesar.kernels import bits
from cesar.methods import Method
from cesar.node import Ledger, Node
from cesar.protocol import AggregateReady, Deadlines
from cesar.protocol.cell_state import CellState
from cesar.protocol.events import CellReport
from cesar.protocol.wire import CATEGORIES, Frame
from cesar.sim.faults import Crashes, check_crashes
from cesar.sim.nodes import Models, Setting, nodes_of
from cesar.sim.secrets import Secrets
from cesar.sim.wires import Fate, Wires, drive

Watch = Callable[[NodeId, NodeId, Frame], None]
"""Is shown (sender, recipient, frame)."""

Metrics = Sequence[float | None]
"""One for each node; None for a node that has none."""

_DEADLINES = Deadlines(announce=1.0, relay=2.0, share=3.0)
"""Simulated time: a phase ends when nothing is in flight any more, so only the order matters."""

THREADED_SIZE = 250_000
"""Below this many parameters a second thread loses more to the interpreter lock than it gains: a round of
24 nodes took 0.22 s with two threads and 0.17 s with one at 90,000 parameters, about the same at 200,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What nodes have sent in a round.

    Attributes:
        bytes: category → (n,) int64.
        shares: how many shares.
        parameters: how many parameters they held together.
        size: d.
    """

    bytes: dict[str, NDArray[np.int64]]
    shares: int
    parameters: int
    size: int

    @property
    def shared(self) -> float:
        """β: the mean fraction of parameters in a share."""
        return self.parameters / (self.shares * self.size) if self.shares else 0.0

    @classmethod
    def of(cls, ledgers: Sequence[Ledger], size: int) -> Tally:
        """Of the round that nodes with these ledgers have just ended."""
        return cls(
            bytes={c: np.array([ledger.sent[c] for ledger in ledgers], dtype=np.int64) for c in CATEGORIES},
            shares=sum(ledger.shares for ledger in ledgers),
            parameters=sum(ledger.parameters for ledger in ledgers),
            size=size,
        )

    def __add__(self, other: Tally) -> Tally:
        """What the same nodes have sent in two steps."""
        return Tally(
            bytes={c: self.bytes[c] + other.bytes[c] for c in CATEGORIES},
            shares=self.shares + other.shares,
            parameters=self.parameters + other.parameters,
            size=self.size,
        )

    @classmethod
    def joined(cls, tallies: Sequence[Tally]) -> Tally:
        """Of nodes that were counted in several places, in order."""
        return cls(
            bytes={c: np.concatenate([tally.bytes[c] for tally in tallies]) for c in CATEGORIES},
            shares=sum(tally.shares for tally in tallies),
            parameters=sum(tally.parameters for tally in tallies),
            size=tallies[0].size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round has brought.

    Attributes:
        vectors: (n, d) float32, the new models; a crashed node keeps its own.
        tally: what was sent.
        cells: their members; None where the method has none.
        reports: how the round went for each node, where there are cells: who is in its sum, and what it has thrown away.
    """

    vectors: Models = field(repr=False)
    tally: Tally
    sets: tuple[IndexSet, ...] = field(repr=False)
    cells: tuple[Cell, ...] | None = None
    reports: tuple[CellReport, ...] = field(default=(), repr=False)

    @property
    def shared(self) -> float:
        """β as measured: the mean fraction of parameters in the shares that were sent."""
        return self.tally.shared

    @property
    def bytes(self) -> dict[str, NDArray[np.int64]]:
        """Category → (n,), what each node sent."""
        return self.tally.bytes

    @property
    def selected(self) -> NDArray[np.bool_]:
        """(n, d): what each node selected, or with cells what was handed in."""
        return np.stack([bits.to_bools(chosen.words, chosen.size) for chosen in self.sets])

    @property
    def total_bytes(self) -> int:
        """Everything that everybody sent."""
        return int(sum(counts.sum() for counts in self.bytes.values()))


class Ensemble:
    """A simulated network.

    Args:
        graph: networkx graph on nodes 0..n−1, along whose edges they average. `Cells` need none, and look at its nodes alone.
        method: how to average.
        size: d.
        seed: of keys, subsampling, crashes and the division into cells.
        workers: threads; by default one per core for large models and one for small ones
            (`THREADED_SIZE`). The result does not depend on it.
        first_round: go on with this round; a round's result depends on its number and the seed alone.
        here: the nodes that live here, ascending; by default all. Models and results are theirs, in this order.
        tensors: the sizes of the model's tensors, each of which gets a scale of its own; by default it is one.
        nodes: how many there are; a graph says so itself.
        owners: who runs which node, for `Cells`.
        samples: how many each node trains on, for `Cells(weight="samples")`.
    """

    def __init__(
        self,
        graph: nx.Graph | None,
        method: Method,
        size: int,
        *,
        seed: int = 0,
        workers: int | None = None,
        first_round: int = 0,
        here: Sequence[int] | None = None,
        tensors: Sequence[int] | None = None,
        nodes: int | None = None,
        owners: Owners | None = None,
        samples: Sequence[int] | None = None,
    ) -> None:
        self._size, self._next_round = size, first_round
        self._seeds, self._secrets = SeedTree(seed), Secrets(seed)
        setting = Setting(
            graph=graph,
            size=size,
            seed=seed,
            secrets=self._secrets,
            first_round=first_round,
            here=here,
            tensors=tensors,
            nodes=nodes,
            owners=owners,
            samples=samples,
        )
        self._nodes = nodes_of(method, setting)
        self._workers = workers or (os.cpu_count() or 1 if size >= THREADED_SIZE else 1)
        self._pool = ThreadPoolExecutor(self._workers)

    @property
    def here(self) -> Sequence[int]:
        """Which nodes live here."""
        return self._nodes.here

    @property
    def nodes(self) -> Sequence[Node | CellNode]:
        """These, as they are now; a round that is begun again has others."""
        return self._nodes.all

    @property
    def method(self) -> Method:
        """How they average from the next round on."""
        return self._nodes.method

    @property
    def plan(self) -> CellPlan | None:
        """The cells, and which hear which; None where there are none."""
        return self._nodes.plan

    def use_graph(self, graph: nx.Graph) -> None:
        """Average along these edges from the next round on; in strict mode with the s that this graph asks for.

        Raises:
            ConfigError, PrivacyError: nothing sensible can be averaged on it.
        """
        self._nodes.use_graph(graph)

    def use_method(self, method: Method) -> None:
        """Average in this way from the next round on: selecting otherwise, or without training, but not masking otherwise."""
        self._nodes.use_method(method)

    @property
    def states(self) -> list[CellState]:
        """What each member of a cell keeps, once a round has begun; a run that goes on later saves it."""
        return self._nodes.states

    def take(self, states: Sequence[CellState] | None) -> None:
        """Go on with what members of cells have kept, or begin anew.

        Raises:
            DataError: these are other nodes' states.
        """
        self._nodes.take(states)

    def close(self) -> None:
        """Let the worker threads go, and memory."""
        self._pool.shutdown()
        memory.clear()

    def round(
        self,
        vectors: Models,
        *,
        reference: Models | None = None,
        metrics: Metrics | None = None,
        crashes: Crashes | None = None,
        out: Models | None = None,
        watch: Watch | None = None,
    ) -> RoundResult:
        """Average once. The vectors must not change meanwhile; they are not changed.

        Args:
            reference: the models before local training.
            metrics: of each model, None where there is none, with `Cells(metric=True)`; reports have the mean over a cell.
            crashes: node → when it vanishes.
            out: (n, d) memory for the new models; without it a new array is made.
            watch: is shown (sender, recipient, frame) for every frame that arrives.

        Raises:
            DataError: a model holds NaN or infinity; nothing was sent by anybody.
        """
        return drive(
            self.exchange(
                vectors, reference=reference, metrics=metrics, crashes=crashes, out=out, watch=watch
            )
        )

    def exchange(
        self,
        vectors: Models,
        *,
        round_: int | None = None,
        reference: Models | None = None,
        memory: Models | None = None,
        metrics: Metrics | None = None,
        crashes: Crashes | None = None,
        out: Models | None = None,
        watch: Watch | None = None,
        arrives: Fate | None = None,
        refused: list[RemoteProtocolError] | None = None,
    ) -> Generator[Wires, None, RoundResult]:
        """What `round` does, for a caller that carries frames further than these nodes.

        It yields the wires when frames wait to be carried, and goes on when they have come to rest. A round may be broken
        off and begun again, by its number: it will be exactly the same.

        Args:
            memory: what nodes last sent, where they rank by it; it is written to. Without it they keep their own.
            arrives: (sender, recipient, frame) → whether it is not lost on the way.
            refused: takes the frames that were refused, where somebody lies on purpose; otherwise one is a fault.
        """
        number, crashes = RoundNo(self._next_round if round_ is None else round_), crashes or {}
        self._check({"vectors": vectors, "reference": reference, "memory": memory})
        check_crashes(crashes, self._nodes.count)
        after = np.empty_like(vectors) if out is None else out
        self._check_metrics(metrics)
        self._begin(number, vectors, after, reference, memory, metrics)
        there, leaves, gets = self._nodes.wired(crashes, number, self._seeds)

        def fate(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
            if not gets(sender, recipient, frame):
                return False
            if arrives is not None and not arrives(sender, recipient, frame):
                return False
            if watch is not None:
                watch(sender, recipient, frame)
            return True

        up = {NodeId(i) for i in range(self._nodes.count) if crashes.get(i) != "before_announce"}
        wires = Wires(
            there,
            elsewhere=up.difference(self.here),
            pool=self._pool,
            workers=self._workers,
            leaves=leaves if crashes else None,
            arrives=fate if crashes or watch is not None or arrives is not None else None,
        )
        yield wires  # frames of all phases travel, and every node adds up what it gets
        outcomes = wires.outcomes()
        if refused is not None:
            refused += wires.rejected
        elif wires.rejected:
            raise wires.rejected[0]  # these nodes are honest: a refused frame is a fault that must show
        nodes = self.nodes
        for node in nodes:
            node.close()
        gone = self._nodes.ended(crashes)
        after[gone] = vectors[gone]
        self._next_round = number + 1
        return RoundResult(
            vectors=after,
            tally=Tally.of([node.ledger for node in nodes], self._size),
            sets=tuple(node.selected for node in nodes if node.selected is not None),
            cells=None if self.plan is None else self.plan.cells,
            reports=() if self.plan is None else tuple(_report_of(outcomes.get(node.id)) for node in nodes),
        )

    def _begin(
        self,
        round_: RoundNo,
        models: Models,
        after: Models,
        reference: Models | None,
        memory: Models | None,
        metrics: Metrics | None,
    ) -> None:
        """Let every node select what it shares; it announces as soon as somebody carries its frames."""
        starts = self._nodes.starts(round_, reference, memory)

        def begin(row: int) -> None:
            node = NodeId(self.here[row])
            measured = {} if metrics is None else {"metric": metrics[row]}
            try:
                starts[row](
                    vector=models[row],
                    reference=None if reference is None else reference[row],
                    out=after[row],
                    entropy=self._secrets.entropy(node, round_),
                    deadlines=_DEADLINES,
                    **measured,
                )
            except DataError as error:
                raise DataError(f"node {node}: {error}") from None

        list(self._pool.map(begin, range(len(starts))))

    def _check_metrics(self, metrics: Metrics | None) -> None:
        """Before any node begins: a metric that cannot be handed in stops all of them."""
        if metrics is None:
            return
        if len(metrics) != len(self.here):
            raise DataError(
                f"there are {len(metrics)} metrics for {len(self.here)} nodes; give one for each, or None"
            )
        if self.method.cells is None:
            raise ConfigError("metrics are added up in cells only; leave them out, or use Cells(metric=True)")
        for metric in metrics:
            self.method.cells.check_metric(metric)

    def _check(self, given: dict[str, Models | None]) -> None:
        expected = (len(self.here), self._size)
        for name, models in given.items():
            if models is not None and (models.shape != expected or models.dtype != np.float32):
                raise DataError(
                    f"{name} are {models.shape} of {models.dtype}, but this network averages {expected} of float32"
                )


def aggregate(
    vectors: ArrayLike,
    graph: nx.Graph | None,
    method: Method,
    *,
    seed: int = 0,
    reference: ArrayLike | None = None,
    crashes: Crashes | None = None,
    workers: int | None = None,
    samples: Sequence[int] | None = None,
    metrics: Metrics | None = None,
) -> RoundResult:
    """One round among simulated nodes, with the frames that real peers would exchange. If it raises, nothing was sent.

    Args:
        vectors: (n, d); row i is node i's model.
        graph: networkx graph on nodes 0..n−1. `Cells` need none, and look at its nodes alone.
        method: `Cesar`, `SecureAggregation`, `DPSGD` or `Cells`.
        seed: of keys, subsampling and crashes.
        reference: (n, d), the models before local training; TopK then ranks what training changed. With `Cells` the
            common models that training began at, the same for all members of a cell; zero by default.
        crashes: node → when it vanishes: "before_announce", "after_announce", "after_coordination" or
            "during_share" (a seeded half of its shares leaves).
        samples: how many each node trained on, for `Cells(weight="samples")`.
        metrics: of each model, for `Cells(metric=True)`; `reports` of the result have the mean over a cell.

    Raises:
        DataError: shapes differ, or a model holds NaN or infinity.
        ConfigError, PrivacyError: the graph, the method or a crash point is impossible.
    """
    models = _as_models("vectors", vectors)
    before = None if reference is None else _as_models("reference", reference)
    if before is not None and before.shape != models.shape:
        raise DataError(f"reference has shape {before.shape}, but vectors have {models.shape}")
    ensemble = Ensemble(
        graph, method, models.shape[1], seed=seed, workers=workers, nodes=len(models), samples=samples
    )
    try:
        return ensemble.round(models, reference=before, metrics=metrics, crashes=crashes)
    finally:
        ensemble.close()


def _report_of(outcome: AggregateReady | None) -> CellReport:
    return CellReport() if outcome is None or outcome.cell is None else outcome.cell


def _as_models(name: str, value: ArrayLike) -> Models:
    try:
        given = np.asarray(value)
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as such
            models = np.ascontiguousarray(given.astype(np.float32, casting="same_kind", copy=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be n rows of d numbers each, all of one length: {error}") from None
    if models.ndim != 2 or 0 in models.shape:
        raise DataError(f"{name} has shape {models.shape}, but one row per node is needed: (n, d)")
    return models
