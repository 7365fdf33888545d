"""An in-memory network: delivers frames in any order, loses them, or cuts a node off in mid-round.

By default a frame is delivered the moment it is made and then forgotten, and as many nodes work at once as
there are cores; memory holds one frame per core. With a `shuffle`, frames are gathered and delivered one
by one in random order, which must lead to the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from cesar.errors import RemoteProtocolError
from cesar.node import Node
from cesar.protocol import AggregateReady, FrameRejected
from cesar.types import NodeId
from cesar.wire import Frame

Fate = Callable[[NodeId, NodeId, Frame], bool]
"""(sender, recipient, frame) → whether the frame leaves its sender, or whether it arrives."""


def _always(sender: NodeId, recipient: NodeId, frame: Frame) -> bool:
    return True


class Network:
    """Connects nodes that have begun a round.

    Args:
        nodes: the participants; frames to anybody else get lost.
        pool: threads that carry frames (kernels and the cipher release the interpreter lock).
        leaves: what a node still sends; a crash is a node whose frames stop leaving.
        arrives: what the network does not lose on the way.
        shuffle: deliver one frame at a time in an order drawn from this generator.
    """

    def __init__(
        self,
        nodes: Mapping[NodeId, Node],
        *,
        pool: ThreadPoolExecutor | None = None,
        leaves: Fate = _always,
        arrives: Fate = _always,
        shuffle: np.random.Generator | None = None,
    ) -> None:
        self._nodes, self._leaves, self._arrives, self._shuffle = nodes, leaves, arrives, shuffle
        self._map = map if pool is None else pool.map
        self._locks = {node: threading.Lock() for node in nodes}
        self._flying: list[tuple[NodeId, NodeId, Frame]] = []
        self.rejected: list[RemoteProtocolError] = []

    def run(self) -> dict[NodeId, AggregateReady]:
        """Carry frames and let time pass until every round has ended; the outcomes."""
        while True:
            self._carry()
            waiting = [t for node in self._nodes.values() if (t := node.next_deadline()) is not None]
            if not waiting:
                break
            for node in self._nodes.values():
                node.tick(min(waiting))
        return {node.id: self._outcome(node) for node in self._nodes.values()}

    def _outcome(self, node: Node) -> AggregateReady:
        while isinstance(event := node.next_event(), FrameRejected):
            self.rejected.append(event.error)
        assert event is not None, "every round ends"
        return event

    def _carry(self) -> None:
        """Until no node has anything left to send and nothing is in flight."""
        while any(list(self._map(self._empty_outbox, self._nodes))):
            while self._flying:
                assert self._shuffle is not None
                chosen = int(self._shuffle.integers(len(self._flying)))
                self._flying[chosen], self._flying[-1] = self._flying[-1], self._flying[chosen]
                self._deliver(*self._flying.pop())

    def _empty_outbox(self, sender: NodeId) -> bool:
        """Send all that a node has to send; whether there was anything."""
        node, sent = self._nodes[sender], False
        while True:
            with self._locks[sender]:
                out = next(node.outbound(partial(self._leaves, sender)), None)
            if out is None:
                return sent
            sent = True
            for recipient in out.recipients:
                if not self._arrives(sender, recipient, out.frame):
                    continue
                if self._shuffle is None:
                    self._deliver(sender, recipient, out.frame)
                else:
                    self._flying.append((sender, recipient, out.frame))

    def _deliver(self, sender: NodeId, recipient: NodeId, frame: Frame) -> None:
        node = self._nodes.get(recipient)
        if node is None:
            return
        with self._locks[recipient]:
            try:
                node.receive(sender, frame.payload)
            except RemoteProtocolError as error:
                self.rejected.append(error)
