"""The noise-based baseline: noise on what is shared, several gossip steps, the same counting."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from safetensors.numpy import load_file

from cesar import DPSGD, Ensemble
from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.sim.wires import drive
from cesar_lab.attack.filter import follow_runs
from cesar_lab.attack.inference import infer_membership
from cesar_lab.attack.view import as_sent, scene_of
from cesar_lab.run import recording
from cesar_lab.run.config import MethodTable, parse
from cesar_lab.run.execute import execute
from cesar_lab.run.noise import Gossip, average

GRAPH = nx.random_regular_graph(3, 10, seed=1)
MODELS = np.random.default_rng(0).standard_normal((10, 4000)).astype(np.float32)

RUN = {"rounds": 1, "topology": {"nodes": 8, "degree": 3}, "evaluation": {"every": 1, "test_samples": 50}}


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


ZIP_GRAPHS = {
    "regular": GRAPH,
    "irregular": nx.connected_watts_strogatz_graph(10, 4, 0.5, seed=3),
    "star": nx.star_graph(9),
}


@pytest.mark.parametrize("graph", ZIP_GRAPHS.values(), ids=ZIP_GRAPHS)
def test_zip_noise_cancels_over_the_network(graph):
    """The mean of all averaged models is that without noise, to float precision, while every model that is sent is off by σ or more."""
    gossip, seeds = Gossip(noise=0.5, correlated=True), SeedTree(5)
    added = gossip.heard(seeds, 3, graph, range(10), 4000)
    assert np.abs(added.mean(axis=0)).max() < 1e-6
    assert added.std() > 0.05  # a receiver's own average is not that without noise
    least = []
    for sender in graph:
        sent = gossip.sent(seeds, 3, graph, sender, 4000)
        assert set(sent) == {sender, *graph[sender]}
        least += [min(noise.std() for node, noise in sent.items() if node != sender)]
    assert min(least) == pytest.approx(0.5, rel=0.05)


def test_zip_noises_to_two_neighbours_differ():
    gossip = Gossip(noise=0.5, correlated=True)
    first, second = (gossip.sent(SeedTree(5), 0, GRAPH, 2, 4000)[node] for node in sorted(GRAPH[2])[:2])
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(-1 / 3, abs=0.05)  # four noises with sum zero
    assert not np.array_equal(first, gossip.sent(SeedTree(5), 1, GRAPH, 2, 4000)[min(GRAPH[2])])


def test_zip_on_some_hosts_is_zip_on_one():
    gossip = Gossip(noise=0.5, correlated=True)
    whole = gossip.heard(SeedTree(5), 3, GRAPH, range(10), 40)
    assert np.array_equal(gossip.heard(SeedTree(5), 3, GRAPH, range(4, 7), 40), whole[4:7])


def test_a_round_of_zip_in_a_run(tmp_path):
    """From the same models, after one round: the mean of all is that of a run without noise, and single models are not."""
    methods = [{"name": "dpsgd", "label": "plain"}, {"name": "dpsgd", "noise": 0.3, "correlated": True}]
    experiment = parse({**RUN, "method": methods, "recording": {"last": 1}})
    execute(experiment, tmp_path, workers=1)
    plain, noisy = (
        load_file(tmp_path / method.folder / "seed-1" / "checkpoint.safetensors")["models"]
        for method in experiment.method
    )
    assert np.abs(plain.mean(axis=0) - noisy.mean(axis=0)).max() < 1e-5
    assert (plain - noisy).std() == pytest.approx(
        0.3 / np.sqrt(4), rel=0.1
    )  # means of four noises, nearly independent
    judged = {result.title: result.sums[0].auc for result in infer_membership(tmp_path, samples=50)}
    assert len(judged) == 2
    scene = scene_of(
        experiment,
        experiment.method[1],
        1,
        recording.read(tmp_path / experiment.method[1].folder / "seed-1", 1),
    )
    off = as_sent(scene, 0) - scene.recorded.models[sorted(scene.recorded.graph[0])]
    assert off.std() == pytest.approx(0.3, rel=0.02)
    with pytest.raises(ConfigError, match="every neighbour hears another model"):
        follow_runs(tmp_path)


@pytest.mark.parametrize(
    ("table", "more", "words"),
    [
        ({"correlated": True}, {}, "give noise"),
        ({"correlated": True, "noise": 0.1, "gossip_steps": 2}, {}, "leave out gossip_steps"),
        ({"correlated": True, "noise": 0.1}, {"faults": {"crash_rate": 0.1}}, "leave out crash_rate"),
        ({"correlated": True, "noise": 0.1}, {"settle_rounds": 2}, "leave out crash_rate and settle_rounds"),
        ({"correlated": True, "noise": 0.1, "weights": "arrived"}, {}, "weights of the graph"),
        ({"epsilon": 0.0, "bound": 1.0}, {}, "epsilon is 0.0, but it must be above 0"),
        ({"epsilon": -1.0, "bound": 1.0}, {}, "leave it out to train without noise"),
        ({"epsilon": 1.0, "bound": 1.0, "delta": 1.0}, {}, "less than one over the number of nodes"),
        ({"epsilon": 1.0, "bound": 1.0, "delta": 0.0}, {}, "delta is 0.0"),
        ({"epsilon": 1.0}, {}, "give a length above 0"),
        ({"epsilon": 1.0, "bound": 1.0, "noise": 0.1}, {}, "not both"),
        ({"bound": 1.0}, {}, "go with epsilon"),
        (
            {"epsilon": 1.0, "bound": 1.0, "pairs": "mean"},
            {"topology": {"dynamic": True}},
            'or use pairs = "max"',
        ),
    ],
)
def test_settings_that_do_not_fit_say_what_to_do(table, more, words):
    with pytest.raises(ConfigError, match=words):
        parse({"method": [{"name": "dpsgd", **table}], **more})
