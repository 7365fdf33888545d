"""Nodes that lie, in simulations: what they hand in, who is tested, and D-PSGD that clips."""

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar_lab.run.attackers import Attackers, clipped_gossip
from cesar_lab.run.config import parse
from cesar_lab.run.execute import execute

BASE = {
    "rounds": 3,
    "topology": {"nodes": 8, "degree": 3},
    "evaluation": {"every": 3},
    "method": [{"name": "cells", "robust": True}],
}


def lied(kind, factor=2.0):
    draw = np.random.default_rng(1)
    before, updates = draw.normal(size=(6, 40)), draw.normal(size=(6, 40))
    models = before + updates
    Attackers(kind=kind, nodes=frozenset((1, 4)), factor=factor).lie(before, models)
    np.testing.assert_array_equal(models[[0, 2, 3, 5]], (before + updates)[[0, 2, 3, 5]])
    honest = [0, 2, 3, 5]
    return before, updates, (models - before)[[1, 4]], updates[honest], before[honest]


def test_what_liars_hand_in():
    _, own, found, _, _ = lied("flip")
    np.testing.assert_allclose(found, -2 * own[[1, 4]])
    _, own, found, _, _ = lied("scale")
    np.testing.assert_allclose(found, 2 * own[[1, 4]])
    _, _, found, honest, _ = lied("product")
    np.testing.assert_allclose(found, np.repeat(-2 * honest.mean(axis=0)[None], 2, axis=0))
    _, _, found, honest, _ = lied("little")
    expected = honest.mean(axis=0) - 2 * honest.std(axis=0)
    np.testing.assert_allclose(found, np.repeat(expected[None], 2, axis=0))
    before, own, found, _, others = lied("dissensus")
    np.testing.assert_allclose(found, own[[1, 4]] + 2 * (before[[1, 4]] - others.mean(axis=0)))


def test_liars_are_spread_over_cells():
    plan = cesar.Cells(size=4).plan(16)
    found = Attackers.drawn("flip", 3, None, 16, plan, seed=5)
    assert len({plan.cell_of(node) for node in found.nodes}) == 3
    away = Attackers.drawn("left-out", 3, None, 16, plan, seed=5)
    assert not away.nodes
    assert away.silent == {node for n in found.nodes for node in plan.cells[plan.cell_of(n)]}
    with pytest.raises(cesar.ConfigError, match="5 attackers cannot be spread over 4 cells"):
        Attackers.drawn("flip", 5, None, 16, plan, seed=5)


def test_clipping_keeps_what_is_near_and_shortens_what_is_far():
    graph, draw = nx.complete_graph(5), np.random.default_rng(2)
    models = draw.normal(size=(5, 300)).astype(np.float32)
    mean = np.repeat(models.mean(axis=0)[None], 5, axis=0)
    np.testing.assert_allclose(clipped_gossip(models, graph, 1), mean, atol=1e-5)
    far = models.copy()
    far[3] *= 1e6
    honest = [0, 1, 2, 4]
    moved = np.linalg.norm(clipped_gossip(far, graph, 1)[honest] - mean[honest], axis=1)
    assert moved.max() < 2 * np.linalg.norm(models - mean, axis=1).max()
    far[3] = np.inf
    assert np.isfinite(clipped_gossip(far, graph, 1)[honest]).all()


@pytest.mark.parametrize("kind", ["flip", "labels", "little", "product", "dissensus", "scale", "left-out"])
def test_every_attack_runs(kind, tmp_path):
    experiment = parse({**BASE, "attackers": {"kind": kind, "count": 1}})
    (summary,) = execute(experiment, tmp_path, workers=1)
    assert 0 <= summary["accuracy"] <= 1


def test_votes_keep_what_poison_would_spoil(tmp_path):
    """Digits, two cells, one liar with −20 times its update: without votes its models are worth nothing."""
    found = {}
    for robust in (True, False):
        tables = {
            **BASE,
            "rounds": 40,
            "evaluation": {"every": 40},
            "method": [{"name": "cells", "robust": robust}],
        }
        tables["attackers"] = {"kind": "flip", "count": 1, "factor": 20.0}
        try:
            (summary,) = execute(parse(tables), tmp_path / str(robust), workers=1)
            found[robust] = summary["accuracy"]
        except cesar.DataError:
            found[robust] = 0.0
    assert found[True] > 0.7
    assert found[False] < found[True] - 0.2


def test_bad_attackers():
    for table, words in [
        ({"kind": "lies"}, "attackers.kind"),
        ({"count": -1}, "attackers.count"),
        ({"factor": 0}, "attackers.factor"),
    ]:
        with pytest.raises(cesar.ConfigError, match=words):
            parse({**BASE, "attackers": table})
    with pytest.raises(cesar.ConfigError, match="go with dpsgd that shares everything"):
        parse({**BASE, "method": [{"name": "cells", "clip": 1}]})
