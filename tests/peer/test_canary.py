"""The test round before training: through everything, by itself, and without a trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.exits import Exit
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops.canary import fly
from support.lan import cell_network, make_network, one_round, running

SIZE, TENSORS = 5000, (4000, 1000)
PATIENT, QUICK = "floor = 60.0\nceiling = 60.0", "floor = 0.3\nceiling = 30.0"


def content(folder):
    """Every file of a network's folder but locks, byte for byte."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "state.lock"}


async def trained(network, nodes, first):
    """A round of training among all; the models after it."""
    async with running(network, nodes) as peers:
        for peer in peers:
            await peer.start_from(first.copy())
        models = np.tile(first, (len(nodes), 1)) + np.arange(len(nodes), dtype=np.float32)[:, None]
        reports = await one_round(peers, models, TENSORS)
        assert all(report.summed for report in reports)
    return models


@pytest.mark.parametrize(
    "more", ["", 'weight = "samples"\n', 'metric = true\nsparsifier = "topk"\nshare = 0.3\n']
)
def test_it_goes_through_everything_and_leaves_no_trace(more, tmp_path):
    network = cell_network(tmp_path / "net", 6, more=more, rounds=PATIENT)
    assert len(network.roster.plan.cells) == 2
    if not more:
        on_loop(trained(network, list(range(6)), np.zeros(SIZE, dtype=np.float32)))
    before = content(network.folder)

    async def all_at_once():
        return await asyncio.gather(*(fly(network.folder / f"peer-{i}", TENSORS) for i in range(6)))

    found = on_loop(all_at_once())
    for node, canary in enumerate(found):
        cell = next(cell for cell in network.roster.plan.cells if node in cell)
        assert canary.ok
        assert canary.members == cell
        assert canary.parameters == SIZE
        assert canary.bytes > SIZE * (1.0 if more else 2.0) * 0.3
        assert set(canary.phases) <= {"scatter", "exchange", "gather"}, (
            "whatever came early is not waited for"
        )
        assert sum(canary.phases.values()) == pytest.approx(canary.seconds, abs=0.01)
        assert set(canary.waited) <= set(range(6)) - {node}
        assert "5,000 parameters, 0.0 MB" in canary.lines()[0]
    assert content(network.folder) == before, "not a byte of any folder has changed"


def test_partners_that_do_not_take_part_are_named(tmp_path):
    """One is not there, and one trains already."""
    network = cell_network(tmp_path / "net", 4, 4, rounds=QUICK)

    async def run():
        trainer = AsyncPeer.load(network.folder / "peer-2")
        await trainer.start()
        try:
            return await asyncio.gather(*(fly(network.folder / f"peer-{i}", (SIZE,), 4.0) for i in (0, 1)))
        finally:
            assert trainer.next_round == 0
            await trainer.close()

    for canary in on_loop(run()):
        assert not canary.ok
        assert canary.members == ()
        assert canary.absent[2].startswith("it is there, and trains; start it with a canary, too")
        assert "3" in canary.lines()[-1]
        assert "did not come about" in canary.lines()[0]
        assert "nothing listens there" in canary.absent[3] or "it has not come" in canary.absent[3]


def test_in_a_training_loop(tmp_path):
    """`Peer.join(…, canary=True)`: as soon as the model is known, then training as always."""
    network = cell_network(tmp_path / "net", 4, 4, rounds=PATIENT)

    def site(node):
        model = np.zeros(SIZE, dtype=np.float32)
        with cesar.Peer.join(network.folder / f"peer-{node}", canary=True) as peer:
            assert peer.canary is None
            peer.start_from(model)
            assert peer.canary.ok
            assert peer.round == 0
            assert not model.any()
            model += node
            report = peer.average_vector(model)
            assert report.summed
            assert report.round == 0
            np.testing.assert_allclose(model, 1.5, atol=1e-3)

    async def all_sites():
        await asyncio.gather(*(asyncio.to_thread(site, node) for node in range(4)))

    asyncio.run(all_sites())


def test_a_failed_canary_stops_before_training(tmp_path):
    network = cell_network(tmp_path / "net", 4, 4, rounds=QUICK)
    before = content(network.folder)
    with cesar.Peer.join(network.folder / "peer-0", canary=True, wait=0.5) as peer:
        with pytest.raises(cesar.CanaryError, match="node 1 did not take part"):
            peer.start_from(np.zeros(SIZE, dtype=np.float32))
        assert not peer.canary.ok
    assert content(network.folder) == before


def test_the_command_says_that_training_has_not_begun(tmp_path):
    network = cell_network(tmp_path / "net", 4, 4, rounds=QUICK)
    (tmp_path / "training.py").write_text(
        "import numpy\n\n\ndef train(peer):\n    peer.start_from(numpy.zeros(10, 'f4'))\n"
    )
    command = (
        sys.executable,
        "-m",
        "cesar",
        "peer",
        "run",
        network.folder / "peer-0",
        "--train",
        "training:train",
    )
    done = subprocess.run(
        [*command, "--canary", "--wait", "0.5"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.NO_CANARY, done.stderr
    assert "Training has not begun: the round did not come about" in done.stderr
    assert "node 3 did not take part" in done.stderr


def test_without_cells_there_is_none(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    with pytest.raises(cesar.ConfigError, match="a canary is a round of a cell"):
        on_loop(fly(network.folder / "peer-0", (SIZE,)))
