"""How fast real peers average: processes of one machine over mutual TLS, beside a floor from the same run.

The floor is what cannot be avoided: all bytes of a round through one gRPC stream with mutual TLS on loopback, which
keeps two cores busy, and then the keystream of all masks on all cores.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import networkx as nx
import numpy as np

from cesar.base.errors import CesarError
from cesar.graph.shares import required_alpha
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net.chunks import CHUNK
from cesar.peer.net.transport import OPTIONS, SERVICE, Handler
from cesar.peer.trust.folder import Network, Plan
from cesar.peer.trust.identity import Identity
from cesar_lab.bench.floor import keystream_seconds
from cesar_lab.run.machine import peak_rss_bytes

START_SECONDS = 120.0
PROBE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersBenchmark:
    """What `cesar bench peers` measured.

    Attributes:
        round_seconds: median, from the end of a round to that of the next: the first to end begins the next one.
        rounds_per_second: its inverse.
        floor_seconds: all bytes of a round at the measured throughput, and the keystream.
        ratio: of the two.
        throughput: bytes per second through one stream with mutual TLS.
        shared: β as measured.
        bytes_per_peer: protocol bytes that a peer sends in a round.
        messages_per_peer: messages that a peer sends in a round, statuses among them.
        transport_overhead: bytes that TCP carried beyond those, as a fraction; None where it cannot be read.
        peak_rss_bytes: the most memory that a peer's process has held.
        peak_models: the same in sizes of the model.
    """

    round_seconds: float
    rounds_per_second: float
    floor_seconds: float
    ratio: float
    throughput: float
    shared: float
    bytes_per_peer: float
    messages_per_peer: float
    transport_overhead: float | None
    peak_rss_bytes: int
    peak_models: float


@dataclass(frozen=True, slots=True)
class _Measured:
    ends: list[float]
    shared: float
    sent: int
    messages: int
    carried: int | None
    peak: int


def bench_peers(
    peers: int,
    size: int,
    *,
    cells: int | None,
    share: float = 0.3,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> PeersBenchmark:
    """Time rounds among peers, each a process of its own.

    Args:
        cells: the size of cells, which hand everything in; None for CESAR without groups among peers that are all connected.
        share: the fraction that CESAR shares.
    """
    graph = nx.complete_graph(peers)
    with TemporaryDirectory() as place:
        folder = Path(place) / "bench"
        plan = Plan(
            name="bench",
            graph=graph,
            settings=settings(share, cells),
            requests={},
            host="127.0.0.1",
            port=free_ports(peers),
            days=90,
        )
        Network.create(folder, plan, datetime.now(UTC))
        progress("throughput of mutual TLS on this machine")
        before = _throughput(folder)
        plan_of_cells = Network.open(folder).roster.plan
        divided = () if plan_of_cells is None else plan_of_cells.cells
        results = _run_peers(folder, peers, size, rounds, progress)
        progress("throughput once more")
        throughput = statistics.mean((before, _throughput(folder)))
    ends = [max(r.ends[k] for r in results) for k in range(rounds + 1)]
    per_round = np.diff(ends)  # the first round, which warms up, is not counted
    sent = statistics.mean(r.sent for r in results) / (rounds + 1)
    if cells is None:
        alpha = required_alpha(share, peers - 1, 1)
        masks, words = peers * (peers - 1) * (peers - 2), int(alpha**2 * size)
    else:
        masks, words = sum(len(cell) * (len(cell) - 1) for cell in divided), 2 * size  # a mask has 64 bits
    floor = peers * sent / throughput + keystream_seconds(masks, words)
    seconds = float(np.median(per_round))
    carried = [r.carried / r.sent - 1 for r in results if r.carried is not None]
    peak = max(r.peak for r in results)
    return PeersBenchmark(
        round_seconds=seconds,
        rounds_per_second=1 / seconds,
        floor_seconds=floor,
        ratio=seconds / floor,
        throughput=throughput,
        shared=statistics.mean(r.shared for r in results),
        bytes_per_peer=sent,
        messages_per_peer=statistics.mean(r.messages for r in results) / rounds,
        transport_overhead=statistics.mean(carried) if carried else None,
        peak_rss_bytes=peak,
        peak_models=peak / (4 * size),
    )


def settings(share: float, cells: int | None) -> str:
    """The network.toml of a benchmark: nobody is given up, however long it takes."""
    method = f'name = "cesar"\nsparsifier = "random"\nshare = {share!r}'
    if cells is not None:
        method = f'name = "cells"\nsize = {cells}'
    return f"""\
[method]
{method}

[rounds]
floor = {START_SECONDS!r}
ceiling = {START_SECONDS!r}
"""


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody uses at this moment."""
    for first in random.sample(range(20_000, 30_000, 200), 50):  # two benchmarks may look at once
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
    raise CesarError("no free ports between 20000 and 30000")


# ── the peers ───────────────────────────────────────────────────────────────────────────────────────────


def _run_peers(
    folder: Path, peers: int, size: int, rounds: int, progress: Callable[[str], None]
) -> list[_Measured]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(peers)]
    workers = [
        context.Process(target=_work, args=(folder / f"peer-{i}", size, rounds, theirs), daemon=True)
        for i, (_, theirs) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    progress(f"{rounds + 1} rounds among {peers} peers, {size:,} parameters each")
    results = []
    try:
        for (ours, theirs), worker in zip(pipes, workers, strict=True):
            theirs.close()
            try:
                results.append(ours.recv())
            except EOFError:
                worker.join(5)
                raise CesarError(f"a peer's process ended with code {worker.exitcode}") from None
        for ours, _ in pipes:
            ours.send("all have measured")
    finally:
        for worker in workers:
            worker.join(30)
            if worker.is_alive():
                worker.terminate()
    return results


def _work(folder: Path, size: int, rounds: int, pipe: Connection) -> None:
    asyncio.run(_peer(folder, size, rounds, pipe))


async def _peer(folder: Path, size: int, rounds: int, pipe: Connection) -> None:
    async with AsyncPeer.load(folder) as peer:
        await peer.start()
        vector = np.random.default_rng(peer.id).standard_normal(size, dtype=np.float32)
        await peer.wait_for_neighbours(START_SECONDS)
        ends, sent, first = [], 0, 0
        for k in range(rounds + 1):
            report = await peer.average_vector(vector)
            ends.append(time.monotonic())
            sent += report.total_bytes
            if k == 0:  # greetings are not of a round
                first = sum(link.messages for link in peer.transport.links.values())
        await peer.transport.drain(30)
        messages = sum(link.messages for link in peer.transport.links.values()) - first
        carried = bytes_carried()
        pipe.send(_Measured(ends, report.shared, sent, messages, carried, peak_rss_bytes()))
        await asyncio.to_thread(pipe.recv)  # a connection that ends takes its counters with it


def bytes_carried() -> int | None:
    """What TCP has sent and seen acknowledged on the open connections of this process; Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
                total += struct.unpack_from("<Q", info, 120)[0]  # tcpi_bytes_acked
    return total


# ── the floor ───────────────────────────────────────────────────────────────────────────────────────────


def _throughput(folder: Path) -> float:
    """Bytes per second from this process to another over one stream with mutual TLS."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sink = context.Process(target=_sink, args=(folder / "peer-0", theirs), daemon=True)
    sink.start()
    theirs.close()
    try:
        port = ours.recv()
        return asyncio.run(_pour(folder, port))
    finally:
        sink.terminate()
        sink.join()


def _sink(folder: Path, pipe: Connection) -> None:
    asyncio.run(_swallow(Identity.load(folder), pipe))


async def _swallow(identity: Identity, pipe: Connection) -> None:
    async def answer(_: object, context: Any) -> None:
        while (await context.read()) is not grpc.aio.EOF:
            pass
        await context.write(b"done")

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Handler(answer),))
    pairs = [(identity.tls_key, identity.certificate)]
    credentials = grpc.ssl_server_credentials(pairs, identity.ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    pipe.send(port)
    await server.wait_for_termination(60)


async def _pour(folder: Path, port: int) -> float:
    identity, target = Identity.load(folder / "peer-1"), Identity.load(folder / "peer-0")
    credentials = grpc.ssl_channel_credentials(target.certificate, identity.tls_key, identity.certificate)
    name = f"node-0.{target.network}.cesar"
    options = [*OPTIONS, ("grpc.ssl_target_name_override", name)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        call = channel.stream_stream(SERVICE)()
        chunk = bytes(CHUNK)
        await call.write(chunk)  # the handshake is not counted
        begin = time.perf_counter()
        for _ in range(PROBE_BYTES // CHUNK):
            await call.write(chunk)
        await call.done_writing()
        await call.read()
        return PROBE_BYTES / (time.perf_counter() - begin)
