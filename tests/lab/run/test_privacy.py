"""(ε, δ) in simulations: clipped gradients of single samples, accounting, and what is refused."""

import csv
import math
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import cesar
from cesar.base.seeds import SeedTree
from cesar.cli.root import app
from cesar.methods.noise import NoiseSpec
from cesar_lab.attack.inference import Judge, infer_membership
from cesar_lab.data import datasets
from cesar_lab.learn import models
from cesar_lab.learn.private import clipped_sum, poisson_batch
from cesar_lab.learn.tasks import loss
from cesar_lab.run import recording
from cesar_lab.run.config import parse
from cesar_lab.run.execute import build_model, execute
from cesar_lab.run.privacy import Budget, epsilon, multiplier_for
from cesar_lab.show.report import write_report

pytest.importorskip("opacus")

BASE = {
    "rounds": 40,
    "topology": {"nodes": 8, "degree": 3},
    "training": {"learning_rate": 1.0, "batch_size": 32, "steps_per_round": 1},
    "evaluation": {"every": 10},
    "privacy": {"epsilon": 10.0, "clip": 1.0},
    "method": [{"name": "cells"}],
}


def test_sums_of_clipped_gradients():
    """As by one pass for each sample; an empty batch is nothing."""
    data = datasets.load("digits")
    module = models.build("digits-mlp", data, seed=1)
    batch = tuple(field[:70] for field in data.train.fields)
    each = []
    for k in range(70):
        one = tuple(field[k : k + 1] for field in batch)
        each.append(torch.autograd.grad(loss(data.task, module, one), list(module.parameters())))
    lengths = [math.sqrt(sum(float(part.square().sum()) for part in parts)) for parts in each]
    clip = float(np.median(lengths))
    expected = [torch.zeros_like(p) for p in module.parameters()]
    for parts, length in zip(each, lengths, strict=True):
        for total, part in zip(expected, parts, strict=True):
            total.add_(part, alpha=min(1.0, clip / length))
    for found, total in zip(clipped_sum(data.task, module, batch, clip), expected, strict=True):
        torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-5)
    nothing = clipped_sum(data.task, module, tuple(field[:0] for field in batch), clip)
    assert not any(total.any() for total in nothing)


def test_poisson_batches():
    rows = np.arange(1000, 1400)
    drawn = [poisson_batch(rows, 40, SeedTree(1), 3, step) for step in range(300)]
    sizes = np.array([len(batch) for batch in drawn])
    assert sizes.mean() == pytest.approx(40, rel=0.05)
    assert sizes.std() == pytest.approx(math.sqrt(400 * 0.1 * 0.9), rel=0.15)
    assert set(np.concatenate(drawn)) == set(rows)
    np.testing.assert_array_equal(drawn[5], poisson_batch(rows, 40, SeedTree(1), 3, 5))


@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds", "expected"),
    [(1.0, 0.02, 500, 3.1442836986929543), (2.0, 0.1, 100, 2.5805709505045913)],
)
def test_a_second_accountant_says_the_same(multiplier, rate, rounds, expected):
    """`expected` are of Google's dp-accounting 0.6.0: RdpAccountant, Poisson sampling, δ = 10⁻⁵."""
    assert epsilon(multiplier, rate, rounds, 1e-5) == pytest.approx(expected, rel=5e-4)


def test_without_sampling_it_is_the_gaussian_mechanism():
    """ε of the Rényi divergence α/2z² · T, least over α, in closed form: T/2z² + √(2T·ln(1/δ))/z, and conversion gains a little."""
    z, rounds = 20.0, 10
    bound = rounds / (2 * z * z) + math.sqrt(2 * rounds * math.log(1e5)) / z
    assert 0.75 * bound < epsilon(z, 1.0, rounds, 1e-5) <= bound


def test_multipliers_for_a_target():
    for target in (0.5, 3.0, 10.0):
        found = multiplier_for(target, 0.05, 200, 1e-5)
        assert epsilon(found, 0.05, 200, 1e-5) <= target
        assert epsilon(found - 0.002, 0.05, 200, 1e-5) > target


def test_fewer_know_more_noise():
    noise = NoiseSpec(multiplier=1.0, sensitivity=0.01, bound=0.2)
    budget = Budget(noise=noise, size=1000, rate=0.1, members=4, honest=3)
    outsiders, owners = budget.epsilon(50, 0), budget.epsilon(50)
    assert outsiders < budget.epsilon(50, 1) == owners
    assert budget.epsilon(0) == 0.0
    said = f"Of a single sample, after 50 rounds, against outsiders: ε = {outsiders:.2f} at δ = 1e-05."
    assert budget.lines(50)[0] == said


def test_a_run_with_noise_learns_and_says_what_it_spends(tmp_path):
    (summary,) = execute(parse(BASE), tmp_path, workers=1)
    assert summary["accuracy"] > 0.6
    with (tmp_path / "cells-full-of4" / "seed-1" / "metrics.csv").open() as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
    assert spent == sorted(spent)
    assert 9.9 < spent[-1] <= 10
    assert "NoiseSpec" in summary["settings"]
    said = CliRunner().invoke(app, ["audit", str(tmp_path), "--collusion", "1"]).output
    assert "against outsiders: ε = " in said
    assert f"against k = 1 owner: ε = {spent[-1]:.2f}" in " ".join(said.split())
    page = write_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"epsilon by round", page, re.IGNORECASE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"epsilon": 0.0, "clip": 1.0}}, "epsilon"),
        ({"privacy": {"epsilon": -1.0, "clip": 1.0}}, "epsilon"),
        ({"privacy": {"epsilon": 3.0, "clip": 1.0, "delta": 1.0}}, "delta"),
        ({"privacy": {"epsilon": 3.0}}, "give clip"),
        ({"privacy": {"clip": 1.0}}, "clip goes with noise"),
        ({"privacy": {"epsilon": 3.0, "multiplier": 1.0, "clip": 1.0}}, "not both"),
        ({"training": {"steps_per_round": 5}}, "steps_per_round = 1"),
        ({"method": [{"name": "dpsgd"}]}, "is for cells"),
        ({"method": [{"name": "cells", "sparsifier": "topk", "share": 0.1}]}, "BlockTopK"),
        ({"method": [{"name": "cells", "robust": True}]}, "does not go with robust"),
        ({"method": [{"name": "cells", "size": 4, "collusion": 3}]}, "two honest members"),
    ],
)
def test_what_is_refused(change, words):
    with pytest.raises(cesar.ConfigError, match=words):
        parse({**BASE, **change})


def test_the_model_of_a_cell_is_attacked_as_everybody_sees_it(tmp_path):
    """Two cells of four: the last area is that of the cell's model after the round, whose noise is no member's."""
    experiment = parse({**BASE, "rounds": 2, "evaluation": {"every": 2}, "recording": {"last": 1}})
    execute(experiment, tmp_path, workers=1)
    (result,) = infer_membership(tmp_path, samples=40)
    assert [point.models for point in result.sums] == [1, 2, 3, 4]
    folder, data = tmp_path / "cells-full-of4" / "seed-1", datasets.load("digits")
    recorded, parts = recording.read(folder, 2), recording.read_partition(folder)
    judge = Judge(data, build_model(experiment, data, 1), parts, samples=40, seeds=SeedTree(1))
    found = [judge.judge(recorded.common[[node]], node)[0].all_classes for node in range(8)]
    assert result.sums[-1].auc == pytest.approx(np.mean(found))
    found = [judge.judge(recorded.models[[node]], node)[0].all_classes for node in range(8)]
    assert result.sums[0].auc == pytest.approx(np.mean(found))
