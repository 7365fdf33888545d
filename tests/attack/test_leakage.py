"""Sums of many rounds: the solver against lstsq and exact arithmetic, the view against real frames."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import cesar
from cesar import ring
from cesar.attack.leakage import ESTIMATORS, identified, separate, solve
from cesar.attack.view import View, sent_to, view_of
from cesar.experiment.recording import RecordedRound
from cesar.settings import MethodSection
from cesar.wire import Kind, Share, read_header

SETS = st.tuples(st.integers(1, 8), st.integers(1, 5)).flatmap(
    lambda shape: arrays.arrays(np.bool_, shape, elements=st.booleans())
)
BY_NAME = {estimator.name: estimator for estimator in ESTIMATORS}


@settings(deadline=None)
@given(SETS, st.integers(0, 2**32))
def test_the_solution_is_that_of_lstsq(sets, seed):
    sums = np.random.default_rng(seed).standard_normal(len(sets))
    rows = sets.astype(float)
    found = solve((rows.T @ rows)[None], (rows.T @ sums)[None])[0]
    np.testing.assert_allclose(found, np.linalg.lstsq(rows, sums, rcond=None)[0], atol=1e-8)


@settings(deadline=None)
@given(SETS, st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 5.0]))
def test_a_ridge_is_further_equations_that_say_zero(sets, seed, ridge):
    sums = np.random.default_rng(seed).standard_normal(len(sets))
    rows, members = sets.astype(float), sets.shape[1]
    found = solve((rows.T @ rows)[None], (rows.T @ sums)[None], ridge)[0]
    longer = np.concatenate([rows, np.sqrt(ridge) * np.eye(members)])
    expected = np.linalg.lstsq(longer, np.concatenate([sums, np.zeros(members)]), rcond=None)[0]
    np.testing.assert_allclose(found, expected, atol=1e-8)


def rank(rows):
    """By elimination over the rationals."""
    rows, result = [[Fraction(int(x)) for x in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(result, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[result], rows[pivot] = rows[pivot], rows[result]
        for r in range(result + 1, len(rows)):
            factor = rows[r][column] / rows[result][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[result], strict=True)]
        result += 1
    return result


@settings(deadline=None)
@given(SETS)
def test_identified_is_a_matter_of_exact_rank(sets):
    unit = np.eye(sets.shape[1], dtype=int)
    expected = [rank([*sets, unit[i]]) == rank(sets) for i in range(sets.shape[1])]
    assert identified(sets[:, :, None])[:, 0].tolist() == expected


def drawn_view(rounds=12, members=4, size=300, *, fixed=False, move=0.0, seed=0):
    """A receiver's sums of members that keep their distance to it while everybody drifts."""
    rng = np.random.default_rng(seed)
    sent = rng.random((rounds, members, size)) < 0.45
    if fixed:
        sent = np.repeat(sent.any(axis=1)[:, None], members, axis=1)
    drift = np.cumsum(0.1 * rng.standard_normal((rounds, size)), axis=0)
    distance = rng.standard_normal((members, size))
    noise = move * rng.standard_normal((rounds, members, size))
    values = drift[:, None] + distance + noise
    view = View(members=list(range(members)), sent=sent, sums=(values * sent).sum(axis=1), own=drift)
    return view, values[-1]


def test_distances_that_stay_are_solved_for_exactly():
    view, true = drawn_view(rounds=5)
    apart, mean = separate(view, BY_NAME["fixed distance to own model"])
    known = identified(view.sent)
    assert 0.3 < known.mean() < 0.95
    np.testing.assert_allclose(apart[known], true[known], atol=1e-7)
    assert np.abs(np.broadcast_to(mean, true.shape)[known] - true[known]).mean() > 0.3
    assert not np.allclose(apart[~known], true[~known], atol=1e-2)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_sums_that_always_have_the_same_members_tell_nobody_apart(estimator):
    view, _ = drawn_view(fixed=True, move=0.2)
    assert not identified(view.sent).any()
    apart, mean = separate(view, estimator)
    np.testing.assert_allclose(apart, np.broadcast_to(mean, apart.shape), atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_where_nobody_sent_the_estimate_is_the_own_model(estimator):
    view, _ = drawn_view()
    view.sent[:, :, 7], view.sums[:, 7] = False, 0.0
    apart, mean = separate(view, estimator)
    assert (apart[:, 7] == view.own[-1, 7]).all()
    assert mean[7] == view.own[-1, 7]
    assert np.isfinite(apart).all()


METHODS = {
    "random": (
        cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.4)),
        MethodSection(name="cesar", sparsifier="random", alpha=0.4),
    ),
    "topk, two masks": (
        cesar.Cesar(sparsifier=cesar.TopK(0.5), masking_requirement=2),
        MethodSection(name="cesar", sparsifier="topk", alpha=0.5, masks=2),
    ),
    "coordinated": (
        cesar.Cesar(sparsifier=cesar.CoordinatedSubsampling(0.4)),
        MethodSection(name="cesar", sparsifier="coordinated", alpha=0.4),
    ),
    "everything": (cesar.SecureAggregation(), MethodSection(name="secagg")),
}


@pytest.mark.parametrize("method, section", METHODS.values(), ids=METHODS)
def test_the_view_holds_the_sums_of_real_frames(method, section):
    """Three ways to one receiver's sum: recorded models, unmasked frames, and the engine's new model."""
    models = np.random.default_rng(3).standard_normal((8, 500), dtype=np.float32)
    graph = nx.random_regular_graph(4, 8, seed=1)
    words, parameters = {r: np.zeros(500, dtype=np.uint32) for r in graph}, {}
    shares = []

    def watch(sender, recipient, frame):
        if frame.kind is Kind.SHARE:
            shares.append((sender, recipient, bytes(frame.payload)))
            parameters[sender, recipient] = frame.parameters

    ensemble = cesar.Ensemble(graph, method, 500, seed=5)
    result = ensemble.round(models, watch=watch)
    ensemble.close()
    round_ = RecordedRound(number=1, models=models, selected=result.selected, graph=graph)
    for sender, recipient, payload in shares:
        neighbours, sent = sent_to(round_, recipient, section)
        positions = sent[neighbours.index(sender)]
        assert parameters[sender, recipient] == positions.sum()
        share = Share.decode(read_header(payload)[1], neighbours, explicit=False)
        words[recipient][positions] += np.frombuffer(share.values.tobytes(), dtype="<u4")
    for receiver in graph:
        view = view_of([round_], receiver, section)
        edges = np.array([500])
        own = ring.exponents_of(models[receiver], edges)
        exponents = ring.largest_exponents([ring.exponents_of(models[j], edges) for j in view.members], own)
        scale = ring.binary_grid(32, edges, exponents, len(view.members)).scales[0]
        unmasked = words[receiver].view(np.int32) / scale
        np.testing.assert_allclose(view.sums[0], unmasked, atol=len(view.members) / scale)
        counts = view.sent[0].sum(axis=0)
        engine = result.vectors[receiver].astype(float) * (counts + 1) - models[receiver]
        np.testing.assert_allclose(view.sums[0], engine, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_a_larger_window_never_identifies_less(seed):
    view, _ = drawn_view(seed=seed, size=50)
    fewer, more = identified(view.sent[:6]), identified(view.sent)
    assert (fewer <= more).all()
