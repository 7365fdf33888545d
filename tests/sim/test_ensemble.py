"""An ensemble: threads, repeated rounds and nodes that live elsewhere change nothing."""

from __future__ import annotations

import gc

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.base.errors import CesarError
from cesar.sim.wires import drive

SIZE, SEED = 2_003, 5
GRAPH = nx.random_regular_graph(4, 12, seed=1)
MODELS = np.random.default_rng(0).standard_normal((12, SIZE)).astype(np.float32)
CRASHES = {3: "after_announce", 5: "during_share", 8: "before_announce"}
METHODS = {
    "topk": cesar.Cesar(sparsifier=cesar.TopK(0.4)),
    "plain": cesar.DPSGD(),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def ensemble(method, **options):
    return cesar.Ensemble(GRAPH, method, SIZE, seed=SEED, **options)


def assert_same(one, other):
    assert one.vectors.tobytes() == other.vectors.tobytes()
    assert (one.selected == other.selected).all()
    assert one.shared == other.shared
    assert all((one.bytes[category] == other.bytes[category]).all() for category in one.bytes)


@every_method
@pytest.mark.parametrize("crashes", [{}, CRASHES], ids=["whole", "crashes"])
def test_the_number_of_threads_changes_nothing(method, crashes):
    for seed in range(3):
        assert_same(
            *(
                cesar.aggregate(MODELS, GRAPH, method, seed=seed, crashes=crashes, workers=workers)
                for workers in (1, 3)
            )
        )


@every_method
def test_a_round_that_was_broken_off_is_the_same_again(method):
    whole = ensemble(method)
    first, second = whole.round(MODELS), whole.round(MODELS, crashes=CRASHES)
    broken = ensemble(method)
    next(broken.exchange(MODELS)).carry()  # begun, and given up with frames on their way
    assert_same(broken.round(MODELS), first)
    assert_same(broken.round(MODELS, crashes=CRASHES), second)
    assert_same(drive(broken.exchange(MODELS, round_=0)), first)  # one that has ended, once more
    assert_same(drive(broken.exchange(MODELS, round_=1, crashes=CRASHES)), second)


def test_a_round_that_was_refused_leaves_no_trace():
    spoiled = MODELS.copy()
    spoiled[4, 7] = np.nan
    used = ensemble(METHODS["topk"])
    with pytest.raises(CesarError, match="node 4"):
        used.round(spoiled)
    assert_same(used.round(MODELS), ensemble(METHODS["topk"]).round(MODELS))


def carried_between(places, exchanges):
    """Bring the wires of every place to rest together, as actors do: mail goes round until none is left."""
    results = {}
    while not results:
        wires = {}
        for k, exchange in enumerate(exchanges):
            try:
                wires[k] = next(exchange)
            except StopIteration as end:
                results[k] = end.value
        assert not (wires and results), "all places take the same number of steps"
        mail = {k: [] for k in wires}
        now = None
        while wires:
            if now is not None:
                for one in wires.values():
                    one.tick(now)
            leaving = {k: one.carry(mail[k]) for k, one in wires.items()}
            mail = {
                k: [
                    (sender, tuple(to for to in recipients if to in places[k]), bytes(payload))
                    for letters in leaving.values()
                    for sender, recipients, payload in letters
                    if places[k].intersection(recipients)
                ]
                for k in wires
            }
            now = None
            if not any(mail.values()) and not any(one.held for one in wires.values()):
                now = min((one.deadline for one in wires.values() if one.deadline is not None), default=None)
                if now is None:
                    break
    return [results[k] for k in sorted(results)]


@every_method
def test_nodes_in_two_places_average_as_in_one(method):
    whole = ensemble(method)
    places = [range(5), range(5, 12)]
    parts = [ensemble(method, here=nodes) for nodes in places]
    for crashes in ({}, CRASHES):
        expected = whole.round(MODELS, crashes=crashes)
        results = carried_between(
            [frozenset(nodes) for nodes in places],
            [
                part.exchange(MODELS[list(nodes)], crashes=crashes)
                for part, nodes in zip(parts, places, strict=True)
            ],
        )
        assert np.concatenate([one.vectors for one in results]).tobytes() == expected.vectors.tobytes()
        for category, counts in expected.bytes.items():
            assert np.concatenate([one.bytes[category] for one in results]).tolist() == counts.tolist()


@every_method
def test_a_round_leaves_nothing_to_search_for(method):
    """What it made is gone when it ends, without Python's collector of cycles, which rests while frames travel."""
    used = ensemble(method)
    used.round(MODELS)
    gc.collect()
    gc.disable()
    try:
        used.round(MODELS)
        assert gc.collect() == 0
    finally:
        gc.enable()
    used.round(MODELS)
    assert gc.isenabled()
