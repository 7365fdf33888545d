"""Peers of one owner are one coalition: whoever could then read somebody is refused, by the authority and by every peer."""

from __future__ import annotations

from datetime import UTC, datetime

import networkx as nx
import pytest

from cesar.base.errors import ConfigError, PrivacyError
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.certificates import CertifiedNode, Request
from cesar.peer.trust.identity import make_keys
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import Roster
from support.lan import make_network

NOW = datetime.now(UTC)
CELLS = 'name = "cells"\nsize = 4'
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
        None,
        network_id=old.network_id,
        version=version,
        now=NOW,
        settings=old.settings,
        cells=old.plan.cells,
    )


def test_an_owner_is_in_request_certificate_and_roster(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(4),
        CELLS,
        owners=HOSPITAL,
    )
    roster = network.roster
    assert roster.owners == HOSPITAL
    assert [member.owner for member in roster.members.values()] == ["hospital", "hospital", None, None]
    assert Roster.parse(roster.raw, network.authority.certificate).owners == HOSPITAL
    made = Request(csr=make_keys(tmp_path / "site", "lan", 8, "Clinic & Co. KG"))
    assert made.node == CertifiedNode(8, "lan", made.node.agreement_key, "Clinic & Co. KG")


def test_one_owner_is_written_in_one_way(tmp_path):
    for other in ("Hospital", "hospital.", "ｈospital", "hos-pital"):
        with pytest.raises(ConfigError, match="look like one owner"):
            make_network(
                tmp_path / "net",
                nx.complete_graph(4),
                CELLS,
                owners={0: "hospital", 1: other},
            )


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("hospital", "hоspital", "letters of 2 scripts"),  # a Cyrillic o
        ("coco", "сосо", "look like one owner"),  # all of it Cyrillic
        ("hospital 1", "hospital l", "look like one owner"),
        ("hospital", "hospitaI", "look like one owner"),  # a capital i
        ("hospital", "hóspital", "look like one owner"),
        ("modem", "modern", "look like one owner"),
        ("ZOO", "ΖΟΟ", "look like one owner"),  # Greek
    ],
)
def test_owners_that_look_alike_are_refused(tmp_path, one, other, words):
    """By the authority, before it signs, and by every peer that reads a roster."""
    with pytest.raises(ConfigError, match=words):
        make_network(
            tmp_path / "net",
            nx.complete_graph(4),
            CELLS,
            owners={0: one, 1: other},
        )
    assert not (tmp_path / "net").exists()
    network = make_network(tmp_path / "net", nx.complete_graph(4), CELLS)
    with pytest.raises(ConfigError, match=words):
        owned_by(network, {0: one, 1: other})


def test_other_names_are_not_confused(tmp_path):
    owners = dict(
        enumerate(["Klinik Süd", "больница", "東京ひかり病院", "St. Mary's 2", "Νοσοκομείο", "مستشفى"])
    )
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(6),
        CELLS,
        owners=owners,
    )
    assert network.roster.owners == owners


@pytest.mark.parametrize("owner", ["", " x", "a\nb", "x" * 65])
def test_what_cannot_name_an_owner(tmp_path, owner):
    with pytest.raises(ConfigError, match="cannot name an owner"):
        make_keys(tmp_path / "site", "lan", 8, owner)
    assert not (tmp_path / "site").exists()


def test_an_owner_does_not_change_with_new_keys(tmp_path):
    network = make_network(
        tmp_path / "net",
        nx.complete_graph(4),
        CELLS,
        owners=HOSPITAL,
    )
    for owner, said in ((None, "no owner"), ("clinic", "clinic")):
        request = Request(csr=make_keys(tmp_path / f"again-{owner}", "lan", 1, owner))
        with pytest.raises(ConfigError, match=f"node 1 belongs to hospital, and the request says {said}"):
            network.renew(request, now=NOW, days=30)
    request = Request(csr=make_keys(tmp_path / "again", "lan", 1, "hospital"))
    assert network.renew(request, now=NOW, days=30).roster.owners == HOSPITAL


def test_without_cells_owners_ask_for_more_masks(tmp_path):
    method = 'name = "cesar"\nsparsifier = "random"\nshare = 0.3\n'
    with pytest.raises(PrivacyError, match=r"does not stop 1 owner.*hospital has node\(s\) 0, 1.*Use cells"):
        make_network(tmp_path / "a", nx.complete_graph(6), method + "masks = 1", owners=HOSPITAL)
    far = nx.petersen_graph()
    made = make_network(tmp_path / "b", far, method + "collusion = 1", owners={0: "hospital", 6: "hospital"})
    peer = AsyncPeer.load(made.folder / "peer-0")
    assert peer.task.method.masks == 2


def test_a_cell_of_too_few_owners_is_neither_made_nor_signed_nor_read(tmp_path):
    """Four peers of two owners: either would see what the other trains."""
    owners = {0: "hospital", 1: "hospital", 2: "clinic", 3: "clinic"}
    with pytest.raises(PrivacyError, match=r"2 owner\(s\) of 4 nodes cannot be spread"):
        make_network(tmp_path / "bad", nx.empty_graph(4), CELLS, owners=owners)
    network = make_network(tmp_path / "net", nx.empty_graph(4), CELLS)
    with pytest.raises(ConfigError, match=r"cells cannot be: cell 0: members of 2 owner\(s\)"):
        owned_by(network, owners)


def test_a_new_peer_goes_where_its_owner_is_not(tmp_path):
    network = make_network(tmp_path / "net", nx.empty_graph(9), CELLS, owners={0: "hospital"})
    home = network.roster.plan.cell_of(0)
    request = Request(csr=make_keys(tmp_path / "site", "lan", 50, "hospital"), address="127.0.0.1:7399")
    changed = network.add(request, now=NOW, days=30).roster
    assert changed.plan.cell_of(50) != home
    assert 50 in changed.plan.cells[1 - home]
    assert changed.plan.cells[home] == network.roster.plan.cells[home], "the others stay where they are"


def test_the_last_owners_of_a_cell_cannot_go(tmp_path):
    network = make_network(tmp_path / "net", nx.empty_graph(5), 'name = "cells"\nsize = 3', owners=HOSPITAL)
    smaller = network.remove(4, now=NOW)
    with pytest.raises(PrivacyError, match=r"members of 2 owner\(s\).*add a peer of another owner first"):
        smaller.remove(3, now=NOW)
    assert smaller.remove(1, now=NOW).roster.plan.cells == ((0, 2, 3),)
