"""What neighbours do, and do not do, cannot make a round last longer than its deadline, nor keep a peer from ending."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import networkx as nx
import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net import chunks, transport
from cesar.peer.net.chunks import Message
from cesar.peer.net.link import Link, Room
from support.lan import make_network, met, running
from support.waiting import until

GRACE = 4.0
"""Seconds that a busy machine may take for its own part of a round, and one more for each process that waits for a core."""


def test_who_is_cancelled_while_a_neighbour_speaks_does_not_go_on(tmp_path):
    """What came in the same moment must not hide that the waiting is over: a peer that ends would wait for ever.

    It is cancelled at every turn of the loop, from that in which the news comes to one by which it has gone on.
    """
    network = make_network(tmp_path / "net", nx.complete_graph(3))

    async def went_on(steps):
        peer = AsyncPeer.load(network.folder / "peer-0")
        job = asyncio.create_task(peer.wait_for_neighbours(3600))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for other in (1, 2):
            peer.liveness.connected(other)
        peer.reception.failed(1, "something has changed")
        for _ in range(steps):
            await asyncio.sleep(0)
        over = job.done()
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled() or over
        return over

    outcomes = [asyncio.run(went_on(steps)) for steps in range(6)]
    assert not outcomes[0]
    assert outcomes[-1], "else no turn was the one at which both come together"
    assert outcomes == sorted(outcomes)


class Clogged:
    """A stream into which nothing fits until it is opened."""

    def __init__(self):
        self.open, self.written = asyncio.Event(), []

    async def read(self):
        await asyncio.Event().wait()

    async def write(self, message):
        await self.open.wait()
        self.written.append(message)


class Deaf:
    """A hub that does nothing."""

    def __getattr__(self, _):
        return lambda *_: None


def test_who_does_not_read_fills_no_memory_with_statuses():
    """Frames of past rounds are dropped, and of statuses in a row the last one says it all."""

    async def scene():
        link, stream = Link(0, Room(), Deaf()), Clogged()
        job = asyncio.create_task(link.talk(stream, partial(asyncio.sleep, 0)))
        await until(lambda: link.up)
        for round_ in range(1000):
            link.forget_before(round_)
            link.send(Message.STATUS, b"begins %d" % round_)
            link.send(Message.FRAME, bytes(100), round_)
            link.send(Message.STATUS, b"ends %d" % round_)
            assert len(link._queue) <= 4
        stream.open.set()
        await until(lambda: not link.busy)
        job.cancel()
        return [message[1:] for message in stream.written if message[0] == Message.STATUS]

    assert asyncio.run(scene())[-2:] == [b"begins 999", b"ends 999"]


class Reader:
    """A stream of which large messages are read slowly, or never."""

    def __init__(self, stream, seconds):
        self._stream, self._seconds = stream, seconds

    def __getattr__(self, name):
        return getattr(self._stream, name)

    async def read(self):
        message = await self._stream.read()
        if isinstance(message, bytes) and len(message) >= chunks.CHUNK:
            await asyncio.sleep(self._seconds)
        return message


def honest_company(reports):
    """Whether somebody has averaged with all but node 0 after the first round, in which nobody knows yet who is slow."""
    return any(len(set(report.contributors) - {0}) == 3 for _, report in reports[4:])


@pytest.mark.parametrize("seconds", [0.3, 3600.0], ids=["slowly", "never"])
def test_who_does_not_read_costs_no_more_than_the_deadline(tmp_path, monkeypatch, seconds):
    """A neighbour takes part as it should, but hardly reads the shares: those of the others are made all the same."""
    monkeypatch.setattr(chunks, "CHUNK", 1 << 18)
    monkeypatch.setattr(transport, "SENDING_AT_ONCE", 1 << 19)
    monkeypatch.setattr(transport, "STILL_SECONDS", 0.5)
    size, honest = 2_500_000, [1, 2, 3, 4]
    network = make_network(tmp_path / "net", nx.complete_graph(5), rounds="floor = 1.0\nceiling = 3.0")

    async def endless(peer):
        while True:
            await peer.average_vector(np.ones(size, np.float32))

    async def scene():
        enemy, reports = AsyncPeer.load(network.folder / "peer-0"), []
        for link in enemy.transport.links.values():
            link._listen = partial(lambda listen, stream: listen(Reader(stream, seconds)), link._listen)
        async with running(network, honest) as peers:
            await enemy.start()
            await met(enemy, set(honest))
            job = asyncio.create_task(endless(enemy))
            while len(reports) < 12 or (len(reports) < 24 and not honest_company(reports)):
                before = [peer.patience for peer in peers]
                models = [np.full(size, peer.id, np.float32) for peer in peers]
                jobs = map(AsyncPeer.average_vector, peers, models)
                reports += zip(before, await asyncio.gather(*jobs), strict=True)
            job.cancel()
            await asyncio.wait([job])
            assert job.cancelled()
            await enemy.close()
        return reports

    reports = on_loop(scene())
    grace = GRACE + os.getloadavg()[0] / (os.cpu_count() or 1)
    assert all(report.seconds < patience + grace for patience, report in reports)
    assert honest_company(reports)
