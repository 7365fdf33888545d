"""Whoever takes all keys later cannot make the masks of the past again.

A thief has recorded every frame of a training. After it he takes every long-lived key, and whatever else of keys and
secrets is still in the memory of the nodes. He tries all of it on the shares of every round: masks that he can make show
the check words that stand in the share, and take the masks off its values.
"""

from __future__ import annotations

import gc
import secrets
from dataclasses import replace
from itertools import product

import networkx as nx
import numpy as np

import cesar
from cesar.crypto.keys import KeyPair, Keyring, PairSecret, RoundId, digest_positions, hkdf_extract, mask_key
from cesar.crypto.keystream import Keystream
from cesar.kernels import bits, packing, ring
from cesar.protocol.sender import wants_negation
from cesar.protocol.wire import Announce, Kind, Share, members_to_bytes, read_header
from cesar.sim.wires import Wires
from support.harness import SESSIONS, Case, key_pair

SIZE, EPOCH = 40, 3
GRAPH = nx.complete_graph(5)
METHOD = cesar.SecureAggregation()


class StaticKeys:
    """The derivation of version 1: the long-lived keys make the pair's secret, for all rounds of a session."""

    def __init__(self, session, node):
        self._session, self._node = session, node

    def public(self, round_):
        return key_pair(self._node).public

    def secret(self, peer, public):
        return key_pair(self._node).agree(key_pair(peer).public, self._session)


def ephemeral_keys(session, node):
    """As a peer has them: from entropy that is not kept."""
    return Keyring(
        lambda peer: key_pair(node).agree(key_pair(peer).public, session),
        lambda _: secrets.token_bytes(32),
        EPOCH,
    )


class Thief:
    """All frames of the rounds 0 to EPOCH, and what can be taken from the nodes after them."""

    def __init__(self, keys):
        vectors = np.random.default_rng(1).uniform(-1, 1, (len(GRAPH), SIZE)).astype(np.float32)
        self.case = Case(graph=GRAPH, method=METHOD, vectors=vectors, keys=keys)
        self.nodes = {i: self.case.node(i) for i in GRAPH}
        self.tokens, self.scales, self.shares = {}, {}, {}
        for round_ in range(EPOCH + 1):
            for node in self.nodes.values():
                replace(self.case, round_=round_, seed=round_).begin(node)
            Wires(self.nodes, arrives=self.record).run()
        gc.collect()
        self.take(gc.get_objects())  # the memory of all nodes, and more

    def take(self, memory):
        """Go on with the key pairs and secrets in some memory, and with all long-lived keys."""
        static = [key_pair(node) for node in GRAPH]
        self.pairs = [
            *static,
            *(one for one in memory if type(one) is KeyPair),
        ]  # isinstance would wake lazy modules
        self.secrets = [one for one in memory if type(one) is PairSecret]

    def record(self, sender, recipient, frame):
        header, body = read_header(bytes(frame.payload))
        round_ = header.round_id.round_
        if frame.kind is Kind.ANNOUNCE:
            self.tokens[round_, sender] = Announce.decode(body, 1).token
        elif frame.kind is Kind.SHARE:
            self.shares[round_, sender, recipient] = Share.decode(
                body, sorted(GRAPH[recipient]), explicit=False
            )
        else:
            self.scales[round_, sender] = bytes(body[:1])
        return True

    def candidates(self, round_, i, j):
        """Every secret that the thief can think of for two nodes."""
        static = key_pair(i).agree(key_pair(j).public, SESSIONS[0])
        publics = [self.tokens[round_, node].ephemeral for node in (i, j)]
        low, high = sorted(publics)
        made = [
            PairSecret(hkdf_extract(b"cesar ephemeral", static.key + pair.exchange(public) + low + high))
            for pair, public in product(self.pairs, publics)
        ]
        return [static, *made, *self.secrets]

    def key(self, round_, sender, receiver, partner):
        """The key of the mask that two members put on a share, if the thief can make it."""
        share, view = self.shares[round_, sender, receiver], sorted(GRAPH[receiver])
        terms = self.scales[round_, receiver] + members_to_bytes((sender, *share.partners), view)
        check = dict(zip(share.partners, share.checks, strict=True))[partner]
        for secret in self.candidates(round_, sender, partner):
            found = mask_key(
                secret,
                RoundId(session=SESSIONS[0], round_=round_),
                nodes=(sender, partner),
                seeds=(self.tokens[round_, sender].seed, self.tokens[round_, partner].seed),
                receiver=receiver,
                terms=terms,
                common=digest_positions(bits.ones(SIZE)),
            )
            if found.check == check:
                return found
        return None

    def values(self, round_, sender, receiver):
        """What a share hides, or None."""
        share = self.shares[round_, sender, receiver]
        words = packing.unpack(share.values, 32, SIZE).copy()
        for partner in share.partners:
            key = self.key(round_, sender, receiver, partner)
            if key is None:
                return None
            mask = np.empty(SIZE, dtype=np.uint32)
            Keystream(key.key).fill(mask)
            words += mask if wants_negation(sender, partner) else -mask
        exponent = self.scales[round_, receiver][0] - ring.EXPONENT_BIAS
        grid = ring.binary_grid(32, np.array([SIZE]), [exponent], len(GRAPH) - 1)
        return words.view(np.int32) / grid.scales

    def reads(self, round_):
        """How many shares of a round are read; what is read is right."""
        read = 0
        for t, sender, receiver in self.shares:
            if t == round_ and (found := self.values(t, sender, receiver)) is not None:
                np.testing.assert_allclose(found, self.case.vectors[sender], atol=1e-7)
                read += 1
        return read


def test_the_masks_of_past_epochs_cannot_be_made_again():
    thief = Thief(ephemeral_keys)
    assert len(thief.shares) == (EPOCH + 1) * 20
    assert [thief.reads(round_) for round_ in range(EPOCH)] == [0] * EPOCH
    assert thief.reads(EPOCH) == 20, "what remains: the rounds since the last change of keys"


def test_with_long_lived_keys_alone_every_round_could_be_read():
    thief = Thief(StaticKeys)
    assert [thief.reads(round_) for round_ in range(EPOCH + 1)] == [20] * (EPOCH + 1)


def test_long_lived_keys_alone_open_nothing():
    thief = Thief(ephemeral_keys)
    thief.take([])
    assert [thief.reads(round_) for round_ in range(EPOCH + 1)] == [0] * (EPOCH + 1)


def test_the_memory_of_one_node_opens_what_it_has_masked_since_its_key_is_new():
    """Its own four shares."""
    rings = {}

    def kept(session, node):
        return rings.setdefault(node, ephemeral_keys(session, node))

    thief = Thief(kept)
    thief.take([rings[2]._own, *rings[2]._secrets.values()])
    assert [thief.reads(round_) for round_ in range(EPOCH + 1)] == [*[0] * EPOCH, 4]
