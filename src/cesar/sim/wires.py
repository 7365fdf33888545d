"""Wires: carries frames between nodes in memory, in any order; loses them, or cuts a node off in mid-round.

Nodes are actors. A worker takes a node that has mail and lets it read, or one that may have something to
send and takes a few frames from it; nobody else touches the node meanwhile. Nodes with mail come first, so
that memory holds a few frames at a time, however large they are. With a `shuffle`, frames are gathered and
delivered one by one in random order, which must lead to the same result. Where nodes live in several processes, each
has wires of its own nodes; what is for others leaves them in `carry` and is handed to theirs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from cesar.errors import Reason, RemoteProtocolError
from cesar.node import Node
from cesar.protocol import AggregateReady, FrameRejected
from cesar.types import Buffer, NodeId
from cesar.wire import Frame

Fate = Callable[[NodeId, NodeId, Frame], bool]
"""(sender, recipient, frame) → whether the frame leaves its sender, or whether it arrives."""

Letter = tuple[NodeId, tuple[NodeId, ...], Buffer]
"""(sender, recipients, payload)."""

Mail = deque[tuple[NodeId, Buffer]]

LEAVING_BYTES = 64 << 20
"""One `carry` lets go of about so much that is for nodes elsewhere, so that memory stays bounded."""

BATCH_BYTES = 1 << 20
"""Small frames travel together, which saves turns; a large one travels alone, which saves memory."""


_T = TypeVar("_T")


class _State(Enum):
    IDLE = 0
    QUEUED = 1
    AT_WORK = 2
    CALLED = 3  # at work, and there is more to do


def _always(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
    return True


class Wires:
    """Connects nodes that have begun a round.

    Args:
        nodes: the participants that live here.
        elsewhere: participants on the wires of other processes; frames to anybody else get lost.
        pool: has `workers` threads for us (kernels and the cipher release the interpreter lock).
        leaves: what a node still sends; a crash is a node whose frames stop leaving.
        arrives: what is not lost on the way.
        shuffle: deliver one frame at a time in an order drawn from this generator.
    """

    def __init__(
        self,
        nodes: Mapping[NodeId, Node],
        *,
        elsewhere: Container[NodeId] = (),
        pool: Executor | None = None,
        workers: int = 1,
        leaves: Fate = _always,
        arrives: Fate = _always,
        shuffle: np.random.Generator | None = None,
    ) -> None:
        self._nodes, self._leaves, self._arrives, self._shuffle = nodes, leaves, arrives, shuffle
        self._elsewhere, self._pool, self._workers = elsewhere, pool, workers
        self._changed = threading.Condition()  # guards all that follows
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
        for node in self._nodes:
            self._call(node)
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

    def _outcome(self, node: Node) -> AggregateReady:
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
        while (due := self._next()) is not None:
            node, mail = due
            more = False
            try:
                more = self._read(node, mail) if mail else self._send(node)
            finally:
                self._release(node, more)

    def _next(self) -> tuple[NodeId, Mail] | None:
        """A node to serve, and its mail; waits while others are at work and may call for more."""
        with self._changed:
            while True:
                while self._queue:
                    node = self._queue.popleft()
                    if self._states[node] is _State.QUEUED:
                        self._states[node] = _State.AT_WORK
                        self._busy += 1
                        mail, self._mail[node] = self._mail[node], deque()
                        return node, mail
                if self._busy == 0:
                    self._changed.notify_all()
                    return None
                self._changed.wait()

    def _release(self, node: NodeId, more: bool) -> None:
        with self._changed:
            self._busy -= 1
            called = self._states[node] is _State.CALLED
            self._states[node] = _State.IDLE
            if more or called:
                self._call(node, urgent=called)
            elif self._busy == 0:
                self._changed.notify_all()

    def _call(self, node: NodeId, *, urgent: bool = False) -> None:
        """Have a node served; one with mail before those that may only have something to send."""
        with self._changed:
            if self._states[node] in (_State.AT_WORK, _State.CALLED):
                self._states[node] = _State.CALLED
                return
            if urgent:
                self._queue.appendleft(node)
            elif self._states[node] is _State.IDLE:
                self._queue.append(node)
            self._states[node] = _State.QUEUED
            self._changed.notify()

    def _read(self, node: NodeId, mail: Mail) -> bool:
        for sender, payload in mail:
            try:
                self._nodes[node].receive(sender, payload)
            except RemoteProtocolError as error:
                self.rejected.append(error)
        return True

    def _send(self, sender: NodeId) -> bool:
        """Take frames from a node, about `BATCH_BYTES` at a time; whether there were any."""
        if self.held:
            return False
        leaves, room = partial(self._leaves, sender), BATCH_BYTES
        letters: list[Letter] = []
        leaving: list[Letter] = []
        for out in self._nodes[sender].outbound(leaves):
            payload = out.frame.payload
            here = (to for to in out.recipients if to in self._nodes and self._arrives(sender, to, out.frame))
            letters += [(sender, (to,), payload) for to in here]
            if there := tuple(to for to in out.recipients if to in self._elsewhere):
                leaving.append((sender, there, payload))
            room -= len(payload)
            if room <= 0:
                break
        else:
            if room == BATCH_BYTES:
                return False
        if leaving:
            with self._changed:
                self._leaving += leaving
                self._room -= sum(len(payload) for _, _, payload in leaving)
        if self._shuffle is None:
            self._deliver(letters)
        else:
            self._flying += letters
        return True

    def _deliver(self, letters: Iterable[Letter]) -> None:
        with self._changed:
            reached = set()
            for sender, recipients, payload in letters:
                for recipient in recipients:
                    self._mail[recipient].append((sender, payload))
                    reached.add(recipient)
            for recipient in reached:
                self._call(recipient, urgent=True)


def drive(exchange: Generator[Wires, None, _T]) -> _T:
    """Let the wires that an exchange yields come to rest, one after the other; what the exchange returns."""
    while True:
        try:
            wires = next(exchange)
        except StopIteration as end:
            outcome: _T = end.value
            return outcome
        wires.complete()
