"""A certificate is renewed while its peer runs: for a while others accept the old one and the new one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError, MembershipError
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.certificates import Request, read_authority
from cesar.peer.trust.folder import Network
from cesar.peer.trust.identity import Identity, make_keys, renewal
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import Roster
from support.commands import agreed, call
from support.lan import Lines, make_network, met, one_round, running
from support.waiting import until

SIZE, EVERYBODY = 50, [0, 1, 2, 3, 4]


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(5))


async def averages(peers):
    """All average with all, and get the mean; on a slow machine not at once."""
    async with asyncio.timeout(120):
        while True:
            for peer in peers:
                await met(peer, set(EVERYBODY))
            models = np.random.default_rng(0).normal(size=(len(peers), SIZE)).astype(np.float32)
            mean = models.mean(0)
            reports = await one_round(peers, models)
            if not any(report.missing for report in reports):
                break
    np.testing.assert_allclose(models, np.broadcast_to(mean, models.shape), atol=1e-6)


async def taken_up(peers):
    """The round in which all take up the roster that lies in their folders, and tell one another."""
    await one_round(peers, np.zeros((len(peers), SIZE), np.float32))
    version = max(peer.roster.version for peer in peers)
    await until(lambda: all(known.roster == version for peer in peers for known in peer.neighbours.values()))


def test_a_running_peer_changes_its_certificate(network):
    """Node 2 dials some and is dialled by others; it is never stopped, and nobody is refused."""
    folder, signed = network.folder / "peer-2", network.folder / "signed" / "peer-2"
    old = network.roster.members[2]

    async def scene():
        with Lines() as log:
            async with running(network, EVERYBODY) as peers:
                await averages(peers)
                call("peer", "renew", folder)
                await averages(peers)
                call(
                    "network",
                    "renew",
                    network.folder,
                    folder / "request.json",
                    *agreed(folder / "request.json"),
                )
                await taken_up(peers)  # node 2 still shows its old certificate
                new = peers[0].roster.members[2]
                assert (peers[0].roster.version, new.former) == (2, old.certificate)
                assert new.agreement_key != old.agreement_key  # with which masks are made from now on
                await averages(peers)
                (folder / "certificate.pem").write_bytes((signed / "certificate.pem").read_bytes())
                await one_round(peers, np.zeros((5, SIZE), np.float32))  # its links begin anew
                await log.says("node 2 shows its new certificate from now on")
                for peer in peers:
                    await met(peer, set(EVERYBODY))
                await averages(peers)
                assert not log.said("refused")
                assert not log.said("this peer stops")

    on_loop(scene())
    shown = Identity.load(folder)
    assert shown.certificate == (signed / "certificate.pem").read_bytes() != old.certificate
    assert (folder / "key-2.pem").stat().st_mode & 0o077 == 0


def test_a_peer_that_starts_with_either_certificate_is_let_in(network, tmp_path):
    folder = network.folder / "peer-2"
    before = (folder / "certificate.pem").read_bytes()
    renewed = network.renew(renewal(folder), now=datetime.now(UTC), days=30)
    assert renewed.roster.members[2].until > datetime.now(UTC) + timedelta(days=13)
    assert renewal(folder).node.agreement_key == renewed.roster.members[2].agreement_key
    assert [len(list(folder.glob(f"{kind}*"))) for kind in ("key", "agreement")] == [2, 2], (
        "a key that waits for its certificate is used again"
    )

    async def scene():
        async with running(network, EVERYBODY) as peers:
            await averages(peers)

    for certificate in (before, renewed.roster.members[2].certificate):
        (folder / "certificate.pem").write_bytes(certificate)
        on_loop(scene())


def signed_with(network, member):
    """A newer roster, in every folder, in which a member is this."""
    old = network.roster
    newer = Roster.sign(
        network.authority,
        [member if i == member.id else old.members[i] for i in old.members],
        old.graph,
        network_id=old.network_id,
        version=2,
        now=datetime.now(UTC),
        settings=old.settings,
    )
    for i in EVERYBODY:
        (network.folder / f"peer-{i}" / "roster.json").write_bytes(newer.raw)
    return newer


def test_after_the_overlap_the_old_certificate_is_worthless(network):
    """Node 2 never takes up the new one: its links end with the overlap, and it stops."""
    old, folder = network.roster.members[2], network.folder / "peer-2"
    certificate = network.authority.issue(renewal(folder), now=datetime.now(UTC), days=30)

    async def scene():
        async with running(network, EVERYBODY) as peers:
            await averages(peers)
            end = datetime.now(UTC) + timedelta(seconds=8)
            names = {"name": old.name, "address": old.address, "former": old.certificate, "until": end}
            signed_with(network, Member.of(certificate, **names))
            rest = [peer for peer in peers if peer.id != 2]
            await one_round(peers, np.zeros((5, SIZE), np.float32))
            assert {peer.roster.version for peer in rest} == {2}
            await until(lambda: not any(peer.neighbours[2].up for peer in rest), 60)
            with pytest.raises(MembershipError, match=r"the certificate has ended|lists another certificate"):
                await peers[2].average_vector(np.zeros(SIZE, np.float32))
            reports = await one_round(rest, np.zeros((4, SIZE), np.float32))
            assert all(2 in report.missing for report in reports)

    on_loop(scene())
    with pytest.raises(ConfigError, match="lists another certificate for node 2"):
        AsyncPeer.load(folder)


def test_other_keys_count_at_once(network, tmp_path):
    request = Request(csr=make_keys(tmp_path / "new", "lan", 2))
    assert network.renew(request, now=datetime.now(UTC), days=30).roster.members[2].former is None


def test_only_the_holder_of_a_certificate_continues_it(network, tmp_path):
    """A proof by another key, over another request, or of another peer brings no overlap."""
    honest = renewal(network.folder / "peer-2")
    assert honest.follows(network.roster.members[2].certificate)
    assert not honest.follows(network.roster.members[3].certificate)
    thief = Request(csr=make_keys(tmp_path / "new", "lan", 2), continues=honest.continues)
    assert not thief.follows(network.roster.members[2].certificate)
    path = tmp_path / "request.json"
    path.write_bytes(honest.to_bytes())
    assert Request.load(path) == honest
    path.write_bytes(honest.to_bytes().replace(honest.continues.hex().encode(), b"xy"))
    with pytest.raises(ConfigError, match="its proof cannot be read"):
        Request.load(path)


def test_a_key_that_is_not_there(network):
    """The roster names an agreement key that this site has lost: it says so, and stops."""
    folder = network.folder / "peer-2"
    network.renew(renewal(folder), now=datetime.now(UTC), days=30)
    AsyncPeer.load(folder)
    (folder / "agreement-2.key").unlink()
    with pytest.raises(ConfigError, match="names an agreement key for node 2 that is not in"):
        AsyncPeer.load(folder)


def test_a_stolen_certificate_gets_no_overlap(network):
    request = renewal(network.folder / "peer-2")
    renewed = network.renew(request, now=datetime.now(UTC), days=30, overlap=0)
    assert renewed.roster.members[2].former is None
    with pytest.raises(ConfigError, match="lists another certificate for node 2"):
        AsyncPeer.load(network.folder / "peer-2")


def test_a_former_certificate_is_of_the_same_peer(network):
    members = network.roster.members
    for other in (3, 4):
        with pytest.raises(ConfigError, match="its former certificate is of another node"):
            Member.of(members[2].certificate, name="x", address=None, former=members[other].certificate)


def test_the_authority_changes_its_certificate(network):
    """While peers run: they take the new one from the roster, and whoever starts with the old ca.pem does, too."""
    before = read_authority(network.authority.certificate)

    async def scene():
        async with running(network, EVERYBODY) as peers:
            await averages(peers)
            call("network", "reauthorise", network.folder, "--days", 5000)
            now = Network.open(network.folder)
            after = read_authority(now.authority.certificate)
            assert after.not_valid_after_utc > before.not_valid_after_utc + timedelta(days=1000)
            for i in EVERYBODY:  # as if nobody had copied anything but one roster
                (network.folder / f"peer-{i}" / "ca.pem").write_bytes(network.authority.certificate)
                if i:
                    (network.folder / f"peer-{i}" / "roster.json").write_bytes(network.roster.raw)
            await one_round(peers, np.zeros((5, SIZE), np.float32))
            await until(lambda: all(peer.membership.newer is not None for peer in peers[1:]))
            await taken_up(peers)
            await one_round(
                peers, np.zeros((5, SIZE), np.float32)
            )  # they show the certificate; links begin anew
            for peer in peers:
                await met(peer, set(EVERYBODY))
            await averages(peers)
            assert {round(peer.membership.days_left()["authority"]) for peer in peers} == {5000}
            assert {peer.membership.identity.ca for peer in peers} == {now.authority.certificate}

    on_loop(scene())
