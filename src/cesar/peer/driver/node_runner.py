"""The node of a peer, and who may call it: one job at a time.

Links live on the event loop. Everything that touches the node runs here, one call after the other. A link reads on when
its frame has been taken in, so a neighbour cannot flood this peer. The node of a large model has a thread of its own; that of
a small one shares the thread of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.cell_node import CellNode
from cesar.node import Node
from cesar.protocol import Event, Outbound

_T = TypeVar("_T")
AnyNode = Node | CellNode

LIGHT = 1 << 20
"""Nodes of models up to this many parameters work on the event loop. Their jobs take about as long as the 5 ms for which a thread
keeps the interpreter, and every way to another thread and back costs two switches and a wait.
"""


class NodeRunner:
    """Runs calls of a node, one at a time.

    There is no node until the size of the model is known, and for a moment when the roster changes; calls wait for one.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._made = asyncio.Event()
        self._node: AnyNode | None = None
        self._holding = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    @property
    def node(self) -> AnyNode | None:
        return self._node

    @property
    def is_light(self) -> bool:
        """Whether the node of this moment works on the event loop."""
        return self._node is not None and self._node.size <= LIGHT

    def use(self, node: AnyNode | None) -> None:
        """Run the calls that follow with this node; with None, they wait for the next one."""
        self._node = node
        if node is None:
            self._made.clear()
        else:
            self._made.set()

    async def ready(self) -> AnyNode:
        """The node, as soon as there is one; to ask for what never changes."""
        while self._node is None:
            await self._made.wait()
        return self._node

    async def call(self, job: Callable[[Any], _T]) -> _T:
        """Run a job with the node, as soon as there is one; the caller knows of which kind it is."""
        node = await self.ready()
        if self._holder is not None and self._holder is not asyncio.current_task():
            async with self._holding:
                pass  # a task that waits here has its turn before anybody can hold the node again
            return await self.call(job)
        if node.size > LIGHT:
            return await asyncio.get_running_loop().run_in_executor(self._thread, job, node)
        try:
            return job(node)
        finally:
            await asyncio.sleep(0)  # links have their turn between two jobs

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Only this task's calls run in the block, and those that began before it: nothing else changes the node while it is written down."""
        async with self._holding:
            self._holder = asyncio.current_task()
            try:
                yield
            finally:
                self._holder = None

    async def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None:
        """Have the node take in a frame; see `Engine.receive`."""

        def take(node: AnyNode) -> RoundNo | None:
            return node.receive(sender, payload)

        return await self.call(take)

    async def close(self) -> None:
        """Forget all secrets of the round, and end the thread if there is one."""
        if self._node is not None:
            await self.call(lambda node: node.close())
        self._thread.shutdown()


class Step(NamedTuple):
    """What a node wants after a step.

    Attributes:
        out: a frame to send; there may be more.
        deadline: until when it waits for others; None if it does not.
        joinable: whether a neighbour that comes only now can still take part in the round.
    """

    out: Outbound | None
    events: list[Event]
    deadline: float | None
    joinable: bool


def advance(
    node: Node, *, gone: frozenset[NodeId], leaves: Callable[[NodeId], bool], clock: Callable[[], float]
) -> Step:
    """End what need not or can not be waited for, and make the next frame.

    Args:
        gone: neighbours whose frames are not worth waiting for.
        leaves: whether a frame can be sent to a neighbour at all.
    """
    engine = node.engine
    while (deadline := node.next_deadline()) is not None and (engine.awaiting <= gone or clock() >= deadline):
        node.tick(deadline)
    out = next(node.outbound(lambda to, _: leaves(to)), None)
    events = []
    while (event := node.next_event()) is not None:
        events.append(event)
    return Step(out, events, node.next_deadline(), engine.joinable)
