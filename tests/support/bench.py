"""Node 0 of a small network at every moment of a round, and all that can be seen of it, down to the last byte."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial
from types import BuiltinFunctionType, FunctionType, MethodType

import networkx as nx
import numpy as np

import cesar
from cesar.crypto.keys import VERSION, KeyPair
from cesar.protocol.wire import TOKEN_BYTES, Kind
from support.harness import SESSIONS, Case, outcome, refused

ME, STRANGER, ROUND, SIZE = 0, 99, 7, 70
METHODS = {
    "relay": cesar.Cesar(sparsifier=cesar.TopK(0.5)),
    "direct": cesar.Cesar(sparsifier=cesar.TopK(0.5), coordination="direct", ring_bits=20),
    "random": cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.5), ring_bits=16),
    "secure": cesar.SecureAggregation(),
    "paper": cesar.Cesar.paper(sparsifier=cesar.TopK(0.5), dropout="parameter"),
    "paper-abort": cesar.Cesar.paper(sparsifier=cesar.TopK(0.5)),
    "plain": cesar.DPSGD(sparsifier=cesar.TopK(0.5)),
}
TENSORS = {"random": (64, 6), "relay": (40, 0, 30)}
PHASES = {Kind.ANNOUNCE: 1, Kind.RELAY: 2, Kind.SHARE: 3, Kind.PLAIN_SHARE: 3}
"""To which phase a frame belongs; its deadline is the same number."""


# ── the state of a node, down to the last byte ──────────────────────────────────────────────────────────


def fingerprint(value, seen=None):
    """Everything reachable from a value as nested tuples, so that two moments can be compared."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return value
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return id(value)
    if id(value) in seen:
        return ("again", seen[id(value)][0])
    seen[id(value)] = len(seen), value  # held, so that nothing else gets its id
    return (type(value).__name__, *[fingerprint(part, seen) for part in parts(value)])


def parts(value):
    match value:
        case bytearray() | memoryview():
            return [bytes(value)]
        case np.ndarray():
            return [value.dtype.str, value.shape, value.tobytes()]
        case dict():
            return [part for item in value.items() for part in item]
        case list() | tuple() | deque():
            return value
        case set() | frozenset():
            return sorted(value)
        case partial():
            return [value.func, value.args, value.keywords]
        case MethodType():
            return [value.__func__, value.__self__]
        case KeyPair():
            return [value.public]
        case _:
            return attributes(value)


def attributes(value):
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    for name, attribute in vars(type(value)).items():
        if isinstance(attribute, cached_property):
            getattr(value, name)  # what an object derives from itself, once, is not a change
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    assert held or is_dataclass(value), f"no way to look into {type(value)}"
    return [part for item in held.items() for part in item] + list(getattr(value, "args", ()))


# ── a node at every moment of a round, and every frame that it could get ────────────────────────────────

IDLE, CLOSED = -1, 99


@dataclass(frozen=True)
class Bench:
    """A round of six nodes; node 0 is looked at. `frames` is what an honest run sends it, in order of phase."""

    case: Case
    frames: tuple[tuple[int, bytes], ...]
    result: bytes

    @classmethod
    @cache
    def of(cls, name, round_=ROUND, **settings):
        # Node 5 is two steps from node 0, and 1 and 4 are two steps from each other: somebody relays.
        graph = nx.Graph([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (5, 1), (5, 2), (5, 3)])
        vectors = np.random.default_rng(1).normal(size=(len(graph), SIZE)).astype(np.float32)
        case = Case(
            graph=graph,
            method=METHODS[name],
            vectors=vectors,
            round_=round_,
            tensors=TENSORS.get(name),
            **settings,
        )
        nodes, frames = case.nodes(), []
        while any(list(map(partial(cls._carry, nodes, frames), nodes))):
            pass
        frames.sort(key=lambda item: (PHASES[kind_of(item[1])], item[0]))
        return cls(case, tuple(frames), outcome(nodes[ME]).vector.tobytes())

    @staticmethod
    def _carry(nodes, frames, i):
        busy = False
        for out in nodes[i].outbound():
            busy, payload = True, bytes(out.frame.payload)
            frames += [(i, payload) for to in out.recipients if to == ME]
            for to in out.recipients:
                nodes[to].receive(i, payload)
        return busy

    @property
    def moments(self):
        return (IDLE, *range(len(self.frames) + 1), CLOSED)

    def node(self, moment):
        """Node 0 after so many of its frames, or before the round, or after it was closed."""
        node = self.case.node(ME)
        if moment != IDLE:
            self.case.begin(node)
            self.feed(node, self.frames[:moment])
        if moment == CLOSED:
            node.close()
        return node

    @staticmethod
    def feed(node, frames):
        for sender, payload in frames:
            node.receive(sender, payload)
            list(node.outbound())

    def of_kind(self, kind):
        return [item for item in self.frames if kind_of(item[1]) == kind]

    def before(self, kind):
        """The moment at which frames of this kind begin to come."""
        return sum(PHASES[kind_of(payload)] < PHASES[kind] for _, payload in self.frames)

    @property
    def exponents(self):
        """How many exponents a frame has: one for each tensor."""
        return len(self.case.tensors or (SIZE,))

    @property
    def set_at(self):
        """Where the set of an announcement begins: behind header, token and exponents."""
        return 28 + TOKEN_BYTES + self.exponents


def kind_of(payload):
    return Kind(payload[3])


@cache
def donors(name):
    """Frames of all four kinds, from another network where this one does not have them."""
    found = {
        kind: Bench.of(name).of_kind(kind) for kind in Kind if kind < Kind.CELL_AGREE
    }  # cells have tests of their own
    for kind, other in (
        (Kind.ANNOUNCE, "relay"),
        (Kind.RELAY, "relay"),
        (Kind.SHARE, "relay"),
        (Kind.PLAIN_SHARE, "plain"),
    ):
        found[kind] = found[kind] or Bench.of(other).of_kind(kind)
    return found


def offer(node, sender, payload):
    """Hand a frame over and hold the node to its promise; the refusal, if it is one."""
    before = fingerprint(node)
    error = refused(node, sender, payload)
    if error is not None:
        assert fingerprint(node) == before, f"changed by a frame it refused: {error}"
    return error


def finish(bench, node):
    """Whatever the node has taken, honest frames and the clock bring its round to an end; what it sends until then."""
    if node.next_deadline() is None:
        try:
            bench.case.begin(node)
        except cesar.LocalProtocolError:  # the round is over
            return []
    sent = list(node.outbound())
    for sender, payload in bench.frames:
        refused(node, sender, payload)
        sent += node.outbound()
    while (deadline := node.next_deadline()) is not None:
        node.tick(deadline)
        sent += node.outbound()
    assert outcome(node).vector.shape == (SIZE,)
    return sent


def header(kind, sender, *, magic=b"CE", version=VERSION, round_=ROUND, session=SESSIONS[0]):
    return struct.pack("<2sBBII16s", magic, version, kind, round_, sender, session)
