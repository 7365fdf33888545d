"""`cesar network up`: all peers of a network as processes of this machine."""

import json
import os
import signal
import socket
from pathlib import Path

import networkx as nx
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.ops.processes import LocalNetwork
from support.commands import PATIENCE, refused, started
from support.localnet import make
from support.waiting import wait_until


def log_of(net: Path, node: int) -> str:
    path = net / f"peer-{node}" / "run.log"
    return path.read_text() if path.exists() else ""


def test_up_trains_all_peers_as_the_simulator_does(tmp_path):
    net, _ = make(tmp_path / "net")
    command = ("network", "up", net, "--rounds", 8, "--settle", 3, "--json")
    with started(*command, cwd=tmp_path) as process:
        out, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    outcome = json.loads(out)
    assert [peer["node"] for peer in outcome["peers"]] == [0, 1, 2, 3]
    assert all(peer["rounds"] == 8 + 3 and peer["dropouts"] == 0 for peer in outcome["peers"])
    assert abs(outcome["difference"]) < 0.1
    assert outcome["killed"] == []
    LocalNetwork(net)  # all ports are free again


def test_up_says_what_stands_in_the_way(tmp_path):
    net, base = make(tmp_path / "net")
    assert "holds no network" in refused("network", "up", tmp_path)
    assert "tried out with digits" in refused("network", "up", net, "--dataset", "cifar10")
    with socket.create_server(("127.0.0.1", base + 101)):
        assert f"peer.status of node 1: 127.0.0.1:{base + 101}" in refused("network", "up", net)
    (net / "peer-2" / "key.pem").unlink()
    assert "node 2 made its own" in refused("network", "up", net)


def test_up_shows_why_a_peer_died_and_ends_the_others(tmp_path):
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    (net / "peer-1" / "key.pem").chmod(0o644)
    with started("network", "up", net, cwd=tmp_path) as process:
        _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "node 1 ended with code 2" in log
    assert "chmod 600" in log
    LocalNetwork(net)


@pytest.mark.slow
def test_ctrl_c_ends_all_peers(tmp_path):
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    with started("network", "up", net, "--rounds", 1000000, cwd=tmp_path) as process:
        wait_until(lambda: all("round 5:" in log_of(net, i) for i in range(3)), PATIENCE)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "all peers have ended" in log
    LocalNetwork(net)


@pytest.mark.slow
def test_a_killed_peer_costs_the_others_nothing_but_its_share(tmp_path):
    net, _ = make(tmp_path / "net")
    with started("network", "up", net, "--rounds", 120, "--json", cwd=tmp_path) as process:
        wait_until(lambda: "round 5:" in log_of(net, 2), PATIENCE)
        os.kill(_child(process.pid, "peer-2"), signal.SIGKILL)
        out, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    outcome = json.loads(out)
    assert outcome["killed"] == [2]
    assert [peer["node"] for peer in outcome["peers"]] == [0, 1, 3]
    assert all(peer["rounds"] == 120 + 8 and 0 < peer["dropouts"] < 120 + 8 for peer in outcome["peers"])
    assert outcome["accuracy"] > 0.9


def _child(parent: int, folder: str) -> int:
    """The process that this one started for a peer."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if folder in Path(f"/proc/{pid}/cmdline").read_text():
            return int(pid)
    raise AssertionError(folder)


@pytest.mark.slow
def test_eight_peers_reach_what_the_simulator_reaches(tmp_path):
    net, _ = make(tmp_path / "net", nx.random_regular_graph(6, 8, seed=1))
    with started("network", "up", net, "--json", cwd=tmp_path) as process:
        out, log = process.communicate(timeout=600)
    assert process.returncode == 0, log
    outcome = json.loads(out)
    assert abs(outcome["difference"]) <= 0.01
    assert outcome["accuracy"] > 0.9
    assert sum(peer["dropouts"] for peer in outcome["peers"]) == 0


def test_a_network_folder_without_authority_cannot_run(tmp_path):
    with pytest.raises(ConfigError, match="network init"):
        LocalNetwork(tmp_path)
