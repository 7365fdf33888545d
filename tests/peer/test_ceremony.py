"""The ceremony: what is signed was compared, versions are signed once, changes are told, held and approved, keys are closed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pty
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from cesar.base.errors import ConfigError
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust import changes, keyfiles, passphrases
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.folder import Network
from cesar.peer.trust.identity import Identity, make_keys
from cesar.peer.trust.roster import Roster
from support.commands import call, refused
from support.lan import Lines, edit, make_network, one_round, running
from support.waiting import until

METHOD = 'name = "secagg"'


def asked(*arguments, answers, cwd):
    """A command at a terminal, with (question, answer) in the order in which they come; its exit code, and what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cesar", *map(str, arguments)],
        cwd=cwd,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        for question, answer in answers:
            while question.encode() not in shown:
                more = os.read(process.stdout.fileno(), 1000)
                assert more, shown
                shown += more
            os.write(ours, f"{answer}\n".encode())
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        os.close(ours)
    return process.returncode, (shown + rest).decode()


# ── what is signed ──────────────────────────────────────────────────────────────────────────────────────


def test_at_a_terminal_somebody_is_asked(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(5), METHOD)
    call(
        "peer",
        "request",
        "--network",
        "lan",
        "--id",
        8,
        "--address",
        "x.example.org:7400",
        "--out",
        tmp_path / "site",
    )
    command = ("network", "sign", network.folder, tmp_path / "site" / "request.json", "--neighbours", "0,1,2")
    code, shown = asked(*command, answers=[("read out the same?", "n")], cwd=tmp_path)
    assert code == 2
    assert "was not signed" in shown
    code, shown = asked(*command, answers=[("read out the same?", "y")], cwd=tmp_path)
    assert code == 0, shown
    assert Network.open(network.folder).roster.version == 2


def test_of_two_commands_at_once_one_signs(tmp_path):
    """Both have read version 1; without a lock both would sign a version 2, and different ones."""
    network = make_network(tmp_path / "net", nx.complete_graph(6), METHOD)
    outcome = []
    begin = threading.Barrier(4)

    def remove(node):
        mine = Network.open(network.folder)
        begin.wait()
        try:
            outcome.append(mine.remove(node, now=datetime.now(UTC)).roster)
        except ConfigError as error:
            outcome.append(str(error))

    threads = [threading.Thread(target=remove, args=(node,)) for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    signed = [found for found in outcome if isinstance(found, Roster)]
    assert len(signed) == 1
    assert all("another command has signed version 2" in text for text in outcome if isinstance(text, str))
    files = [*network.folder.glob("peer-*/roster.json"), network.folder / "roster.json"]
    assert {file.read_bytes() for file in files} == {signed[0].raw}
    assert len((network.folder / "roster.log").read_text().splitlines()) == 2


# ── what changed, in words ──────────────────────────────────────────────────────────────────────────────


def test_changes_in_words(tmp_path):
    network = make_network(tmp_path / "net", nx.circulant_graph(8, [1, 2]), METHOD, owners={3: "clinic"})
    request = Request(
        csr=make_keys(tmp_path / "site", "lan", 50, "university"), name="institute", address="127.0.0.1:7399"
    )
    now = datetime.now(UTC)
    added = network.add(request, (0, 1, 2), now=now, days=30)
    said = changes.differences(network.roster, added.roster, 1)
    assert said[0] == "adds 50 institute of university, next to you, 0, 2"
    assert said[-1].startswith("it holds until ")
    removed = added.remove(5, [(4, 6), (3, 7)], now=now + timedelta(days=1))
    said = changes.differences(added.roster, removed.roster)
    assert said[0] == "removes 5"
    assert "3 and 7 become neighbours" in said
    renewed = removed.renew(
        Request(csr=make_keys(tmp_path / "new", "lan", 3, "clinic"), name="ward", address="127.0.0.1:7398"),
        now=now,
        days=60,
    )
    said = changes.differences(removed.roster, renewed.roster)
    assert said[0] == "3 is now called ward"
    assert said[1].startswith("3 is reached at 127.0.0.1:7398 now, not at 127.0.0.1:")
    assert said[2].startswith("3 has a new certificate and new keys, until ")
    settings = network.folder / "network.toml"
    settings.write_text(settings.read_text().replace('"secagg"', '"secagg"\nring_bits = 16'))
    changed = renewed.extend(now=now, days=10)
    said = changes.differences(renewed.roster, changed.roster)
    assert "ring_bits becomes 16 (it was 32)" in said
    log = (network.folder / "roster.log").read_text().splitlines()
    assert [line.split(" (")[0].split("Z ")[1] for line in log] == [
        f"signed version {k}" for k in range(1, 6)
    ]
    assert "adds 50 institute of university" in log[1]
    assert added.roster.digest.hex() in log[1]


def test_the_log_of_rosters_is_a_chain(tmp_path):
    """A line that was changed, taken out, moved or slipped in shows."""
    network = make_network(tmp_path / "net", nx.complete_graph(5), METHOD)
    for k in range(1, 5):
        network = network.extend(now=datetime.now(UTC), days=30 + k)
    log = network.folder / "roster.log"
    whole = log.read_text()
    lines = whole.splitlines(keepends=True)
    count, last = changes.check_log(network.folder)
    assert (count, last) == (5, hashlib.sha256(lines[-1].rstrip().encode()).hexdigest())
    assert f"roster.log has 5 lines, unbroken; the last one's SHA-256: {last}" in call(
        "network", "show", network.folder
    )
    forged = [
        [lines[0].replace("5 peers", "4 peers"), *lines[1:]],
        [lines[0], *lines[2:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines[:2], lines[1], *lines[2:]],
        [*lines[:4], lines[4].replace(", after ", " after ")],
    ]
    for some in forged:
        log.write_text("".join(some))
        with pytest.raises(ConfigError, match="is not what was written there"):
            changes.check_log(network.folder)
        assert "is not what was written there" in refused("network", "show", network.folder)
    log.write_text("".join(lines[1:]))
    assert "lines before it are missing" in refused("network", "show", network.folder)
    log.write_text("2026-01-01T00:00:00Z signed version 1 (00): of an earlier release\n")
    changes.append_to_log(network.folder, "signed", network.roster, ["more"], datetime.now(UTC))
    assert changes.check_log(network.folder)[0] == 2


# ── approval ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_that_was_not_approved_waits(tmp_path):
    """Over real links: node 1 asks. It holds what a neighbour sends, and takes it up once its site has agreed."""
    network = make_network(tmp_path / "net", nx.complete_graph(6), METHOD)
    mine, old = network.folder / "peer-1", network.roster
    edit(mine, r"\[peer\]", '[peer]\napprove = "ask"')

    async def scene():
        with Lines() as log:
            async with running(network, list(range(6))) as peers:
                await one_round(peers, np.zeros((6, 40), np.float32))
                newer = network.remove(0, now=datetime.now(UTC)).roster
                (mine / "roster.json").write_bytes(old.raw)
                await one_round(peers[2:], np.zeros((4, 40), np.float32))
                await until(lambda: peers[1].membership.held is not None)
                await log.says("version 2 of the roster waits for `cesar peer approve", "removes 0")
                await log.says("node 0 was removed; its link ends now")
                assert 0 not in peers[1].transport.links  # whatever the site says
                report = await peers[1].average_vector(np.zeros(40, np.float32))
                assert (peers[1].roster.version, report.contributors) == (1, ())
                assert "give the digest above with --sha256" in refused("peer", "approve", mine)
                assert "another digest" in refused("peer", "approve", mine, "--sha256", old.digest.hex())
                await one_round(peers[1:2], np.zeros((1, 40), np.float32))
                assert peers[1].roster.version == 1
                shown = call("peer", "approve", mine, "--sha256", newer.digest.hex())
                assert "· removes 0" in shown
                await one_round(peers[1:], np.zeros((5, 40), np.float32))
                assert peers[1].roster.version == 2
                reports = await one_round(peers[1:], np.zeros((5, 40), np.float32))
                assert [report.missing for report in reports] == [()] * 5

    on_loop(scene())
    lines = (mine / "roster.log").read_text().splitlines()
    assert [line.split(" version")[0].split("Z ")[1] for line in lines] == ["held", "approved", "taken up"]
    assert call("peer", "approve", mine) == "No roster waits for approval.\n"


def test_a_roster_in_the_folder_is_not_an_approval(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(5), METHOD)
    mine = network.folder / "peer-1"
    edit(mine, r"\[peer\]", '[peer]\napprove = "ask"')

    async def start(version):
        peer = AsyncPeer.load(mine)
        try:
            await peer.start()
            assert peer.roster.version == version
            await peer.average_vector(np.zeros(40, np.float32))
            return peer.roster.version
        finally:
            await peer.close()

    assert on_loop(start(1)) == 1
    newer = network.remove(0, now=datetime.now(UTC)).roster
    assert (mine / "roster.json").read_bytes() == newer.raw
    assert on_loop(start(1)) == 1
    code, shown = asked("peer", "approve", mine, answers=[("Approve it?", "n")], cwd=tmp_path)
    assert code == 1, shown
    assert on_loop(start(1)) == 1
    call("peer", "approve", mine, "--sha256", newer.digest.hex())
    assert on_loop(start(2)) == 2


# ── passphrases ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def nobody_asked(monkeypatch):
    for variable in (passphrases.PEER, passphrases.AUTHORITY):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(f"{variable}_FILE", raising=False)
    return monkeypatch


def test_keys_can_be_closed(tmp_path, nobody_asked):
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    nobody_asked.setenv("CESAR_CA_PASSPHRASE", "battery staple")
    nobody_asked.setenv("CESAR_PASSPHRASE_FILE", str(secret))
    call("peer", "request", "--network", "net", "--id", 0, "--out", tmp_path / "site", "--passphrase")
    call("network", "init", "--peers", 5, "--out", tmp_path / "net", "--passphrase")
    for key in ("site/key.pem", "site/agreement.key", "net/ca/ca.key"):
        text = (tmp_path / key).read_text()
        assert text.startswith("-----BEGIN CESAR ENCRYPTED KEY-----")
    assert (tmp_path / "net/peer-0/key.pem").read_text().startswith("-----BEGIN PRIVATE KEY-----")
    authority = Authority.load(tmp_path / "net" / "ca")
    site = tmp_path / "site"
    data = json.loads((site / "request.json").read_text())
    (site / "certificate.pem").write_bytes(
        authority.issue(Request(csr=data["csr"].encode()), now=datetime.now(UTC))
    )
    (site / "ca.pem").write_bytes(authority.certificate)
    assert Identity.load(site).id == 0
    nobody_asked.delenv("CESAR_PASSPHRASE_FILE")
    with pytest.raises(ConfigError, match=r"needs a passphrase, and there is no terminal.*CESAR_PASSPHRASE"):
        Identity.load(site)
    nobody_asked.setenv("CESAR_PASSPHRASE", "wrong")
    with pytest.raises(ConfigError, match=r"that is not the passphrase of .*site"):
        Identity.load(site)
    nobody_asked.delenv("CESAR_CA_PASSPHRASE")
    assert "needs a passphrase" in refused("network", "extend", tmp_path / "net")
    secret.chmod(0o644)
    nobody_asked.setenv("CESAR_PASSPHRASE_FILE", str(secret))
    with pytest.raises(ConfigError, match="others can read"):
        Identity.load(site)


def test_a_passphrase_is_asked_for_at_a_terminal(tmp_path, nobody_asked):
    make = ("peer", "request", "--network", "net", "--id", 0, "--passphrase", "--out")
    code, shown = asked(
        *make, tmp_path / "a", answers=[("Passphrase of", "one"), ("same again", "two")], cwd=tmp_path
    )
    assert code == 2
    assert "differ" in shown
    assert not Path(tmp_path / "a").exists()
    code, shown = asked(
        *make, tmp_path / "a", answers=[("Passphrase of", "one"), ("same again", "one")], cwd=tmp_path
    )
    assert code == 0, shown
    assert (tmp_path / "a" / "key.pem").read_text().startswith("-----BEGIN CESAR ENCRYPTED KEY")


@pytest.fixture
def site(tmp_path, nobody_asked):
    """Keys of a site under a passphrase, and its certificate."""
    nobody_asked.setenv("CESAR_PASSPHRASE", "correct horse")
    authority = Authority.create("net", now=datetime.now(UTC))
    csr = make_keys(tmp_path / "site", "net", 0, passphrase=b"correct horse")
    (tmp_path / "site" / "certificate.pem").write_bytes(
        authority.issue(Request(csr=csr), now=datetime.now(UTC))
    )
    (tmp_path / "site" / "ca.pem").write_bytes(authority.certificate)
    return tmp_path / "site"


def work_of(path):
    """What a guess costs, as the file says it: log2 n, r, p."""
    lines = path.read_bytes().split(b"\n")[1:-2]
    return tuple(base64.b64decode(b"".join(lines))[1:4])


def test_a_guess_at_a_passphrase_costs_128_megabytes(site):
    for name in ("key.pem", "agreement.key"):
        assert work_of(site / name) == (17, 8, 1)
        assert (site / name).stat().st_mode & 0o777 == 0o600


def test_keys_that_are_quick_to_guess_are_read_and_written_anew(site):
    """As the releases before wrote them."""
    before = Identity.load(site)
    for name in ("key.pem", "agreement.key"):
        key = keyfiles._read_key(site / name, lambda: b"correct horse")
        old = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"correct horse"))
        assert old.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        (site / name).write_bytes(old)
    again = Identity.load(site)
    assert (again.tls_key, again.keys.public) == (before.tls_key, before.keys.public)
    for name in ("key.pem", "agreement.key"):
        assert work_of(site / name) == (17, 8, 1)
        assert (site / name).stat().st_mode & 0o777 == 0o600
    assert Identity.load(site).keys.public == before.keys.public


@pytest.mark.parametrize(("at", "value"), [(1, 1), (1, 16), (1, 40), (2, 1), (3, 200), (0, 9)])
def test_a_file_cannot_ask_for_little_or_endless_work(site, at, value):
    lines = (site / "key.pem").read_bytes().split(b"\n")
    body = bytearray(base64.b64decode(b"".join(lines[1:-2])))
    body[at] = value
    (site / "key.pem").write_bytes(b"\n".join([lines[0], base64.b64encode(body), lines[-2], b""]))
    with pytest.raises(ConfigError, match="a way that this release does not know"):
        Identity.load(site)
