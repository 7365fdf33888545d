"""Sums of many rounds: the solver against lstsq and exact arithmetic, the view against real frames."""

import contextlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import cesar
from cesar.audit.transcript import Recorder, exchange_of
from cesar.base.seeds import SeedTree
from cesar.kernels import bits, packing, ring
from cesar.protocol.wire import PlainShare, read_header
from cesar_lab.attack.leakage import ESTIMATORS, identified, separate, solve
from cesar_lab.attack.view import View, scene_of, sent_to, view_of
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.run.recording import RecordedRound

SETS = st.tuples(st.integers(1, 8), st.integers(1, 5)).flatmap(
    lambda shape: arrays.arrays(np.bool_, shape, elements=st.booleans())
)
EDGES = np.array([500])
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
    view = View(
        members=list(range(members)),
        rounds=np.arange(rounds),
        sent=sent,
        sums=(values * sent).sum(axis=1),
        own=drift,
    )
    return view, values[-1]


def test_distances_that_stay_are_solved_for_exactly():
    view, true = drawn_view(rounds=5)
    apart, mean = separate(view, BY_NAME["fixed distance to own model"])
    known = identified(view.sent)
    assert 0.3 < known.mean() < 0.95
    np.testing.assert_allclose(apart[known], true[known], atol=1e-7)
    assert np.abs(mean[known] - true[known]).mean() > 0.3
    assert not np.allclose(apart[~known], true[~known], atol=1e-2)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_sums_that_always_have_the_same_members_tell_nobody_apart(estimator):
    view, _ = drawn_view(fixed=True, move=0.2)
    assert not identified(view.sent).any()
    apart, mean = separate(view, estimator)
    np.testing.assert_allclose(apart, np.broadcast_to(mean[0], apart.shape), atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_where_nobody_sent_the_estimate_is_the_own_model(estimator):
    view, _ = drawn_view()
    view.sent[:, :, 7], view.sums[:, 7] = False, 0.0
    apart, mean = separate(view, estimator)
    assert (apart[:, 7] == view.own[-1, 7]).all()
    assert (mean[:, 7] == view.own[-1, 7]).all()
    assert np.isfinite(apart).all()


def tables(crash_point=None, **method):
    faults = {"crash_rate": 0.25, "crash_point": crash_point} if crash_point else {}
    topology = {"nodes": 12, "degree": 6}
    return config.parse({"name": "test", "topology": topology, "faults": faults, "method": [method]})


RANDOM = {"name": "cesar", "sparsifier": "random", "share": 0.4}
TOPK = {"name": "cesar", "sparsifier": "topk", "alpha": 0.5}
METHODS = {
    "random": RANDOM,
    "topk, two masks": {**TOPK, "masks": 2},
    "everything": {"name": "secagg"},
    "topk with memory": {**TOPK, "memory": True},
}
POINTS = ["after_coordination", "during_share"]
CASES = [(name, None) for name in METHODS] + [(name, point) for name in METHODS for point in POINTS]
SIZE, SEED = 500, 5


def simulated(experiment, rounds=1):
    """Rounds of the simulator, as a run has them: what is recorded, what arrived and the new models."""
    graph = run.graph_of(experiment, SEED)(0)
    method = run.build_method(experiment, experiment.method[0], SEED, size=SIZE)
    ensemble, draw = cesar.Ensemble(graph, method, SIZE, seed=SEED), np.random.default_rng(3)
    found = []
    for number in range(rounds):
        models = draw.standard_normal((len(graph), SIZE), dtype=np.float32)
        crashes = run.faults_of(experiment).draw(SEED, number, len(graph))
        settled = ensemble.method
        masked = settled.masked
        recorder = Recorder(graph, masked)
        result = ensemble.round(models, watch=recorder.see, crashes=crashes)
        recorded = RecordedRound(number=number + 1, models=models, selected=result.selected, graph=graph)
        found.append((recorded, recorder.transcripts, masked, crashes, result.vectors))
    ensemble.close()
    return found


@pytest.mark.parametrize("name, point", CASES, ids=[f"{name}, {point or 'calm'}" for name, point in CASES])
def test_the_view_is_what_the_frames_give_and_no_more(name, point):
    """Sums that a receiver makes of the frames it got, with nothing but its own keys: the same members, at the same
    positions, with the same values; and they make the engine's new model.
    """
    experiment = tables(point, **METHODS[name])
    held, crashed = 0, 0
    for recorded, transcripts, method, crashes, vectors in simulated(experiment, 1 if point is None else 3):
        scene = scene_of(experiment, experiment.method[0], SEED, recorded)
        crashed += len(crashes)
        for receiver in recorded.graph:
            view = view_of([scene], receiver)
            real = from_frames(transcripts[receiver], recorded, method)
            ours = [
                (frozenset(np.array(view.members)[sent.any(axis=1)].tolist()), sent, sums)
                for sent, sums in zip(view.sent, view.sums, strict=True)
                if sent.any()
            ]
            assert [members for members, _, _ in ours] == [members for members, _, _ in real]
            for (_, sent, sums), (_, flags, values) in zip(ours, real, strict=True):
                assert (sent == flags).all()
                np.testing.assert_allclose(sums, values, atol=1e-2 if method.ring_bits == 16 else 1e-6)
            held += len(ours)
            if receiver not in crashes:
                counts = view.sent.sum(axis=(0, 1))
                engine = vectors[receiver].astype(float) * (counts + 1) - recorded.models[receiver]
                tolerance = 1e-2 if method.ring_bits == 16 else 1e-5
                np.testing.assert_allclose(view.sums.sum(axis=0), engine, atol=tolerance)
            neighbours, sent = sent_to(scene, receiver)
            assert (sent == view.sent.any(axis=0)).all()
            assert neighbours == view.members
    assert held > 0
    assert crashed > 3 or point is None


CLEAR = {
    "everything": {},
    "random": {"sparsifier": "random", "share": 0.4},
    "topk": {"sparsifier": "topk", "share": 0.4},
    "noise": {"noise": 0.5, "gossip_steps": 2},
}


@pytest.mark.parametrize("name, point", [*((name, None) for name in CLEAR), ("topk", "during_share")])
def test_the_view_of_models_in_the_clear_is_what_the_frames_hold(name, point):
    """Every neighbour alone, at the positions that its frame of the first gossip step names, with noise if it adds any."""
    method = {"name": "dpsgd", **CLEAR[name]}
    experiment = tables(point, **method)
    graph = run.graph_of(experiment, SEED)(0)
    made = run.build_method(experiment, experiment.method[0], SEED, size=SIZE, measured=0.4)
    models = np.random.default_rng(3).standard_normal((len(graph), SIZE), dtype=np.float32)
    crashes = run.faults_of(experiment).draw(SEED, 0, len(graph))
    frames = {}
    entered = models + experiment.method[0].gossip.drawn(SeedTree(SEED), 0, range(len(graph)), SIZE)
    with contextlib.closing(cesar.Ensemble(graph, made, SIZE, seed=SEED)) as ensemble:
        result = ensemble.round(
            entered,
            crashes=crashes,
            watch=lambda i, r, frame: frames.setdefault((i, r), bytes(frame.payload)),
        )
    recorded = RecordedRound(number=1, models=entered, selected=result.selected, graph=graph)
    scene = scene_of(experiment, experiment.method[0], SEED, recorded)
    np.testing.assert_allclose(scene.true, models, atol=1e-6)
    for receiver in graph:
        view = view_of([scene], receiver)
        came = [i for i in sorted(graph[receiver]) if (i, receiver) in frames]
        assert len(view.sent) == len(came)
        assert view.own.tolist() == scene.true[[receiver]].tolist()
        for i, sent, values in zip(came, view.sent, view.sums, strict=True):
            share = PlainShare.decode(read_header(frames[i, receiver])[1])
            there = as_bools(made.sparsifier.read(share.indices, SIZE))
            assert sent.any(axis=1).tolist() == [member == i for member in view.members]
            assert (sent.any(axis=0) == there).all()
            np.testing.assert_array_equal(values[there], np.frombuffer(share.values.tobytes(), dtype="<f4"))


def from_frames(seen, recorded, method):
    """(members, (neighbours, d), sums) of every sum that one receiver can unmask, from its transcript alone."""
    neighbours = sorted(recorded.graph[seen.node])
    return one_sum(seen, neighbours, recorded, method)


def one_sum(seen, neighbours, recorded, method):
    """CESAR's sum, where the auditor's rule says that all masks cancel."""
    chosen = np.zeros((len(recorded.graph), SIZE), dtype=bool)
    for i in neighbours:
        chosen[i] = as_bools(method.sparsifier.read(seen.announced[i].indices, SIZE))
    sets = chosen[neighbours]
    kept, words = sets & (sets.sum(axis=0) > method.masks), np.zeros(SIZE, dtype=np.uint32)
    for a, i in enumerate(neighbours):
        if i in seen.shares:
            words[kept[a]] += packing.unpack(seen.shares[i].values, 32, int(kept[a].sum()))
    exchange = exchange_of({seen.node: seen}, recorded.graph, method, SIZE)
    number = {pattern.tobytes(): k for k, pattern in enumerate(exchange.selected)}
    flags = np.zeros((len(neighbours), SIZE), dtype=bool)
    for p in range(SIZE):
        for _, members in exchange.sums((seen.node,), number[chosen[:, p].tobytes()]):
            flags[np.searchsorted(neighbours, sorted(members)), p] = True
    announced = [ring.exponents_of(recorded.models[j], EDGES) for j in neighbours]
    grid = ring.binary_grid(32, EDGES, ring.largest_exponents(announced, (0,)), len(neighbours))
    sums = np.where(flags.any(axis=0), words.view(np.int32) / grid.scales[0], 0.0)
    members = frozenset(np.array(neighbours)[flags.any(axis=1)].tolist())
    return [(members, flags, sums)] if members else []


def as_bools(indices):
    return bits.to_bools(indices.words, SIZE)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_a_larger_window_never_identifies_less(seed):
    view, _ = drawn_view(seed=seed, size=50)
    fewer, more = identified(view.sent[:6]), identified(view.sent)
    assert (fewer <= more).all()
