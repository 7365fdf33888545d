"""Peers of one owner are one coalition: whoever could then read somebody is refused, by the authority and by every peer."""

from __future__ import annotations

from datetime import UTC, datetime

import networkx as nx
import numpy as np
import pytest

from cesar.errors import ConfigError, PrivacyError
from cesar.grouping import exposed
from cesar.peer.claims import Claim, Request
from cesar.peer.identity import make_keys
from cesar.peer.member import Member
from cesar.peer.peer import on_loop
from cesar.peer.roster import Roster
from cesar.peer.runtime import AsyncPeer
from cesar.topology import parties
from support.lan import Lines, make_network, one_round, running

NOW = datetime.now(UTC)
GROUPS = 'name = "secagg"\ngroup_size = 2\nring_bits = 32'
HOSPITAL = {0: "hospital", 1: "hospital"}


def owned_by(network, owners, version=2):
    """What the authority would sign if nobody looked: the same network, with keys of these owners beside the old ones."""
    members = []
    for node, member in network.roster.members.items():
        csr = make_keys(network.folder / f"new-{node}", "lan", node, owners.get(node))
        certificate = network.authority.issue(Request(csr=csr), now=NOW, days=30)
        (network.folder / f"new-{node}" / "certificate.pem").write_bytes(certificate)
        members.append(Member.of(certificate, name=member.name, address=member.address))
    old = network.roster
    return Roster.sign(
        network.authority,
        members,
        old.graph,
        network_id=old.network_id,
        version=version,
        now=NOW,
        settings=old.settings,
        draws=old.draws,
    )


def test_two_peers_of_a_hospital_read_the_clinic(tmp_path):
    """The attack, over TLS: what both know, subtracted from the average of one of them. Named, it is refused."""
    network = make_network(tmp_path / "net", nx.complete_graph(3), GROUPS)
    models = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
    new = models.copy()

    async def scene():
        async with running(network, [0, 1, 2]) as peers:
            await one_round(peers, new)

    on_loop(scene())
    np.testing.assert_allclose(3 * new[0] - models[0] - models[1], models[2], atol=1e-5)
    with pytest.raises(
        PrivacyError, match=r"hospital \(nodes 0 and 1 together\) can compute node 2's value.*more neighbours"
    ):
        make_network(tmp_path / "named", nx.complete_graph(3), GROUPS, owners=HOSPITAL)


def test_a_peer_refuses_such_a_roster_whoever_signed_it(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3), GROUPS)
    bad = owned_by(network, HOSPITAL)
    for node in range(3):
        folder = network.folder / f"peer-{node}"
        for file in ("key.pem", "agreement.key", "certificate.pem"):
            (folder / file).write_bytes((network.folder / f"new-{node}" / file).read_bytes())
        (folder / "roster.json").write_bytes(bad.raw)
        with pytest.raises(PrivacyError, match="do not stop an owner: hospital"):
            AsyncPeer.load(folder)


def test_a_newer_roster_that_an_owner_could_read_by_is_not_taken_up(tmp_path):
    """It comes over the network: node 1 gets it from its folder, looks, and stays with what it has."""
    network = make_network(
        tmp_path / "net", nx.complete_graph(4), 'name = "secagg"\ngroup_size = 3\nring_bits = 32'
    )
    old = network.roster
    keys = {
        node: Request(csr=make_keys(tmp_path / f"two-{node}", "lan", node, "hospital")) for node in (8, 9)
    }
    certificates = {node: network.authority.issue(one, now=NOW, days=30) for node, one in keys.items()}
    added = [
        Member.of(pem, name=f"node-{node}", address=f"127.0.0.1:{7000 + node}")
        for node, pem in certificates.items()
    ]
    graph = nx.Graph(old.graph)
    graph.add_edges_from([(8, 9), (8, 0), (8, 1), (9, 0), (9, 1), (9, 2)])
    bad = Roster.sign(
        network.authority,
        [*old.members.values(), *added],
        graph,
        network_id=old.network_id,
        version=2,
        now=NOW,
        settings=old.settings,
    )
    assert exposed(bad.groups, (8, 9)), "node 2 is all by which their sums differ"

    async def scene():
        with Lines() as log:
            async with running(network, [0, 1, 2, 3]) as peers:
                (network.folder / "peer-1" / "roster.json").write_bytes(bad.raw)
                await one_round(peers, np.zeros((4, 30), np.float32))
                await log.says("version 2 of the roster", "do not stop an owner: hospital")
                assert {peer.roster.version for peer in peers} == {1}

    on_loop(scene())


def test_an_owner_is_in_request_certificate_and_roster(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(4),
        'name = "secagg"\ngroup_size = 3\nring_bits = 32',
        owners=HOSPITAL,
    )
    roster = network.roster
    assert roster.owners == HOSPITAL
    assert [member.owner for member in roster.members.values()] == ["hospital", "hospital", None, None]
    assert Roster.parse(roster.raw, network.authority.certificate).owners == HOSPITAL
    for party in parties(roster.graph, roster.owners):
        assert not exposed(roster.groups, party)
    made = Request(csr=make_keys(tmp_path / "site", "lan", 8, "Clinic & Co. KG"))
    assert made.claim == Claim(8, "lan", made.claim.agreement_key, "Clinic & Co. KG")


def test_one_owner_is_written_in_one_way(tmp_path):
    for other in ("Hospital", "hospital.", "ｈospital", "hos-pital"):
        with pytest.raises(ConfigError, match="look like one owner"):
            make_network(
                tmp_path / "net",
                nx.complete_graph(4),
                'name = "secagg"\ngroup_size = 3\nring_bits = 32',
                owners={0: "hospital", 1: other},
            )


@pytest.mark.parametrize("owner", ["", " x", "a\nb", "x" * 65])
def test_what_cannot_name_an_owner(tmp_path, owner):
    with pytest.raises(ConfigError, match="cannot name an owner"):
        make_keys(tmp_path / "site", "lan", 8, owner)
    assert not (tmp_path / "site").exists()


def test_an_owner_does_not_change_with_new_keys(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(4),
        'name = "secagg"\ngroup_size = 3\nring_bits = 32',
        owners=HOSPITAL,
    )
    for owner, said in ((None, "no owner"), ("clinic", "clinic")):
        request = Request(csr=make_keys(tmp_path / f"again-{owner}", "lan", 1, owner))
        with pytest.raises(ConfigError, match=f"node 1 belongs to hospital, and the request says {said}"):
            network.renew(request, now=NOW, days=30)
    request = Request(csr=make_keys(tmp_path / "again", "lan", 1, "hospital"))
    assert network.renew(request, now=NOW, days=30).roster.owners == HOSPITAL


def test_a_peer_that_would_let_its_owner_read_somebody_is_not_signed(tmp_path):
    """The hospital asks for a second peer, next to all neighbours of its first but one."""
    graph = nx.complete_graph(4)
    network = make_network(
        tmp_path / "net", graph, 'name = "secagg"\ngroup_size = 3\nring_bits = 32', owners={0: "hospital"}
    )
    request = Request(csr=make_keys(tmp_path / "site", "lan", 50, "hospital"), address="127.0.0.1:7399")
    with pytest.raises(PrivacyError, match=r"hospital \(nodes 0 and 50 together\) can compute"):
        network.add(request, (0, 1, 2), now=NOW, days=30)
    changed = network.add(request, (0, 1, 2, 3), now=NOW, days=30).roster
    assert not exposed(changed.groups, (0, 50))


def test_without_groups_owners_ask_for_more_masks(tmp_path):
    method = 'name = "cesar"\nsparsifier = "random"\nshare = 0.3\n'
    with pytest.raises(PrivacyError, match=r"does not stop 1 owner.*hospital has node\(s\) 0, 1.*group_size"):
        make_network(tmp_path / "a", nx.complete_graph(6), method + "masks = 1", owners=HOSPITAL)
    far = nx.petersen_graph()
    made = make_network(tmp_path / "b", far, method + "collusion = 1", owners={0: "hospital", 6: "hospital"})
    peer = AsyncPeer.load(made.folder / "peer-0")
    assert peer.task.method.masks == 2


def test_honest_peers_of_several_owners_average(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(4),
        'name = "secagg"\ngroup_size = 3\nring_bits = 32',
        owners=HOSPITAL,
    )
    models = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
    mean = models.mean(0)

    async def scene():
        async with running(network, [0, 1, 2, 3]) as peers:
            await one_round(peers, models)

    on_loop(scene())
    np.testing.assert_allclose(models, np.broadcast_to(mean, models.shape), atol=1e-6)
