"""Deadlines follow the network: they grow when it becomes slow, and a peer that lags does not fall out of step."""

from __future__ import annotations

import asyncio

import networkx as nx
import numpy as np
import pytest

from cesar.peer.pace import Pace
from cesar.peer.peer import on_loop
from support.lan import make_network, one_round, running


def test_one_long_round_does_not_move_the_limit_and_many_do():
    pace = Pace(1.0, 60.0)
    assert pace.limit == 60.0
    for _ in range(15):
        pace.measured(0.5)
    assert pace.limit == 2.0
    pace.measured(50.0)
    assert pace.limit == 2.0
    for _ in range(10):
        pace.measured(2.0)
    assert pace.limit == 8.0
    for _ in range(15):
        pace.measured(0.01)
    assert pace.limit == 1.0


@pytest.mark.slow  # a tenth of a second is short on a busy machine
def test_peers_find_one_another_again_when_the_network_becomes_slow(tmp_path):
    """Frames take longer than the deadline that was right so far. Lonely rounds would be short, and keep it so."""
    network = make_network(tmp_path / "net", nx.complete_graph(4), rounds="floor = 0.1\nceiling = 30.0")

    async def lag():
        async with running(network, [0, 1, 2, 3]) as peers:
            models = np.random.default_rng(0).normal(size=(4, 200)).astype(np.float32)
            for _ in range(16):
                await one_round(peers, models)
            for peer in peers:
                quick = peer.reception.frame

                async def slow(node, payload, quick=quick):
                    await asyncio.sleep(0.2)
                    await quick(node, payload)

                peer.reception.frame = slow
            # A median of 15 moves after 8 late rounds, by a factor of four, and three phases need two such moves.
            seen = [len(report.contributors) for _ in range(24) for report in await one_round(peers, models)]
            assert min(seen) == 0
            assert seen[-8:] == [3] * 8

    on_loop(lag())
