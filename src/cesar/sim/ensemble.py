"""Ensemble: all nodes of a simulated network, kept from round to round; and `aggregate`, one round of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cesar import bits
from cesar.crypto.keys import SESSION_BYTES, Attempt, KeyPair, PairSecret
from cesar.errors import ConfigError, DataError
from cesar.indices import IndexSet
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.node import Node, sparsifier_of
from cesar.protocol import Deadlines
from cesar.seeds import SeedTree
from cesar.sim.network import Fate, Network
from cesar.sparsify import CoordinatedSubsampling
from cesar.topology import check_graph, neighbourhoods
from cesar.types import NodeId, RoundNo
from cesar.wire import CATEGORIES, Frame, Kind

CrashPoint = Literal["before_announce", "after_announce", "after_coordination", "during_share"]
_SHARES = (Kind.SHARE, Kind.PLAIN_SHARE)
_DEADLINES = Deadlines(announce=1.0, relay=2.0, share=3.0)
"""Simulated time: a phase ends when nothing is in flight any more, so only the order matters."""


THREADED_SIZE = 250_000
"""Below this many parameters a second thread loses more to the interpreter lock than it gains: a round of
24 nodes took 0.22 s with two threads and 0.17 s with one at 90,000 parameters, about the same at 200,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round has brought.

    Attributes:
        vectors: (n, d) float32, the new models; a crashed node keeps its own.
        entered: (n, d) float32, the models that were averaged: those given, with noise if the method adds any.
        shared: β as measured: the mean fraction of parameters in the shares that were sent.
        bytes: category → (n,) int64, what each node sent.
    """

    vectors: NDArray[np.float32] = field(repr=False)
    entered: NDArray[np.float32] = field(repr=False)
    shared: float
    bytes: dict[str, NDArray[np.int64]]
    sets: tuple[IndexSet, ...] = field(repr=False)

    @property
    def selected(self) -> NDArray[np.bool_]:
        """(n, d): what each node selected. With coordinated subsampling row r is the set that all
        neighbours of r use towards r.
        """
        return np.stack([bits.to_bools(chosen.words, chosen.size) for chosen in self.sets])

    @property
    def total_bytes(self) -> int:
        """Everything that everybody sent."""
        return int(sum(counts.sum() for counts in self.bytes.values()))


class _Keys:
    """Agreement keys drawn from the run's seed; a pair's secret is computed when first needed."""

    def __init__(self, seeds: SeedTree, nodes: int, session: bytes) -> None:
        self._pairs = [KeyPair.generate(seeds.entropy("keys", i)) for i in range(nodes)]
        self._session = session
        self._secrets: dict[tuple[int, int], PairSecret] = {}

    def secret(self, node: NodeId, peer: NodeId) -> PairSecret:
        if (node, peer) not in self._secrets:
            self._secrets[node, peer] = self._pairs[node].agree(self._pairs[peer].public, self._session)
        return self._secrets[node, peer]


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
    ) -> None:
        if not isinstance(method, Cesar | SecureAggregation | DPSGD):
            raise ConfigError(f"{method!r} is not a method; use Cesar(…), SecureAggregation() or DPSGD(…)")
        self._noise, self._steps = (
            (method.noise, method.gossip_steps) if isinstance(method, DPSGD) else (0.0, 1)
        )
        if isinstance(method, DPSGD):
            method = replace(method, noise=0.0, gossip_steps=1)  # what one step of the engine does
        self._method, self._size, self._seeds = method, size, SeedTree(seed)
        self._count = len(graph)
        first_round *= self._steps  # each gossip step is a round of the engine
        self._workers = workers or (os.cpu_count() or 1 if size >= THREADED_SIZE else 1)
        self._pool = ThreadPoolExecutor(self._workers)
        self._session = self._seeds.bytes(SESSION_BYTES, "session")
        self._nodes: list[Node] = []
        self.use_graph(graph)
        keys = _Keys(self._seeds, len(graph), self._session)
        self._nodes = [
            Node(
                i,
                self.method,
                size,
                session=self._session,
                secrets=partial(keys.secret, i),
                first_round=first_round,
            )
            for i in map(NodeId, range(len(graph)))
        ]
        self._next_round = first_round

    def use_graph(self, graph: nx.Graph) -> None:
        """Average along these edges from now on; in strict mode with the s that this graph asks for.

        Raises:
            ConfigError, PrivacyError: nothing sensible can be averaged on it.
        """
        check_graph(graph, self._count)
        self.method = self._method.for_graph(graph)
        self._hoods = neighbourhoods(graph)
        for node in self._nodes:
            node.use_method(self.method)

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()

    def round(
        self,
        vectors: NDArray[np.float32],
        *,
        reference: NDArray[np.float32] | None = None,
        crashes: Mapping[int, CrashPoint] | None = None,
        out: NDArray[np.float32] | None = None,
        watch: Callable[[NodeId, NodeId, Frame], None] | None = None,
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
        crashes = crashes or {}
        self._check_models("vectors", vectors)
        if reference is not None:
            self._check_models("reference", reference)
        self._check_crashes(crashes)
        entered = self._with_noise(vectors)
        results = [self._exchange(entered, reference, crashes, out if self._steps == 1 else None, watch)]
        for step in range(2, self._steps + 1):
            target = out if step == self._steps else None
            results.append(self._exchange(results[-1].vectors, None, crashes, target, watch))
        for i in crashes:
            results[-1].vectors[i] = vectors[i]
        sent = {name: np.sum([one.bytes[name] for one in results], axis=0) for name in CATEGORIES}
        return replace(results[0], vectors=results[-1].vectors, bytes=sent)

    def _with_noise(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._noise:
            return vectors
        draw = self._seeds.generator("noise", self._next_round)
        return vectors + np.float32(self._noise) * draw.standard_normal(vectors.shape, dtype=np.float32)

    def _exchange(
        self,
        vectors: NDArray[np.float32],
        reference: NDArray[np.float32] | None,
        crashes: Mapping[int, CrashPoint],
        out: NDArray[np.float32] | None,
        watch: Callable[[NodeId, NodeId, Frame], None] | None,
    ) -> RoundResult:
        """One round of the engine."""
        round_ = RoundNo(self._next_round)
        result = np.empty_like(vectors) if out is None else out

        def begin(node: Node) -> None:
            try:
                node.begin_round(
                    round_,
                    self._hoods[node.id],
                    vectors[node.id],
                    reference=None if reference is None else reference[node.id],
                    out=result[node.id],
                    entropy=self._seeds.entropy("round", round_, node.id),
                    deadlines=_DEADLINES,
                )
            except DataError as error:
                raise DataError(f"node {node.id}: {error}") from None

        list(self._pool.map(begin, self._nodes))
        self._next_round += 1
        up = {node.id: node for node in self._nodes if crashes.get(node.id) != "before_announce"}

        def arrives(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
            if watch is not None:
                watch(sender, recipient, frame)
            return True

        leaves = self._crash_filter(crashes, round_)
        network = Network(up, pool=self._pool, workers=self._workers, leaves=leaves, arrives=arrives)
        network.run()
        if network.rejected:
            raise network.rejected[0]  # these nodes are honest: a refused frame is a fault that must show
        for node in self._nodes:
            node.close()
        for i in crashes:
            result[i] = vectors[i]
        return self._result(vectors, result, round_)

    def _check_models(self, name: str, models: NDArray[np.float32]) -> None:
        if models.shape != (self._count, self._size) or models.dtype != np.float32:
            raise DataError(
                f"{name} are {models.shape} of {models.dtype}, but this network averages "
                f"{(self._count, self._size)} of float32"
            )

    def _check_crashes(self, crashes: Mapping[int, CrashPoint]) -> None:
        for node, point in crashes.items():
            if point not in get_args(CrashPoint):
                points = ", ".join(get_args(CrashPoint))
                raise ConfigError(f"unknown crash point {point!r} for node {node}; choose one of {points}")
            if node not in self._hoods:
                raise ConfigError(f"node {node} cannot crash: there are nodes 0..{self._count - 1}")

    def _result(
        self, entered: NDArray[np.float32], vectors: NDArray[np.float32], round_: RoundNo
    ) -> RoundResult:
        ledgers = [node.ledger for node in self._nodes]
        shares = sum(ledger.shares for ledger in ledgers)
        parameters = sum(ledger.parameters for ledger in ledgers)
        return RoundResult(
            vectors=vectors,
            entered=entered,
            shared=parameters / (shares * self._size) if shares else 0.0,
            bytes={c: np.array([ledger.sent[c] for ledger in ledgers], dtype=np.int64) for c in CATEGORIES},
            sets=tuple(self._set_of(node, round_) for node in self._nodes),
        )

    def _set_of(self, node: Node, round_: RoundNo) -> IndexSet:
        if node.selected is not None:
            return node.selected
        sparsifier = sparsifier_of(self._method)
        assert isinstance(sparsifier, CoordinatedSubsampling)
        return sparsifier.select_for(node.id, Attempt(session=self._session, round_=round_), self._size)

    def _crash_filter(self, crashes: Mapping[int, CrashPoint], round_: RoundNo) -> Fate:
        """Which frames still leave a node that crashes in this round."""
        half: dict[int, set[NodeId]] = {}
        for i, point in crashes.items():
            if point == "during_share":
                view = self._hoods[NodeId(i)].view
                draw = self._seeds.generator("crash", round_, i)
                half[i] = {view[k] for k in draw.permutation(len(view))[: len(view) // 2]}

        def leaves(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
            match crashes.get(sender):
                case None:
                    return True
                case "before_announce":
                    return False
                case "after_announce":
                    return frame.kind is Kind.ANNOUNCE
                case "after_coordination":
                    return frame.kind not in _SHARES
                case "during_share":
                    return frame.kind not in _SHARES or recipient in half[sender]

        return leaves


def aggregate(
    vectors: ArrayLike,
    graph: nx.Graph,
    method: Method,
    *,
    seed: int = 0,
    reference: ArrayLike | None = None,
    crashes: Mapping[int, CrashPoint] | None = None,
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
    return ensemble.round(models, reference=before, crashes=crashes)


def _as_models(name: str, value: ArrayLike) -> NDArray[np.float32]:
    try:
        given = np.asarray(value)
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as such
            models = np.ascontiguousarray(given.astype(np.float32, casting="same_kind", copy=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be n rows of d numbers each, all of one length: {error}") from None
    if models.ndim != 2 or 0 in models.shape:
        raise DataError(f"{name} has shape {models.shape}, but one row per node is needed: (n, d)")
    return models
