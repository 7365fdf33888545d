"""Colluders against real frames: values come out bit for bit where s does not suffice, and nothing in strict mode."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.audit import audit
from cesar.audit.transcript import Recorder, exchange_of
from cesar.base.errors import PrivacyError
from cesar.crypto.keys import RoundId
from cesar.graph.neighbourhood import neighbourhoods, strict_requirement
from cesar.sim.secrets import Secrets
from cesar.sim.wires import Wires
from support import oracle
from support.colluders import attack
from support.harness import SESSIONS, Case, FakeKeys

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
    return attack(recorder.transcripts, keyrings(coalition, seed), graph, method, SIZE)


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


def few_losses(rng, graph):
    """Announcements, relays and shares, each lost with a small probability; some pairs then fail to agree."""
    return frozenset(
        (kind, i, j)
        for kind in oracle.KINDS
        for i in graph
        for j in graph
        if rng.random() < rng.choice([0, 0.04])
    )


def test_losses_and_disagreement():
    """With lost frames sums fall into parts. What the attack reads from the real words is right, and it is
    exactly what the audit says; in strict mode nothing is ever read.
    """
    kinds = [cesar.RandomSubsampling(0.7), cesar.FullSharing(), cesar.TopK(0.8)]
    leaks = Counter()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        graph, k = nx.random_regular_graph(5, 10, seed=seed), 2 + seed % 2
        lost, vectors = few_losses(rng, graph), models(10, seed)
        coalition = tuple(sorted(rng.choice(10, k, replace=False).tolist()))
        safe = strict_requirement(graph, k)
        for s in {1, 2, safe}:
            method = cesar.Cesar(sparsifier=kinds[seed % 3], masking_requirement=s)
            recorder = Recorder(graph, method, coalition)
            case = Case(graph=graph, method=method, vectors=vectors, lost=lost, seed=seed)
            nodes = case.nodes()
            Wires(nodes, arrives=lambda i, j, f: case.arrives(i, j, f) and not recorder.see(i, j, f)).run()
            read = attack(
                recorder.transcripts, {i: FakeKeys(case.session, i) for i in coalition}, graph, method, SIZE
            )
            for node, values in read.items():
                known = np.isfinite(values)
                assert values[known].astype(np.float32).tobytes() == vectors[node][known].tobytes()
            exchange = exchange_of(recorder.transcripts, graph, method, SIZE)
            mine = [f for f in audit(exchange, k, top=10_000).findings if f.coalition == coalition]
            said = mine[0].victims if mine else {}
            assert {node: np.isfinite(v).mean() for node, v in read.items()} == pytest.approx(said)
            leaks["strict" if s >= safe else "weak"] += bool(read)
    assert leaks["strict"] == 0
    assert leaks["weak"] > 10


def test_a_sum_that_falls_into_parts():
    """Of r's neighbours only i, j and k, l agreed on masks: the relay q between them was cut off. One receiver then
    has two sums, and with i it reads j, and then q, whose value i received in a sum with j's.
    """
    r, q, i, j, k, l = range(6)
    graph = nx.Graph([(hub, x) for hub in (r, q) for x in (i, j, k, l)] + [(i, j), (k, l)])
    hood = neighbourhoods(graph)[r]
    pairs = [(x, y) for x in (i, j) for y in (k, l)]

    def relayed_by_q(round_):
        round_id = RoundId(session=SESSIONS[0], round_=round_)
        return all(hood.relay(x, y, round_id) == q for x, y in pairs)

    round_ = next(filter(relayed_by_q, range(1000)))
    method = cesar.Cesar(sparsifier=cesar.TopK(1.0))
    lost = frozenset(("relay", q, x) for x in (i, j, k, l))
    case = Case(graph=graph, method=method, vectors=models(6), lost=lost, round_=round_)
    for coalition, victims in (((r,), set()), ((r, i), {j, q})):
        recorder = Recorder(graph, method, coalition)
        Wires(case.nodes(), arrives=lambda a, b, f: case.arrives(a, b, f) and not recorder.see(a, b, f)).run()
        exchange = exchange_of(recorder.transcripts, graph, method, SIZE)
        groups = {frozenset({i, j}) - set(coalition), frozenset({k, l})}
        assert {members for receiver, members in exchange.sums(coalition, 0) if receiver == r} == groups
        read = attack(
            recorder.transcripts, {i: FakeKeys(case.session, i) for i in coalition}, graph, method, SIZE
        )
        assert read.keys() == victims
    for node, values in read.items():
        assert values.astype(np.float32).tobytes() == case.vectors[node].tobytes()


def keyrings(coalition, seed=7):
    """The colluders' own keys, as the simulator makes them."""
    secrets = Secrets(seed)
    rings = {i: secrets.ring(i) for i in coalition}
    for ring in rings.values():
        ring.public(0)
    return rings
