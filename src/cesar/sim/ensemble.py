"""Ensemble: all nodes of a simulated network, kept from round to round; and `aggregate`, one round of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cesar import bits, memory
from cesar.crypto.keys import Attempt, KeyPair, Keyring, PairSecret
from cesar.errors import ConfigError, DataError
from cesar.grouping import Groups
from cesar.indices import IndexSet
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.node import Node, drawn_towards
from cesar.protocol import Deadlines
from cesar.seeds import SeedTree
from cesar.sim import streams
from cesar.sim.network import Fate, Network
from cesar.topology import check_graph, neighbourhoods
from cesar.types import NodeId, RoundNo
from cesar.wire import CATEGORIES, Frame, Kind

CrashPoint = Literal["before_announce", "after_announce", "after_coordination", "during_share"]
Watch = Callable[[NodeId, NodeId, Frame], None]
_SHARES = (Kind.SHARE, Kind.PLAIN_SHARE)
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
    """

    vectors: NDArray[np.float32] = field(repr=False)
    entered: NDArray[np.float32] = field(repr=False)
    tally: Tally
    sets: tuple[IndexSet, ...] = field(repr=False)

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
        """(n, d): what each node selected. With coordinated subsampling row r is the set that all
        neighbours of r use towards r.
        """
        return np.stack([bits.to_bools(chosen.words, chosen.size) for chosen in self.sets])

    @property
    def total_bytes(self) -> int:
        """Everything that everybody sent."""
        return int(sum(counts.sum() for counts in self.bytes.values()))


class _Keys:
    """Agreement keys drawn from the run's seed; keys and secrets are computed when first needed."""

    def __init__(self, seeds: SeedTree, session: bytes) -> None:
        self._seeds, self._session = seeds, session
        self._pairs: dict[int, KeyPair] = {}
        self._secrets: dict[tuple[int, int], PairSecret] = {}

    def secret(self, node: NodeId, peer: NodeId) -> PairSecret:
        if (node, peer) not in self._secrets:
            self._secrets[node, peer] = self._pair(node).agree(self._pair(peer).public, self._session)
        return self._secrets[node, peer]

    def ring(self, node: NodeId) -> Keyring:
        """A node's keys; its ephemeral ones depend on the epoch alone, so that a resumed run is the same."""

        def ephemeral(epoch: int) -> bytes:
            return self._seeds.entropy("ephemeral", epoch, node)(32)

        return Keyring(partial(self.secret, node), ephemeral)

    def _pair(self, node: int) -> KeyPair:
        if node not in self._pairs:
            self._pairs[node] = KeyPair.generate(streams.key_entropy(self._seeds, node))
        return self._pairs[node]


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
    ) -> None:
        if not isinstance(method, Cesar | SecureAggregation | DPSGD):
            raise ConfigError(f"{method!r} is not a method; use Cesar(…), SecureAggregation() or DPSGD(…)")
        self._noise, self.steps = (
            (method.noise, method.gossip_steps) if isinstance(method, DPSGD) else (0.0, 1)
        )
        if isinstance(method, DPSGD):
            method = replace(method, noise=0.0, gossip_steps=1)  # what one step of the engine does
        self._method, self._size, self._seeds = method, size, SeedTree(seed)
        self._count, self._here = len(graph), range(len(graph)) if nodes is None else nodes
        self._workers = workers or (os.cpu_count() or 1 if size >= THREADED_SIZE else 1)
        self._pool = ThreadPoolExecutor(self._workers)
        self._session = streams.session(self._seeds)
        self._nodes: list[Node] = []
        self._keys = _Keys(self._seeds, self._session)
        self.use_graph(graph)
        self.rewind(first_round)

    def rewind(self, round_: int) -> None:
        """Go on with this round, which may be one that has begun or ended: it will be exactly the same again."""
        self._next_round = round_ * self.steps  # each gossip step is a round of the engine
        self._nodes = [
            Node(
                i,
                self.method,
                self._size,
                session=self._session,
                keys=self._keys.ring(i),
                first_round=self._next_round,
            )
            for i in map(NodeId, self._here)
        ]

    def use_graph(self, graph: nx.Graph) -> None:
        """Average along these edges from now on; in strict mode with the s that this graph asks for.

        Raises:
            ConfigError, PrivacyError: nothing sensible can be averaged on it.
        """
        check_graph(graph, self._count)
        self.method = self._method.for_graph(graph)
        self._hoods = neighbourhoods(graph, self._here)
        for node in self._nodes:
            node.use_method(self.method)

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
        vectors: NDArray[np.float32],
        *,
        reference: NDArray[np.float32] | None = None,
        crashes: Mapping[int, CrashPoint] | None = None,
        out: NDArray[np.float32] | None = None,
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
        self.begin(vectors, reference=reference, crashes=crashes, out=out, watch=watch).complete()
        for _ in range(self.steps - 1):
            self.proceed().complete()
        return self.finish()

    def begin(
        self,
        vectors: NDArray[np.float32],
        *,
        reference: NDArray[np.float32] | None = None,
        crashes: Mapping[int, CrashPoint] | None = None,
        out: NDArray[np.float32] | None = None,
        watch: Watch | None = None,
    ) -> Network:
        """Begin what `round` does as a whole: let the network that is returned come to its end, then `proceed` with the
        next gossip step in the same way until `steps` are done, then `finish`.
        """
        crashes = crashes or {}
        self._check_models("vectors", vectors)
        if reference is not None:
            self._check_models("reference", reference)
        self._check_crashes(crashes)
        self._given, self._crashes, self._out, self._watch = vectors, crashes, out, watch
        self._results: list[RoundResult] = []
        return self._exchange(self._with_noise(vectors), reference)

    def proceed(self) -> Network:
        """The next gossip step: what is shared is now the last step's result."""
        self._results.append(self._result())
        return self._exchange(self._results[-1].vectors, None)

    def finish(self) -> RoundResult:
        """The result of the round that has begun, once the network of its last step has come to its end."""
        results = [*self._results, self._result()]
        first, vectors = results[0], results[-1].vectors
        for row, i in enumerate(self._here):
            if i in self._crashes:
                vectors[row] = self._given[row]
        sent = {name: np.sum([one.bytes[name] for one in results], axis=0) for name in CATEGORIES}
        return replace(first, vectors=vectors, tally=replace(first.tally, bytes=sent))

    def _with_noise(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """One stream for all nodes in their order: those of other places are drawn and dropped."""
        if not self._noise:
            return vectors
        draw, here = self._seeds.generator("noise", self._next_round), frozenset(self._here)
        drawn = (draw.standard_normal(self._size, dtype=np.float32) for _ in range(max(here) + 1))
        rows = [row for i, row in enumerate(drawn) if i in here]
        return vectors + np.float32(self._noise) * np.stack(rows)

    def _exchange(self, vectors: NDArray[np.float32], reference: NDArray[np.float32] | None) -> Network:
        """Begin one round of the engine."""
        round_, crashes, watch = RoundNo(self._next_round), self._crashes, self._watch
        is_last = len(self._results) + 1 == self.steps
        result = np.empty_like(vectors) if self._out is None or not is_last else self._out

        def begin(row: int) -> None:
            node = self._nodes[row]
            try:
                node.begin_round(
                    round_,
                    self._hoods[node.id],
                    vectors[row],
                    reference=None if reference is None else reference[row],
                    out=result[row],
                    entropy=streams.round_entropy(self._seeds, round_, node.id),
                    deadlines=_DEADLINES,
                )
            except DataError as error:
                raise DataError(f"node {node.id}: {error}") from None

        list(self._pool.map(begin, range(len(self._nodes))))
        self._next_round += 1
        up = {NodeId(i) for i in range(self._count) if crashes.get(i) != "before_announce"}

        def arrives(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
            if watch is not None:
                watch(sender, recipient, frame)
            return True

        self._network = Network(
            {node.id: node for node in self._nodes if node.id in up},
            elsewhere=up.difference(self._here),
            pool=self._pool,
            workers=self._workers,
            leaves=self._crash_filter(crashes, round_),
            arrives=arrives,
        )
        self._current = (round_, vectors, result)
        return self._network

    def _result(self) -> RoundResult:
        """Of one round of the engine."""
        round_, vectors, result = self._current
        self._network.outcomes()
        for error in self._network.rejected:
            raise error  # these nodes are honest: a refused frame is a fault that must show
        for node in self._nodes:
            node.close()
        for row, i in enumerate(self._here):
            if i in self._crashes:
                result[row] = vectors[row]
        return RoundResult(
            vectors=result,
            entered=vectors,
            tally=self._tally(),
            sets=tuple(self._set_of(node, round_) for node in self._nodes),
        )

    def _check_models(self, name: str, models: NDArray[np.float32]) -> None:
        if models.shape != (len(self._here), self._size) or models.dtype != np.float32:
            raise DataError(
                f"{name} are {models.shape} of {models.dtype}, but this network averages "
                f"{(len(self._here), self._size)} of float32"
            )

    def _check_crashes(self, crashes: Mapping[int, CrashPoint]) -> None:
        for node, point in crashes.items():
            if point not in get_args(CrashPoint):
                points = ", ".join(get_args(CrashPoint))
                raise ConfigError(f"unknown crash point {point!r} for node {node}; choose one of {points}")
            if node not in range(self._count):
                raise ConfigError(f"node {node} cannot crash: there are nodes 0..{self._count - 1}")

    def _tally(self) -> Tally:
        ledgers = [node.ledger for node in self._nodes]
        return Tally(
            bytes={c: np.array([ledger.sent[c] for ledger in ledgers], dtype=np.int64) for c in CATEGORIES},
            shares=sum(ledger.shares for ledger in ledgers),
            parameters=sum(ledger.parameters for ledger in ledgers),
            size=self._size,
        )

    def _set_of(self, node: Node, round_: RoundNo) -> IndexSet:
        if node.selected is not None:
            return node.selected
        return drawn_towards(self.method, node.id, Attempt(session=self._session, round_=round_), self._size)

    def _crash_filter(self, crashes: Mapping[int, CrashPoint], round_: RoundNo) -> Fate:
        """Which frames still leave a node that crashes in this round."""
        half: dict[int, set[NodeId]] = {}
        for i, point in crashes.items():
            if point == "during_share" and i in self._hoods:
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
    try:
        return ensemble.round(models, reference=before, crashes=crashes)
    finally:
        ensemble.close()


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
