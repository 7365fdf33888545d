"""Colluders against real frames: values come out bit for bit where s does not suffice, and nothing in strict mode."""

from functools import partial

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.audit import audit
from cesar.audit.transcript import Recorder, attack, exchange_of
from cesar.crypto.keys import SESSION_BYTES, KeyPair
from cesar.errors import PrivacyError
from cesar.seeds import SeedTree
from cesar.topology import strict_requirement
from harness import Case, carry, random_graph, random_losses, secret_of

SIZE = 600
R1, R2, I, A, B = range(5)
BAD_GRAPH = nx.Graph([(R1, I), (R1, A), (R1, R2), (R2, I), (R2, A), (R2, B), (I, B), (A, B)])


def models(nodes, seed=1):
    """Values with no finer digits than a 32-bit grid has: magnitudes from 1/4 to 1."""
    draw = np.random.default_rng(seed)
    signs = draw.choice(np.array([-1, 1], dtype=np.float32), size=(nodes, SIZE))
    return signs * draw.uniform(0.25, 1, size=(nodes, SIZE)).astype(np.float32)


def collude(graph, method, coalition, vectors, seed=7):
    """A round of real frames, of which the attack gets what the colluders saw, and their own private keys."""
    method = method.for_graph(graph)
    recorder = Recorder(graph, method, coalition)
    cesar.Ensemble(graph, method, SIZE, seed=seed).round(vectors, watch=recorder.see)
    seeds = SeedTree(seed)
    session = seeds.bytes(SESSION_BYTES, "session")
    own = {i: KeyPair.generate(seeds.entropy("keys", i)) for i in coalition}
    public = {i: KeyPair.generate(seeds.entropy("keys", i)).public for i in graph}

    def secret(colluder, peer):
        return own[colluder].agree(public[peer], session)

    return attack(recorder.transcripts, secret, graph, method, SIZE)


@pytest.mark.parametrize("paper", [False, True], ids=["ours", "paper"])
def test_two_colluders_read_a_third_bit_for_bit(paper):
    vectors = models(5)
    make = cesar.Cesar.paper if paper else cesar.Cesar
    method = make(sparsifier=cesar.TopK(1.0), masking_requirement=2)
    read = collude(BAD_GRAPH, method, (R1, R2), vectors)
    assert read.keys() == {B}
    if paper:  # six decimals
        assert np.abs(read[B] - vectors[B]).max() <= 0.5e-6 * 3
    else:
        assert read[B].astype(np.float32).tobytes() == vectors[B].tobytes()


def test_strict_mode_refuses_the_bad_graph():
    with pytest.raises(PrivacyError, match=r"only stopped by 3 masks.*plan topology"):
        collude(BAD_GRAPH, cesar.Cesar(sparsifier=cesar.TopK(1.0), collusion=2), (R1, R2), models(5))


@pytest.mark.parametrize(
    "sparsifier", [cesar.RandomSubsampling(0.5), cesar.TopK(0.5)], ids=["random", "topk"]
)
def test_sparse_rounds_on_a_larger_graph(sparsifier):
    """At s = 2 the pair that the audit finds reads what it says; at the strict s the same attack gets nothing."""
    graph, vectors = nx.random_regular_graph(6, 24, seed=3), models(24)
    weak = cesar.Cesar(sparsifier=sparsifier, masking_requirement=2)
    everything = Recorder(graph, weak)
    cesar.Ensemble(graph, weak, SIZE, seed=7).round(vectors, watch=everything.see)
    report = audit(exchange_of(everything.transcripts, graph, weak, SIZE), 2)
    worst = report.findings[0]
    read = collude(graph, weak, worst.coalition, vectors)
    assert {node: np.isfinite(values).mean() for node, values in read.items()} == pytest.approx(worst.victims)
    for node, values in read.items():
        known = np.isfinite(values)
        assert values[known].astype(np.float32).tobytes() == vectors[node][known].tobytes()
    strict = cesar.Cesar(sparsifier=sparsifier, collusion=2)
    assert strict_requirement(graph, 2) > 2
    assert collude(graph, strict, worst.coalition, vectors) == {}


@pytest.mark.parametrize("seed", range(12))
def test_losses_and_disagreement(seed):
    """With lost frames sums fall into parts: what the attack reads from the real words is right, and it is
    exactly what the audit says; in strict mode nothing is ever read.
    """
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 6, 9)
    lost, vectors = random_losses(rng, graph), models(len(graph), seed)
    k = int(rng.integers(1, 4))
    coalition = tuple(sorted(rng.choice(len(graph), k, replace=False).tolist()))
    kinds = [cesar.RandomSubsampling(0.7), cesar.CoordinatedSubsampling(0.5), cesar.TopK(0.8)]
    for s in {1, 2, strict_requirement(graph, k)}:
        method = cesar.Cesar(sparsifier=kinds[seed % 3], masking_requirement=s)
        case = Case(graph=graph, method=method, vectors=vectors, lost=lost, seed=seed)
        recorder = Recorder(graph, method, coalition)

        def arrives(sender, recipient, frame, case=case, recorder=recorder):
            if not Case.arrives(case, sender, recipient, frame):
                return False
            recorder.see(sender, recipient, frame)
            return True

        object.__setattr__(case, "arrives", arrives)
        carry(case, case.nodes())
        secrets = partial(secret_of, case.session)
        read = attack(recorder.transcripts, secrets, graph, method, SIZE)
        for node, values in read.items():
            known = np.isfinite(values)
            assert values[known].astype(np.float32).tobytes() == vectors[node][known].tobytes()
        exchange = exchange_of(recorder.transcripts, graph, method, SIZE)
        found = audit(exchange, k, top=10_000)
        mine = [finding for finding in found.findings if finding.coalition == coalition]
        assert {node: np.isfinite(v).mean() for node, v in read.items()} == pytest.approx(
            mine[0].victims if mine else {}
        )
        if s == strict_requirement(graph, k):
            assert not read
