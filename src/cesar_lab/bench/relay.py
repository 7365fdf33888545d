"""Delays in user space: a relay on loopback through which all connections of all peers go, for kernels without netem."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from cesar.base.errors import CesarError

START_SECONDS = 30.0


class Relay:
    """Passes on what comes to a port, after a while and in order; nothing bounds how much is on its way.

    Attributes:
        seconds: how long each piece is held, in either direction; for all that comes from now on.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._sinks: set[asyncio.StreamWriter] = set()

    async def serve(self, port: int, target: int) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._sinks.add(writer)
            try:
                there = await asyncio.open_connection("127.0.0.1", target)
            except OSError:  # nobody listens there yet: the peer dials again
                writer.close()
                return
            self._sinks.add(there[1])
            for source, sink in ((reader, there[1]), (there[0], writer)):
                task = asyncio.create_task(self._pass_on(source, sink))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._servers.append(await asyncio.start_server(connected, "127.0.0.1", port))

    async def close(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for sink in self._sinks:
            sink.close()
        await asyncio.gather(*(sink.wait_closed() for sink in self._sinks), return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        waiting: deque[bytes] = deque()
        loop = asyncio.get_running_loop()

        def let_go() -> None:  # each call passes on the oldest piece, whichever timer it belongs to
            data = waiting.popleft()
            if data and not sink.is_closing():
                sink.write(data)
            else:
                sink.close()

        while True:
            try:
                data = await source.read(1 << 16)
            except OSError:
                data = b""
            waiting.append(data)
            loop.call_later(self.seconds, let_go)
            if not data:
                return


@contextlib.contextmanager
def relaying(ports: dict[int, int]) -> Iterator[Relay]:
    """A relay from each port to its target, on a thread of its own; gone with the block."""
    relay, loop, ready = Relay(), asyncio.new_event_loop(), threading.Event()
    failed: list[OSError] = []

    async def serve() -> None:
        for port, target in ports.items():
            await relay.serve(port, target)

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except OSError as error:
            failed.append(error)
            return
        finally:
            ready.set()
        loop.run_forever()
        loop.run_until_complete(relay.close())

    thread = threading.Thread(target=run, name="relay", daemon=True)
    thread.start()
    ready.wait(START_SECONDS)
    try:
        if failed:
            raise CesarError(f"the relay cannot listen: {failed[0]}")
        yield relay
    finally:
        if not failed:
            loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS)
        loop.close()
