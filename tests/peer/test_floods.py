"""What one neighbour, or one that is none any more, can make a peer spend: memory, log lines, rounds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import time
import tracemalloc
from datetime import UTC, datetime

import grpc
import networkx as nx
import numpy as np
import pytest

from cesar.crypto.keys import RoundId
from cesar.indices import Code, IndexSet, encode
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net import door, link
from cesar.peer.net.chunks import Message
from cesar.peer.net.transport import SERVICE
from cesar.peer.trust.config import session_of
from cesar.protocol.wire import Announce, Header, Kind, Token
from support.enemy import Enemy, frames, keys_of, listening
from support.lan import Lines, make_network, one_round, running
from support.waiting import until

HONEST = [1, 2, 3, 4]
GRAPH = nx.complete_graph(5)
TOPK = 'name = "cesar"\nsparsifier = "topk"\nshare = 0.3\nmasks = 1\nring_bits = 16'
LARGE = 1 << 20


def announcement(peer, round_: int, k: int) -> bytes:
    """Of a set in three bytes, which has too few positions; every one is another."""
    set_ = encode(IndexSet.from_positions([k], LARGE), Code.ELIAS_GAMMA)
    said = Announce(token=Token(os.urandom(16), os.urandom(32)), exponents=(0,), indices=set_)
    round_id = RoundId(session_of(peer.roster, (LARGE,), "train"), round_)
    return bytes(said.encode(Header(Kind.ANNOUNCE, round_id, 0)).payload)


def test_announcements_that_were_refused_leave_no_memory(tmp_path):
    """Each stands for a bitmap of 128 KiB."""
    network = make_network(tmp_path / "net", GRAPH, TOPK)
    count = 180
    models = np.random.default_rng(0).normal(size=(4, LARGE)).astype(np.float32)

    async def attack():
        async with running(network, HONEST) as peers:
            target = peers[3]
            for _ in range(2):
                await one_round(peers, models)
            async with Enemy(keys_of(network, 0), target) as enemy:
                await enemy.enter()
                round_ = target.next_round
                bad = [announcement(target, round_, k) for k in range(count)]
                gc.collect()
                tracemalloc.start()
                try:
                    job = asyncio.create_task(one_round(peers, models))
                    await until(lambda: target._state.state.next_round > round_, 10)
                    await frames(enemy, bad)
                    await until(lambda: target.reception.refusals["malformed"] == count, 20)
                    await job
                    gc.collect()
                    assert tracemalloc.get_traced_memory()[0] < 16 * LARGE + count * LARGE // 8 // 4, (
                        "models, and no sets"
                    )
                finally:
                    tracemalloc.stop()

    on_loop(attack())


PACKED = [grpc.Compression.Gzip, grpc.Compression.Deflate]


@pytest.mark.parametrize("how", PACKED)
def test_what_is_packed_is_not_unpacked(tmp_path, how):
    """A kilobyte of gzip can stand for a megabyte, and a megabyte for a gigabyte."""
    network = make_network(tmp_path / "net", GRAPH)

    async def attack():
        async with running(network, HONEST) as peers:
            async with Enemy(keys_of(network, 0), peers[3], compression=how) as enemy:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await enemy.hello()
                await enemy.fate()
                # The latter if the stream was cut before the answer had left.
                refused = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
                assert await enemy.call.code() in refused
            assert not peers[3].transport.links[0].up
            await one_round(peers, np.zeros((4, 100), np.float32))

    on_loop(attack())


@pytest.mark.parametrize("how", PACKED)
def test_a_peer_that_dials_does_not_unpack_either(tmp_path, how):
    network = make_network(tmp_path / "net", GRAPH)
    target, greetings = AsyncPeer.load(network.folder / "peer-0"), []

    async def answer(_, context):
        greetings.append(await context.read())
        hello = {**json.loads(target.reception.hello()), "node": 4}
        await context.write(bytes([Message.HELLO]) + json.dumps(hello).encode())
        while await context.read() is not grpc.aio.EOF:
            pass

    async def attack():
        async with listening(network, 4, answer, how):
            await target.start()
            try:
                await until(
                    lambda: len(greetings) > 1, 20
                )  # it came back, since it could not read the answer
                assert not target.transport.links[4].up
            finally:
                await target.close()

    on_loop(attack())


# ── those who are refused, and come again ───────────────────────────────────────────────────────────────


async def knock(keys, target, attempts):
    """Open streams as fast as they are answered, on one connection after the other."""
    while True:
        async with Enemy(keys, target) as enemy:
            for _ in range(20):
                attempts.append(await enemy.channel.stream_stream(SERVICE)().code())


@pytest.mark.parametrize("who", ["removed", "no neighbour"])
def test_a_flood_of_those_who_have_no_business_here(tmp_path, who):
    """Few lines, few answers, and the rounds of the others go on."""
    graph = nx.complete_graph(5)
    graph.add_edges_from([(5, 0), (5, 1), (5, 2)])
    network = make_network(tmp_path / "net", graph, rounds="floor = 0.5\nceiling = 5.0")
    keys = keys_of(network, 5)
    if who == "removed":
        network.remove(5, now=datetime.now(UTC), connect=True)
    attempts = []

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                await one_round(peers, np.zeros((4, 100), np.float32))
                jobs = [asyncio.create_task(knock(keys, peers[3], attempts)) for _ in range(6)]
                try:
                    end = asyncio.get_running_loop().time() + 4
                    while asyncio.get_running_loop().time() < end:
                        reports = await one_round(peers, np.zeros((4, 100), np.float32))
                        assert [len(report.contributors) for report in reports] == [3] * 4
                finally:
                    for job in jobs:
                        job.cancel()
                    await asyncio.gather(*jobs, return_exceptions=True)
        return [line for line in log.lines if line.startswith("refused")]

    lines = on_loop(attack())
    assert 1 <= len(lines) <= 8, lines
    assert 1 <= len(attempts) <= 60
    assert set(attempts) == {grpc.StatusCode.PERMISSION_DENIED}


def test_a_neighbour_that_breaks_rules_again_and_again_is_left_out(tmp_path, monkeypatch):
    network = make_network(tmp_path / "net", GRAPH)
    monkeypatch.setattr(link, "LEFT_OUT", (3.0, 300.0))

    async def attack():
        async with running(network, HONEST) as peers:
            target = peers[3]
            for _ in range(2):
                async with Enemy(keys_of(network, 0), target) as enemy:
                    await enemy.enter()
                    await enemy.send(Message.STATUS, b"no status")
                    assert "a status of the wrong length" in await enemy.fate()
            for _ in range(5):
                async with Enemy(keys_of(network, 0), target) as enemy:
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await enemy.hello()
                    fate = await enemy.fate()
                if (
                    "error from Core" not in fate
                ):  # a call that was refused in mid-air does not always say why
                    break
            assert "is left out for" in fate
            assert not target.transport.links[0].up
            await until(lambda: target.transport.links[0].left_out(time.monotonic()) == 0, 20)
            async with Enemy(keys_of(network, 0), target) as enemy:
                await enemy.enter()  # it gets another chance
                await enemy.send(Message.STATUS, b"no status")
                await enemy.fate()
            assert target.transport.links[0].left_out(time.monotonic()) > 3.5, "twice as long"
            await one_round(peers, np.zeros((4, 100), np.float32))

    on_loop(attack())


def test_the_door_forgets_the_quiet_and_keeps_few():
    now = [0.0]
    at = door.Door(lambda: now[0])
    assert [at.refused(b"a")[1] for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert at.refused(b"b") == (1, 0.0)
    now[0] = door.FORGET_SECONDS + 1
    assert at.refused(b"a") == (1, 0.0)
    assert [at.begins(b"c") for _ in range(door.OFTEN + 2)] == [True] * door.OFTEN + [False] * 2
    for k in range(10_000):
        at.refused(k.to_bytes(4, "little"))
    assert len(at._known) == 4096
    at.forget()
    assert at.begins(b"c")
