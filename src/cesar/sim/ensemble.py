"""Ensemble: all nodes of a simulated network, kept from round to round; and `aggregate`, one round of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cesar import bits, memory
from cesar.errors import ConfigError, DataError
from cesar.grouping import Groups
from cesar.indices import IndexSet
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.node import Node, drawn_towards
from cesar.protocol import Deadlines
from cesar.seeds import SeedTree
from cesar.sim.faults import Crashes, check_crashes, frames_that_leave
from cesar.sim.secrets import Secrets
from cesar.sim.wires import Wires, drive
from cesar.topology import Neighbourhood, check_graph, neighbourhoods
from cesar.types import NodeId, RoundNo
from cesar.wire import CATEGORIES, Frame

Models = NDArray[np.float32]
"""(nodes, d)."""

Watch = Callable[[NodeId, NodeId, Frame], None]
"""Is shown (sender, recipient, frame)."""

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
    def of(cls, nodes: Sequence[Node], size: int) -> Tally:
        """Of the round that these nodes have just ended."""
        ledgers = [node.ledger for node in nodes]
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
        entered: (n, d) float32, the models that were averaged: those given, with noise if the method adds any.
        tally: what was sent.
        groups: receiver → its fixed groups; None where the method has none.
    """

    vectors: Models = field(repr=False)
    entered: Models = field(repr=False)
    tally: Tally
    sets: tuple[IndexSet, ...] = field(repr=False)
    groups: Groups | None = field(default=None, repr=False)

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
        """(n, d): what each node selected. Where nobody selects, row r is what may be sent to r: with coordinated
        subsampling the set that all its neighbours use, with random subsampling in groups that of any group.
        """
        return np.stack([bits.to_bools(chosen.words, chosen.size) for chosen in self.sets])

    @property
    def total_bytes(self) -> int:
        """Everything that everybody sent."""
        return int(sum(counts.sum() for counts in self.bytes.values()))


def noise_of(seeds: SeedTree, round_: RoundNo, nodes: int, size: int) -> Iterator[NDArray[np.float32]]:
    """The noise of one node after the other in a round of the engine, at σ = 1."""
    draw = seeds.generator("noise", round_)
    return (draw.standard_normal(size, dtype=np.float32) for _ in range(nodes))


class Ensemble:
    """A simulated network.

    Args:
        graph: networkx graph on nodes 0..n−1.
        method: how to average.
        size: d.
        seed: of keys, subsampling and crashes.
        workers: threads; by default one per core for large models and one for small ones
            (`THREADED_SIZE`). The result does not depend on it.
        first_round: go on with this round; a round's result depends on its number and the seed alone.
        nodes: those that live here, ascending; by default all. Models and results are theirs, in this order.
        tensors: the sizes of the model's tensors, each of which gets a scale of its own; by default it is one.
        network: the network's name, which fixed groups depend on.
    """

    def __init__(
        self,
        graph: nx.Graph,
        method: Method,
        size: int,
        *,
        seed: int = 0,
        workers: int | None = None,
        first_round: int = 0,
        nodes: Sequence[int] | None = None,
        tensors: Sequence[int] | None = None,
        network: bytes = b"",
    ) -> None:
        if not isinstance(method, Cesar | SecureAggregation | DPSGD):
            raise ConfigError(f"{method!r} is not a method; use Cesar(…), SecureAggregation() or DPSGD(…)")
        self._noise, self._steps = 0.0, 1
        if isinstance(method, DPSGD):
            self._noise, self._steps = method.noise, method.gossip_steps
            method = replace(method, noise=0.0, gossip_steps=1)  # what one step of the engine does
        self._method, self._size, self._next_round = method, size, first_round
        self._tensors, self._network, self._graph = tensors, network, graph
        self._seeds, self._secrets = SeedTree(seed), Secrets(seed)
        self._count, self._here = len(graph), range(len(graph)) if nodes is None else nodes
        self.method, self._hoods = self._on(graph)
        self._workers = workers or (os.cpu_count() or 1 if size >= THREADED_SIZE else 1)
        self._pool = ThreadPoolExecutor(self._workers)
        self._nodes: list[Node] = []
        self._ready_for: int | None = None  # the engine's round that the nodes can begin; None in mid-round

    def use_graph(self, graph: nx.Graph) -> None:
        """Average along these edges from the next round on; in strict mode with the s that this graph asks for.

        Raises:
            ConfigError, PrivacyError: nothing sensible can be averaged on it.
        """
        self.method, self._hoods = self._on(graph)
        self._graph = graph

    def use_method(self, method: Method) -> None:
        """Average in this way from the next round on: selecting otherwise, but not masking otherwise."""
        self._method = method
        self.use_graph(self._graph)

    def _on(self, graph: nx.Graph) -> tuple[Method, dict[NodeId, Neighbourhood]]:
        check_graph(graph, self._count)
        return self._method.for_graph(graph, network=self._network), neighbourhoods(graph, self._here)

    @property
    def groups(self) -> Groups | None:
        """Receiver → its fixed groups; None where the method has none."""
        return None if isinstance(self.method, DPSGD) else self.method.groups

    def close(self) -> None:
        """Let the worker threads go, and memory."""
        self._pool.shutdown()
        memory.clear()

    def round(
        self,
        vectors: Models,
        *,
        reference: Models | None = None,
        crashes: Crashes | None = None,
        out: Models | None = None,
        watch: Watch | None = None,
    ) -> RoundResult:
        """Average once. The vectors must not change meanwhile; they are not changed.

        Args:
            reference: the models before local training.
            crashes: node → when it vanishes.
            out: (n, d) memory for the new models; without it a new array is made.
            watch: is shown (sender, recipient, frame) for every frame that arrives.

        Raises:
            DataError: a model holds NaN or infinity; nothing was sent by anybody.
        """
        return drive(self.exchange(vectors, reference=reference, crashes=crashes, out=out, watch=watch))

    def exchange(
        self,
        vectors: Models,
        *,
        round_: int | None = None,
        reference: Models | None = None,
        memory: Models | None = None,
        crashes: Crashes | None = None,
        out: Models | None = None,
        watch: Watch | None = None,
    ) -> Generator[Wires, None, RoundResult]:
        """What `round` does, for whoever carries frames further than these nodes. `memory` has what nodes last sent,
        where they rank by it, and is written to; without it they keep their own.

        It yields the wires of every gossip step when its frames wait to be carried, and goes on when they have come to
        rest. A round may be broken off and begun again, by its number: it will be exactly the same.
        """
        number, crashes = self._next_round if round_ is None else round_, crashes or {}
        self._check({"vectors": vectors, "reference": reference, "memory": memory})
        check_crashes(crashes, self._count)
        gone = [row for row, i in enumerate(self._here) if i in crashes]
        models = entered = self._with_noise(vectors, RoundNo(number * self._steps))
        tallies: list[Tally] = []
        for step in range(self._steps):
            inner = RoundNo(number * self._steps + step)  # each gossip step is a round of the engine
            last = step + 1 == self._steps
            after = out if last and out is not None else np.empty_like(vectors)
            self._make_ready(inner, memory)
            self._begin(inner, models, after, reference if step == 0 else None)
            wires = self._wires(inner, crashes, watch)
            yield wires  # announcements, relay frames and shares travel, and every node adds up what it gets
            wires.outcomes()
            for error in wires.rejected:
                raise error  # these nodes are honest: a refused frame is a fault that must show
            for node in self._nodes:
                node.close()
            self._ready_for = inner + 1
            tallies.append(Tally.of(self._nodes, self._size))
            after[gone] = models[gone]
            models = after
        models[gone] = vectors[gone]
        self._next_round = number + 1
        return RoundResult(
            vectors=models,
            entered=entered,
            tally=sum(tallies[1:], start=tallies[0]),
            sets=tuple(self._set_of(node, inner) for node in self._nodes),
            groups=self.groups,
        )

    def _with_noise(self, vectors: Models, round_: RoundNo) -> Models:
        """One stream for all nodes in their order: those of other places are drawn and dropped."""
        if not self._noise:
            return vectors
        here = frozenset(self._here)
        drawn = noise_of(self._seeds, round_, max(here) + 1, self._size)
        rows = [row for i, row in enumerate(drawn) if i in here]
        return vectors + np.float32(self._noise) * np.stack(rows)

    def _begin(self, round_: RoundNo, models: Models, after: Models, reference: Models | None) -> None:
        """Let every node select what it shares; it announces as soon as somebody carries its frames."""

        def begin(row: int) -> None:
            node = self._nodes[row]
            try:
                node.begin_round(
                    round_,
                    self._hoods[node.id],
                    models[row],
                    reference=None if reference is None else reference[row],
                    out=after[row],
                    entropy=self._secrets.entropy(node.id, round_),
                    deadlines=_DEADLINES,
                )
            except DataError as error:
                raise DataError(f"node {node.id}: {error}") from None

        list(self._pool.map(begin, range(len(self._nodes))))

    def _make_ready(self, round_: RoundNo, memory: Models | None) -> None:
        """Nodes that have ended the round before this one, or new ones, with what they last sent."""
        if self._ready_for == round_:
            for node in self._nodes:
                node.use_method(self.method)
        else:
            self._nodes = [self._new_node(i, round_) for i in map(NodeId, self._here)]
        if memory is not None:
            for node, row in zip(self._nodes, memory, strict=True):
                node.memory = row
        self._ready_for = None

    def _new_node(self, node: NodeId, round_: RoundNo) -> Node:
        return Node(
            node,
            self.method,
            self._size,
            session=self._secrets.session,
            keys=self._secrets.ring(node),
            first_round=round_,
            tensors=self._tensors,
        )

    def _wires(self, round_: RoundNo, crashes: Crashes, watch: Watch | None) -> Wires:
        """Between these nodes and to those elsewhere, as far as they have not crashed before the round."""
        up = {NodeId(i) for i in range(self._count) if crashes.get(i) != "before_announce"}

        def arrives(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
            assert watch is not None
            watch(sender, recipient, frame)
            return True

        return Wires(
            {node.id: node for node in self._nodes if node.id in up},
            elsewhere=up.difference(self._here),
            pool=self._pool,
            workers=self._workers,
            leaves=frames_that_leave(crashes, round_, self._hoods, self._seeds) if crashes else None,
            arrives=None if watch is None else arrives,
        )

    def _set_of(self, node: Node, round_: RoundNo) -> IndexSet:
        """What a node selected, or where nobody does, what may be sent to it."""
        if node.selected is not None:
            return node.selected
        return drawn_towards(self.method, node.id, self._secrets.attempt(round_), self._size)

    def _check(self, given: dict[str, Models | None]) -> None:
        expected = (len(self._here), self._size)
        for name, models in given.items():
            if models is not None and (models.shape != expected or models.dtype != np.float32):
                raise DataError(
                    f"{name} are {models.shape} of {models.dtype}, but this network averages {expected} of float32"
                )


def aggregate(
    vectors: ArrayLike,
    graph: nx.Graph,
    method: Method,
    *,
    seed: int = 0,
    reference: ArrayLike | None = None,
    crashes: Crashes | None = None,
    workers: int | None = None,
) -> RoundResult:
    """One round among simulated nodes, with the frames that real peers would exchange.

    Args:
        vectors: (n, d); row i is node i's model.
        graph: networkx graph on nodes 0..n−1.
        method: `Cesar`, `SecureAggregation` or `DPSGD`.
        seed: of keys, subsampling and crashes.
        reference: (n, d), the models before local training; TopK then ranks what training changed.
        crashes: node → when it vanishes: "before_announce", "after_announce", "after_coordination" or
            "during_share" (a seeded half of its shares leaves).

    Raises:
        DataError: shapes differ, or a model holds NaN or infinity.
        ConfigError, PrivacyError: the graph, the method or a crash point is impossible.
        In all cases nothing was sent.
    """
    models = _as_models("vectors", vectors)
    before = None if reference is None else _as_models("reference", reference)
    if before is not None and before.shape != models.shape:
        raise DataError(f"reference has shape {before.shape}, but vectors have {models.shape}")
    check_graph(graph, len(models))
    ensemble = Ensemble(graph, method, models.shape[1], seed=seed, workers=workers)
    try:
        return ensemble.round(models, reference=before, crashes=crashes)
    finally:
        ensemble.close()


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
