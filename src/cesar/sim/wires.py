"""Wires: carries frames between nodes in memory, in any order; loses them, or cuts a node off in mid-round.

Nodes are actors. A worker takes a node, lets it read its mail and takes a few frames from it; nobody else touches
the node meanwhile. Where much mail waits, nodes that have some come first, and where there is more nobody sends, so that
memory holds a few frames at a time, however large they are. With a `shuffle`, frames are gathered and
delivered one by one in random order, which must lead to the same result. Where nodes live in several processes, each
has wires of its own nodes; what is for others leaves them in `carry` and is handed to theirs.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from cesar.base.errors import Reason, RemoteProtocolError
from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.protocol import AggregateReady, Event, FrameRejected, Outbound
from cesar.protocol.wire import Frame

Fate = Callable[[NodeId, NodeId, Frame], bool]
"""(sender, recipient, frame) → whether the frame leaves its sender, or whether it arrives."""

Letter = tuple[NodeId, tuple[NodeId, ...], Buffer]
"""(sender, recipients, payload)."""

Mail = deque[tuple[NodeId, Buffer]]

LEAVING_BYTES = 64 << 20
"""About how many bytes for nodes elsewhere one `carry` lets go of, so that memory stays bounded."""

BATCH_BYTES = 1 << 20
"""Small frames travel together, which saves turns; a large one travels alone, which saves memory."""

URGENT_BYTES = 4 << 20
"""While less mail than this waits, nodes take turns, so that one finds several frames at once; else those with mail come
first and find it in the cache."""

WAITING_BYTES = 16 << 20
"""While more mail than this waits, nodes read and do not send."""


_T = TypeVar("_T")


class Participant(Protocol):
    """What wires need of a node, whatever its method."""

    @property
    def id(self) -> NodeId: ...

    def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None: ...

    def outbound(self, leaves: Callable[[NodeId, Frame], bool] | None = None) -> Iterator[Outbound]: ...

    def next_event(self) -> Event | None: ...

    def next_deadline(self) -> float | None: ...

    def tick(self, now: float) -> None: ...


class _State(Enum):
    """What becomes of a node: IDLE → QUEUED → AT_WORK → IDLE, and from AT_WORK by way of CALLED back to QUEUED."""

    IDLE = 0
    QUEUED = 1
    AT_WORK = 2
    CALLED = 3  # at work, and there is more to do


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Without Python's search for cycles, which walks over all objects of all nodes again and again; a round leaves none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Wires:
    """Connects nodes that have begun a round.

    Args:
        nodes: the participants that live here.
        elsewhere: participants on the wires of other processes; frames to anybody else get lost.
        pool: has `workers` threads for us (kernels and the cipher release the interpreter lock).
        leaves: what a node still sends, by default everything; a crash is a node whose frames stop leaving.
        arrives: what is not lost on the way, by default nothing is.
        shuffle: deliver one frame at a time in an order drawn from this generator.
    """

    def __init__(
        self,
        nodes: Mapping[NodeId, Participant],
        *,
        elsewhere: Container[NodeId] = (),
        pool: Executor | None = None,
        workers: int = 1,
        leaves: Fate | None = None,
        arrives: Fate | None = None,
        shuffle: np.random.Generator | None = None,
    ) -> None:
        self._nodes, self._leaves, self._arrives, self._shuffle = nodes, leaves, arrives, shuffle
        self._elsewhere, self._pool, self._workers = elsewhere, pool, workers
        self._lock = threading.Lock()  # guards all that follows
        self._changed = threading.Condition(self._lock)
        self._idle = 0  # workers that wait for a change
        self._waiting = 0  # bytes of mail that nobody has read yet
        self._mail: dict[NodeId, Mail] = {node: deque() for node in nodes}
        self._states = dict.fromkeys(nodes, _State.IDLE)
        self._queue: deque[NodeId] = deque()  # a node may stand in it twice; its state says if it is due
        self._busy = 0
        self._flying: list[Letter] = []
        self._leaving: list[Letter] = []
        self._room = LEAVING_BYTES
        self.rejected: list[RemoteProtocolError] = []

    def run(self) -> dict[NodeId, AggregateReady]:
        """Carry frames and let time pass until every round has ended; the outcomes."""
        self.complete()
        return self.outcomes()

    def complete(self) -> None:
        """Carry frames and let time pass until every round has ended."""
        self.carry()
        while (deadline := self.deadline) is not None:
            self.tick(deadline)
            self.carry()

    def carry(self, mail: Iterable[Letter] = ()) -> list[Letter]:
        """Deliver mail from elsewhere and go on until no node here has anything left to send.

        Returns what is for nodes elsewhere. Where that is much, nodes are held back: see `held`.
        """
        self._leaving, self._room = [], LEAVING_BYTES
        self._deliver(mail)
        with self._lock:
            for node in self._nodes:
                self._call(node)
        with _no_collections():
            self._carry()
        return self._leaving

    @property
    def held(self) -> bool:
        """Whether `carry` must be called again, even without mail."""
        return self._room <= 0

    @property
    def deadline(self) -> float | None:
        """When to call `tick` once nothing is in flight anywhere; None when all rounds have ended."""
        return min(
            (t for node in self._nodes.values() if (t := node.next_deadline()) is not None), default=None
        )

    def tick(self, now: float) -> None:
        """Let time pass."""
        for node in self._nodes.values():
            node.tick(now)

    def outcomes(self) -> dict[NodeId, AggregateReady]:
        """How the rounds ended; told once."""
        return {node.id: self._outcome(node) for node in self._nodes.values()}

    def _outcome(self, node: Participant) -> AggregateReady:
        while isinstance(event := node.next_event(), FrameRejected):
            if event.error.reason is Reason.FAULT:
                raise event.error  # everybody is of our own making here
            self.rejected.append(event.error)
        assert event is not None, "every round ends"
        if event.fault is not None:
            raise event.fault
        return event

    def _carry(self) -> None:
        """Until no node has anything left to send and nothing is in flight."""
        self._work_together()
        while self._flying:
            assert self._shuffle is not None
            chosen = int(self._shuffle.integers(len(self._flying)))
            self._flying[chosen], self._flying[-1] = self._flying[-1], self._flying[chosen]
            self._deliver([self._flying.pop()])
            self._work_together()

    def _work_together(self) -> None:
        if self._pool is None:
            self._work()
        else:
            list(self._pool.map(lambda _: self._work(), range(self._workers)))

    def _work(self) -> None:
        """Serve nodes until nothing is left to do."""
        served, more = None, False
        while (due := self._next(served, more)) is not None:
            served, mail = due
            try:
                more = self._serve(served, mail)
            except BaseException:
                with self._lock:
                    self._release(served, more=False)
                raise

    def _serve(self, node: NodeId, mail: Mail) -> bool:
        """Let a node read, and send unless much is under way; whether it may have more to send."""
        if mail:
            self._read(node, mail)
            if self._waiting > WAITING_BYTES:
                return True  # others must read first, or memory fills with frames; this node comes up again
        return self._send(node)

    def _next(self, served: NodeId | None, more: bool) -> tuple[NodeId, Mail] | None:
        """Give a node back and take the next one with its mail; waits while others are at work and may call for more.

        None if all is done: no node is queued, and none is at work that could send something. The last worker to find that out
        wakes all others, so that they find it out, too. Giving back and taking are one step under the lock: in between, a worker
        that waits would see nobody at work and go home too early.
        """
        with self._lock:
            if served is not None:
                self._release(served, more)
            while True:
                while self._queue:
                    # An urgent node was put in front while it stood further back already. The first time it comes up it is
                    # QUEUED and is served; the second time it is not, and is passed over.
                    node = self._queue.popleft()
                    if self._states[node] is _State.QUEUED:
                        self._states[node] = _State.AT_WORK
                        self._busy += 1
                        # It gets all its mail at once. What comes from here on makes it CALLED, and it is queued once more.
                        mail, self._mail[node] = self._mail[node], deque()
                        self._waiting -= sum(len(payload) for _, payload in mail)
                        return node, mail
                if self._busy == 0:
                    self._changed.notify_all()
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _release(self, node: NodeId, more: bool) -> None:
        self._busy -= 1
        called = self._states[node] is _State.CALLED
        self._states[node] = _State.IDLE
        if more or called:
            self._call(node, has_mail=called)
        elif self._busy == 0:
            self._changed.notify_all()

    def _call(self, node: NodeId, *, has_mail: bool = False) -> None:
        """Have a node served; where much waits, one with mail before those that may only have something to send."""
        state = self._states[node]
        if state is _State.AT_WORK or state is _State.CALLED:
            self._states[node] = _State.CALLED
            return
        if has_mail and self._waiting > URGENT_BYTES:
            self._queue.appendleft(node)
        elif state is _State.IDLE:
            self._queue.append(node)
        self._states[node] = _State.QUEUED
        if self._idle:
            self._changed.notify()

    def _read(self, node: NodeId, mail: Mail) -> None:
        receive = self._nodes[node].receive
        for sender, payload in mail:
            try:
                receive(sender, payload)
            except RemoteProtocolError as error:
                self.rejected.append(error)

    def _send(self, sender: NodeId) -> bool:
        """Take frames from a node, about `BATCH_BYTES` at a time; whether there may be more."""
        if self.held:
            return False
        leaves = None if self._leaves is None else partial(self._leaves, sender)
        room, more = BATCH_BYTES, False
        letters: list[Letter] = []
        leaving: list[Letter] = []
        for out in self._nodes[sender].outbound(leaves):
            payload = out.frame.payload
            if here := self._reached(sender, out):
                letters.append((sender, here, payload))
            if self._elsewhere and (there := tuple(to for to in out.recipients if to in self._elsewhere)):
                leaving.append((sender, there, payload))
            room -= len(payload)
            if room <= 0:
                more = True
                break
        if leaving:
            with self._lock:
                self._leaving += leaving
                self._room -= sum(len(payload) for _, _, payload in leaving)
        if self._shuffle is None:
            self._deliver(letters)
        else:
            self._flying += [(sender, (to,), payload) for sender, here, payload in letters for to in here]
        return more

    def _reached(self, sender: NodeId, out: Outbound) -> tuple[NodeId, ...]:
        """The nodes here that a frame gets to."""
        arrives, here = self._arrives, tuple(filter(self._nodes.__contains__, out.recipients))
        return here if arrives is None else tuple(to for to in here if arrives(sender, to, out.frame))

    def _deliver(self, letters: Iterable[Letter]) -> None:
        with self._lock:
            reached = {}
            for sender, recipients, payload in letters:
                self._waiting += len(recipients) * len(payload)
                for recipient in recipients:
                    self._mail[recipient].append((sender, payload))
                    reached[recipient] = True
            for recipient in reached:
                self._call(recipient, has_mail=True)


def drive(exchange: Generator[Wires, None, _T]) -> _T:
    """Let the wires that an exchange yields come to rest, one after the other; what the exchange returns."""
    while True:
        try:
            wires = next(exchange)
        except StopIteration as end:
            outcome: _T = end.value
            return outcome
        wires.complete()
