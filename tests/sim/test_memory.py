"""TopK with memory: what was not sent counts until it is."""

import networkx as nx
import numpy as np
import pytest

import cesar

NODES, SIZE = 6, 12
GRAPH = nx.circulant_graph(NODES, [1, 2])
METHODS = {
    "CESAR": cesar.Cesar(sparsifier=cesar.TopK(1 / 6, memory=True)),
    "D-PSGD": cesar.DPSGD(sparsifier=cesar.TopK(1 / 6, memory=True)),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def chosen(result, node=0):
    return set(np.flatnonzero(result.selected[node]).tolist())


def rounds(method, crashes=()):
    """All nodes have the same model, which changes at positions 0 to 5 before the first round, most at 0; two are
    selected a round. What node 0 selects in each of three rounds.
    """
    ensemble = cesar.Ensemble(GRAPH, method, SIZE, seed=1)
    before = np.zeros((NODES, SIZE), dtype=np.float32)
    models = before.copy()
    models[:, :6] = [6, 5, 4, 3, 2, 1]
    found = []
    for number in range(3):
        result = ensemble.round(
            models, reference=before, crashes={0: crashes[number]} if number < len(crashes) else {}
        )
        found.append(chosen(result))
        before = models = result.vectors
    ensemble.close()
    return found


@every_method
def test_a_change_that_was_not_sent_counts_until_it_is(method):
    assert rounds(method) == [{0, 1}, {2, 3}, {4, 5}]


def test_without_memory_a_change_counts_once():
    assert rounds(cesar.DPSGD(sparsifier=cesar.TopK(1 / 6)))[1:] == [{0, 1}, {0, 1}], (
        "all are equal: the first two"
    )


@every_method
@pytest.mark.parametrize("point", ["before_announce", "after_announce", "after_coordination"])
def test_a_node_that_crashed_has_not_sent(method, point):
    *first, third = rounds(method, [point])
    assert first == [{0, 1}, {0, 1}]
    # The others are one step ahead: in CESAR they do not mask what node 0 selects alone, which is not sent then.
    assert third == ({0, 1} if method is METHODS["CESAR"] else {2, 3})


def test_what_nobody_masks_is_not_sent():
    """Node 0 selects positions that no neighbour selects: CESAR drops them, so they count on."""
    ensemble = cesar.Ensemble(GRAPH, METHODS["CESAR"], SIZE, seed=1)
    models = np.zeros((NODES, SIZE), dtype=np.float32)
    models[0, :4], models[1:, 6:] = (
        [9, 9, 1, 1],
        [1, 1, 2, 2, 3, 3],
    )  # the others have enough for three rounds
    for _ in range(3):
        assert chosen(ensemble.round(models, reference=np.zeros_like(models))) == {0, 1}


def test_memory_is_true_or_false():
    with pytest.raises(cesar.ConfigError, match="true or false"):
        cesar.TopK(0.1, memory=0.5)
