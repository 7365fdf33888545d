"""Several signers: a version counts if k of those whom the version before names have signed it."""

from datetime import UTC, datetime

import networkx as nx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from cesar.base.errors import ConfigError, Refusal
from cesar.peer.driver.membership import Membership, newest
from cesar.peer.driver.state import StateFile
from cesar.peer.trust.folder import Network
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.roster import FILE, Roster
from cesar.peer.trust.signers import Signers, joined, parted, public_of
from support.commands import call, refused
from support.lan import make_network

NODE = 1
KEYS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
NAMES = ("anna", "bela", "cleo")
TWO_OF_THREE = Signers(2, {name: public_of(key) for name, key in zip(NAMES, KEYS, strict=False)})


@pytest.fixture
def network(tmp_path):
    made = make_network(tmp_path / "net", nx.complete_graph(5))
    return made.name_signers(TWO_OF_THREE, now=datetime.now(UTC))


def place(network):
    folder = network.folder / f"peer-{NODE}"
    identity, state = Identity.load(folder), StateFile(folder / "state.json")
    member = Membership(identity, newest(folder, state, identity), folder, state)
    member.remember()
    return member


def cosigned(roster, *keys):
    raw = roster.raw
    for key in keys:
        raw = Roster.parse(raw, roster.ca).cosigned(key)
    return raw


def test_one_signature_of_the_authority_is_as_it_was(tmp_path):
    plain = make_network(tmp_path / "plain", nx.complete_graph(5))
    member = place(plain)
    newer = plain.extend(now=datetime.now(UTC), days=9).roster
    assert b"signers" not in newer.raw
    assert newer.follows(plain.roster) is None
    member.offer(newer.raw, "node 2")
    assert member.newer == newer


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ((), False),
        ((0,), False),
        ((0, 0), False),
        ((0, 3), False),
        ((0, 2), True),
        ((1, 2), True),
        ((0, 1, 2), True),
    ],
)
def test_so_many_of_those_named_before_must_have_signed(network, keys, counts, caplog):
    """Not the same one twice, nor a stranger."""
    member, old = place(network), network.roster
    newer = network.extend(now=datetime.now(UTC), days=9).roster
    raw = cosigned(newer, *(KEYS[k] for k in keys))
    member.offer(raw, "node 2")
    assert (member.newer is not None) is counts
    assert (Roster.parse(raw, old.ca).follows(old) is None) is counts
    if not counts:
        assert "does not count: it is signed by" in caplog.text
        assert "of the 2 signers that the version before it asks for" in caplog.text
        member.offer(cosigned(newer, *KEYS[:3]), "node 3")  # what came too early is no obstacle
        assert member.newer is not None


def test_the_authority_alone_names_no_other_signers_and_removes_nobody(network):
    member, now = place(network), datetime.now(UTC)
    own = network.name_signers(Signers(1, {"mallory": public_of(KEYS[3])}), now=now)
    member.offer(cosigned(own.roster, KEYS[3]), "node 2")
    assert member.newer is None
    without = own.remove(NODE, connect=True, now=now)
    member.offer(cosigned(without.roster, KEYS[3]), "node 2")
    assert (member.newer, member.over) == (None, "")
    member.offer(cosigned(without.roster, *KEYS[:2]), "node 2")
    assert "was removed" in member.over


def test_a_start_counts_signatures_too(network, caplog):
    assert place(network).roster.version == 2
    newer = network.extend(now=datetime.now(UTC), days=9).roster
    assert (network.folder / f"peer-{NODE}" / FILE).read_bytes() == newer.raw
    assert place(network).roster.version == 2
    assert "version 3 of the roster does not count" in caplog.text
    (network.folder / f"peer-{NODE}" / FILE).write_bytes(cosigned(newer, *KEYS[1:3]))
    assert place(network).roster.version == 3


def test_signatures_say_nothing_about_what_was_signed(network):
    newer = network.extend(now=datetime.now(UTC), days=9).roster
    raw = cosigned(newer, KEYS[0])
    assert Roster.parse(raw, newer.ca).digest == newer.digest
    moved = raw.replace(newer.raw.rpartition(b'"signature"')[0][-200:], b"")
    with pytest.raises(ConfigError):
        Roster.parse(moved, newer.ca)


@pytest.mark.parametrize("text", ["a;b", "a;x:!!", "a;b:QQ==;a:QQ==", "a;b:QQ==;b:QQ==", "a;b:QR==", "a;"])
def test_signatures_have_one_spelling(text):
    assert parted(joined("a", {"b": b"A", "c": b""})) == ("a", {"b": b"A", "c": b""})
    with pytest.raises(ConfigError, match="spelled as none are"):
        parted(text)


@pytest.mark.parametrize("k", [0, 4])
def test_signers_that_cannot_be(k):
    with pytest.raises(ConfigError, match="signers cannot be"):
        Signers(k, TWO_OF_THREE.keys)
    with pytest.raises(ConfigError, match="two signers have one key"):
        Signers(1, dict.fromkeys(NAMES, public_of(KEYS[0])))
    with pytest.raises(ConfigError, match="no signer's public key"):
        Signers(1, {"a": "00"})
    with pytest.raises(ConfigError, match="update cesar"):
        Signers.of({"threshold": "2"})


def test_the_ceremony(tmp_path):
    """Two people make keys, the authority names them, and both sign what it changes next."""
    network = make_network(tmp_path / "net", nx.complete_graph(5))
    net, words = network.folder, []
    for name in ("anna", "bela"):
        call("network", "signer", tmp_path / name, "--no-passphrase")
        words += ["--signer", f"{name}={tmp_path / name / 'signer.pub'}"]
    assert "demands 2 of 2 signatures" in call("network", "signers", net, "--threshold", "2", *words)
    held = tmp_path / "held.json"
    held.write_bytes((net / FILE).read_bytes())
    newer = Network.open(net).remove(0, connect=True, now=datetime.now(UTC)).roster
    common = ("--since", held, "--ca", net / "ca" / "ca.pem")
    mine = ("--key", tmp_path / "anna" / "signer.key", *common)
    assert "give the digest above" in refused("network", "cosign", net / FILE, *mine)
    assert "another digest" in refused("network", "cosign", net / FILE, *mine, "--sha256", "00")
    shown = call("network", "cosign", net / FILE, *mine, "--sha256", newer.digest.hex())
    assert "· removes 0" in shown
    assert "Not enough yet: it is signed by 1 of the 2" in " ".join(shown.split())
    other = ("--key", tmp_path / "bela" / "signer.key", *common, "--sha256", newer.digest.hex())
    assert "It counts now." in call("network", "cosign", net / FILE, *other)
    stranger = ("--key", net / "ca" / "ca.key", *common, "--sha256", newer.digest.hex())
    assert "does not name this key" in refused("network", "cosign", net / FILE, *stranger)


def test_anything_but_signatures_is_refused(network):
    member = place(network)
    newer = network.extend(now=datetime.now(UTC), days=9).roster
    with pytest.raises(Refusal, match="spelled as none are"):
        member.offer(newer.raw.replace(b'"\n}\n', b';zz"\n}\n'), "node 2")
