"""The filter against exact Gaussian conditioning, the map of averaging against the engine, and whole runs."""

import contextlib
import json

import numpy as np
import pytest
import torch

import cesar
from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.peer.api.flat import flatten
from cesar.sim.wires import drive
from cesar_lab.attack import filter as attack
from cesar_lab.attack.filter import MOTIONS, NOISE, CellSummed, CellSums, Held, Motion, Sums, follow
from cesar_lab.attack.inference import Judge
from cesar_lab.attack.view import mixing, scene_of, sums_to
from cesar_lab.data import datasets
from cesar_lab.learn import models
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.run.noise import average
from cesar_lab.run.recording import RecordedRound
from support.commands import call

NODES = 4


def drawn_rounds(rng, positions, rounds, *, loud=False, alike=False):
    """Any public rule of averaging, and any two combinations of the numbers in each round."""
    found = []
    for _ in range(rounds):
        wide = 1 if alike else positions
        transition = rng.dirichlet(np.ones(NODES), size=(wide, NODES))
        rows = rng.integers(0, 2, size=(wide, 2, NODES)).astype(float)
        values = rng.standard_normal((positions, 2)) * rows.any(axis=2)
        flags = rng.random((positions, NODES)) < 0.4 if loud else None
        found.append(Held(rows=rows, values=values, transition=transition, loud=flags))
    return found


def conditioned(rounds, start, motion, p):
    """The mean of the last numbers given all observations, from one joint covariance of everything that is drawn."""
    sources = NODES * (
        1 + 2 * len(rounds)
    )  # the first directions, and of each round noise and a change of direction
    sizes = np.ones(sources)
    sizes[:NODES] = motion.change / (1 - motion.keep**2)
    numbers, way = np.zeros((NODES, sources)), np.eye(NODES, sources)
    known, seen, values = start[p].copy(), [], []

    def at(array):
        return array[min(p, len(array) - 1)]

    for t, held in enumerate(rounds):
        first = NODES * (1 + 2 * t)
        if t:
            before = at(rounds[t - 1].transition)
            numbers, known = before @ numbers, before @ known
        gain = np.ones(NODES) if held.loud is None else np.sqrt(np.where(held.loud[p], 1.0, motion.quiet))
        numbers = numbers + gain[:, None] * (way + np.eye(NODES, sources, first))
        way = motion.keep * way + np.eye(NODES, sources, first + NODES)
        sizes[first + NODES : first + 2 * NODES] = motion.change
        seen.append(at(held.rows) @ numbers)
        values.append(held.values[p] - at(held.rows) @ known)
    seen, values = np.concatenate(seen), np.concatenate(values)
    covariance = seen * sizes @ seen.T + NOISE * np.eye(len(seen))
    return known + numbers * sizes @ seen.T @ np.linalg.solve(covariance, values)


@pytest.mark.parametrize("motion", MOTIONS, ids=lambda motion: motion.name)
@pytest.mark.parametrize("loud", [False, True], ids=["no sets", "sets"])
@pytest.mark.parametrize("alike", [False, True], ids=["each", "alike"])
def test_the_filter_is_the_conditional_mean(motion, loud, alike):
    rng = np.random.default_rng(1)
    rounds, start = drawn_rounds(rng, 6, 5, loud=loud, alike=alike), rng.standard_normal((6, NODES))
    found, settled = follow(rounds, start, motion)
    assert settled is None
    for p in range(6):
        np.testing.assert_allclose(found[p], conditioned(rounds, start, motion, p), atol=1e-6)


def simulated(rng, positions, trained, settled, rows, *, update=1.0):
    """Numbers that are trained and averaged, then averaged alone, and what is held of them."""
    found, numbers = [], np.zeros((positions, NODES))
    for t in range(trained + settled):
        if t < trained:
            numbers = numbers + update * rng.standard_normal(numbers.shape)
            last = numbers
        transition = rng.dirichlet(np.ones(NODES), size=(positions, NODES))
        held = np.repeat(np.array(rows, dtype=float)[None], positions, axis=0)
        values = np.einsum("pij,pj->pi", held, numbers)
        found.append(Held(rows=held, values=values, transition=transition, trained=t < trained))
        numbers = np.einsum("pij,pj->pi", transition, numbers)
    return found, last


OWN_AND_SUM = [[1, 0, 0, 0], [0, 1, 1, 1]]


def test_settling_gives_all_models_to_whoever_holds_one_sum():
    """Own number and the sum of the others: two rounds more, and every number is solved for exactly."""
    rng = np.random.default_rng(2)
    for update in (1.0, 1e-3):
        rounds, true = simulated(rng, 50, 3, 3, OWN_AND_SUM, update=update)
        then, after = follow(rounds, np.zeros((50, NODES)), MOTIONS[0])
        off = np.median(np.abs(after - true)) / update
        assert off < 1e-4
        assert np.median(np.abs(then - true)) / update > 0.05


def test_what_is_always_the_same_sum_stays_one():
    """If members are summed and all do the same with it, there is nothing to combine: they are never told apart."""
    rng = np.random.default_rng(3)
    rounds, start = drawn_rounds(rng, 20, 6), np.zeros((20, NODES))
    common = [
        Held(
            rows=np.repeat(np.array(OWN_AND_SUM, dtype=float)[None], 20, axis=0),
            values=held.values,
            transition=np.diag([1.0, 0.0, 0.0, 0.0])[None],
        )
        for held in rounds
    ]
    for motion in MOTIONS:
        found, _ = follow(common, start, motion)
        np.testing.assert_allclose(found[:, 1:], found[:, 1:2].repeat(3, axis=1), atol=1e-9)
        np.testing.assert_allclose(found[:, 1:].sum(axis=1), common[-1].values[:, 1], atol=1e-3)
        assert np.ptp(follow(rounds, start, motion)[0][:, 1:], axis=1).min() > 1e-6, "the test can fail"


def test_the_public_part_of_a_model_is_added():
    rng = np.random.default_rng(4)
    rounds, start = drawn_rounds(rng, 5, 3), np.zeros((5, NODES))
    base = rng.standard_normal((5, NODES))
    last = rounds[-1]
    with_base = [
        *rounds[:-1],
        Held(rows=last.rows, values=last.values, transition=last.transition, base=base),
    ]
    plain, based = (follow(one, start, MOTIONS[0])[0] for one in (rounds, with_base))
    np.testing.assert_allclose(based, plain + base)


def test_updates_are_measured():
    """Rounding is compared with updates: the filter finds out how large they are, at each position."""
    rng = np.random.default_rng(5)
    for update in (0.01, 3.0):
        rounds, _ = simulated(rng, 40, 30, 0, OWN_AND_SUM, update=update)
        state = attack.Filter(np.zeros((40, NODES)), Motion(name="noise", change=0.0, keep=0.0))
        for t, held in enumerate(rounds):
            if t:
                state.advance(rounds[t - 1].transition)
            state.train(None)
            state.observe(held.rows, held.values)
        assert np.sqrt(state.variance).mean() == pytest.approx(update, rel=0.1)


# ── the map of averaging ────────────────────────────────────────────────────────────────────────────────

RANDOM = {"name": "cesar", "sparsifier": "random", "share": 0.4}
TOPK = {"name": "cesar", "sparsifier": "topk", "alpha": 0.5}
METHODS = {
    "random": RANDOM,
    "topk, all neighbours": {**TOPK, "weights": "neighbours"},
    "abort": {**RANDOM, "dropout": "abort"},
    "everything": {"name": "secagg"},
    "topk, abort": {**TOPK, "dropout": "abort"},
    "in the clear": {"name": "dpsgd"},
    "in the clear, topk": {"name": "dpsgd", "sparsifier": "topk", "share": 0.4},
    "in the clear, arrived": {"name": "dpsgd", "sparsifier": "random", "share": 0.4, "weights": "arrived"},
    "three gossip steps": {"name": "dpsgd", "gossip_steps": 3, "noise": 0.3},
}
SIZE, SEED = 300, 5


def scenes_of(method, point=None, rounds=3):
    """Rounds of the simulator without training in between: scenes, and the models after each."""
    faults = {"crash_rate": 0.2, "crash_point": point} if point else {}
    tables = {"rounds": rounds, "topology": {"nodes": 10, "degree": 6}, "faults": faults, "method": [method]}
    experiment = config.parse(tables)
    graph = run.graph_of(experiment, SEED)(0)
    made = run.build_method(experiment, experiment.method[0], SEED, size=SIZE, measured=0.4)
    vectors = np.random.default_rng(3).standard_normal((10, SIZE), dtype=np.float32)
    scenes, after = [], []
    with contextlib.closing(cesar.Ensemble(graph, made, SIZE, seed=SEED)) as ensemble:
        for number in range(rounds):
            crashes = run.faults_of(experiment).draw(SEED, number, 10)
            gossip = experiment.method[0].gossip
            noise = gossip.drawn(SeedTree(SEED), number, range(10), SIZE)
            result = drive(average(ensemble, gossip, vectors, round_=number, noise=noise, crashes=crashes))
            recorded = RecordedRound(
                number=number + 1, models=result.entered, selected=result.last.selected, graph=graph
            )
            scenes.append(scene_of(experiment, experiment.method[0], SEED, recorded))
            vectors = result.last.vectors
            after.append(vectors)
    return scenes, after


POINTS = [None, "after_coordination", "during_share"]
CASES = [(name, point) for name in METHODS for point in POINTS if point is None or "gossip" not in name]


@pytest.mark.parametrize("name, point", CASES)
def test_what_averaging_makes_of_models_is_what_the_engine_makes(name, point):
    if point is not None and "gossip" in name:
        pytest.skip(
            "who misses a step in the middle of several is no linear map of the recorded models alone"
        )
    scenes, after = scenes_of(METHODS[name], point)
    source = Sums(scenes, trained=3, start=np.zeros(SIZE, dtype=np.float32))
    block, crashed = slice(100, 180), 0
    held = next(source.held(block, [4]))
    for scene, new, one in zip(scenes, after, held, strict=True):
        entered = scene.recorded.models[:, block].T
        tolerance = 2e-2 if getattr(scene.method, "ring_bits", 32) == 16 else 1e-5
        made = (one.transition @ entered[..., None])[..., 0].T
        np.testing.assert_allclose(made, new[:, block], atol=tolerance)
        np.testing.assert_allclose(one.values[:, 0], entered[:, 4], atol=1e-6)
        assert (one.loud is not None) == ("topk" in name)
        crashed += len(scene.crashed)
    assert crashed > 0 or point is None


def test_a_matrix_is_made_for_a_block_alone():
    scenes, _ = scenes_of(RANDOM, rounds=1)
    sums = [sums_to(scenes[0], r) for r in range(10)]
    whole = mixing(scenes[0], sums, slice(None))
    assert (mixing(scenes[0], sums, slice(50, 60)) == whole[50:60]).all()
    np.testing.assert_allclose(whole.sum(axis=2), 1.0)


def test_one_matrix_where_all_positions_are_alike_and_the_same_answer():
    """Everything shared: one covariance for all positions, and what a loop over positions gives."""
    scenes, _ = scenes_of({"name": "secagg"})
    source = Sums(scenes, trained=3, start=np.zeros(SIZE, dtype=np.float32))
    (rounds,) = source.held(slice(0, 20), [2])
    assert {len(held.transition) for held in rounds} == {1}
    wide = [
        Held(
            rows=held.rows.repeat(20, axis=0),
            values=held.values,
            transition=held.transition.repeat(20, axis=0),
        )
        for held in rounds
    ]
    for motion in MOTIONS:
        start = source.start(slice(0, 20))
        np.testing.assert_allclose(
            follow(rounds, start, motion)[0], follow(wide, start, motion)[0], atol=1e-9
        )


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────


def rounds_of_cells(rng, rounds, sparsifier):
    """With the engine: members train in directions of their own, and add up; the rounds, and the cells."""
    size, nodes = 40, 7
    method = cesar.Cells(size=3, sparsifier=sparsifier, ring_bits=32)
    ways = rng.standard_normal((nodes, size))
    common = np.repeat(rng.standard_normal(size)[None], nodes, axis=0).astype(np.float32)
    models, found = common, []
    with contextlib.closing(cesar.Ensemble(None, method, size, nodes=nodes, seed=3)) as ensemble:
        for number in range(rounds):
            trained = (models + ways + rng.standard_normal(ways.shape)).astype(np.float32)
            result = ensemble.round(trained, reference=common if number == 0 else None)
            found.append(CellSummed(models=trained, common=common, handed=result.selected))
            models, common = result.vectors, np.stack([state.common for state in ensemble.states])
        return found, ensemble.plan.cells


@pytest.mark.parametrize("motion", MOTIONS, ids=lambda motion: motion.name)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("sparsifier", [cesar.FullSharing(), cesar.RandomSubsampling(0.4)])
def test_in_cells_a_filter_gives_the_mean_of_a_cell_and_no_more(motion, inside, sparsifier):
    """Members of a cell are never told apart, however strong their directions are. What was handed in gives their mean."""
    rounds, cells = rounds_of_cells(np.random.default_rng(6), 12, sparsifier)
    assert len(cells) == 2
    source = CellSums(rounds, cells, trained=12, inside=inside)
    attacker = cells[0][1]
    assert source.victims(attacker) == [i for i in cells[0 if inside else 1] if i != attacker]
    (held,) = source.held(slice(None), [attacker])
    found, _ = follow(held, source.start(slice(None)), motion)
    last = rounds[-1]
    for victim in source.victims(attacker):
        hidden = source.hidden_among(attacker, victim)
        assert sorted(hidden) == source.victims(attacker)
        np.testing.assert_allclose(found[:, victim], found[:, hidden[0]], atol=1e-9)
        there = last.handed[victim]
        mean = last.models[hidden].mean(axis=0)
        np.testing.assert_allclose(found[there, victim], mean[there], atol=1e-3)
    np.testing.assert_allclose(found[:, attacker], last.models[attacker], atol=1e-3)


# ── whole runs ──────────────────────────────────────────────────────────────────────────────────────────


def test_sets_alone_tell_what_a_node_trains_on():
    """One node announces where samples of its class have their largest gradients."""
    data = datasets.load("digits", flat=True)
    module = models.build("digits-mlp", data, seed=1)
    part = np.flatnonzero(data.labels == 3)[:60]
    judge = Judge(data, module, [part], samples=60, seeds=SeedTree(1))
    start = flatten(module).numpy()
    inputs, labels = data.train.take(part).fields
    torch.nn.functional.cross_entropy(module(inputs), labels).backward()
    gradient = torch.cat([tensor.grad.reshape(-1).abs() for tensor in module.parameters()]).numpy()
    announced = (gradient > np.quantile(gradient, 0.7)).astype(float)
    assert judge.judge_sets(start, announced - 0.3, 0).all_classes > 0.8
    nothing = np.random.default_rng(0).standard_normal(len(announced))
    assert judge.judge_sets(start, nothing, 0).all_classes < 0.75


TABLES = {
    "rounds": 15,
    "settle_rounds": 6,
    "data": {"partition": "shards", "train_limit": 320},
    "topology": {"nodes": 8, "degree": 4},
    "evaluation": {"every": 15, "settle_every": 6},
    "recording": {"every": 1},
    "method": [
        {"name": "dpsgd"},
        {"name": "cesar", "sparsifier": "random", "share": 0.5},
        {"name": "cesar", "sparsifier": "topk", "share": 0.5},
    ],
}


def test_a_run_that_is_attacked(tmp_path):
    run.execute(config.parse({**TABLES, "name": "followed"}), tmp_path)
    command = ("attack", "filter", tmp_path, "--receivers", 3, "--samples", 100)
    found = json.loads(call(*command, "--json"))
    plain, sparse, ranked = found[str(tmp_path)]
    assert plain["title"] == "dpsgd-full"
    assert plain["error"] < 1e-3, "whoever gets models has models"
    assert (plain["hidden"], sparse["hidden"]) == (1, 4)
    assert sparse["error_settled"] < sparse["error_mean"]
    assert sparse["error_settled"] < sparse["error"]
    assert sparse["auc_settled"] > sparse["auc_mean"]
    assert sparse["auc_sets"] is None
    assert 0.5 < ranked["auc_sets"] <= 1
    assert (ranked["settled"], len(ranked["rounds"]), ranked["attackers"]) == (6, 15, 3)
    assert "settling" in call(*command)
    call("attack", "document", tmp_path, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "3 attackers, drawn at random; 6 rounds of settling." in page
    assert "| cesar-random-0.5 | 4 | 0." in page


def test_cells_that_are_attacked(tmp_path):
    """From outside and from inside a filter has the mean of a cell: the same estimate, and the same area."""
    method = [{"name": "cells", "ring_bits": 32}, {"name": "cells", "sparsifier": "topk", "share": 0.3}]
    run.execute(config.parse({**TABLES, "settle_rounds": 2, "method": method}), tmp_path)
    found = json.loads(call("attack", "filter", tmp_path, "--receivers", 3, "--samples", 100, "--json"))
    outside, inside, *ranked = found[str(tmp_path)]
    assert [outside["title"], inside["title"]] == [
        "cells-full-of4-32bit, from outside",
        "cells-full-of4-32bit, from inside",
    ]
    assert (outside["hidden"], inside["hidden"]) == (4, 3)
    for row in (outside, inside):
        assert row["error_mean"] > 0.01
        for late in ("error", "error_settled"):
            assert row[late] == pytest.approx(row["error_mean"], rel=1e-3)
        assert row["auc_trained"] == pytest.approx(row["auc_mean"], abs=0.002)
        assert row["auc_sets"] is None
    for row in ranked:
        assert row["error_settled"] > 0.99 * row["error_mean"]
        assert 0.3 < row["auc_sets"] < 1
    with pytest.raises(ConfigError, match="use cesar attack filter"):
        call("attack", "leakage", tmp_path)


def test_what_a_filter_refuses(tmp_path):
    tables = {**TABLES, "rounds": 3, "settle_rounds": 0, "method": TABLES["method"][:1]}
    run.execute(config.parse({**tables, "recording": {"last": 2}}), tmp_path)
    with pytest.raises(DataError, match="needs every round; run with"):
        call("attack", "filter", tmp_path)
    crashing = {"faults": {"crash_rate": 0.1}, "method": [{"name": "dpsgd", "gossip_steps": 2}]}
    run.execute(config.parse({**tables, **crashing}), tmp_path / "steps")
    with pytest.raises(ConfigError, match="who missed which of several gossip steps"):
        call("attack", "filter", tmp_path / "steps")
    crashing = {"faults": {"crash_rate": 0.1}, "method": [{"name": "cells"}]}
    run.execute(config.parse({**tables, **crashing}), tmp_path / "cells")
    with pytest.raises(ConfigError, match="which sums came about is not recorded"):
        call("attack", "filter", tmp_path / "cells")
