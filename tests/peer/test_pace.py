"""Deadlines follow the network: they grow when it becomes slow, and a peer that lags does not fall out of step."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from cesar.peer.driver.pace import Pace
from support.lan import make_network, one_round, running, slow_down


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


def test_a_round_is_measured_until_the_last_frame():
    """Local training counts, and so does the wait for those who come; not the wait for nobody."""
    pace = Pace(0.0, 60.0)
    pace.start(10.0)
    deadlines = pace.begin(11.0)
    assert (deadlines.announce, deadlines.relay, deadlines.share) == (47.0, 59.0, 71.0)
    pace.heard(12.0)
    pace.heard(11.5)  # taken in later, but it had come before
    pace.end(13.0, alone=False)
    assert pace.limit == 4 * 2.0
    pace.begin(14.0)
    pace.end(20.0, alone=True)
    assert pace.limit == 4 * 2.0, "nobody was there to measure"


def test_a_round_in_which_somebody_is_late_counts_as_a_whole():
    pace = Pace(0.0, 60.0)
    pace.start(10.0)
    pace.begin(11.0)
    pace.heard(12.0)
    pace.late()
    pace.end(15.0, alone=True)
    assert pace.limit == 4 * 5.0
    pace.begin(16.0)
    pace.end(17.0, alone=False)
    assert pace.limit == 4 * (5.0 + 1.0) / 2, "the next round is not late"


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
                slow_down(peer, 0.2)
            # A median of 15 moves after 8 late rounds, by a factor of four, and three phases need two such moves.
            seen = [len(report.contributors) for _ in range(24) for report in await one_round(peers, models)]
            assert min(seen) == 0
            assert seen[-8:] == [3] * 8

    on_loop(lag())
