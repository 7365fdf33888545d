"""Keys, state and checkpoints in folders of their own: secrets that are only read, a volume that is written."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops.check import Check
from cesar.peer.ops.processes import LocalNetwork
from cesar.peer.trust.config import ENVIRONMENT, PeerConfig
from support.lan import edit, make_network, one_round, running

SECRETS = ("key.pem", "agreement.key", "certificate.pem", "ca.pem")
PLACES = ("keys", "state", "checkpoints")


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(4))


def divided(network, tmp_path, node=0):
    """A peer whose keys lie elsewhere, in folders that nobody can write to."""
    folder = network.folder / f"peer-{node}"
    places = {name: tmp_path / name for name in PLACES}
    places["keys"].mkdir()
    for name in SECRETS:
        shutil.move(folder / name, places["keys"] / name)
    return folder, places


def listing(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_the_environment_names_places(network, tmp_path, monkeypatch):
    config = PeerConfig.load(network.folder / "peer-0")
    assert (config.keys, config.state, config.checkpoints) == (config.folder,) * 3
    monkeypatch.setenv("CESAR_STATE", str(tmp_path / "state"))
    assert (config.keys, config.state, config.checkpoints) == (config.folder, *(tmp_path / "state",) * 2)
    monkeypatch.setenv("CESAR_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("CESAR_CHECKPOINTS", "models")
    assert (config.keys, config.checkpoints) == (tmp_path / "keys", config.folder / "models")


def test_a_peer_writes_to_its_state_alone(network, tmp_path):
    folder, places = divided(network, tmp_path)
    lines = "".join(f'{name} = "{os.path.relpath(place, folder)}"\n' for name, place in places.items())
    edit(folder, r"\[peer\]\n", f'[peer]\n{lines}transcript = "frames"\n')
    before = listing(folder), listing(places["keys"])

    async def scene():
        async with running(network, [0, 1, 2]) as peers:
            vectors = np.random.default_rng(1).normal(size=(3, 20)).astype(np.float32)
            reports = await one_round(peers, vectors)
            assert [len(report.contributors) for report in reports] == [2] * 3

    on_loop(scene())
    written = {path.name for path in places["state"].iterdir()}
    assert written == {"state.json", "state.lock", "seen.json", "roster.used.json", "frames"}
    assert (listing(folder), listing(places["keys"])) == before


def test_newer_rosters_are_kept_beside_the_state(network, tmp_path, monkeypatch):
    """The site puts a roster into the folder of peer.toml, or a neighbour sends it: after a restart the newest holds."""
    folder, places = divided(network, tmp_path, 1)
    for name, place in places.items():
        monkeypatch.setenv(ENVIRONMENT[name], str(place))
    old = network.roster.raw
    peer = AsyncPeer.load(folder)
    second = network.remove(3, connect=True, now=datetime.now(UTC)).roster
    (folder / "roster.json").write_bytes(old)
    places["state"].mkdir()  # as a start would
    peer.membership.offer(second.raw, "node 2")
    peer.membership.adopt()
    assert (folder / "roster.json").read_bytes() == old
    assert (places["state"] / "roster.json").read_bytes() == second.raw
    assert AsyncPeer.load(folder).roster.version == 2
    (places["state"] / "roster.json").unlink()
    with pytest.raises(ConfigError, match="older than version 2"):
        AsyncPeer.load(folder)
    (folder / "roster.json").write_bytes(second.raw)
    assert AsyncPeer.load(folder).roster.version == 2


def test_a_check_finds_them_too(network, tmp_path, monkeypatch):
    folder, places = divided(network, tmp_path)
    for name, place in places.items():
        monkeypatch.setenv(ENVIRONMENT[name], str(place))
    findings = on_loop(Check(folder, 0).run())
    assert {f.item for f in findings if f.ok} >= {"files", "roster"}
    monkeypatch.setenv("CESAR_KEYS", str(tmp_path / "nowhere"))
    assert any(f.item == "keys" and f.ok is False for f in on_loop(Check(folder, 0).run()))


def test_a_state_that_cannot_be_written_says_what_to_do(network, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CESAR_STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(ConfigError, match="cannot read"):
        AsyncPeer.load(network.folder / "peer-0")
    monkeypatch.setenv("CESAR_STATE", "/proc/cesar")

    async def scene():
        peer = AsyncPeer.load(network.folder / "peer-0")
        with pytest.raises(ConfigError, match=r"CESAR_STATE, or state in peer\.toml, names a folder"):
            await peer.start()

    on_loop(scene())


def test_one_peers_folders_cannot_hold_for_a_whole_network(network, monkeypatch):
    monkeypatch.setenv("CESAR_STATE", "/somewhere")
    with pytest.raises(ConfigError, match="CESAR_STATE would hold for all peers of this network"):
        LocalNetwork(network.folder)
