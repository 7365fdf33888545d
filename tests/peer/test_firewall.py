"""Sites that drop whatever arrives, and average through a relay that can read nothing; as root in network namespaces."""

import contextlib
import json
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from support.commands import PATIENCE
from support.lan import edit, make_network
from support.relay import Relay, inside, streams, why_not
from support.replay import SHARE, rounds_of
from support.waiting import wait_until

HANDSHAKE, APPLICATION = 22, 23  # kinds of TLS records
SIZE, ROUNDS = 10_000, 2
TRAINING = f"""
import json

import numpy as np


def model_of(node):
    return np.random.default_rng(node).normal(size={SIZE}).astype(np.float32)


def train(peer):
    model, reports = model_of(peer.id), []
    for _ in range({ROUNDS}):
        report = peer.average_vector(model)
        reports.append([list(report.contributors), report.total_bytes])
    np.save(peer.folder / "model.npy", model)
    (peer.folder / "reports.json").write_text(json.dumps(reports))
"""


@pytest.fixture
def relay(tmp_path):
    if why := why_not():
        pytest.skip(why)
    with Relay(tmp_path) as made:
        yield made


@pytest.fixture
def network(tmp_path, relay):
    made = make_network(
        tmp_path / "net",
        nx.complete_graph(3),
        addresses=relay.addresses,
        transcript=True,
        rounds="floor = 120.0\nceiling = 280.0",  # nobody is given up, however slow the machine is
    )
    for node in range(3):
        edit(made.folder / f"peer-{node}", r"listen = .*\n", 'listen = "127.0.0.1:7400"\n')
    return made.folder


def check(relay, network, node):
    command = (
        sys.executable,
        "-m",
        "cesar",
        "peer",
        "check",
        network / f"peer-{node}",
        "--wait",
        0,
        "--json",
    )
    done = subprocess.run(
        inside(relay.sites[node], *command), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode in {0, 1}, done.stderr
    return {finding["item"]: finding["text"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.slow
def test_the_check_tells_what_is_wrong_with_a_tunnel(relay, network):
    without = check(relay, network, 1)
    assert "only this machine reaches" in without["port"]
    assert f"{relay.host}:7401 does not answer from here" in without["port"]
    assert f"{relay.host} stands for nodes 0, 1, 2" in without["node 2"]
    with relay.tunnel(1, to=7999):
        assert "accepts connections and drops them" in check(relay, network, 1)["port"]
    with relay.tunnel(1):
        assert f"answers at {relay.host}:7401, so its tunnel runs" in check(relay, network, 1)["port"]


def windows(model):
    """Every eight bytes that two neighbouring parameters would be if somebody sent them as they are."""
    fixed = (np.rint(model.astype(np.float64) * 2.0**k).astype(np.int64) for k in range(12, 31))
    words = [model.tobytes(), *((values & 0xFFFFFFFF).astype("<u4").tobytes() for values in fixed)]
    return {word[at : at + 8] for word in words for at in range(0, len(word) - 4, 4)}


def seen(data, wanted):
    return any(data[at : at + 8] in wanted for at in range(len(data) - 7))


def between_sites(capture):
    """What peers said to one another through the relay, without the tunnels that carried it on."""
    return {ports: data for ports, data in streams(capture).items() if 22 not in ports}


def tls_records(data):
    """The kinds of the records that a stream consists of, to the last byte."""
    kinds, at = [], 0
    while at < len(data):
        kind, major, length = data[at], data[at + 1], int.from_bytes(data[at + 3 : at + 5], "big")
        assert kind in {20, 21, HANDSHAKE, APPLICATION}
        assert major == 3
        kinds.append(kind)
        at += 5 + length
    return kinds


def test_sites_that_only_dial_out_average_through_a_relay_that_reads_nothing(relay, network, tmp_path):
    (tmp_path / "training.py").write_text(TRAINING)
    scope: dict = {}
    exec(TRAINING, scope)
    models = [scope["model_of"](node) for node in range(3)]
    command = (sys.executable, "-m", "cesar", "peer", "run", "--train", "training:train", "--settle", 0)
    with contextlib.ExitStack() as stack:
        for site in range(3):
            stack.enter_context(relay.tunnel(site))
        capture = stack.enter_context(relay.capture())
        peers = [
            stack.enter_context(relay.running(relay.sites[node], *command, network / f"peer-{node}"))
            for node in range(3)
        ]
        assert relay.dial(relay.sites[0], relay.direct[1]) == "dropped"  # nothing gets in …
        assert relay.dial(relay.sites[0], relay.addresses[1]) == "open"  # … but through the relay
        for peer in peers:
            assert peer.wait(PATIENCE) == 0, (tmp_path / "tools.log").read_text()
        # All shares passed the relay. They are written down late where the machine is busy.
        wait_until(lambda: sum(map(len, between_sites(capture).values())) > ROUNDS * 6 * 4 * SIZE, PATIENCE)

    for node in range(3):
        reports = json.loads((network / f"peer-{node}" / "reports.json").read_text())
        assert [others for others, _ in reports] == [[i for i in range(3) if i != node]] * ROUNDS
        np.testing.assert_allclose(
            np.load(network / f"peer-{node}" / "model.npy"), np.mean(models, 0), atol=1e-4
        )

    found, wanted = streams(capture), set().union(*map(windows, models))
    for data in between_sites(capture).values():
        kinds = tls_records(data)
        assert kinds[0] == HANDSHAKE
        assert APPLICATION not in kinds or set(kinds[kinds.index(APPLICATION) :]) == {APPLICATION}
    assert not any(seen(data, wanted) for data in found.values())

    for node in range(3):  # what is inside the TLS
        frames = rounds_of(network / f"peer-{node}" / "frames")
        shares = [body for this in frames.values() for (kind, _), body in this.sent.items() if kind == SHARE]
        assert len(shares) == 2 * ROUNDS
        assert not any(seen(body, wanted) for body in shares)
    assert seen(b"..." + models[1][7:9].tobytes(), wanted)  # the search would find it
