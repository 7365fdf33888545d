"""The roster: only what the authority signed, whole and new enough, is taken."""

import base64
import hashlib
import json
import time
import tracemalloc
from datetime import UTC, datetime, timedelta

import networkx as nx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import ConfigError
from cesar.graph.neighbourhood import neighbourhoods
from cesar.peer.trust import roster as roster_module
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.identity import make_keys
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import Roster

NOW = datetime.now(UTC).replace(microsecond=0)
NETWORK_ID = bytes(range(16))
GRAPH = nx.Graph([(0, 1), (1, 4), (4, 7), (7, 0), (0, 4)])


class World:
    """An authority, a rival of the same name, and members with gaps between their ids."""

    def __init__(self, folder):
        self.ca, self.rival = (Authority.create("demo", now=NOW) for _ in range(2))
        self.requests = {i: Request(csr=make_keys(folder / str(i), "demo", i)) for i in (0, 1, 4, 7)}
        self.members = {i: self.member(i) for i in self.requests}
        self.roster = self.signed()

    def member(self, i, authority=None, days=365, now=NOW, address=""):
        certificate = (authority or self.ca).issue(self.requests[i], now=now, days=days)
        return Member.of(
            certificate, name=f"site {i}", address=f"127.0.0.1:{7400 + i}" if address == "" else address
        )

    def signed(self, version=5, graph=GRAPH, **replaced):
        members = {**self.members, **{int(name[1:]): member for name, member in replaced.items()}}
        return Roster.sign(self.ca, members.values(), graph, network_id=NETWORK_ID, version=version, now=NOW)

    def forge(self, change, authority=None):
        """What the authority would have signed had its object been changed like this, spelled properly."""
        content = json.loads(self.roster.raw)["roster"]
        content = change(content) or content
        spelled = json.dumps({"roster": content, "signature": ""}, sort_keys=True, indent=2)
        message = (
            b"cesar roster 3\0" + spelled[len('{\n  "roster": ') : -len(',\n  "signature": ""\n}')].encode()
        )
        signature = base64.b64encode((authority or self.ca).sign(message)).decode()
        return (
            json.dumps({"roster": content, "signature": signature}, sort_keys=True, indent=2) + "\n"
        ).encode()

    def refused(self, data, complaint, **options):
        with pytest.raises(ConfigError, match=complaint):
            Roster.parse(data, self.ca.certificate, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


def test_what_a_roster_says(world):
    roster = Roster.parse(world.roster.raw, world.ca.certificate)
    assert roster == world.roster
    assert (roster.network, roster.network_id, roster.version, roster.issued) == ("demo", NETWORK_ID, 5, NOW)
    assert list(roster.members) == [0, 1, 4, 7]
    assert nx.utils.graphs_equal(nx.Graph(roster.graph), GRAPH)
    for i, member in roster.members.items():
        certificate = x509.load_pem_x509_certificate(member.certificate)
        assert (member.id, member.name, member.address) == (i, f"site {i}", f"127.0.0.1:{7400 + i}")
        assert member.agreement_key == world.requests[i].node.agreement_key
        assert member.host_name == f"node-{i}.demo.cesar"
        assert (member.starts, member.expires) == (NOW - timedelta(minutes=5), NOW + timedelta(days=365))
        assert member.fingerprint == hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
        assert roster.hood(i) == neighbourhoods(GRAPH)[i]
    with pytest.raises(nx.NetworkXError):
        roster.graph.add_edge(1, 7)
    with pytest.raises(ConfigError, match="node 3 is not in version 5 of the roster"):
        roster.hood(3)


def test_a_digest_names_what_was_signed(world):
    """Not the version, and not the signature, which is another each time."""
    again = world.signed()
    assert again.raw != world.roster.raw
    assert again.digest == world.roster.digest
    for change in (field("settings", {"share": 0.4}), of_peer("name", "another")):
        forged = Roster.parse(world.forge(change), world.ca.certificate)
        assert forged.version == again.version
        assert forged.digest != again.digest


def test_the_test_forges_what_the_authority_writes(world):
    forged = json.loads(world.forge(lambda content: None))
    assert forged["roster"] == json.loads(world.roster.raw)["roster"]
    Roster.parse(world.forge(lambda content: None), world.ca.certificate)


@settings(deadline=None)
@given(data=st.data())
def test_no_byte_can_be_changed(world, data):
    raw = world.roster.raw
    at = data.draw(st.integers(0, raw.index(b'"signature"') - 1))
    changed = bytearray(raw)
    changed[at] = data.draw(st.integers(0, 255).filter(lambda value: value != raw[at]))
    world.refused(bytes(changed), "not a roster|changed")


@settings(deadline=None)
@given(data=st.data())
def test_nothing_can_be_cut_or_added(world, data):
    raw = world.roster.raw
    at = data.draw(st.integers(0, len(raw)))
    world.refused(
        raw[:at] + data.draw(st.binary(min_size=1, max_size=5)) + raw[at:], "not a roster|changed|signed"
    )
    if at < len(raw):
        world.refused(raw[:at], "not a roster|changed|signed")


@settings(deadline=None)
@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_anything_else_is_refused(world, data):
    world.refused(data, "not a roster|changed")


def test_the_signature_is_for_rosters_only(world):
    """The same object signed without the domain's name is no roster."""
    document = json.loads(world.roster.raw)
    message = json.dumps(document["roster"], sort_keys=True, separators=(",", ":")).encode()
    document["signature"] = base64.b64encode(world.ca.sign(message)).decode()
    world.refused(
        (json.dumps(document, sort_keys=True, indent=2) + "\n").encode(), "not signed by the authority"
    )


def test_unsigned_company_is_refused(world):
    document = {**json.loads(world.roster.raw), "note": "trust me"}
    world.refused((json.dumps(document, sort_keys=True, indent=2) + "\n").encode(), "changed on the way")


def test_another_authority_is_refused(world):
    """Whatever certificate the file itself holds."""

    def swap(content):
        content["ca"] = world.rival.certificate.decode()

    world.refused(
        world.forge(lambda content: None, world.rival), "not signed by the authority that this peer trusts"
    )
    world.refused(world.forge(swap, world.rival), "not signed by the authority that this peer trusts")
    world.refused(world.forge(swap), "certificate of another authority")
    with pytest.raises(ConfigError, match="not the certificate of an authority"):
        Roster.parse(world.roster.raw, world.members[0].certificate)


def test_older_versions_are_refused(world, tmp_path):
    path = tmp_path / "roster.json"
    path.write_bytes(world.roster.raw)
    assert Roster.load(path, world.ca.certificate, at_least=5).version == 5
    with pytest.raises(ConfigError, match="older than version 6, which this peer has already seen") as caught:
        Roster.load(path, world.ca.certificate, at_least=6)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot read .*missing"):
        Roster.load(tmp_path / "missing", world.ca.certificate)


def entry(content, i):
    return next(peer for peer in content["peers"] if peer["id"] == i)


def swapped(content):
    one, two = entry(content, 0), entry(content, 4)
    one["certificate"], two["certificate"] = two["certificate"], one["certificate"]


def doubled(content):
    content["peers"].append(entry(content, 4))


def one_way(content):
    entry(content, 1)["neighbours"] = [0, 4, 7]


def unknown_neighbour(content):
    entry(content, 1)["neighbours"] = [0, 3, 4]


def loop(content):
    entry(content, 1)["neighbours"] = [0, 1, 4]


def unsorted(content):
    entry(content, 1)["neighbours"] = [4, 0]


def repeated(content):
    entry(content, 1)["neighbours"] = [0, 0, 4]


def apart(content):
    for i, others in {0: [1], 1: [0], 4: [7], 7: [4]}.items():
        entry(content, i)["neighbours"] = others


def deaf(content):
    entry(content, 1)["address"] = entry(content, 4)["address"] = None


def lonely(content):
    content["peers"] = [{**entry(content, 0), "neighbours": []}]


def nobody(content):
    content["peers"] = []


def renamed_network(content):
    content["network"] = "other"


def field(name, value):
    return lambda content: content.__setitem__(name, value)


def of_peer(name, value):
    return lambda content: entry(content, 1).__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (swapped, "node 0 has the certificate of node 4"),
        (doubled, "two peers have the id 4"),
        (one_way, "node 1 lists node 7 as a neighbour, but not the other way round"),
        (unknown_neighbour, "node 1 lists node 3"),
        (loop, "node 1 is its own neighbour"),
        (unsorted, "ascending order"),
        (repeated, "ascending order"),
        (apart, "falls into 2 parts"),
        (deaf, "nodes 1 and 4 are neighbours, but neither has an address"),
        (lonely, "at least two nodes"),
        (nobody, "at least two nodes"),
        (renamed_network, "node 0 has a certificate of the network 'demo'"),
        (field("format", 1), "update cesar"),
        (field("surprise", 1), "update cesar"),
        (field("version", "5"), "update cesar"),
        (field("peers", [3]), "update cesar"),
        (field("settings", {"share": [0.3]}), "update cesar"),
        (field("settings", []), "update cesar"),
        (field("draws", {}), "update cesar"),
        (field("network_id", "00"), "32 hexadecimal digits"),
        (field("network_id", "0A" * 16), "32 hexadecimal digits"),
        (field("issued", "yesterday"), "ISO time"),
        (field("issued", "2026-01-01T00:00:00"), "with a zone"),
        (field("expires", "2026-01-01T00:00:00"), "with a zone"),
        (field("expires", None), "update cesar"),
        (of_peer("certificate", "nonsense"), "node 1: the certificate cannot be read"),
        (of_peer("certificate", "\ud800"), "node 1: the certificate cannot be read"),
        (of_peer("agreement_key", "00" * 32), "update cesar"),
        (of_peer("neighbours", ["0", "4"]), "update cesar"),
        (of_peer("name", "a\x1b[2J"), "node 1: .* cannot name a peer"),
        (of_peer("address", "nowhere"), "node 1: .*write host:port"),
    ],
)
def test_what_even_the_authority_may_not_sign(world, change, complaint):
    world.refused(world.forge(change), complaint)


CELLS = {"name": "cells", "size": 3, "collusion": 1, "graph": "exponential"}


def celled(cells, **settings):
    """The four members in cells."""

    def change(content):
        for peer in content["peers"]:
            peer["neighbours"] = []
        return {**content, "settings": {**CELLS, **settings}, "cells": cells}

    return change


def test_a_roster_lists_cells(world):
    roster = Roster.parse(world.forge(celled([[0, 1, 4, 7]])), world.ca.certificate)
    assert roster.plan.cells == ((0, 1, 4, 7),)
    assert (roster.plan.least, roster.plan.collusion) == (3, 1)
    assert nx.utils.graphs_equal(nx.Graph(roster.graph), nx.complete_graph([0, 1, 4, 7]))
    assert world.roster.plan is None
    signed = Roster.sign(
        world.ca,
        world.members.values(),
        None,
        network_id=NETWORK_ID,
        version=6,
        now=NOW,
        settings={**CELLS, "size": 2, "collusion": 0},
        cells=[(0, 4), (7, 1)],
    )
    assert signed.plan.cells == ((0, 4), (1, 7))
    assert sorted(map(sorted, signed.graph.edges)) == [[0, 1], [0, 4], [1, 7], [4, 7]]
    with pytest.raises(nx.NetworkXError):
        signed.graph.add_edge(0, 7)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (field("cells", [[0, 1, 4, 7]]), "its method has none; sign it again without"),
        (field("cells", 3), "update cesar"),
        (celled(None), "lists no cells"),
        (celled([]), "node 0 is in no cell; put it into one"),
        (celled([[0, 1, 4]]), "node 7 is in no cell"),
        (celled([[0, 1, 4, 7, 9]]), "node 9 is in a cell, but it is no peer"),
        (celled([[0, 1, 4], [1, 4, 7]]), "a node is in two cells"),
        (celled([[0, 1, 4, 4, 7]]), "a node is in two cells"),
        (celled([[0, 4, 1, 7]]), "ascending"),
        (celled([[0, 1], [4, 7]]), "cell 0: 2 member.*at least 3.*merge two"),
        (celled([[0, 1, 4, 7]], collusion=3), "members of 4 owner.*among 5"),
        (celled([[0, 1, 4, 7]], size="4"), "update cesar"),
        (celled([[0, 1, 4, 7]], collusion=None), "update cesar"),
        (celled([[0, 1, 4, 7]], graph=None), "update cesar"),
        (celled([[0, 1], [4, 7]], size=2, collusion=0, graph="moon"), "the graph of 2 cells"),
        (celled([["0", 1, 4, 7]]), "update cesar"),
        (celled([{"0": 1}]), "update cesar"),
        (
            lambda content: {**content, "settings": CELLS, "cells": [[0, 1, 4, 7]]},
            "node 0 lists neighbours, but they follow from the cells",
        ),
        (
            lambda content: deaf(content := celled([[0, 1, 4, 7]])(content)) or content,
            "nodes 1 and 4 are neighbours, but neither has an address",
        ),
    ],
)
def test_cells_that_even_the_authority_may_not_sign(world, change, complaint):
    world.refused(world.forge(change), complaint)


def test_certificates_of_a_rival_are_refused(world):
    with pytest.raises(ConfigError, match="the certificate of node 4: another authority signed it"):
        world.signed(_4=world.member(4, world.rival))


def test_the_agreement_key_of_another_is_refused(world, tmp_path):
    """The authority signs a request that claims node 0's agreement key."""
    make_keys(tmp_path, "demo", 9)
    tls = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    named = world.requests[0].node
    thief = type(named)(9, "demo", named.agreement_key)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, thief.host_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    csr = builder.add_extension(thief.extension(), critical=False).sign(tls, hashes.SHA256())
    request = Request(csr=csr.public_bytes(Encoding.PEM))
    member = Member.of(world.ca.issue(request, now=NOW), name="thief", address=None)
    with pytest.raises(ConfigError, match="nodes 0 and 9 have the same key"):
        world.signed(graph=nx.Graph([*GRAPH.edges, (9, 0), (9, 1)]), _9=member)


def test_expired_members_load_and_say_so(world):
    old = world.member(4, days=10, now=NOW - timedelta(days=20))
    members = world.signed(_4=old).members
    assert not members[4].valid(NOW)
    assert members[4].expires == NOW - timedelta(days=10)
    assert members[4].valid(NOW - timedelta(days=20))
    assert not members[4].valid(NOW - timedelta(days=21))
    assert members[0].valid(NOW)


@settings(deadline=None)
@given(listening=st.sets(st.sampled_from([0, 1, 4, 7])))
def test_exactly_one_side_dials(world, listening):
    changed = {f"_{i}": world.member(i, address=None) for i in world.members if i not in listening}
    if any(not {i, j} & listening for i, j in GRAPH.edges):
        with pytest.raises(ConfigError, match="neither has an address"):
            world.signed(**changed)
        return
    roster = world.signed(**changed)
    for i, j in GRAPH.edges:
        assert roster.dials(i, j) != roster.dials(j, i)
        dialled = j if roster.dials(i, j) else i
        assert dialled in listening
        assert {i, j} - listening or dialled == max(i, j)


def test_huge_input_is_refused_unread(world, monkeypatch):
    monkeypatch.setattr(roster_module, "LIMIT", 1000)
    monkeypatch.setattr(json, "loads", lambda data: pytest.fail("it was parsed"))
    world.refused(b"[" * 1001, "at most 1,000 bytes")
    world.refused(world.roster.raw, "at most 1,000 bytes")


def test_whoever_is_not_the_authority_costs_a_hash(world, monkeypatch):
    """Nothing of 6 MiB is read before the signature over its bytes holds."""
    parsed = []
    monkeypatch.setattr(json, "loads", parsed.append)
    raw = world.roster.raw
    at = raw.index(b'"peers": [') + len(b'"peers": [')
    for filling in (b"{},", b"[", b'"",', b" ", raw[at : at + 1200]):
        long = raw[:at] + filling * ((6 << 20) // len(filling)) + raw[at:]
        tracemalloc.start()
        begin = time.process_time()
        world.refused(long, "not signed by the authority")
        assert time.process_time() - begin < 0.5
        assert tracemalloc.get_traced_memory()[1] < 3 * len(long)
        tracemalloc.stop()
    assert parsed == []


def test_depth_and_length_of_numbers_are_no_weapon(world):
    world.refused(b"[" * 1_000_000, "not a roster")
    world.refused(b'{"roster": ' + b"9" * 100_000 + b"}", "not a roster")
