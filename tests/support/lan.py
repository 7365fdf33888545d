"""A workbench for real peers on one machine: networks in a folder, honest peers in one process, and free ports.

All peers of a process share the event loop of `cesar.peer.api.peer`; tests hand it their coroutines with `on_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.peer.driver.report import Report
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.folder import Network, Plan
from support.waiting import until

SECAGG = 'name = "secagg"'
QUICK = "floor = 0.5\nceiling = 30.0"


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses, nor those 100 above, where status pages are.

    They lie below those that the system hands out to outgoing connections, and each process of a test run has its own.
    """
    low = 12000 + 4500 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
    for _ in range(200):
        first = random.randrange(low, low + 4200)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in (*range(first, first + count), *range(first + 100, first + 100 + count)):
                probe = held.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


def make_network(
    folder: Path,
    graph: nx.Graph,
    method: str = SECAGG,
    *,
    rounds: str = QUICK,
    transcript: bool = False,
    addresses: Mapping[int, str] | None = None,
    owners: Mapping[int, str] | None = None,
) -> Network:
    """A network whose peers listen here, or at the addresses given; without status pages."""
    plan = Plan(
        name="lan",
        graph=graph,
        settings=f"[method]\n{method}\n\n[rounds]\n{rounds}\n",
        requests={},
        host="127.0.0.1",
        port=free_ports(len(graph)),
        days=30,
        owners=owners or {},
    )
    if addresses is not None:
        plan = _Placed(**{name: getattr(plan, name) for name in Plan.__slots__}, addresses=addresses)
    Network.create(folder, plan, datetime.now(UTC))
    for node in graph:
        edit(folder / f"peer-{node}", r"status = .*\n", 'transcript = "frames"\n' if transcript else "")
    return Network.open(folder)


def cell_network(folder: Path, nodes: int, size: int = 3, more: str = "", **settings: object) -> Network:
    """A network of cells of `size`."""
    method = f'name = "cells"\nsize = {size}\n{more}'
    return make_network(folder, nx.empty_graph(nodes), method, **settings)


class _Placed(Plan):
    """A plan in which every peer has an address of its own."""

    def __init__(self, *, addresses: Mapping[int, str], **fields: object) -> None:
        super().__init__(**fields)
        object.__setattr__(self, "addresses", addresses)

    def address(self, node: int) -> str | None:
        return self.addresses[node]


def edit(peer: Path, pattern: str, replacement: str) -> None:
    """Change what a peer.toml says."""
    file = peer / "peer.toml"
    text, count = re.subn(pattern, replacement, file.read_text())
    assert count == 1, (pattern, count)
    file.write_text(text)


@contextlib.asynccontextmanager
async def running(network: Network, nodes: list[int]) -> AsyncIterator[list[AsyncPeer]]:
    """Peers that have found one another."""
    peers = [AsyncPeer.load(network.folder / f"peer-{node}") for node in nodes]
    try:
        for peer in peers:
            await peer.start()
        await asyncio.gather(*(met(peer, set(nodes)) for peer in peers))
        yield peers
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def met(peer: AsyncPeer, others: set[int], seconds: float = 30) -> None:
    """Wait until a peer is connected to those of these that are its neighbours."""
    await until(lambda: all(link.up for i, link in peer.transport.links.items() if i in others), seconds)


def slow_down(peer: AsyncPeer, seconds: float) -> None:
    """From now on, every frame to this peer takes so much longer."""
    quick, loop = peer.reception.frame, asyncio.get_running_loop()

    async def slow(node, payload):
        arrived = loop.create_future()
        loop.call_later(seconds, arrived.set_result, None)
        await arrived
        await quick(node, payload)

    peer.reception.frame = slow


async def one_round(
    peers: list[AsyncPeer], models: NDArray[np.float32], tensors: tuple[int, ...] | None = None
) -> list[Report]:
    """Average the rows in place."""
    return await asyncio.gather(
        *(peer.average_vector(row, tensors) for peer, row in zip(peers, models, strict=True))
    )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def remove_orphans() -> None:
    """Namespaces of tests that were killed before they could tidy up."""
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    for name, process in re.findall(r"^(cesar(\d+)-\w+)", listed, re.MULTILINE):
        if not Path("/proc", process).exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Switchboard:
    """A network namespace for each node, on two switches that a cable joins; the cable can be cut."""

    def __init__(self, left: list[int], right: list[int]) -> None:
        self._mark = f"cesar{os.getpid()}"
        self._sides = {"left": left, "right": right}
        self.hub = f"{self._mark}-hub"
        self.names = {node: f"{self._mark}-{node}" for node in (*left, *right)}
        self.addresses = {node: f"10.77.{node // 200}.{node % 200 + 1}:7400" for node in self.names}

    def __enter__(self) -> Self:
        remove_orphans()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "cut0", "type", "veth", "peer", "name", "cut1")
        for side, cable in zip(self._sides, ("cut0", "cut1"), strict=True):
            ip("-n", self.hub, "link", "add", side, "type", "bridge")
            ip("-n", self.hub, "link", "set", side, "up")
            self._plug(side, cable)
            for node in self._sides[side]:
                name, port = self.names[node], f"port{node}"
                ip("netns", "add", name)
                ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
                self._plug(side, port)
                ip("-n", name, "addr", "add", self.addresses[node].partition(":")[0] + "/16", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")

    def _plug(self, side: str, port: str) -> None:
        ip("-n", self.hub, "link", "set", port, "master", side)
        ip("-n", self.hub, "link", "set", port, "up")

    def cut(self) -> None:
        ip("-n", self.hub, "link", "set", "cut0", "down")

    def heal(self) -> None:
        ip("-n", self.hub, "link", "set", "cut0", "up")

    def __exit__(self, *_: object) -> None:
        for name in (*self.names.values(), self.hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def no_namespaces() -> str:
    """Why network namespaces cannot be made here; empty if they can."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    try:
        with Switchboard([0], [1]):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"


class Lines(logging.Handler):
    """What the peers log while this is open."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def said(self, *words: str) -> bool:
        """Whether one line has all these words."""
        return any(all(word in line for word in words) for line in tuple(self.lines))

    async def says(self, *words: str, seconds: float = 30) -> None:
        try:
            await until(partial(self.said, *words), seconds)
        except TimeoutError:
            raise AssertionError(f"nobody logged {words}; there is:\n" + "\n".join(self.lines)) from None

    def __enter__(self) -> Self:
        log = logging.getLogger("cesar.peer")
        self.before = log.level
        log.setLevel(logging.INFO)
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger("cesar.peer")
        log.removeHandler(self)
        log.setLevel(self.before)
