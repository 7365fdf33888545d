"""A newer roster is checked at once, used later, and durable before it is used; an older one never counts."""

from datetime import UTC, datetime, timedelta

import networkx as nx
import pytest

from cesar.base.errors import ConfigError, MembershipError, Refusal
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.state import StateFile
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.roster import FILE, Roster
from support.lan import make_network

NODE = 1


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(5))


def place(network):
    folder = network.folder / f"peer-{NODE}"
    identity = Identity.load(folder)
    state = StateFile(folder / "state.json")
    return Membership(identity, Roster.load(folder / FILE, identity.ca), folder, state), folder, state


def without(network, node):
    """The network with a newer roster, which lies in the folders too."""
    return network.remove(node, connect=True, now=datetime.now(UTC))


def test_a_newer_roster_counts_after_it_is_durable(network):
    member, folder, state = place(network)
    old = network.roster.raw
    newer = without(network, 0).roster
    (folder / FILE).write_bytes(old)
    member.offer(newer.raw, "node 2")
    assert (member.roster.version, member.newer.version) == (1, 2)
    assert (folder / FILE).read_bytes() == old
    member.adopt()
    assert (member.roster.version, member.newer) == (2, None)
    assert member.hood.view == (2, 3, 4)
    assert (folder / FILE).read_bytes() == newer.raw
    assert StateFile(folder / "state.json").state.roster == state.state.roster == 2


def test_the_newest_of_several_counts(network):
    member, _, _ = place(network)
    second = without(network, 0)
    third = without(second, 2).roster
    for raw in (second.roster.raw, third.raw, second.roster.raw, network.roster.raw):
        member.offer(raw, "somebody")
    assert member.newer.version == 3
    member.adopt()
    member.offer(second.roster.raw, "somebody")
    assert member.newer is None


def test_a_roster_is_read_once_whoever_sends_it_how_often(network, monkeypatch):
    """Old ones are signed, too, and reading one takes a look at every certificate in it."""
    member, _, _ = place(network)
    old = network.roster.raw
    member.offer(without(network, 0).roster.raw, "node 2")
    member.adopt()
    read, parse = [], Roster.parse
    monkeypatch.setattr(
        Roster, "parse", lambda data, *more, **named: read.append(data) or parse(data, *more, **named)
    )
    for _ in range(100):
        member.offer(old, "node 2")
    assert len(read) == 1
    assert member.newer is None


def test_how_long_a_roster_can_be_follows_from_the_network(network):
    member, _, _ = place(network)
    assert 2 * len(network.roster.raw) < member.largest < 2 << 20


def test_the_folder_is_looked_into(network):
    member, folder, _ = place(network)
    member.look()
    assert member.newer is None
    without(network, 0)
    member.look()
    assert member.newer.version == 2
    (folder / FILE).unlink()
    member.look()
    assert member.newer.version == 2


def test_a_damaged_file_in_the_folder_stops_nobody(network, caplog):
    member, folder, _ = place(network)
    (folder / FILE).write_bytes(b"{}")
    member.look()
    assert member.newer is None
    assert "cannot be used" in caplog.text


def test_whoever_is_not_in_it_stops_and_stays_so(network, caplog):
    member, folder, _ = place(network)
    member.check()
    newer = without(network, NODE).roster
    (folder / FILE).write_bytes(network.roster.raw)
    member.offer(newer.raw, "node 2")
    assert member.newer is None
    assert "this peer stops: node 1 is not in version 2 of the roster: it was removed" in caplog.text
    with pytest.raises(MembershipError, match="node 1 is not in version 2"):
        member.check()
    with pytest.raises(ConfigError, match="node 1 is not in version 2"):
        place(network)
    (folder / FILE).write_bytes(network.roster.raw)
    with pytest.raises(ConfigError, match="older than version 2"):
        AsyncPeer.load(folder)


def test_ends_are_told_before_they_come(network, caplog):
    member, _, _ = place(network)
    now = datetime.now(UTC)
    assert {what: round(days) for what, days in member.days_left(now).items()} == {
        "certificate": 30,
        "roster": 30,
        "authority": 3650,
    }
    member.check(now - timedelta(days=5))
    assert "a clock is wrong" in caplog.text  # nobody signs in the future
    assert " ends on " not in caplog.text
    caplog.clear()
    for days in (1, 1.1, 2):
        member.check(now + timedelta(days=days))
    assert [record.message.split(" ends")[0] for record in caplog.records] == [
        "the certificate",
        "the roster",
    ] * 2
    with pytest.raises(MembershipError, match=r"the certificate has ended .* `cesar peer renew`"):
        member.check(now + timedelta(days=31))
    long = network.extend(now=now - timedelta(days=60), days=50)
    member.offer(long.roster.raw, "the folder")
    member.adopt()
    with pytest.raises(MembershipError, match=r"the roster has ended .* `cesar network extend`"):
        member.check(now)


def test_the_roster_of_others_is_refused(network, tmp_path):
    member, _, _ = place(network)
    other = make_network(tmp_path / "other", nx.complete_graph(5))
    with pytest.raises(Refusal, match="not signed by the authority"):
        member.offer(other.roster.raw, "node 2")
    twin = Roster.sign(
        network.authority,
        network.roster.members.values(),
        network.roster.graph,
        network_id=bytes(16),
        version=9,
        now=datetime.now(UTC),
    )
    with pytest.raises(Refusal, match="another network of the same authority"):
        member.offer(twin.raw, "node 2")
    assert member.newer is None


def test_another_certificate_for_this_node(network, tmp_path):
    _, folder, state = place(network)
    stranger = Identity.load(network.folder / "peer-2")
    alien = make_network(tmp_path / "other", nx.complete_graph(5)).folder / f"peer-{NODE}"
    with pytest.raises(ConfigError, match="lists another certificate for node 1"):
        Membership(Identity.load(alien), network.roster, folder, state)
    assert Membership(stranger, network.roster, folder, state).hood.node == 2


def test_a_secret_is_the_same_at_both_ends_and_of_one_session(network):
    one, other = (
        Membership(Identity.load(folder), network.roster, folder, StateFile(folder / "state.json"))
        for folder in (network.folder / "peer-1", network.folder / "peer-2")
    )
    secrets = set()
    for session in (bytes(16), bytes(range(16))):
        here, there = one.keys(session), other.keys(session)
        to_there, to_here = here.public(0), there.public(0)
        assert here.secret(2, to_here) == there.secret(1, to_there)
        secrets.add(here.secret(2, to_here).key)
    assert len(secrets) == 2
