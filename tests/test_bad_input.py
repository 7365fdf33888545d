"""Bad input gets a named error that says what to do, and nothing is sent."""

import math

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import CesarError, ConfigError, DataError, PrivacyError
from cesar.node import Ledger

NODES, SIZE = 5, 12
GRAPH = nx.complete_graph(NODES)
MODELS = np.arange(NODES * SIZE, dtype=np.float32).reshape(NODES, SIZE)
METHODS = {
    "cesar": cesar.Cesar(sparsifier=cesar.TopK(0.5)),
    "direct": cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.5), coordination="direct"),
    "paper": cesar.Cesar.paper(sparsifier=cesar.TopK(0.5)),
    "secure": cesar.SecureAggregation(),
    "plain": cesar.DPSGD(),
    "plain sparse": cesar.DPSGD(sparsifier=cesar.TopK(0.5)),
}
CESAR = METHODS["cesar"]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
masked_method = pytest.mark.parametrize(
    "method", [method for name, method in METHODS.items() if not name.startswith("plain")]
)


@pytest.fixture(autouse=True)
def sent(monkeypatch):
    """The sizes of all frames that leave any node: every one of them passes its ledger."""
    sizes, record = [], Ledger.record

    def recording(ledger, out):
        sizes.append(len(out.frame.payload))
        record(ledger, out)

    monkeypatch.setattr(Ledger, "record", recording)
    return sizes


def refused(sent, kind, message, vectors=MODELS, graph=GRAPH, method=CESAR, **options):
    """A round is refused with that error and that message, and nothing was sent."""
    with pytest.raises(kind, match=message) as caught:
        cesar.aggregate(vectors, graph, method, seed=1, **options)
    assert isinstance(caught.value, CesarError)
    assert sent == []


@every_method
def test_good_input_is_sent(sent, method):
    """The counter counts, or none of the tests below would mean anything."""
    result = cesar.aggregate(MODELS, GRAPH, method, seed=1)
    assert len(sent) >= NODES
    assert result.total_bytes >= sum(sent) > 0


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


@every_method
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("node", "place"), [(0, 0), (3, 7), (NODES - 1, SIZE - 1)])
def test_a_value_that_is_not_finite(sent, method, bad, node, place):
    vectors = MODELS.copy()
    vectors[node, place] = bad
    message = f"node {node}: .*NaN or infinite, the first at position {place};.*Lower the learning rate"
    refused(sent, DataError, message, vectors, method=method)


@every_method
def test_an_ensemble_goes_on_after_bad_models(sent, method):
    """Nobody sent anything, so the round can be had with better models; ledgers stay empty until then."""
    ensemble = cesar.Ensemble(GRAPH, method, SIZE, seed=1)
    bad = MODELS.copy()
    bad[2, 2] = np.nan
    with pytest.raises(DataError, match="node 2"):
        ensemble.round(bad)
    assert sent == []
    assert not any(count for node in ensemble.nodes for count in node.ledger.sent.values())
    expected = cesar.aggregate(MODELS, GRAPH, method, seed=1)
    assert np.array_equal(ensemble.round(MODELS).vectors, expected.vectors)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [3.0]], "all of one length"),
        ([[1.0], [2.0, 3.0], [4.0]], "all of one length"),
        ([["a", "b"]] * NODES, "n rows of d numbers"),
        ([[None, {}]] * NODES, "n rows of d numbers"),
        (np.zeros(NODES), r"shape \(5,\), but one row per node is needed: \(n, d\)"),
        (np.zeros((NODES, 2, 2)), "one row per node is needed"),
        (np.float32(1.0), "one row per node is needed"),
        ([], "one row per node is needed"),
        (np.zeros((NODES, 0)), "one row per node is needed"),
        (np.zeros((0, SIZE)), "one row per node is needed"),
    ],
    ids=[
        "ragged",
        "ragged inside",
        "text",
        "objects",
        "1-D",
        "3-D",
        "scalar",
        "empty",
        "no columns",
        "no rows",
    ],
)
def test_vectors_that_are_not_rows_of_numbers(sent, vectors, message):
    refused(sent, DataError, message, vectors)


@pytest.mark.parametrize(
    "shape", [(NODES, SIZE - 1), (NODES, SIZE + 1), (NODES - 1, SIZE), (NODES, 1), (1, SIZE)]
)
def test_a_reference_of_another_shape(sent, shape):
    refused(sent, DataError, "reference has shape .* but vectors have", reference=np.zeros(shape))


def test_a_reference_that_is_not_rows_of_numbers(sent):
    refused(sent, DataError, "reference must be n rows", reference=[[1.0], [2.0, 3.0]])


@pytest.mark.parametrize("rows", [NODES - 1, NODES + 1])
def test_as_many_models_as_nodes(sent, rows):
    refused(sent, ConfigError, rf"exactly 0\.\.{rows - 1}, one per row of the vectors", np.ones((rows, SIZE)))


@every_method
@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_an_ensemble_refuses_models_of_another_size(sent, method, size):
    ensemble = cesar.Ensemble(GRAPH, method, SIZE, seed=1)
    with pytest.raises(
        DataError, match=rf"\(5, {size}\) of float32, but this network averages \(5, {SIZE}\)"
    ):
        ensemble.round(np.ones((NODES, size), dtype=np.float32))
    assert sent == []


def test_decimals_that_do_not_fit(sent):
    refused(
        sent, PrivacyError, r"do not fit a 32-bit sum.*use Cesar\(\)", MODELS * 1000, method=METHODS["paper"]
    )


# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────


def with_loop():
    graph = GRAPH.copy()
    graph.add_edge(2, 2)
    return graph


GRAPHS = {
    "disconnected": (nx.disjoint_union(nx.complete_graph(2), nx.complete_graph(3)), "2 parts; connect them"),
    "a node alone": (nx.disjoint_union(nx.complete_graph(4), nx.empty_graph(1)), "2 parts; connect them"),
    "no edges": (nx.empty_graph(NODES), "5 parts; connect them"),
    "a self loop": (with_loop(), "node 2 is its own neighbour; remove self-loops"),
    "directed": (nx.DiGraph(GRAPH), r"undirected and simple: pass networkx\.Graph"),
    "parallel edges": (nx.MultiGraph(GRAPH), r"undirected and simple: pass networkx\.Graph"),
    "from one": (
        nx.relabel_nodes(GRAPH, lambda i: i + 1),
        r"exactly 0\.\.4.*convert_node_labels_to_integers",
    ),
    "names": (nx.relabel_nodes(GRAPH, str), r"exactly 0\.\.4.*convert_node_labels_to_integers"),
    "too few": (nx.complete_graph(NODES - 1), r"exactly 0\.\.4"),
    "too many": (nx.complete_graph(NODES + 1), r"exactly 0\.\.4"),
    "nobody": (nx.empty_graph(0), r"exactly 0\.\.4"),
}


@every_method
@pytest.mark.parametrize(("graph", "message"), GRAPHS.values(), ids=GRAPHS)
def test_graphs_on_which_nothing_can_be_averaged(sent, method, graph, message):
    refused(sent, ConfigError, message, graph=graph, method=method)


@every_method
def test_one_node(sent, method):
    refused(sent, ConfigError, "at least two nodes", MODELS[:1], nx.empty_graph(1), method)


@pytest.mark.parametrize("s", [1, 2, 3, 4, 9])
def test_a_receiver_with_too_few_neighbours(sent, s):
    """A cycle has degree two, so s = 2 is one too many; a complete graph on five nodes allows s = 3."""
    method = cesar.Cesar(sparsifier=cesar.TopK(0.5), masking_requirement=s)
    if s > 1:
        message = (
            f"node 0 has 2 neighbour.*at least {s + 1}; nothing was sent.*Add edges .* or lower masking_req"
        )
        refused(sent, PrivacyError, message, graph=nx.cycle_graph(NODES), method=method)
    if s > 3:
        refused(sent, PrivacyError, f"node 0 has 4 neighbour.*at least {s + 1}", method=method)


@masked_method
def test_a_leaf(sent, method):
    """One neighbour cannot hide behind another: its share would be its model."""
    graph = GRAPH.copy()
    graph.remove_edges_from([(4, 0), (4, 1), (4, 2)])
    refused(
        sent, PrivacyError, r"node 4 has 1 neighbour.*Add edges at node\(s\) 4", graph=graph, method=method
    )


def test_an_ensemble_refuses_another_graph_and_keeps_the_old(sent):
    ensemble = cesar.Ensemble(GRAPH, CESAR, SIZE, seed=1)
    with pytest.raises(ConfigError, match="parts"):
        ensemble.use_graph(nx.empty_graph(NODES))
    with pytest.raises(PrivacyError, match="neighbour"):
        ensemble.use_graph(nx.path_graph(NODES))
    assert sent == []
    assert np.array_equal(
        ensemble.round(MODELS).vectors, cesar.aggregate(MODELS, GRAPH, CESAR, seed=1).vectors
    )


# ── methods ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparsifier", [cesar.TopK, cesar.RandomSubsampling])
@pytest.mark.parametrize("alpha", [0, 0.0, -0.3, 1.001, 30, math.nan, math.inf])
def test_alpha(sparsifier, alpha):
    with pytest.raises(ConfigError, match=f"alpha is {alpha}.*above 0 and at most 1"):
        sparsifier(alpha)


@pytest.mark.parametrize("make", [cesar.Cesar, cesar.Cesar.paper])
@pytest.mark.parametrize("s", [0, -1, -100])
def test_masking_requirement(make, s):
    with pytest.raises(ConfigError, match=f"masking_requirement is {s}.*at least 1.*in the clear"):
        make(sparsifier=cesar.TopK(0.5), masking_requirement=s)


@pytest.mark.parametrize("bits", [0, 1, 8, 17, 31, 33, 64, -32, "32"])
def test_ring_bits(bits):
    for make in (
        cesar.SecureAggregation,
        lambda ring_bits: cesar.Cesar(sparsifier=cesar.TopK(0.5), ring_bits=ring_bits),
    ):
        with pytest.raises(ConfigError, match=r"ring_bits is .*must be one of 16, 20, 24, 32"):
            make(ring_bits=bits)


@pytest.mark.parametrize("value", ["", "Relay", "relay ", "none", None, 1])
def test_coordination(value):
    with pytest.raises(ConfigError, match=r"coordination is .*must be one of 'relay', 'direct'"):
        cesar.Cesar(sparsifier=cesar.TopK(0.5), coordination=value)


@pytest.mark.parametrize("value", ["", "Abort", "ignore", None, 0])
def test_dropout(value):
    message = "dropout is .*must be one of 'parameter', 'abort'"
    with pytest.raises(ConfigError, match=message):
        cesar.Cesar(sparsifier=cesar.TopK(0.5), dropout=value)
    with pytest.raises(ConfigError, match=message):
        cesar.SecureAggregation(dropout=value)
    with pytest.raises(ConfigError, match=message):
        cesar.Cesar.paper(sparsifier=cesar.TopK(0.5), dropout=value)


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_decimals_need_wide_words(bits):
    with pytest.raises(ConfigError, match="fixed decimals need ring_bits=32"):
        cesar.Cesar(sparsifier=cesar.TopK(0.5), ring_bits=bits, decimals=6)


# ── crashes ─────────────────────────────────────────────────────────────────────────────────────────────


@every_method
@pytest.mark.parametrize("point", ["", "before", "After_announce", "after_share", None, 3])
def test_an_unknown_crash_point(sent, method, point):
    points = "before_announce, after_announce, after_coordination, during_share"
    message = f"unknown crash point {point!r} for node 1; choose one of {points}"
    refused(sent, ConfigError, message, method=method, crashes={1: point})


@every_method
@pytest.mark.parametrize("node", [NODES, -1, "0", None])
def test_a_crash_of_an_unknown_node(sent, method, node):
    message = rf"node {node} cannot crash: there are nodes 0\.\.4"
    refused(sent, ConfigError, message, method=method, crashes={node: "after_announce"})


def test_one_bad_crash_among_good_ones(sent):
    crashes = {0: "after_announce", 1: "sometime", 2: "during_share"}
    refused(sent, ConfigError, "unknown crash point 'sometime' for node 1", crashes=crashes)


# ── what is wrong in other ways ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reference_that_is_not_finite(sent, value):
    reference = np.zeros_like(MODELS)
    reference[1, 3] = value
    refused(sent, DataError, "reference holds NaN or infinity; pass the model", reference=reference)


def test_doubles_that_do_not_fit_single_precision(sent):
    vectors = np.ones((NODES, SIZE))
    vectors[2, 5] = 1e300
    refused(sent, DataError, "node 2: .*infinite, the first at position 5", vectors)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, object, "U5", "datetime64[s]"])
def test_vectors_that_are_not_real_numbers(sent, dtype):
    refused(sent, DataError, "n rows of d numbers", MODELS.astype(int).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.bool_])
def test_vectors_of_other_real_numbers_are_taken(sent, dtype):
    vectors = (MODELS % 5).astype(dtype)
    result = cesar.aggregate(vectors, GRAPH, CESAR, seed=1)
    expected = cesar.aggregate(vectors.astype(np.float32), GRAPH, CESAR, seed=1)
    assert np.array_equal(result.vectors, expected.vectors)


@pytest.mark.parametrize("s", [1.5, 1.0, math.nan, "1"])
def test_a_masking_requirement_that_is_not_an_integer(s):
    with pytest.raises(ConfigError, match="an integer of at least 1"):
        cesar.Cesar(sparsifier=cesar.TopK(0.5), masking_requirement=s)


@pytest.mark.parametrize("bits", [16.0, 32.0])
def test_a_width_that_is_not_an_integer(bits):
    with pytest.raises(ConfigError, match="must be one of 16, 20, 24, 32"):
        cesar.SecureAggregation(ring_bits=bits)


@pytest.mark.parametrize("make", [cesar.Cesar, cesar.Cesar.paper, cesar.DPSGD, cesar.DPSGD.paper])
@pytest.mark.parametrize("sparsifier", [0.3, "topk", 7])
def test_a_sparsifier_that_is_none(make, sparsifier):
    with pytest.raises(ConfigError, match="is not a sparsifier; use TopK"):
        make(sparsifier=sparsifier)


def test_masking_needs_a_sparsifier():
    with pytest.raises(ConfigError, match="is not a sparsifier; use TopK"):
        cesar.Cesar(sparsifier=None)


@pytest.mark.parametrize("code", [0, 6, 9, "bitmap"])
@pytest.mark.parametrize("make", [cesar.Cesar, cesar.DPSGD])
def test_an_index_code_that_cannot_write_any_set(make, code):
    with pytest.raises(ConfigError, match="index_code is"):
        make(sparsifier=cesar.TopK(0.5), index_code=code)


@pytest.mark.parametrize("method", [None, "cesar", cesar.TopK(0.5), cesar.Cesar])
def test_a_method_that_is_none(sent, method):
    refused(
        sent,
        ConfigError,
        r"is not a method; use Cells\(…\), Cesar\(…\), SecureAggregation\(\) or DPSGD\(…\)",
        method=method,
    )


# ── an ensemble, which keeps its nodes from round to round ──────────────────────────────────────────────


def refused_round(sent, kind, message, vectors=MODELS, **options):
    with pytest.raises(kind, match=message):
        cesar.Ensemble(GRAPH, CESAR, SIZE, seed=1).round(vectors, **options)
    assert sent == []


@pytest.mark.parametrize(
    "vectors", [MODELS[:-1], np.vstack([MODELS, MODELS[:1]]), MODELS[0], MODELS[:, :, None]]
)
def test_models_of_another_shape(sent, vectors):
    refused_round(sent, DataError, r"this network averages \(5, 12\) of float32", vectors)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, ">f4"])
def test_models_of_another_type(sent, dtype):
    """The engine looks at their bytes, so that a float64 would be two numbers and not the same one."""
    refused_round(sent, DataError, r"this network averages \(5, 12\) of float32", MODELS.astype(dtype))


@pytest.mark.parametrize("reference", [MODELS[:, :1], MODELS[:1], MODELS[:-1], MODELS.astype(np.float64)])
def test_references_of_another_shape_or_type(sent, reference):
    refused_round(sent, DataError, r"reference are .*this network averages", reference=reference)


def test_crashes_that_cannot_be(sent):
    refused_round(sent, ConfigError, "unknown crash point 'sometime' for node 1", crashes={1: "sometime"})
    refused_round(sent, ConfigError, "node 5 cannot crash", crashes={NODES: "after_announce"})


@pytest.mark.parametrize("nodes", [NODES - 1, NODES + 1])
def test_graphs_of_more_or_fewer_nodes(nodes):
    ensemble = cesar.Ensemble(GRAPH, CESAR, SIZE, seed=1)
    with pytest.raises(ConfigError, match=r"exactly 0\.\.4"):
        ensemble.use_graph(nx.complete_graph(nodes))
