"""Muffliato's ε between nodes, against the covariance of all that a node sees; and what its published bound overlooks."""

import csv
import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from cesar_lab.run.config import parse
from cesar_lab.run.execute import execute, gossip_of
from cesar_lab.run.pairwise import Target, exact_losses, mixing_matrix, published_losses

GRAPHS = {
    "path": nx.path_graph(5),
    "ring": nx.cycle_graph(8),
    "star": nx.star_graph(5),
    "regular": nx.random_regular_graph(3, 10, seed=1),
    "small world": nx.connected_watts_strogatz_graph(9, 4, 0.3, seed=2),
}


def divergence(graph, steps, u, v, *, alpha, shift, sigma):
    """Rényi, by brute force: simulate the gossip on unit vectors, note what v hears, and compare two Gaussians with that covariance."""
    nodes, weights = len(graph), mixing_matrix(graph)
    view, state = [np.eye(nodes)[v]], np.eye(nodes)  # state[w] is z_w in terms of the first values
    for _ in range(steps):
        view += [state[w] for w in graph[v]]
        state = weights @ state
    view = np.stack(view)
    covariance, mean = sigma**2 * view @ view.T, shift * view[:, u]
    solved, *_ = np.linalg.lstsq(covariance, mean, rcond=1e-12)
    assert np.allclose(covariance @ solved, mean, atol=1e-7)
    return alpha / 2 * mean @ solved


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_losses_are_those_of_all_that_a_node_sees(graph, steps):
    losses = exact_losses(graph, steps)
    for u, v in [(u, v) for u in graph for v in graph if u != v]:
        found = divergence(graph, steps, u, v, alpha=3.0, shift=0.4, sigma=2.0)
        assert losses[u, v] * 3.0 * 0.4**2 / (2 * 2.0**2) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_losses_grow_with_steps_up_to_those_of_local_noise(graph):
    rows = [exact_losses(graph, steps) for steps in (1, 2, 3, 12)]
    for before, after in pairwise(rows):
        assert (after >= before - 1e-9).all()
    for losses in rows:
        assert losses.max() <= 1
        assert all(losses[u, v] == pytest.approx(1.0) for edge in graph.edges for u, v in (edge, edge[::-1]))


@pytest.mark.parametrize("name", ["path", "ring"])
def test_in_the_end_everybody_works_out_what_everybody_began_with(name):
    """Unless two nodes look the same from where somebody stands, as in a star."""
    assert exact_losses(GRAPHS[name], 12).min() == pytest.approx(1.0)


def test_leaves_of_a_star_stay_mixed_up():
    """All leaves do the same, so one leaf sees the sum of the others and no more: the idea of a cell."""
    losses = exact_losses(nx.star_graph(5), 12)
    assert losses[2, 1] == pytest.approx(1 / 4)


def test_the_published_bound_is_too_small():
    """On a path node 0 hears z_1, then (z_0 + z_1 + z_2)/3, and takes off what it knows."""
    path = nx.path_graph(3)
    weights, z = mixing_matrix(path), np.array([0.3, -1.2, 0.7])
    later = weights @ z
    assert 3 * later[1] - z[0] - z[1] == pytest.approx(z[2])
    assert exact_losses(path, 2)[2, 0] == pytest.approx(1.0)
    assert published_losses(path, 2)[2, 0] == pytest.approx(1 / 3)
    regular = nx.random_regular_graph(6, 32, seed=1)
    exact, published = exact_losses(regular, 5), published_losses(regular, 5)
    assert (published < exact - 1e-9).mean() > 0.5


def test_one_step_is_where_both_agree():
    graph = GRAPHS["regular"]
    np.testing.assert_allclose(exact_losses(graph, 1), published_losses(graph, 1), atol=1e-12)


@pytest.mark.parametrize("pairs", ["max", "mean"])
def test_noise_for_a_target(pairs):
    losses = exact_losses(GRAPHS["ring"], 2)
    for wanted in (0.1, 3.0, 50.0):
        target = Target(epsilon=wanted, bound=0.5, pairs=pairs)
        sigma = target.sigma(losses, 60)
        assert target.spent(sigma, losses, 60) == pytest.approx(wanted)
        assert target.spent(sigma, losses, 30) < wanted < target.spent(0.9 * sigma, losses, 60)
    least, most = (Target(epsilon=3, bound=0.5, pairs=kind).sigma(losses, 60) for kind in ("mean", "max"))
    assert least < most


def test_the_conversion_holds_for_the_gaussian_mechanism():
    """δ of a Gaussian mechanism in closed form (Balle and Wang, 2018) at the ε that is said of a pair with q = 1."""
    target, losses = Target(epsilon=2.0, bound=0.5, delta=1e-4), np.ones((2, 2))
    away = math.sqrt(10) * 1.0 / target.sigma(losses, 10)  # ten rounds, as one that moves further

    def below(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    exact = below(away / 2 - 2.0 / away) - math.exp(2.0) * below(-away / 2 - 2.0 / away)
    assert 0 < exact <= 1e-4


def test_a_run_keeps_its_target(tmp_path):
    tables = {
        "rounds": 6,
        "topology": {"nodes": 8, "degree": 3},
        "evaluation": {"every": 3, "test_samples": 50},
        "method": [
            {"name": "dpsgd", "gossip_steps": 3, "epsilon": 40.0, "bound": 0.2, "pairs": "mean"},
            {"name": "dpsgd", "gossip_steps": 3, "epsilon": 40.0, "bound": 0.2},
        ],
    }
    experiment = parse(tables)
    summaries = execute(experiment, tmp_path, workers=1)
    for method, summary in zip(experiment.method, summaries, strict=True):
        with (tmp_path / method.folder / "seed-1" / "metrics.csv").open() as file:
            spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
        assert spent[0] < spent[1] == pytest.approx(40.0)
        assert f"noise={gossip_of(experiment, method, 1).noise}" in summary["settings"]


def test_updates_are_scaled_down():
    gossip = parse({"method": [{"name": "dpsgd", "epsilon": 1.0, "bound": 0.5}]}).method[0].gossip
    before = np.zeros((2, 100), dtype=np.float32)
    models = np.stack([np.full(100, 0.01), np.full(100, 3.0)]).astype(np.float32)
    gossip.bounded(before, models)
    assert np.linalg.norm(models, axis=1) == pytest.approx([0.1, 0.5])
