"""The node of a peer, and the one thread that touches it.

Links live on the event loop. Everything that touches the engine runs here, one call at a time; a link reads on when
its frame has been taken in, so a neighbour cannot flood this peer. The node of a small model shares the thread of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from cesar.node import Node
from cesar.peer import spans
from cesar.peer.spans import Work
from cesar.protocol import Event, Outbound
from cesar.types import LastSum, NodeId
from cesar.wire import Kind

_T = TypeVar("_T")

LIGHT = 1 << 20
"""Nodes of models with no more parameters work on the event loop: none of their jobs takes much longer than the 5 ms that threads
keep the interpreter for, and every way to another thread and back costs two switches and a wait.
"""


class EngineThread:
    """Runs calls of a node; there is none until the size of the model is known, and for a moment when the roster changes."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._made = asyncio.Event()
        self._node: Node | None = None

    @property
    def node(self) -> Node | None:
        return self._node

    def use(self, node: Node | None) -> None:
        """Run the calls that follow with this node; with None, they wait for the next one."""
        self._node = node
        if node is None:
            self._made.clear()
        else:
            self._made.set()

    async def ready(self) -> Node:
        """The node, as soon as there is one; to ask for what never changes."""
        while self._node is None:
            await self._made.wait()
        return self._node

    async def call(self, job: Callable[[Node], _T], work: Work | None = None) -> _T:
        """Run something on the thread, as soon as there is a node; `work` is what a picture of the round calls it."""
        node = await self.ready()
        if node.size > LIGHT:
            return await asyncio.get_running_loop().run_in_executor(self._thread, _timed, job, node, work)
        try:
            return _timed(job, node, work)
        finally:
            await asyncio.sleep(0)  # links have their turn between two jobs

    async def close(self) -> None:
        """Forget all secrets of the round and end the thread."""
        if self._node is not None:
            await self.call(Node.close)
        self._thread.shutdown()


def _timed(job: Callable[[Node], _T], node: Node, work: Work | None) -> _T:
    begun = spans.begin()
    try:
        return job(node)
    finally:
        if work is not None:
            spans.end(work, begun)


class Step(NamedTuple):
    """What a node wants after a step.

    Attributes:
        out: a frame to send; there may be more.
        deadline: until when it waits for others; None if it does not.
        joinable: whether a neighbour that comes only now can still take part in the round.
        sums: to be made durable before the frame is sent; None if nothing has changed.
    """

    out: Outbound | None
    events: list[Event]
    deadline: float | None
    joinable: bool
    sums: list[LastSum] | None


def advance(
    node: Node, *, gone: frozenset[NodeId], leaves: Callable[[NodeId], bool], clock: Callable[[], float]
) -> Step:
    """End what need not or can not be waited for, and make the next frame.

    Args:
        gone: neighbours whose frames are not worth waiting for.
        leaves: whether a frame can be sent to a neighbour at all.
    """
    begun = spans.begin()
    while (deadline := node.next_deadline()) is not None and (node.awaiting <= gone or clock() >= deadline):
        node.tick(deadline)
    out = next(node.outbound(lambda to, _: leaves(to)), None)
    if out is not None:
        spans.end(Work.MAKE if out.frame.kind in (Kind.SHARE, Kind.PLAIN_SHARE) else Work.ANNOUNCE, begun)
    events = []
    while (event := node.next_event()) is not None:
        events.append(event)
    return Step(out, events, node.next_deadline(), node.joinable, node.new_sums())
