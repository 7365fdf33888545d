"""A full disk: nothing leaves that is not on disk, training goes on, and so does averaging when there is room again."""

from __future__ import annotations

import asyncio
import json
import os

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.api.peer import Peer, on_loop
from cesar.peer.driver import transcript
from cesar.peer.driver.runtime import AsyncPeer
from cesar.protocol.wire import Kind
from support.disk import full, small_disk
from support.lan import Lines, cell_network, edit, make_network, one_round, running

SIZE = 100
PACE = "floor = 0.3\nceiling = 2.0\npatience_minutes = 10.0"


@pytest.fixture
def small(tmp_path):
    with small_disk(tmp_path / "disk") as place:
        yield place


def network_on(tmp_path, disk, **options):
    network = make_network(tmp_path / "net", nx.complete_graph(4), **options)
    edit(network.folder / "peer-3", r"\[peer\]", f'[peer]\nstate = "{disk}"')
    return network


def models(seed=0):
    return np.random.default_rng(seed).normal(size=(4, SIZE)).astype(np.float32)


@pytest.mark.parametrize("recorded", [False, True])
def test_nothing_is_sent_until_there_is_room(tmp_path, small, recorded):
    network = network_on(tmp_path, small, transcript=recorded)

    async def scene():
        with Lines() as log:
            async with running(network, [0, 1, 2, 3]) as peers:
                await one_round(peers, models())
                before = (small / "state.json").read_bytes()
                with full(small):
                    for t in range(2):
                        vectors = models(t)
                        mine = vectors[3].copy()
                        reports = await one_round(peers, vectors)
                        assert "No space left" in reports[3].disk
                        assert (reports[3].contributors, reports[3].total_bytes) == ((), 0)
                        assert np.array_equal(vectors[3], mine), "it keeps its own model"
                        assert all(3 not in report.contributors for report in reports)
                        assert (small / "state.json").read_bytes() == before
                for t in range(6):
                    reports = await one_round(peers, models(t))
                    if all(len(report.contributors) == 3 for report in reports):
                        break
                assert [len(report.contributors) for report in reports] == [3] * 4
                assert reports[3].disk == ""
        assert sum("It trains alone and sends nothing until it can" in line for line in log.lines) == 1
        assert log.said("node 3 can write to its folder again")
        assert not log.said("what a neighbour sent made this peer fail")
        return reports

    reports = on_loop(scene())
    if recorded:
        seen = list(transcript.read(small / "frames"))
        assert {entry.peer for entry in seen} == {0, 1, 2}, "what was cut short was removed"
    assert json.loads((small / "state.json").read_text())["next_round"] == reports[3].round + 1


def test_in_a_cell_nothing_is_handed_in_until_there_is_room(tmp_path, small):
    """The partners' records say what has left: agreements, and no masked number, until the state is on disk."""
    network = cell_network(tmp_path / "net", 3, rounds=PACE, transcript=True)
    edit(network.folder / "peer-2", r"\[peer\]", f'[peer]\nstate = "{small}"')
    edit(network.folder / "peer-2", r'transcript = "frames"\n', "")

    def handed_in():
        return sum(
            entry.peer == 2 and not entry.sent and entry.payload[3] == Kind.CELL_SCATTER
            for node in (0, 1)
            for entry in transcript.read(network.folder / f"peer-{node}" / "frames")
        )

    async def rounds(peers, vectors, enough):
        """Local phases until it is enough; a machine may be slow."""
        for _ in range(20):
            vectors += 1
            reports = await asyncio.gather(*map(AsyncPeer.average_vector, peers, vectors))
            if enough(reports):
                return reports
        raise AssertionError(reports)

    async def scene():
        vectors = np.zeros((3, SIZE), np.float32)
        async with running(network, [0, 1, 2]) as peers:
            for peer, vector in zip(peers, vectors, strict=True):
                await peer.start_from(vector)
            await rounds(peers, vectors, lambda reports: all(report.summed for report in reports))
            await peers[2].cells._saving  # the sum is written while training goes on
            before, kept = handed_in(), {path.name: path.read_bytes() for path in small.iterdir()}
            assert before > 0
            with full(small):
                for _ in range(3):
                    reports = await rounds(peers, vectors, lambda reports: reports[2].disk)
                    assert "No space left" in reports[2].disk
                    assert not any(report.summed for report in reports)
                assert handed_in() == before
                assert kept.items() <= {path.name: path.read_bytes() for path in small.iterdir()}.items()
            await rounds(peers, vectors, lambda reports: all(report.summed for report in reports))
            assert handed_in() > before

    on_loop(scene())


def test_a_disk_that_fills_up_in_the_middle_of_a_round(tmp_path, small):
    """The round is given up before the share leaves, and the record stays readable."""
    network = network_on(tmp_path, small, transcript=True)

    async def scene():
        async with running(network, [0, 1, 2, 3]) as peers:
            room = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
            (small / "filler").write_bytes(bytes(max(0, room - 16384)))
            for t in range(40):
                vectors = models(t)
                mine = vectors[3].copy()
                reports = await one_round(peers, vectors)
                if reports[3].disk:
                    break
            assert reports[3].disk
            assert np.array_equal(vectors[3], mine)
            (small / "filler").unlink()
            for t in range(6):
                reports = await one_round(peers, models(t))
                if len(reports[3].contributors) == 3:
                    return
            raise AssertionError(reports)

    on_loop(scene())
    assert list(transcript.read(small / "frames"))


def test_a_peer_does_not_start_on_a_full_disk_and_says_why(tmp_path, small):
    network = network_on(tmp_path, small)
    peer = AsyncPeer.load(network.folder / "peer-3")

    async def start():
        try:
            await peer.start()
        finally:
            await peer.close()

    with full(small), pytest.raises(ConfigError, match=r"cannot write to .*No space left"):
        on_loop(start())


def test_a_checkpoint_that_finds_no_room_leaves_the_last_one(tmp_path, small):
    torch = pytest.importorskip("torch")
    network = network_on(tmp_path, small)
    model = torch.nn.Linear(30, 20)
    with Peer.join(network.folder / "peer-3", wait=0) as peer:
        saved = peer.save(model).read_bytes()
        with full(small), Lines() as log:
            torch.nn.init.zeros_(model.weight)
            path = peer.save(model)
        assert path.read_bytes() == saved
        assert log.said("no checkpoint", "No space left")
