"""Two senders whose secrets differ make masks that do not cancel; the check words must show it."""

from __future__ import annotations

import hashlib

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.crypto.keys import PairSecret
from cesar.node import Node
from cesar.sim.wires import Wires
from support.harness import Case, FakeKeys, secret_of


def wrong_secret(session: bytes, i: int, j: int) -> PairSecret:
    """As `secret_of`, but node 1 holds a wrong key of node 2."""
    if (i, j) == (1, 2):
        return PairSecret(hashlib.sha512(b"another key").digest())
    return secret_of(session, i, j)


@pytest.mark.parametrize("ring_bits", [16, 32])
@pytest.mark.parametrize("dropout", ["parameter", "abort"])
def test_masks_of_different_secrets_spoil_nothing_but_their_positions(ring_bits, dropout):
    size = 400
    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.6), ring_bits=ring_bits, dropout=dropout)
    vectors = np.random.default_rng(5).uniform(-1, 1, (5, size)).astype(np.float32)
    case = Case(graph=nx.complete_graph(5), method=method, vectors=vectors)
    nodes = {
        i: Node(i, method, size, session=case.session, keys=FakeKeys(case.session, i, wrong_secret))
        for i in range(5)
    }
    for node in nodes.values():
        case.begin(node)
    outcomes = Wires(nodes).run()
    chosen = case.selected(nodes)
    for receiver, outcome in outcomes.items():
        own = vectors[receiver]
        others = [i for i in range(5) if i != receiver]
        holders = chosen[others].sum(axis=0)
        both = chosen[1] & chosen[2] if {1, 2} <= set(others) else np.zeros(size, dtype=bool)
        used = np.where((holders >= 2) & ~both, holders, 0)
        if dropout == "abort" and both.any():
            used[:] = 0
        total = own + (vectors[others] * chosen[others]).sum(axis=0)
        expected = np.where(used > 0, total / (used + 1), own)
        np.testing.assert_allclose(outcome.vector, expected, atol=1e-2 if ring_bits == 16 else 1e-5)
        if dropout == "parameter":
            assert outcome.lost == np.count_nonzero(both & (holders >= 2))
