"""The noise-based baseline: noise on what is shared, several gossip steps, the same counting."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from cesar import DPSGD, TopK, aggregate
from cesar.errors import ConfigError, LocalProtocolError
from cesar.protocol import Engine
from cesar.sim import Ensemble
from cesar.types import NodeId

GRAPH = nx.random_regular_graph(3, 10, seed=1)
MODELS = np.random.default_rng(0).standard_normal((10, 4000)).astype(np.float32)


def mixing() -> np.ndarray:
    """Metropolis–Hastings weights of a 3-regular graph, written down here once more."""
    weights = nx.to_numpy_array(GRAPH, nodelist=range(10)) / 4
    return weights + np.diag(1 - weights.sum(axis=1))


def test_gossip_steps_are_powers_of_the_mixing_matrix():
    got = aggregate(MODELS, GRAPH, DPSGD(gossip_steps=4))
    wanted = np.linalg.matrix_power(mixing(), 4) @ MODELS.astype(np.float64)
    assert np.allclose(got.vectors, wanted, atol=1e-5)
    once = aggregate(MODELS, GRAPH, DPSGD())
    assert got.total_bytes == 4 * once.total_bytes
    assert got.shared == once.shared == 1.0


def test_noise_has_the_given_size_and_averages_out():
    got = aggregate(MODELS, GRAPH, DPSGD(noise=0.5, gossip_steps=30))
    noise = got.entered - MODELS
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.02
    assert abs(np.corrcoef(noise)[0, 1]) < 0.1  # nodes draw independently
    # After many steps everybody has the mean of all, with noise of σ / √n.
    left = got.vectors - MODELS.mean(axis=0)
    assert left.std() == pytest.approx(0.5 / np.sqrt(10), rel=0.1)


def test_rounds_differ_and_repeat_from_their_number():
    method = DPSGD(noise=0.1, gossip_steps=2)
    whole = Ensemble(GRAPH, method, 4000, seed=5)
    first, second = whole.round(MODELS), whole.round(MODELS)
    assert not np.array_equal(first.entered, second.entered)
    resumed = Ensemble(GRAPH, method, 4000, seed=5, first_round=1)
    assert np.array_equal(resumed.round(MODELS).vectors, second.vectors)


def test_a_crashed_node_keeps_its_own_model():
    got = aggregate(MODELS, GRAPH, DPSGD(noise=0.1, gossip_steps=3), crashes={2: "before_announce"})
    assert np.array_equal(got.vectors[2], MODELS[2])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="standard deviation"):
        DPSGD(noise=-1)
    with pytest.raises(ConfigError, match="gossip_steps"):
        DPSGD(gossip_steps=0)
    with pytest.raises(ConfigError, match="full sharing"):
        DPSGD(sparsifier=TopK(0.1), noise=0.1)
    with pytest.raises(LocalProtocolError, match="simulations"):
        Engine(NodeId(0), DPSGD(noise=0.1), 10, session=bytes(16))
