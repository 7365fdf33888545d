"""How a run ends: which cells are in the final model, and the code that says so."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import EncodingError
from cesar.base.exits import Exit
from cesar.cli.peer import _ended, _remark
from cesar.peer.api.peer import on_loop
from cesar.peer.ops.processes import Process
from cesar.peer.trust.config import PeerConfig
from cesar.protocol.wire_cells import cells_from_bytes, cells_to_bytes
from support.cell_network import Network
from support.lan import cell_network, edit, make_network, running

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_table_of_exit_codes_is_the_code():
    rows = re.findall(
        r"^\| (\d+) \| (.+) \|$", DEPLOY.read_text(encoding="utf-8").partition("## 13.")[2], re.MULTILINE
    )
    assert rows == [(str(code.value), code.meaning) for code in Exit]


@pytest.mark.parametrize("nodes", [8, 12, 16, 20])
def test_cells_know_which_are_in_through_others(nodes):
    network = Network(nodes, roll_call=True)
    network.round()
    for _ in range(network.settle()):
        network.round(steps=np.zeros_like(network.models))
    everybody = frozenset(range(len(network.ensemble.plan.cells)))
    assert {node.present for node in network.ensemble.nodes} == {everybody}


def test_a_cell_that_is_away_is_not_counted():
    """Four cells, the last one away. Cell 0 hears 2 and then 1; cell 1 hears nobody and then 2, with what that has heard; cell 2 hears 0 and then nobody."""
    network = Network(16, roll_call=True)
    network.round()
    away = dict.fromkeys(network.ensemble.plan.cells[3], "before_announce")
    assert network.settle() == 2
    for _ in range(2):
        network.round(steps=np.zeros_like(network.models), crashes=away)
    cells = network.ensemble.plan.cells
    found = [{network.ensemble.nodes[node].present for node in cell} for cell in cells[:3]]
    assert found == [{frozenset({0, 1, 2})}, {frozenset({0, 1, 2})}, {frozenset({0, 2})}]


def test_frames_are_longer_only_where_a_quorum_was_agreed_on():
    def sent(**settings):
        network, sizes = Network(8, **settings), []
        network.round(watch=lambda _, __, frame: sizes.append(len(frame.payload)))
        network.settle()
        network.round(
            steps=np.zeros_like(network.models), watch=lambda _, __, frame: sizes.append(len(frame.payload))
        )
        return sum(sizes)

    exchanges = 8  # four keepers in each of two cells, to one each
    assert sent(roll_call=True) - sent() == exchanges


def test_a_bitmap_of_cells():
    assert cells_to_bytes({0, 9}, 10) == b"\x01\x02"
    assert cells_from_bytes(memoryview(b"\x01\x02"), 10) == (0, 9)
    assert cells_from_bytes(memoryview(b""), 0) == ()
    with pytest.raises(EncodingError):
        cells_from_bytes(memoryview(b"\x00\x04"), 10)


def test_peers_know_whether_there_was_a_quorum(tmp_path):
    """Two cells: both are there at first, and then one of them alone."""
    network = cell_network(tmp_path / "net", 6, rounds="floor = 0.5\nceiling = 20.0\nsettle_quorum = 0.75")
    assert network.roster.settings["settle_quorum"] == 0.75

    async def run(nodes, wait):
        async with running(network, nodes) as peers:
            models = np.zeros((len(nodes), 640), dtype=np.float32)
            for peer, row in zip(peers, models, strict=True):
                await peer.start_from(row)
            return await asyncio.gather(
                *(peer.settle(row, wait=wait) for peer, row in zip(peers, models, strict=True))
            )

    for reports in on_loop(run(list(range(6)), 60.0)):
        assert (reports[-1].settled, reports[-1].present) == (True, 1.0)
    for reports in on_loop(run(list(network.roster.plan.cells[0]), 3.0)):
        assert (reports[-1].settled, reports[-1].present) == (False, 0.5)


def test_a_quorum_needs_cells_and_is_signed(tmp_path):
    plain = make_network(tmp_path / "plain", nx.complete_graph(3))
    edit(plain.folder / "peer-0", r"floor = .*\n", "floor = 1.0\nsettle_quorum = 0.5\n")
    with pytest.raises(cesar.ConfigError, match="counts cells"):
        PeerConfig.load(plain.folder / "peer-0")
    cells = cell_network(tmp_path / "cells", 4)
    assert "settle_quorum" not in cells.roster.settings, "rosters that were signed before stay as they are"
    edit(cells.folder / "peer-0", r"floor = .*\n", "floor = 0.5\nsettle_quorum = 0.5\n")
    with pytest.raises(cesar.ConfigError, match=r"settle_quorum is None there and 0\.5 here"):
        cesar.Peer.join(cells.folder / "peer-0")


@pytest.mark.parametrize(
    ("quorum", "alone", "code"),
    [(True, False, Exit.FINE), (True, True, Exit.NOT_SETTLED), (False, True, Exit.NO_QUORUM)],
)
def test_how_a_run_ends(quorum, alone, code):
    peer = SimpleNamespace(quorum=quorum, alone=alone, present=0.5)
    assert _ended(peer) is code
    assert ("50%" in _remark(peer, code)) == (code is Exit.NO_QUORUM)


@pytest.mark.parametrize(
    ("code", "state", "ended"),
    [(0, "done", 0), (3, "done", 3), (4, "done", 4), (1, "failed", 0), (5, "failed", 0)],
)
def test_what_network_up_makes_of_a_code(code, state, ended):
    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as process:
        process.wait()
        peer = Process(None, process)
        assert (peer.state, peer.ended) == (state, ended)
