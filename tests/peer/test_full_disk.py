"""A full disk: nothing leaves that is not on disk, training goes on, and so does averaging when there is room again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.api.peer import Peer, on_loop
from cesar.peer.driver import transcript
from cesar.peer.driver.runtime import AsyncPeer
from support.lan import Lines, edit, make_network, one_round, running

SIZE = 100


@pytest.fixture
def small(tmp_path):
    """A disk of 256 KiB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", place], check=False, capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def full(disk):
    """While this lasts, not a byte more fits."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        filler.unlink()


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
