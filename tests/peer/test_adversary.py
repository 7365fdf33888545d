"""A few rounds with one that lies in all that it says; `test_endurance.test_an_adversary` is the long version."""

from __future__ import annotations

import asyncio
import contextlib

import networkx as nx
import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from support import replay
from support.lan import Lines, make_network, met, running
from support.liar import Liar

SIZE, ALPHA, ENEMY, ROUNDS = 200, 0.6, 0, 8
HONEST = [1, 2, 3, 4, 5, 6]
METHOD = f'name = "cesar"\nsparsifier = "random"\nalpha = {ALPHA}\nring_bits = 32'


@pytest.mark.slow  # rounds wait for deadlines, on a busy machine for long
def test_honest_peers_average_what_came_whatever_one_says(tmp_path):
    network = make_network(
        tmp_path / "net", nx.complete_graph(7), METHOD, rounds="floor = 0.3\nceiling = 1.0", transcript=True
    )
    rng, seen = np.random.default_rng(4), []

    async def average(peer, t):
        model = np.random.default_rng([t, peer.id]).normal(size=SIZE).astype(np.float32)
        before = model.copy()
        report = await peer.average_vector(model)
        seen.append(
            (peer.id, before, model, report, (network.folder / f"peer-{peer.id}" / "frames").stat().st_size)
        )

    async def lie(peer):
        while True:
            await peer.average_vector(rng.normal(size=SIZE).astype(np.float32))
            await asyncio.sleep(0)

    async def scene():
        async with running(network, [ENEMY]) as (enemy,), running(network, HONEST) as peers:
            await met(enemy, set(HONEST))
            liar = Liar(enemy, rng)
            job = asyncio.create_task(lie(enemy))
            for t in range(ROUNDS):
                if t == 3:  # one goes without a word, and comes back
                    await peers[-1].transport.close(0)
                    await peers[-1].close()
                if t == 5:
                    peers[-1] = AsyncPeer.load(network.folder / f"peer-{HONEST[-1]}")
                    await peers[-1].start()
                there = peers if not 3 <= t < 5 else peers[:-1]
                await asyncio.gather(*(average(peer, t) for peer in there))
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job
            return liar.lies

    with Lines() as log:
        lies = on_loop(asyncio.wait_for(scene(), 300))
    assert lies > 20
    assert not [line for line in log.lines if "(fault)" in line or "made this peer fail" in line]
    assert any(f"frame from node {ENEMY}" in line for line in log.lines)
    assert len(seen) == 6 * ROUNDS - 2
    assert any(report.contributors for *_, report, _ in seen)
    for node, before, after, report, until in seen:
        assert np.isfinite(after).all()
        this = replay.rounds_of(network.folder / f"peer-{node}" / "frames").get(report.round, replay.Round())
        liars = sorted({ENEMY} & set(report.contributors))
        found = False
        for reading in replay.readings(this, liars, until):
            with contextlib.suppress(AssertionError, ValueError):
                view = sorted(network.roster.graph[node])
                told = replay.implied(reading, before, view, report.contributors, alpha=ALPHA, s=1)
                found = found or np.array_equal(told.vector, after)
        assert found or report.overflowed, (node, report)
