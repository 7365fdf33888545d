"""The simulator is not an estimate: real peers over mutual TLS give the same models and send the same bytes."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.config import PeerConfig
from cesar.peer.trust.identity import Identity
from cesar.protocol.wire import CATEGORIES
from cesar.sim.secrets import Secrets
from support.lan import make_network, one_round

SIZE, ROUNDS = 1501, 2
SPARSE = 'name = "cesar"\nsparsifier = "{}"\nalpha = 0.45\nmasks = {}\nring_bits = {}'
METHODS = [
    *(SPARSE.format(name, s, bits) for name, s, bits in (("random", 1, 32), ("random", 2, 16))),
    *(SPARSE.format(name, s, bits) for name, s, bits in (("topk", 1, 16), ("topk", 2, 32))),
    'name = "secagg"\nring_bits = 16',
    'name = "secagg"\nring_bits = 32',
    'name = "cesar"\nsparsifier = "topk"\nshare = 0.3\nmemory = true',
]
TENSORS = (1000, 500, 1)
SETTLING = 2


def step(models, round_):
    """What stands for local training between two rounds."""
    change = np.random.default_rng(round_).normal(scale=0.1, size=models.shape)
    return (models + change).astype(np.float32)


def sent(reports):
    return {c: [report.bytes[c] for report in reports] for c in CATEGORIES}


async def through_peers(network, seed, first):
    """Models and bytes after every round, with the randomness that the simulator uses."""
    secrets = Secrets(seed)
    peers = []
    for i in range(len(first)):
        folder = network.folder / f"peer-{i}"
        peers.append(
            AsyncPeer(
                PeerConfig.load(folder),
                Identity.load(folder),
                network.roster,
                entropy=partial(secrets.entropy, i),
                session=secrets.session,
            )
        )
        peers[-1].membership.keys = lambda _, i=i: secrets.ring(i)
    models, seen = first.copy(), []
    try:
        for peer in peers:
            await peer.start()
        await asyncio.gather(*(peer.wait_for_neighbours(30) for peer in peers))
        for peer, row in zip(peers, models, strict=True):
            peer.task.start_from(row)  # from here on each compares with what it has averaged last
        for t in range(ROUNDS):
            models = step(models, t)
            reports = await one_round(peers, models, TENSORS)
            assert [report.round for report in reports] == [t] * len(peers)
            seen.append((models.copy(), sent(reports)))
        jobs = [peer.settle(row, TENSORS, rounds=SETTLING) for peer, row in zip(peers, models, strict=True)]
        reports = list(zip(*await asyncio.gather(*jobs), strict=True))
        assert [{report.round for report in these} for these in reports] == [{ROUNDS}, {ROUNDS + 1}]
        seen += [(None, sent(reports[0])), (models.copy(), sent(reports[1]))]
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
    return seen


@pytest.mark.parametrize(
    "method",
    METHODS,
    ids=lambda text: re.sub(r"(name|sparsifier|alpha|ring_bits) = ", "", text).replace("\n", "-"),
)
def test_peers_give_what_the_simulator_gives(method, tmp_path):
    graph = nx.circulant_graph(7, [1, 2])  # neighbours, pairs with one relay, pairs with a choice of relays
    graph.remove_edges_from([(0, 2)])  # and degrees that differ
    network = make_network(tmp_path / "net", graph, method, rounds="floor = 20.0\nceiling = 60.0")
    first = np.random.default_rng(5).normal(size=(7, SIZE)).astype(np.float32)
    seen = on_loop(through_peers(network, 11, first))

    built = PeerConfig.load(network.folder / "peer-0").method(network.roster)
    ensemble = cesar.Ensemble(graph, built, SIZE, seed=11, tensors=TENSORS)
    models = first
    for t, (vectors, expected) in enumerate(seen):
        if t == ROUNDS:
            ensemble.use_method(built.settled(0.3, round(sum(dict(graph.degree).values()) / 7)))
        trained = step(models, t) if t < ROUNDS else models
        result = ensemble.round(trained, reference=models)
        assert {c: result.bytes[c].tolist() for c in CATEGORIES} == expected
        if vectors is not None:
            assert np.array_equal(vectors, result.vectors)
            assert not np.array_equal(vectors, trained)
        models = result.vectors
    ensemble.close()
