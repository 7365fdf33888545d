"""Secrets of a simulated network: what both sides of a pair compute, and what one of them can be spared."""

from cesar.base.types import NodeId, RoundNo
from cesar.crypto.keys import Keyring
from cesar.sim.secrets import Secrets


def test_both_sides_have_the_secret_that_real_nodes_would_agree_on():
    """A simulation computes an agreement once; two nodes on their own, which know nothing of each other, get the same."""
    secrets = Secrets(3)
    ids, rings = (NodeId(4), NodeId(1)), [secrets.ring(NodeId(node)) for node in (4, 1)]
    alone = [
        Keyring(lambda peer, i=i: secrets.pair(i, peer), lambda epoch, i=i: secrets.ring(i)._entropy(epoch))
        for i in ids
    ]
    for round_ in (RoundNo(0), RoundNo(64), RoundNo(128)):  # another epoch has other keys
        keys = [ring.public(round_) for ring in rings]
        assert keys == [ring.public(round_) for ring in alone]
        found = [rings[0].secret(ids[1], keys[1]), rings[1].secret(ids[0], keys[0])]
        assert found == [alone[0].secret(ids[1], keys[1]), alone[1].secret(ids[0], keys[0])]
        assert found[0] == found[1]
    assert not secrets._agreed, "what both sides have asked for is forgotten"


def test_a_static_secret_belongs_to_the_pair():
    secrets = Secrets(3)
    own = secrets.key_pair(NodeId(4)).agree(secrets.key_pair(NodeId(1)).public, secrets.session)
    assert secrets.pair(NodeId(1), NodeId(4)) == secrets.pair(NodeId(4), NodeId(1)) == own
    assert secrets.pair(NodeId(1), NodeId(2)) != own
