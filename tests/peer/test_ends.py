"""Over real links: whoever is removed stops, and what has ended is used no longer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError, MembershipError
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.identity import make_keys
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import Roster
from support.lan import Lines, make_network, met, one_round, running
from support.waiting import until

SIZE, EVERYBODY = 50, [0, 1, 2, 3, 4]


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(5))


def models(count):
    return np.random.default_rng(0).normal(size=(count, SIZE)).astype(np.float32)


def test_a_removed_peer_is_told_and_stops(network):
    """Its neighbour has the newer roster and hands it over; the others go on without it."""
    old = network.roster.raw

    async def scene():
        with Lines() as log:
            async with running(network, list(range(5))) as peers:
                await one_round(peers, models(5))
                network.remove(0, connect=True, now=datetime.now(UTC))
                for peer in peers[:4]:  # only node 4 has it
                    (peer.config.folder / "roster.json").write_bytes(old)
                await one_round(peers[1:], models(4))
                await log.says("this peer stops: node 0 is not in version 2 of the roster")
                with pytest.raises(MembershipError, match="it was removed or never signed"):
                    await peers[0].average_vector(models(1)[0])
                await until(lambda: all(peer.membership.newer is not None for peer in peers[1:4]))
                await one_round(peers[1:], models(4))
                reports = await one_round(peers[1:], models(4))
                assert [report.missing for report in reports] == [()] * 4

    on_loop(scene())
    with pytest.raises(ConfigError, match="node 0 is not in version 2 of the roster"):
        AsyncPeer.load(network.folder / "peer-0")


def in_time(scene):
    """Run a scene in which something ends after so many seconds; on a slow machine again, with more of them."""
    for version, seconds in enumerate((6, 25, 100), 2):
        try:
            return on_loop(scene(version, seconds))
        except TimeoutError:
            continue
    raise AssertionError("peers never met in time")


async def all_meet(peers):
    """One round of all with all.

    Raises:
        TimeoutError: it came too late.
    """
    try:
        reports = await one_round(peers, models(len(peers)))
    except MembershipError:
        raise TimeoutError from None
    if not all(len(report.contributors) == len(peers) - 1 for report in reports):
        raise TimeoutError


def ends_in(network, version, seconds, *, roster=False):
    """A newer roster, in every folder, with a new certificate of node 0; that one ends after so many seconds, or the
    roster does.
    """
    begin = datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=seconds)
    old, folder = network.roster, network.folder / "peer-0"
    for file in ("key.pem", "agreement.key"):
        (folder / file).unlink()
    csr = make_keys(folder, "lan", 0)
    certificate = network.authority.issue(
        Request(csr=csr), now=begin if not roster else datetime.now(UTC), days=1
    )
    (folder / "certificate.pem").write_bytes(certificate)
    member = Member.of(certificate, name="node-0", address=old.members[0].address)
    newer = Roster.sign(
        network.authority,
        [member, *(old.members[i] for i in range(1, 5))],
        old.graph,
        network_id=old.network_id,
        version=version,
        now=begin,
        days=1 if roster else 30,
        settings=old.settings,
    )
    for i in range(5):
        (network.folder / f"peer-{i}" / "roster.json").write_bytes(newer.raw)


def test_links_end_when_a_certificate_does(network):
    async def scene(version, seconds):
        ends_in(network, version, seconds)
        with Lines() as log:
            async with running(network, EVERYBODY) as peers:
                await all_meet(peers)
                await until(lambda: not any(peer.neighbours[0].up for peer in peers[1:]), seconds + 30)
                assert log.said("node 0: its certificate has ended")
                reports = await one_round(peers[1:], models(4))
                assert all(0 in report.missing for report in reports)
                with pytest.raises(MembershipError, match="the certificate has ended"):
                    await peers[0].average_vector(models(1)[0])

    in_time(scene)


def test_nobody_averages_under_a_roster_that_has_ended(network):
    async def scene(version, seconds):
        ends_in(network, version, seconds, roster=True)
        try:
            peers = [AsyncPeer.load(network.folder / f"peer-{i}") for i in EVERYBODY]
            for peer in peers:
                await peer.start()
        except MembershipError:
            raise TimeoutError from None
        try:
            await asyncio.gather(*(met(peer, set(EVERYBODY)) for peer in peers))
            await all_meet(peers)
            await until(lambda: peers[0].membership.days_left()["roster"] < 0, seconds + 30)
            for outcome in await asyncio.gather(
                *(peer.average_vector(models(1)[0]) for peer in peers), return_exceptions=True
            ):
                assert isinstance(outcome, MembershipError)
                assert "the roster has ended" in str(outcome)
        finally:
            await asyncio.gather(*(peer.close() for peer in peers))
        late = AsyncPeer.load(network.folder / "peer-1")
        with pytest.raises(MembershipError, match="`cesar network extend`"):
            await late.start()
        await late.close()

    in_time(scene)
