"""The outcome of a round against an oracle that shares no code with the engine.

Random cases are drawn from (chunk, index), which a failure names: `random_case(np.random.default_rng(...))`
makes the same case again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import Reason
from cesar.base.seeds import SeedTree
from cesar.indices.codecs import decode
from cesar.protocol.wire import Kind, Share, open_frame
from cesar.sim.wires import Wires
from support import oracle
from support.harness import (
    Case,
    Marked,
    SkewedClocks,
    carry,
    random_case,
    random_graph,
    random_method,
    random_vectors,
    refused,
    tolerance,
)

CHUNKS = range(16)
SLOW_CHUNKS = range(1000, 1032)


def generator(*path):
    return np.random.default_rng(path)


def assert_close(vectors, expected, case, where=None):
    """Within what rounding allows, and untouched where nothing was averaged."""
    error = np.abs(vectors - expected.vectors)
    assert (error <= tolerance(case.method, case.graph, case.vectors)).all(), (where, case, error.max(axis=1))
    assert (vectors == case.vectors)[expected.counts == 0].all(), (where, case)


def assert_as_expected(outcomes, expected, case, where):
    assert_close(np.stack([out.vector for out in outcomes]), expected, case, where)
    assert [out.lost for out in outcomes] == expected.lost.tolist(), (where, case)
    assert [out.contributors for out in outcomes] == expected.contributors, (where, case)


# ── without losses ──────────────────────────────────────────────────────────────────────────────────────

SPARSIFIERS = [cesar.TopK, cesar.RandomSubsampling]
COORDINATIONS = ["relay", "direct"]


def mean_rule(vectors, graph, selected, s):
    """The promise in one sentence: the mean over the neighbours that selected p if there are at least
    s + 1 of them, else the own value.
    """
    result = vectors.astype(np.float64)
    for r, p in np.ndindex(vectors.shape):
        senders = [j for j in graph[r] if selected[j, p]]
        if len(senders) > s:
            result[r, p] = np.mean(vectors[[r, *senders], p], dtype=np.float64)
    return result


def graph_of_degree_above(s, rng):
    graph = random_graph(rng, s + 3, 10)
    while min(degree for _, degree in graph.degree) <= s:
        graph = random_graph(rng, s + 3, 10)
    return graph


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
@pytest.mark.parametrize("coordination", COORDINATIONS)
@pytest.mark.parametrize("kind", SPARSIFIERS)
def test_without_losses_the_mean_rule_holds(kind, coordination, bits):
    for s, index in product((1, 2, 3, 4), range(4)):
        rng = generator(bits, s, index)
        graph = nx.random_regular_graph(s + 1, 2 * s + 4, int(rng.integers(1 << 31)))
        if index or not nx.is_connected(graph):
            graph = graph_of_degree_above(s, rng)
        vectors = random_vectors(rng, len(graph), int(rng.integers(8, 131)))
        method = cesar.Cesar(
            sparsifier=kind(float(rng.uniform(0.2, 1))),
            masking_requirement=s,
            ring_bits=bits,
            coordination=coordination,
        )
        result = cesar.aggregate(vectors, graph, method, seed=index)
        error = np.abs(result.vectors - mean_rule(vectors, graph, result.selected, s))
        assert (error <= tolerance(method, graph, vectors)).all()
        assert bits < 32 or error.max() <= 1e-6 * np.abs(vectors).max()


def test_topk_selects_what_changed_most_and_random_the_fraction_asked_for():
    rng = generator(1)
    vectors, before = random_vectors(rng, 6, 997), random_vectors(rng, 6, 997)
    graph = nx.complete_graph(6)
    topk = cesar.aggregate(vectors, graph, cesar.Cesar(sparsifier=cesar.TopK(0.3)), reference=before).selected
    order = np.argsort(-np.abs(vectors - before), axis=1, kind="stable")
    expected = np.zeros_like(topk)
    np.put_along_axis(expected, order[:, :299], True, axis=1)
    assert (topk == expected).all()
    chosen = cesar.aggregate(vectors, graph, cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.3))).selected
    assert abs(chosen.mean() - 0.3) < 5 * (0.3 * 0.7 / chosen.size) ** 0.5
    assert not (chosen[0] == chosen[1]).all()


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
@pytest.mark.parametrize("coordination", COORDINATIONS)
def test_models_larger_than_a_block(coordination, bits):
    """Keystreams, sets and values are processed in blocks of up to 131,072 positions."""
    rng, d = generator(2, bits), 2 * 131_072 + 77
    densities = np.array([[0.5], [0.01], [1.0], [0.9], [0.0], [0.3]])
    case = Case(
        graph=nx.circulant_graph(6, [1, 2]),
        method=cesar.Cesar(sparsifier=Marked(), ring_bits=bits, coordination=coordination),
        vectors=random_vectors(rng, 6, d),
        reference=(rng.random((6, d)) < densities).astype(np.float32),
        lost=frozenset({("share", 1, 2), ("relay", 3, 4), ("announce", 5, 0)}),
    )
    outcomes = carry(case, case.nodes())
    assert_as_expected(outcomes, case.expected(case.reference > 0), case, None)


@pytest.mark.parametrize("degree", [9, 40, pytest.param(260, marks=pytest.mark.slow)])
def test_many_neighbours(degree):
    """Partner sets of several bytes, and more contributors than a byte can count."""
    rng = generator(3, degree)
    case = Case(
        graph=nx.star_graph(degree),
        method=cesar.Cesar(sparsifier=Marked(), masking_requirement=2),
        vectors=random_vectors(rng, degree + 1, 9),
        reference=(rng.random((degree + 1, 9)) < 0.98).astype(np.float32),
        lost=frozenset({("relay", 0, 3), ("announce", 4, 0)}),
    )
    outcomes = carry(case, case.nodes())
    assert_as_expected(outcomes, case.expected(case.reference > 0), case, None)


# ── losses, crashes, any order ──────────────────────────────────────────────────────────────────────────


def check_losses(chunk, cases):
    """Two deliveries, at once and shuffled, give the oracle's result, bit for bit the same and for the
    same bytes.
    """
    for index in range(cases):
        rng = generator(chunk, index)
        case = random_case(rng)
        nodes, others = case.nodes(), case.nodes()
        expected = case.expected(case.selected(nodes))
        outcomes = carry(case, nodes)
        assert_as_expected(outcomes, expected, case, (chunk, index))
        for one, other in zip(outcomes, carry(case, others, rng), strict=True):
            assert one.vector.tobytes() == other.vector.tobytes(), (chunk, index)
            assert (one.lost, one.contributors) == (other.lost, other.contributors), (chunk, index)
        for i, node in nodes.items():
            assert vars(node.ledger) == vars(others[i].ledger), (chunk, index)
            sent = [count for (sender, _), count in expected.sent.items() if sender == i]
            assert (node.ledger.shares, node.ledger.parameters) == (len(sent), sum(sent)), (chunk, index)


def check_skewed_clocks(chunk, cases):
    for index in range(cases):
        rng = generator(chunk, index, 1)
        case = random_case(rng)
        nodes = case.nodes()
        network = SkewedClocks(case, nodes, rng)
        outcomes = network.run()
        expected = case.expected(case.selected(nodes), frozenset(network.useless))
        assert_as_expected(outcomes, expected, case, (chunk, index))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_losses_and_order(chunk):
    check_losses(chunk, 70)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_clocks_that_disagree(chunk):
    check_skewed_clocks(chunk, 40)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", SLOW_CHUNKS)
def test_losses_and_order_at_length(chunk):
    check_losses(chunk, 1250)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", SLOW_CHUNKS)
def test_clocks_that_disagree_at_length(chunk):
    check_skewed_clocks(chunk, 750)


def halves(graph, crashes, seed):
    """Who still gets a share of a node that crashes while sharing: `aggregate` draws it from its seed."""
    chosen = {}
    for i, point in crashes.items():
        if point == "during_share":
            view = sorted(graph[i])
            order = SeedTree(seed).generator("crash", 0, i).permutation(len(view))
            chosen[i] = {view[k] for k in order[: len(view) // 2]}
    return chosen


@pytest.mark.parametrize("chunk", range(8))
def test_crash_points(chunk):
    """Through the public function: one or several nodes crash, at any point, with any method."""
    for index in range(40):
        rng = generator(chunk, index, 2)
        method = random_method(rng)
        graph = graph_of_degree_above(getattr(method, "masking_requirement", 1), rng)
        n, d = len(graph), int(rng.integers(8, 131))
        crashed = rng.permutation(n)[: 1 + rng.integers(3)].tolist()
        crashes = {i: str(rng.choice(oracle.POINTS)) for i in crashed}
        case = Case(
            graph=graph,
            method=method,
            vectors=np.float32(rng.uniform(-99, 99, size=(n, d))),
            reference=(rng.random((n, d)) < 0.6).astype(np.float32),
            session=SeedTree(index).bytes(16, "session"),
            lost=oracle.crash_losses(graph, crashes, halves(graph, crashes, index)),
        )
        result = cesar.aggregate(
            case.vectors, graph, method, seed=index, reference=case.reference, crashes=crashes
        )
        expected = case.expected(result.selected)
        expected.vectors[crashed], expected.counts[crashed] = case.vectors[crashed], 0
        assert_close(result.vectors, expected, case, (chunk, index, crashes))


# ── examples worked out by hand ─────────────────────────────────────────────────────────────────────────


def example(graph, values, columns, **settings):
    """Node i holds values[i] everywhere; columns[p] are the nodes that select parameter p; s = 1."""
    marks = np.array([[i in column for column in columns] for i in range(len(values))], dtype=np.float32)
    vectors = np.repeat(np.array(values, dtype=np.float32)[:, None], len(columns), axis=1)
    method = settings.pop("method", cesar.Cesar(sparsifier=Marked()))
    return Case(graph=graph, method=method, vectors=vectors, reference=marks, **settings)


def assert_result(case, expected):
    got = np.stack([out.vector for out in carry(case, case.nodes())])
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    oracle_says = case.expected(case.reference > 0).vectors
    np.testing.assert_allclose(oracle_says, expected, rtol=1e-12)


def test_the_papers_walkthrough():
    """Its Fig. 1: N1, N2 and N3 select {1, 2, 4}, {1, 2} and {1, 3} and send to their neighbour Nr, s = 1; here Nr is 0."""
    graph = nx.complete_graph(4)
    method = cesar.Cesar.paper(sparsifier=Marked(), masking_requirement=1)
    vectors = np.float32([[9, 9, 9, 9], [1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]])
    sets = {1: {1, 2, 4}, 2: {1, 2}, 3: {1, 3}}
    marks = np.float32([[p in sets.get(i, ()) for p in range(1, 5)] for i in range(4)])
    sent = {}

    def watch(sender, recipient, frame):
        if recipient == 0 and frame.kind is Kind.SHARE:
            *_, body = open_frame(frame.payload)
            share = Share.decode(body, view=(1, 2, 3), explicit=True)
            kept = decode(share.indices, 4).positions()
            sent[sender] = dict(zip((kept + 1).tolist(), share.values.view("<u4").tolist(), strict=True))

    ensemble = cesar.Ensemble(graph, method, 4, seed=5)
    result = ensemble.round(vectors, reference=marks, watch=watch)
    # Index 1 carries two masks, index 2 one; 4 of N1 and 3 of N3 carry none and are discarded.
    assert {node: set(values) for node, values in sent.items()} == {1: {1, 2}, 2: {1, 2}, 3: {1}}
    million = 10**6  # six decimals
    assert sum(sent[node][1] for node in (1, 2, 3)) % 2**32 == 111 * million
    assert sum(sent[node][2] for node in (1, 2)) % 2**32 == 22 * million
    plain = {sent[node][p] for node in sent for p in sent[node]} & {int(v) * million for v in vectors.flat}
    assert not plain, "a masked value looks like none of the values"
    np.testing.assert_allclose(result.vectors[0], [(9 + 111) / 4, (9 + 22) / 3, 9, 9], rtol=1e-6)


def test_a_crash_after_coordination_removes_what_the_node_had_selected_next_to_it():
    # A complete graph of four, and node 4 that is not next to node 3, which crashes.
    graph = nx.Graph([*nx.complete_graph(4).edges, (4, 0), (4, 1), (4, 2)])
    columns = [{0, 1, 2, 3, 4}, {0, 1, 2}, {0, 1, 3}, {1, 2, 3}, {0, 1, 2, 4}]
    case = example(graph, [1, 2, 4, 8, 16], columns)
    result = cesar.aggregate(
        case.vectors, graph, case.method, reference=case.reference, crashes={3: "after_coordination"}
    )
    expected = [
        # Node 0 hears 1, 2 and 4. Node 3 selected parameters 0, 2 and 3, whose masks stay: own value there.
        [1, (1 + 2 + 4) / 3, 1, 1, (1 + 2 + 4 + 16) / 4],
        [2, (2 + 1 + 4) / 3, 2, 2, (2 + 1 + 4 + 16) / 4],
        [4, (4 + 1 + 2) / 3, 4, 4, (4 + 1 + 2 + 16) / 4],
        [8, 8, 8, 8, 8],  # crashed
        # Node 4 is not next to 3 and loses nothing: 0, 1 and 2 are its neighbours.
        [23 / 4, 23 / 4, (16 + 1 + 2) / 3, (16 + 2 + 4) / 3, 23 / 4],
    ]
    np.testing.assert_allclose(result.vectors, expected, rtol=1e-6)


def test_the_same_crash_with_abort_keeps_whole_models():
    graph = nx.Graph([*nx.complete_graph(4).edges, (4, 0), (4, 1), (4, 2)])
    method = cesar.Cesar(sparsifier=Marked(), dropout="abort")
    case = example(graph, [1, 2, 4, 8, 16], [{0, 1, 2, 3, 4}, {0, 1, 2}], method=method)
    result = cesar.aggregate(
        case.vectors, graph, method, reference=case.reference, crashes={3: "after_coordination"}
    )
    np.testing.assert_allclose(result.vectors, [[1, 1], [2, 2], [4, 4], [8, 8], [23 / 4, 23 / 4]], rtol=1e-6)


@pytest.mark.parametrize("coordination", COORDINATIONS)
def test_an_announcement_that_reaches_only_some(coordination):
    # A complete graph of four; what node 3 announces reaches 0 and 1, but not 2.
    method = cesar.Cesar(sparsifier=Marked(), coordination=coordination)
    columns = [{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 3}, {1, 2, 3}, {2, 3}]
    lost = frozenset({("announce", 3, 2)})
    case = example(nx.complete_graph(4), [1, 2, 4, 8], columns, method=method, lost=lost)
    assert_result(
        case,
        [
            # To 0 and 1: node 3 masks with 2, but 2 cannot mask with 3. Own value where both selected.
            [1, (1 + 2 + 4) / 3, (1 + 2 + 8) / 3, 1, 1],
            [2, (2 + 1 + 4) / 3, (2 + 1 + 8) / 3, 2, 2],
            # Node 2 has formed its group without 3: nobody puts a mask of 3 on what it gets.
            [(4 + 1 + 2) / 3, (4 + 1 + 2) / 3, (4 + 1 + 2) / 3, 4, 4],
            # To 3: its neighbours 0, 1 and 2 all know one another.
            [15 / 4, 15 / 4, (8 + 1 + 2) / 3, (8 + 2 + 4) / 3, 8],
        ],
    )


def test_a_lost_relay_frame_leaves_two_peers_with_different_partners():
    # 0, 1 and 2 are each next to both 3 and 4. Node 3 relays between 0 and 1, node 4 between the others.
    graph = nx.complete_bipartite_graph(3, 2)
    columns = [{0, 1, 2, 3, 4}, {0, 2, 3, 4}, {1, 2, 3}, {0, 1, 3}]
    lost = frozenset({("relay", 3, 0)})
    wanted = {(0, 1): 3, (0, 2): 4, (1, 2): 4}

    def relays(round_):
        talk = oracle.Exchange(graph, oracle.Rules(round_=round_), lost)
        return {pair: talk.relay(*pair) for pair in wanted}

    round_ = next(t for t in range(1000) if relays(t) == wanted)
    case = example(graph, [1, 2, 4, 8, 16], columns, session=bytes(16), round_=round_, lost=lost)
    assert_result(
        case,
        [
            # To 0, 1 and 2: nodes 3 and 4 have what they need.
            [(1 + 24) / 3, (1 + 24) / 3, 1, 1],
            [(2 + 24) / 3, (2 + 24) / 3, 2, 2],
            [(4 + 24) / 3, (4 + 24) / 3, 4, 4],
            # To 3: node 0 sends nothing. 1 and 2 mask with it, so what 0 selected is lost.
            [8, 8, (8 + 2 + 4) / 3, 8],
            # To 4: node 0 does not know 1 and masks with 2 only, while 1 masks with 0. Parameter 0 has the
            # mask of (1, 0) once; at 1 those of (0, 2) cancel; at 3 node 0 finds no partner and sends nothing.
            [16, (16 + 1 + 4) / 3, (16 + 2 + 4) / 3, 16],
        ],
    )


# ── a node that begins again ────────────────────────────────────────────────────────────────────────────


def announcement_of(node):
    (out,) = node.outbound()
    return out


@pytest.mark.parametrize("coordination", COORDINATIONS)
def test_a_share_of_a_second_attempt_is_refused_by_those_who_hold_the_first_announcement(coordination):
    method = cesar.Cesar(sparsifier=Marked(), coordination=coordination)
    columns = [{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 3}, {1, 2, 3}]
    case = example(nx.complete_graph(4), [1, 2, 4, 8], columns, method=method)
    nodes = case.nodes()
    first = announcement_of(nodes[3])
    assert not any(refused(nodes[i], 3, first.frame.payload) for i in first.recipients)
    again = replace(case, vectors=case.vectors / 2, reference=1 - case.reference)
    again.begin(nodes[3], attempt=1)
    wires = Wires(nodes)
    outcomes = wires.run()
    got = np.stack([outcomes[i].vector for i in range(4)])
    expected = [
        # As if 3 had crashed after coordination: what its first announcement selected is lost.
        [1, (1 + 2 + 4) / 3, 1, 1],
        [2, (2 + 1 + 4) / 3, 2, 2],
        [4, (4 + 1 + 2) / 3, 4, 4],
        # Node 3 itself, with half its model, hears the others as usual.
        [(4 + 7) / 4, (4 + 7) / 4, (4 + 3) / 3, (4 + 6) / 3],
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    # Where announcements are still awaited, the second one is refused, too.
    reasons = [error.reason for error in wires.rejected if error.reason is not Reason.DUPLICATE]
    assert reasons == 3 * [Reason.STALE_ATTEMPT]


def test_peers_who_hold_different_announcements_of_a_node_never_average_noise():
    # Node 0 begins twice. Node 1 has its first announcement (parameter 0), 2 and 3 its second (parameter 3).
    # To 3, node 1 sends parameters 0 and 2, where node 3 would expect 2 and 3: as many, but not the same.
    case = example(nx.complete_graph(4), [1, 2, 4, 8], [{0, 1}, {1}, {1, 2}, {1}])
    nodes = case.nodes()
    assert refused(nodes[1], 0, announcement_of(nodes[0]).frame.payload) is None
    second = replace(case, reference=case.reference.copy())
    second.reference[0] = [0, 0, 0, 1]
    second.begin(nodes[0], attempt=1)
    got = Wires(nodes).run()[3].vector
    # Whatever is dropped: at parameter 2 only 1 and 2 have selected, everywhere else the own value stays.
    assert got[2] in (8, np.float32(14 / 3))
    assert (got[[0, 1, 3]] == 8).all()


def test_the_scale_of_an_earlier_attempt_is_not_used():
    # All models are equal, so every mean is 1 in the second attempt. Then the relay frames of node 3's first
    # attempt arrive, which ask for the scale of models that were eight times as large.
    case = example(nx.complete_graph(4), [8, 8, 8, 8], [{0, 1, 2, 3}])
    nodes = case.nodes()
    announced = {i: announcement_of(node).frame.payload for i, node in nodes.items()}
    for i, j in permutations(nodes, 2):
        nodes[j].receive(i, announced[i])
    stale = list(nodes[3].outbound())
    for node in nodes.values():
        replace(case, vectors=case.vectors / 8).begin(node, attempt=1)
    for out in stale:
        refused(nodes[out.recipients[0]], 3, out.frame.payload)
    assert Wires(nodes).run()[3].vector.tolist() == [1]


class Restarts(SkewedClocks):
    """Like SkewedClocks, but some nodes begin the round again, with another model and another selection."""

    def __init__(self, attempts, nodes, rng):
        super().__init__(attempts[0], nodes, rng)
        self.attempts, self.latest = attempts, dict.fromkeys(nodes, 0)
        self.haste = rng.choice([0.0, 0.05])
        most = rng.choice([20, 40, 80])
        self.agenda = dict(zip(rng.integers(most, size=5).tolist(), rng.permutation(5).tolist(), strict=True))
        self.steps = 0

    def step(self):
        i = self.agenda.get(self.steps)
        self.steps += 1
        if i is not None and self.nodes[i].next_deadline() is not None:
            self.latest[i] = 1
            self.attempts[1].begin(self.nodes[i], attempt=1)
        return super().step()


def is_a_mean(value, own, candidates, allowed, slack, weights):
    """(d,): whether each value is the own one, or its mean with one attempt each of neighbours that may be together."""
    fine = value == own
    for choice in product(*candidates.values()):
        used = dict(filter(lambda item: item[1] is not None, zip(candidates, choice, strict=True)))
        if allowed(set(used)):
            others = np.sum(list(used.values()), axis=0)
            fine |= np.abs(value - oracle.mean(own, others, len(used), len(candidates), weights)) <= slack
    return fine


def two_attempts(rng):
    """Two versions of a small case; small sets often have the same size without being the same."""
    graph, method = random_graph(rng, 5, 5), random_method(rng)
    while isinstance(method, cesar.DPSGD):
        method = random_method(rng)
    seed, shape = int(rng.integers(1 << 31)), (len(graph), int(rng.integers(8, 17)))
    for scale in (1, 2.0 ** -rng.integers(5)):
        yield Case(
            graph=graph,
            method=method,
            vectors=np.float32(scale * rng.uniform(-1, 1, shape)),
            reference=np.float32(rng.random(shape) < 0.5),
            round_=seed,
            seed=seed,
        )


def may_be_together(case):
    """Whose values may be in one mean: those of more than s neighbours."""
    return lambda used: len(used) > getattr(case.method, "masking_requirement", 1)


def check_restarts(chunk, cases):
    """No oracle says who will be averaged here; that nothing but whole values is averaged must hold."""
    for index in range(cases):
        rng = generator(chunk, index, 3)
        first, second = two_attempts(rng)
        network = Restarts((first, second), first.nodes(), rng)
        slack = tolerance(first.method, first.graph, first.vectors) + 1e-6
        for r, out in enumerate(network.run()):
            own = (first, second)[network.latest[r]].vectors[r].astype(np.float64)
            candidates = {j: (None, first.vectors[j], second.vectors[j]) for j in sorted(first.graph[r])}
            fine = is_a_mean(
                out.vector, own, candidates, may_be_together(first), slack[r], first.method.weights
            )
            assert fine.all(), (chunk, index, r, first, out.vector, network.latest)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_restarts_never_average_noise(chunk):
    check_restarts(chunk, 30)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", SLOW_CHUNKS)
def test_restarts_never_average_noise_at_length(chunk):
    check_restarts(chunk, 300)
