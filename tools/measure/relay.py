"""What the detour through a relay costs: the same rounds between three sites directly and through OpenSSH tunnels.

    PYTHONPATH=tests python tools/measure/relay.py            # as root, on a machine that does nothing else

Sites and relay are network namespaces of one machine, so distances are nil: what is left is the work of encrypting and
passing on. Prints the figures of docs/firewalls.md.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import networkx as nx

from support.lan import edit, make_network
from support.relay import Relay, inside

SIZE, ROUNDS, FIRST = 1_000_000, 12, 2
TRAINING = f"""
import json

import numpy as np


def train(peer):
    model, seconds = np.random.default_rng(peer.id).normal(size={SIZE}).astype(np.float32), []
    for _ in range({ROUNDS}):
        seconds.append(peer.average_vector(model).seconds)
    (peer.folder / "seconds.json").write_text(json.dumps(seconds))
"""


def carried(namespace: str) -> int:
    """Bytes that a namespace's network card has received and sent."""
    shown = subprocess.run(
        ["ip", "-n", namespace, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True
    )
    counted = json.loads(shown.stdout)[0]["stats64"]
    return counted["rx"]["bytes"] + counted["tx"]["bytes"]


def run(relay: Relay, folder: Path, *, tunnels: bool) -> tuple[list[float], int, int]:
    """Seconds of each round at each site, bytes at the sites' cards, and bytes at the relay's."""
    places = relay.addresses if tunnels else relay.direct
    network = make_network(folder, nx.complete_graph(3), addresses=places).folder
    with contextlib.ExitStack() as stack:
        for site in range(3):
            if tunnels:
                edit(network / f"peer-{site}", r"listen = .*\n", 'listen = "127.0.0.1:7400"\n')
                stack.enter_context(relay.tunnel(site))
        before = [carried(name) for name in (*relay.sites.values(), relay.relay)]
        command = (sys.executable, "-m", "cesar", "peer", "run", "--train", "training:train", "--settle", 0)
        peers = [
            stack.enter_context(relay.running(relay.sites[i], *command, network / f"peer-{i}"))
            for i in range(3)
        ]
        assert [peer.wait() for peer in peers] == [0, 0, 0]
        after = [carried(name) for name in (*relay.sites.values(), relay.relay)]
    seconds = [json.loads((network / f"peer-{i}" / "seconds.json").read_text())[FIRST:] for i in range(3)]
    moved = [new - old for new, old in zip(after, before, strict=True)]
    return [value for site in seconds for value in site], sum(moved[:3]), moved[3]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "training.py").write_text(TRAINING)
        with Relay(folder) as relay:
            detour = run(relay, folder / "relayed", tunnels=True)
            for site in relay.sites.values():
                subprocess.run(inside(site, "nft", "flush", "ruleset"), check=True)
            direct = run(relay, folder / "direct", tunnels=False)
        for title, (seconds, sites, passed) in (("direct", direct), ("relay", detour)):
            print(
                f"{title}: median round {statistics.median(seconds):.3f} s, {sites / ROUNDS / 1e6:.2f} MB a round at the "
                f"sites' cards, {passed / ROUNDS / 1e6:.2f} MB at the relay's; {SIZE:,} parameters, {ROUNDS} rounds"
            )


main()
