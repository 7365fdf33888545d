"""Membership inference: the area against a count of pairs, and models whose leak is known beforehand."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.seeds import SeedTree
from cesar.peer.api.flat import flatten
from cesar_lab.attack.inference import Judge, auc, mean_and_error, partial_means, received
from cesar_lab.attack.view import scene_of
from cesar_lab.data import datasets
from cesar_lab.data.samples import Dataset, Samples
from cesar_lab.learn import models
from cesar_lab.learn.tasks import loss, sample_losses
from cesar_lab.run import config
from cesar_lab.run.recording import RecordedRound

LOSSES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 7.5]), min_size=1, max_size=12)


@settings(deadline=None)
@given(LOSSES, LOSSES)
def test_the_area_is_the_fraction_of_pairs_in_the_right_order(members, others):
    pairs = [1.0 if m < o else 0.5 if m == o else 0.0 for m in members for o in others]
    assert auc(np.float32(members), np.float32(others)) == pytest.approx(sum(pairs) / len(pairs))


def test_no_area_without_samples():
    assert math.isnan(auc(np.float32([]), np.float32([1.0])))
    assert math.isnan(auc(np.float32([1.0]), np.float32([])))


def unlearnable():
    """Digits whose labels are noise: whoever is right about them has memorised them."""
    data = datasets.load("digits", flat=True)
    labels = torch.from_numpy(np.random.default_rng(0).integers(10, size=len(data.train) + len(data.test)))
    return Dataset(
        name="noise",
        task=data.task,
        train=Samples((data.train.fields[0], labels[: len(data.train)])),
        test=Samples((data.test.fields[0], labels[len(data.train) :])),
        classes=10,
        labels=labels[: len(data.train)].numpy(),
        details=data.details,
    )


def test_an_overfitted_model_gives_its_samples_away_and_a_fresh_one_does_not():
    data = unlearnable()
    module = models.build("digits-mlp", data, seed=1)
    parts = [np.arange(60), np.arange(60, 120)]
    judge = Judge(data, module, parts, samples=300, seeds=SeedTree(1))
    fresh = flatten(module).numpy()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss(data.task, module, data.train.take(parts[0]).fields).backward()
        optimiser.step()
    overfitted = flatten(module).numpy()
    both = np.stack([fresh, overfitted])
    unknowing, knowing = judge.judge(both, 0)
    assert unknowing.all_classes == pytest.approx(0.5, abs=0.1)
    assert knowing.all_classes > 0.95
    assert knowing.own_classes > 0.95
    assert judge.judge(both, 1)[1].all_classes == pytest.approx(0.5, abs=0.1)


def test_own_classes_leave_out_what_the_label_alone_tells():
    """A model that only knows which class its data is of tells members from other classes, not from its own."""
    data = datasets.load("digits", flat=True)
    part = np.flatnonzero(data.labels == 3)
    module = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(module.weight)
    module.bias.data = torch.eye(10)[3] * 5
    judge = Judge(data, module, [part], samples=500, seeds=SeedTree(1))
    (areas,) = judge.judge(flatten(module).numpy()[None], 0)
    assert areas.all_classes > 0.9
    assert areas.own_classes == 0.5


def test_losses_of_samples_average_to_the_loss():
    data = datasets.load("digits", flat=True)
    module = models.build("digits-mlp", data, seed=1)
    samples = data.train.take(np.arange(123))
    one_by_one = sample_losses(data, module, samples, batch_size=50)
    assert one_by_one.shape == (123,)
    assert float(one_by_one.mean()) == pytest.approx(loss(data.task, module, samples.fields).item(), rel=1e-5)


def test_what_was_not_sent_is_the_attackers_own():
    models_ = np.array([[1, 2, 3, 4], [10, 20, 30, 40], [5, 6, 7, 8]], dtype=np.float32)
    selected = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]], dtype=np.bool_)
    round_ = RecordedRound(number=1, models=models_, selected=selected, graph=nx.complete_graph(3))

    def seen(attacker, **method):
        tables = {"topology": {"nodes": 3, "degree": 2}, "method": [{"share": 0.5, **method}]}
        experiment = config.parse(tables)
        return received(scene_of(experiment, experiment.method[0], 1, round_), attacker)

    neighbours, found = seen(0, name="dpsgd", sparsifier="topk")
    assert neighbours == [1, 2]
    assert found.tolist() == [[10, 2, 3, 40], [5, 6, 3, 4]]
    assert seen(0, name="cesar", sparsifier="topk")[1].tolist() == [[10, 2, 3, 4], [5, 2, 3, 4]]


def test_partial_means():
    rows = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    expected = [rows[: m + 1].mean(axis=0) for m in range(4)]
    np.testing.assert_allclose(partial_means(rows), expected, rtol=1e-5)


def test_mean_and_error_pass_over_gaps():
    mean, error = mean_and_error(np.array([1.0, np.nan, 3.0]))
    assert (mean, error) == (2.0, pytest.approx(1.0))
    assert mean_and_error(np.array([1.0]))[0] == 1.0
    assert math.isnan(mean_and_error(np.array([np.nan]))[0])
