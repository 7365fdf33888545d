"""The noise-based baseline: noise on what is shared, several gossip steps, the same counting."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from cesar import DPSGD, Ensemble
from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.sim.wires import drive
from cesar_lab.run.config import MethodTable
from cesar_lab.run.noise import Gossip, average

GRAPH = nx.random_regular_graph(3, 10, seed=1)
MODELS = np.random.default_rng(0).standard_normal((10, 4000)).astype(np.float32)


def mixing() -> np.ndarray:
    """Metropolis–Hastings weights of a 3-regular graph, written down here once more."""
    weights = nx.to_numpy_array(GRAPH, nodelist=range(10)) / 4
    return weights + np.diag(1 - weights.sum(axis=1))


def averaged(gossip, *, round_=0, crashes=None):
    ensemble = Ensemble(GRAPH, DPSGD(), 4000, seed=5)
    noise = gossip.drawn(SeedTree(5), round_, range(10), 4000)
    return drive(average(ensemble, gossip, MODELS, round_=round_, noise=noise, crashes=crashes))


def test_gossip_steps_are_powers_of_the_mixing_matrix():
    got, once = averaged(Gossip(steps=4)), averaged(Gossip())
    wanted = np.linalg.matrix_power(mixing(), 4) @ MODELS.astype(np.float64)
    assert np.allclose(got.last.vectors, wanted, atol=1e-5)
    assert all((got.tally.bytes[kind] == 4 * sent).all() for kind, sent in once.tally.bytes.items())
    assert got.tally.shared == once.tally.shared == 1.0


def test_noise_has_the_given_size_and_averages_out():
    got = averaged(Gossip(noise=0.5, steps=30))
    noise = got.entered - MODELS
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.02
    assert abs(np.corrcoef(noise)[0, 1]) < 0.1  # nodes draw independently
    # After many steps everybody has the mean of all, with noise of σ / √n.
    left = got.last.vectors - MODELS.mean(axis=0)
    assert left.std() == pytest.approx(0.5 / np.sqrt(10), rel=0.1)


def test_rounds_differ_and_repeat_from_their_number():
    gossip = Gossip(noise=0.1, steps=2)
    first, second, again = averaged(gossip), averaged(gossip, round_=1), averaged(gossip, round_=1)
    assert not np.array_equal(first.entered, second.entered)
    assert np.array_equal(second.last.vectors, again.last.vectors)


def test_nodes_of_several_hosts_draw_what_they_would_draw_in_one():
    gossip = Gossip(noise=0.1)
    whole = gossip.drawn(SeedTree(5), 3, range(10), 40)
    assert np.array_equal(gossip.drawn(SeedTree(5), 3, range(4, 7), 40), whole[4:7])


def test_a_crashed_node_keeps_its_own_model():
    got = averaged(Gossip(noise=0.1, steps=3), crashes={2: "before_announce"})
    assert np.array_equal(got.last.vectors[2], MODELS[2])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="standard deviation"):
        Gossip(noise=-1)
    with pytest.raises(ConfigError, match="gossip_steps"):
        Gossip(steps=0)
    with pytest.raises(ValueError, match="shares everything"):
        MethodTable(name="dpsgd", sparsifier="topk", share=0.1, noise=0.1)
