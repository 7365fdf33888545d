"""A workbench for rounds: random cases, nodes that have begun them, and ways to carry their frames."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import networkx as nx
import numpy as np
from numpy.typing import NDArray

import cesar
from cesar.base.errors import Reason
from cesar.base.seeds import SeedTree
from cesar.crypto.keys import KeyPair, Keyring, PairSecret
from cesar.graph.neighbourhood import neighbourhoods
from cesar.indices import Code, IndexSet, decode
from cesar.methods.sparsify import write_set
from cesar.node import Node
from cesar.protocol import AggregateReady, Deadlines, FrameRejected
from cesar.protocol.wire import Frame, Kind
from cesar.sim.wires import Wires
from support import oracle

DEADLINES = Deadlines(announce=1.0, relay=2.0, share=3.0)
SESSIONS = tuple(hashlib.sha256(bytes([k])).digest()[:16] for k in range(4))
NAMES = {
    Kind.ANNOUNCE: "announce",
    Kind.RELAY: "relay",
    Kind.SHARE: "share",
    Kind.PLAIN_SHARE: "share",
}


@dataclass(frozen=True, slots=True)
class Marked:
    """Selects the positions at which the reference is not zero, so that a test can choose them freely."""

    name: ClassVar[str] = "marked"
    ranks: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    memory: ClassVar[bool] = False
    alpha: ClassVar[float] = 0.5

    def select(self, vector: NDArray, reference: NDArray | None, entropy: object) -> IndexSet:
        return IndexSet.from_positions(np.flatnonzero(reference), len(vector))

    def write(self, indices: IndexSet, code: Code | None) -> bytes:
        return write_set(indices, code)

    def read(self, data: bytes, size: int, *, within: int | None = None) -> IndexSet:
        return decode(data, size if within is None else within)


@cache
def pair_secret(session: bytes, low: int, high: int) -> PairSecret:
    """Any secret that both have will do here; agreeing on one is tested elsewhere and costs more."""
    return PairSecret(
        hashlib.sha512(session + bytes([low % 256, high % 256, low // 256, high // 256])).digest()
    )


def secret_of(session: bytes, i: int, j: int) -> PairSecret:
    return pair_secret(session, min(i, j), max(i, j))


class FakeKeys:
    """A keyring without the agreement: the secrets of `secret_of`; if an ephemeral key was exchanged, one that the
    other side does not have.
    """

    def __init__(self, session: bytes, node: int, secret=secret_of) -> None:
        self.session, self.node, self._secret = session, node, secret

    def public(self, round_: int) -> bytes:
        return hashlib.sha256(b"public" + self.node.to_bytes(4, "little")).digest()

    def ended(self) -> None:
        pass

    def secret(self, peer: int, public: bytes) -> PairSecret:
        found = self._secret(self.session, self.node, peer)
        if public == FakeKeys(self.session, peer).public(0):
            return found
        return PairSecret(hashlib.sha512(found.key + self.public(0) + public).digest())


@cache
def key_pair(node: int) -> KeyPair:
    """A node's long-lived key."""
    return KeyPair.generate(SeedTree(5).entropy("static", node))


def real_keys(session: bytes, node: int, **settings: int) -> Keyring:
    """A keyring with real agreements, static and ephemeral."""
    return Keyring(
        lambda peer: key_pair(node).agree(key_pair(peer).public, session),
        lambda epoch: SeedTree(5).bytes(32, "ephemeral", node, epoch),
        **settings,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One round: who takes part, with what, and which frames get lost."""

    graph: nx.Graph
    method: cesar.Method
    vectors: NDArray[np.float32] = field(repr=False)
    reference: NDArray[np.float32] | None = field(default=None, repr=False)
    session: bytes = SESSIONS[0]
    round_: int = 0
    seed: int = 0
    lost: oracle.Frames = frozenset()
    tensors: tuple[int, ...] | None = None
    keys: Callable[[bytes, int], object] = FakeKeys

    def nodes(self) -> dict[int, Node]:
        """Nodes that have begun the round."""
        nodes = {i: self.node(i) for i in sorted(self.graph)}
        for node in nodes.values():
            self.begin(node)
        return nodes

    def node(self, i: int) -> Node:
        return Node(
            i,
            self.method,
            self.vectors.shape[1],
            session=self.session,
            keys=self.keys(self.session, i),
            first_round=self.round_,
            tensors=self.tensors,
        )

    def begin(self, node: Node, attempt: int = 0) -> None:
        node.begin_round(
            self.round_,
            neighbourhoods(self.graph)[node.id],
            self.vectors[node.id],
            reference=None if self.reference is None else self.reference[node.id],
            entropy=SeedTree(self.seed).entropy("node", node.id, attempt),
            deadlines=DEADLINES,
        )

    def arrives(self, sender: int, recipient: int, frame: Frame) -> bool:
        return (NAMES[frame.kind], sender, recipient) not in self.lost

    def selected(self, nodes: Mapping[int, Node]) -> NDArray[np.bool_]:
        """Row i: what node i selected."""
        flags = np.zeros(self.vectors.shape, dtype=bool)
        for i, node in nodes.items():
            flags[i] = to_flags(node.selected)
        return flags

    def expected(self, selected: NDArray[np.bool_], lost: oracle.Frames | None = None) -> oracle.Outcome:
        """What the oracle says, with other losses if given."""
        lost = self.lost if lost is None else lost
        method = self.method
        if isinstance(method, cesar.DPSGD):
            return oracle.plain_round(self.vectors, self.graph, selected, lost=lost, weights=method.weights)
        rules = oracle.Rules(
            s=method.masks,
            coordination=getattr(method, "coordination", "relay"),
            dropout=method.dropout,
            paper=getattr(method, "decimals", None) is not None,
            weights=method.weights,
            session=self.session,
            round_=self.round_,
        )
        return oracle.masked_round(self.vectors, self.graph, selected, rules, lost)


def to_flags(indices: IndexSet) -> NDArray[np.bool_]:
    flags = np.zeros(indices.size, dtype=bool)
    flags[indices.positions()] = True
    return flags


def tolerance(method: cesar.Method, graph: nx.Graph, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, 1): how far the new model of each node may be from exact arithmetic.

    The grid of r's sum has the step 2^-(b-1-h-E): b bits with a sign, h = ⌈log2 δ⌉ + 1 bits of headroom,
    and 2^E ≥ every value among r's neighbours. A contributor is rounded by at most half a step to nearest
    (b = 32) and by less than a step stochastically, and k of them are divided by k + 1. The result is a
    float32: half a unit in its last place comes on top. D-PSGD has no grid and rounds δ times instead.
    """
    bounds = []
    for r in sorted(graph):
        degree = graph.degree[r]
        float_error = float(np.abs(vectors[[r, *graph[r]]]).max()) * 2.0**-24 + 2.0**-149
        if isinstance(method, cesar.DPSGD):
            bounds.append(2 * degree * float_error)
            continue
        largest = float(np.abs(vectors[list(graph[r])]).max())
        exponent = max(math.ceil(math.log2(largest)), -90) if largest else -90
        step = 2.0 ** -(method.ring_bits - 1 - (math.ceil(math.log2(degree)) + 1) - exponent)
        if getattr(method, "decimals", None) is not None:
            step = 10.0**-method.decimals
        rounding = step / 2 if method.ring_bits == 32 else step
        bounds.append(rounding * degree / (degree + 1) + float_error)
    return np.array(bounds)[:, None]


# ── carrying frames ─────────────────────────────────────────────────────────────────────────────────────


def carry(
    case: Case, nodes: Mapping[int, Node], order: np.random.Generator | None = None
) -> list[AggregateReady]:
    """Through the in-memory network: at once, or in an order drawn from the generator."""
    outcomes = Wires(nodes, arrives=case.arrives, shuffle=order).run()
    return [outcomes[i] for i in sorted(nodes)]


class SkewedClocks:
    """Carries frames while clocks disagree: a deadline passes at any node at any moment, frames in flight
    come after it, and now and then one comes twice.

    `useless` ends up with the frames that had no effect, lost or late; that is all the oracle must know.
    """

    def __init__(self, case: Case, nodes: dict[int, Node], rng: np.random.Generator) -> None:
        self.case, self.nodes, self.rng = case, nodes, rng
        self.haste = rng.choice([0.0, 0.02, 0.1, 0.5])  # how often a clock runs ahead of the network
        self.flying: list[tuple[int, int, Frame]] = []
        self.came: set[tuple[str, int, int]] = set()
        self.useless = set(case.lost)

    def run(self) -> list[AggregateReady]:
        while self.step():
            pass
        return [outcome(node) for node in self.nodes.values()]

    def step(self) -> bool:
        for i, node in self.nodes.items():
            for out in node.outbound():
                self.flying += [
                    (i, to, out.frame) for to in out.recipients if self.case.arrives(i, to, out.frame)
                ]
        waiting = [node for node in self.nodes.values() if node.next_deadline() is not None]
        if waiting and (not self.flying or self.rng.random() < self.haste):
            node = waiting[self.rng.integers(len(waiting))]
            node.tick(node.next_deadline())
        elif self.flying:
            self.deliver(int(self.rng.integers(len(self.flying))))
        return bool(waiting or self.flying)

    def deliver(self, k: int) -> None:
        sender, recipient, frame = self.flying[k]
        if self.rng.random() < 0.95:
            self.flying[k] = self.flying[-1]
            self.flying.pop()
        node, name = self.nodes[recipient], (NAMES[frame.kind], sender, recipient)
        if name not in self.came and is_late(node, frame):
            self.useless.add(name)
        self.came.add(name)
        refused(node, sender, frame.payload)


def is_late(node: Node, frame: Frame) -> bool:
    """Whether the phase that a frame belongs to is over; the next deadline tells which phase it is."""
    now = node.next_deadline() or math.inf
    return now > getattr(DEADLINES, NAMES[frame.kind])


def refused(node: Node, sender: int, payload: bytes) -> cesar.RemoteProtocolError | None:
    """Hand a frame over; the refusal, if it is one."""
    try:
        node.receive(sender, payload)
    except cesar.RemoteProtocolError as error:
        return error
    return None


def outcome(node: Node) -> AggregateReady:
    while isinstance(event := node.next_event(), FrameRejected):
        assert event.error.reason is not Reason.FAULT, event.error
    assert event is not None, "the round has not ended"
    assert event.fault is None, event.fault
    return event


# ── random cases ────────────────────────────────────────────────────────────────────────────────────────


def random_graph(rng: np.random.Generator, lowest: int = 4, highest: int = 9) -> nx.Graph:
    """Connected: a ring with chords to fixed distances, or a random tree with any number of further edges."""
    n = int(rng.integers(lowest, highest + 1))
    if rng.random() < 0.3:
        graph = nx.circulant_graph(n, range(1, int(rng.integers(1, n // 2 + 1)) + 1))
        return nx.relabel_nodes(graph, dict(enumerate(rng.permutation(n).tolist())))
    graph = nx.Graph((int(rng.integers(i)), i) for i in range(1, n))
    density = rng.random()
    graph.add_edges_from((i, j) for i in range(n) for j in range(i) if rng.random() < density)
    return graph


def random_vectors(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float32]:
    """Models whose scales differ, sometimes wildly; some are zero."""
    spread = rng.choice([0, 1, 8])
    scales = 2.0 ** rng.integers(-spread, spread + 1, size=(n, 1)) * (rng.random((n, 1)) > 0.05)
    unit = rng.choice([1.0, 1e-25, 1e25], p=[0.8, 0.1, 0.1])
    return (unit * scales * rng.normal(size=(n, d))).astype(np.float32)


def random_sparsifier(rng: np.random.Generator) -> object:
    kinds = (Marked, cesar.TopK, cesar.RandomSubsampling)
    kind = kinds[rng.choice(3, p=[0.6, 0.2, 0.2])]
    return kind() if kind is Marked else kind(float(rng.uniform(0.1, 1)))


def random_method(rng: np.random.Generator) -> cesar.Method:
    sparsifier, s = random_sparsifier(rng), int(rng.choice([1, 2, 3, 4], p=[0.4, 0.3, 0.2, 0.1]))
    dropout = str(rng.choice(["parameter", "abort"], p=[0.8, 0.2]))
    weights = str(rng.choice(["arrived", "neighbours"], p=[0.7, 0.3]))
    match rng.choice(["relay", "direct", "paper", "secure", "plain"], p=[0.45, 0.2, 0.2, 0.08, 0.07]):
        case "paper":
            return cesar.Cesar.paper(sparsifier=sparsifier, masking_requirement=s, dropout=dropout)
        case "secure":
            return cesar.SecureAggregation(
                ring_bits=int(rng.choice([16, 32])), dropout=dropout, weights=weights
            )
        case "plain":
            return cesar.DPSGD(sparsifier=sparsifier, weights=weights)
        case coordination:
            return cesar.Cesar(
                sparsifier=sparsifier,
                masking_requirement=s,
                ring_bits=int(rng.choice([16, 20, 24, 32])),
                coordination=str(coordination),
                dropout=dropout,
                weights=weights,
            )


def random_losses(rng: np.random.Generator, graph: nx.Graph) -> oracle.Frames:
    """Each kind of frame has its own chance to get lost, and some nodes fall silent."""
    lost = set()
    for kind in oracle.KINDS:
        chance = rng.choice([0.0, 0.02, 0.1, 0.3, 0.6], p=[0.4, 0.3, 0.15, 0.1, 0.05])
        gone = rng.random((len(graph), len(graph))) < chance
        lost |= {(kind, int(i), int(j)) for i, j in np.argwhere(gone)}
    points = rng.choice(oracle.POINTS, size=len(graph))
    silent = {i: str(points[i]) for i in graph if rng.random() < 0.05}
    halves = {i: {j for j in graph if rng.random() < 0.5} for i in graph}
    return frozenset(lost) | oracle.crash_losses(graph, silent, halves)


def random_case(rng: np.random.Generator) -> Case:
    graph, method = random_graph(rng), random_method(rng)
    n, d = len(graph), int(rng.integers(8, 131))
    densities = rng.choice([0.0, 0.3, 0.6, 0.95, 1.0], size=(n, 1), p=[0.05, 0.3, 0.4, 0.2, 0.05])
    decimals = getattr(method, "decimals", None) is not None
    cuts = sorted(rng.integers(0, d + 1, size=int(rng.integers(4))).tolist())
    return Case(
        graph=graph,
        method=method,
        vectors=np.float32(rng.uniform(-99, 99, size=(n, d))) if decimals else random_vectors(rng, n, d),
        reference=(rng.random((n, d)) < densities).astype(np.float32),
        session=SESSIONS[rng.integers(len(SESSIONS))],
        round_=int(rng.integers(1 << 31)),
        seed=int(rng.integers(1 << 31)),
        lost=random_losses(rng, graph),
        tensors=tuple(np.diff([0, *cuts, d]).tolist()) if cuts else None,
    )
