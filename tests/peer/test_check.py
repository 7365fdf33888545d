"""The preflight finds each kind of trouble, verifies masks, and leaves those who train alone."""

import asyncio
import json
import logging
import os
import socket

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.driver import state
from cesar.peer.driver.liveness import Neighbour
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops import check
from cesar.peer.ops.check import Check, members_of, vector_of
from cesar.peer.trust.config import PeerConfig
from support.localnet import make
from support.waiting import until

SESSION = bytes(16)


def run_checks(net, *nodes, wait=60.0, in_turn=False):
    """Checks of several peers; `in_turn`, each begins when the one before has opened its port. Findings by node."""
    checks = [Check(net / f"peer-{node}", wait) for node in nodes]

    async def one(place):
        if in_turn and place > 0:
            await until(lambda: "port" in texts(checks[place - 1].findings))
        return await checks[place].run()

    async def all_of_them():
        return await asyncio.gather(*map(one, range(len(nodes))))

    return dict(zip(nodes, asyncio.run(all_of_them()), strict=True))


def wrong(findings):
    return {finding.item: finding.text for finding in findings if finding.ok is False}


def noted(findings):
    return {finding.item: finding.text for finding in findings if finding.ok is None}


def texts(findings):
    return {finding.item: finding.text for finding in findings}


def test_a_status_page_that_has_no_port(tmp_path):
    """A run would not begin, so the check says it; all else is looked at as well."""
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    config = PeerConfig.load(net / "peer-0").tables.peer
    with socket.create_server(("127.0.0.1", int(config.status.partition(":")[2]))):
        outcome = run_checks(net, 0, 1, 2)
    assert list(wrong(outcome[0])) == ["status page"]
    assert f"cannot listen on {config.status}" in wrong(outcome[0])["status page"]
    assert "is exactly what it must be" in texts(outcome[0])["secure round"]
    assert not wrong(outcome[1])
    assert texts(outcome[1])["status page"].startswith("is served at http://127.0.0.1:")


def test_peers_that_come_at_different_moments_verify_one_another(tmp_path):
    net, _ = make(tmp_path / "net", nx.cycle_graph(5))
    for node, findings in run_checks(net, 0, 1, 2, 3, 4, in_turn=True).items():
        near = ", ".join(map(str, sorted(((node + 1) % 5, (node - 1) % 5))))
        assert not wrong(findings)
        assert not noted(findings)
        assert f"average with node(s) {near} is exactly" in texts(findings)["secure round"]
        assert not (net / f"peer-{node}" / state.FILE).exists()


def test_a_check_among_some_says_who_is_missing(tmp_path):
    net, _ = make(tmp_path / "net")
    outcome = run_checks(net, 0, 1, 2, wait=6.0)
    for node, findings in outcome.items():
        assert set(wrong(findings)) == {"node 3"}
        assert str(sorted({0, 1, 2} - {node}))[1:-1] in texts(findings)["secure round"]
    assert "nothing listens there" in wrong(outcome[0])["node 3"]


def test_one_alone_has_nobody_to_average_with(tmp_path):
    net, _ = make(tmp_path / "net")
    (findings,) = run_checks(net, 3, wait=1.0).values()
    assert set(wrong(findings)) == {"node 0", "node 1", "node 2"}
    assert "it dials this peer" in wrong(findings)["node 0"]
    assert "not tried" in noted(findings)["secure round"]


def test_a_key_that_others_can_read(tmp_path):
    net, _ = make(tmp_path / "net")
    (net / "peer-1" / "key.pem").chmod(0o644)
    (findings,) = run_checks(net, 1).values()
    assert "chmod 600" in wrong(findings)["keys"]


@pytest.mark.parametrize(
    ("file", "change", "item", "words"),
    [
        ("peer.toml", lambda text: text.replace("share = 0.5", "shar = 0.5"), "peer.toml", "did you mean share"),
        ("peer.toml", lambda text: text.replace("id = 1", "id = 2"), "settings", "certificate is that of node 1"),
        ("roster.json", lambda text: text.replace("node-3", "node-4"), "roster", "not signed"),
        ("certificate.pem", lambda text: "", "identity", "cannot be read"),
        ("state.json", lambda text: '{"attempts": 0, "next_round": 0, "roster": 7}', "roster", "older than version 7"),
        ("state.json", lambda text: "{", "state", "damaged"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(tmp_path, file, change, item, words):
    net, _ = make(tmp_path / "net")
    path = net / "peer-1" / file
    path.write_text(change(path.read_text() if path.exists() else ""))
    (findings,) = run_checks(net, 1).values()
    assert list(wrong(findings)) == [item]
    assert words in wrong(findings)[item]


def test_certificates_that_have_ended(tmp_path):
    net, _ = make(tmp_path / "net", days=10, age=40)
    (findings,) = run_checks(net, 0, wait=0.0).values()
    assert "ended on" in wrong(findings)["certificate"]
    assert "`cesar network extend`" in wrong(findings)["roster"]


def test_certificates_that_end_soon_are_noted(tmp_path):
    net, _ = make(tmp_path / "net", days=20)
    findings = run_checks(net, 0, 1, 2, 3)[0]
    assert not wrong(findings)
    assert "in 19 days" in noted(findings)["certificate"]


def test_settings_that_differ_are_named(tmp_path):
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    path = net / "peer-1" / "peer.toml"
    path.write_text(path.read_text().replace("share = 0.5", "share = 0.4"))
    outcome = run_checks(net, 1, wait=2.0)
    assert "share is 0.5 there and 0.4 here" in wrong(outcome[1])["settings"]


def test_a_port_that_is_taken(tmp_path):
    net, base = make(tmp_path / "net")
    with socket.create_server(("127.0.0.1", base)):
        (findings,) = run_checks(net, 0).values()
    assert list(wrong(findings)) == ["port"]
    assert f"127.0.0.1:{base}" in wrong(findings)["port"]


def test_a_peer_that_runs_already_keeps_its_links(tmp_path):
    net, _ = make(tmp_path / "net")
    held = state.lock(net / "peer-0")
    try:
        (findings,) = run_checks(net, 0).values()
    finally:
        os.close(held)
    assert "another process runs the peer" in wrong(findings)["port"]


def test_a_listener_without_a_port(tmp_path):
    net, _ = make(tmp_path / "net")
    path = net / "peer-3" / "peer.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("listen")))
    (findings,) = run_checks(net, 3, wait=0.0).values()
    assert "0, 1, 2 dial this peer" in wrong(findings)["port"]


def test_those_who_train_are_not_disturbed(tmp_path):
    net, _ = make(tmp_path / "net")
    (net / "peer-3" / check.STATE).write_text(json.dumps({"attempts": 0, "next_round": 1000, "roster": 1}))

    async def train(peer, over):
        reports = []
        while not over.is_set():
            reports.append(await peer.average_vector(np.full(64, peer.id, np.float32)))
        return reports

    async def both():
        over = asyncio.Event()
        peers = [AsyncPeer.load(net / f"peer-{i}") for i in range(3)]
        for peer in peers:
            await peer.start()
        for peer in peers:
            await peer.wait_for_neighbours(1.0)  # node 3 is not there yet
        training = [asyncio.create_task(train(peer, over)) for peer in peers]
        findings = await Check(net / "peer-3", 20.0).run()
        errors = {known.last_error for peer in peers for i, known in peer.neighbours.items() if i == 3}
        over.set()
        reports = await asyncio.gather(*training)
        for peer in peers:
            await peer.close()
        return findings, reports, errors

    findings, reports, errors = asyncio.run(both())
    assert not wrong(findings)
    assert all("reachable, training" in texts(findings)[f"node {i}"] for i in range(3))
    assert "not tried" in noted(findings)["secure round"]
    assert json.loads((net / "peer-3" / check.STATE).read_text())["next_round"] == 1000
    for node, mine in enumerate(reports):
        rounds = [report.round for report in mine]
        assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
        assert rounds[-1] < 1000
        for report in mine[:-1]:  # whoever stops first leaves the others in their last round
            assert report.contributors == tuple(i for i in range(3) if i != node)
            assert report.lost == 0
    assert not any("parameters" in error or "settings" in error for error in errors)


@pytest.mark.parametrize("used", [(), (3,), (3, 5), (3, 5, 9)])
def test_an_average_tells_who_is_in_it(used):
    mean = np.mean([vector_of(SESSION, i) for i in (1, *used)], axis=0, dtype=np.float64).astype(np.float32)
    assert members_of(SESSION, 1, (3, 5, 9), mean) == set(used)
    mean[17] += 1e-4
    with pytest.raises(ConfigError, match="wrong by"):
        members_of(SESSION, 1, (3, 5, 9), mean)


@pytest.mark.parametrize(
    ("seconds", "ok", "words"),
    [
        (-3.0, True, "within seconds"),
        (40.0, None, "node 2 is 40 s ahead of"),
        (-400.0, False, "node 2 is 400 s behind"),
    ],
)
def test_a_clock_that_is_off(tmp_path, seconds, ok, words):
    preflight = Check(tmp_path, 0.0)
    preflight._seen = {1: Neighbour(clock=1.0), 2: Neighbour(clock=seconds)}
    preflight._clock()
    (finding,) = preflight.findings
    assert finding.ok is ok
    assert words in finding.text


@pytest.fixture(autouse=True)
def _quiet():
    """Log lines of refused connections are not for the tests' output."""
    handler = logging.NullHandler()
    logging.getLogger("cesar").addHandler(handler)
    yield
    logging.getLogger("cesar").removeHandler(handler)
