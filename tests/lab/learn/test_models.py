"""Models have the paper's parameter counts, train in place, and come out the same for the same seed."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.peer.api.flat import Layout, bind, flatten
from cesar_lab.data import datasets, partition, xsum
from cesar_lab.data.samples import Dataset, Samples, Task
from cesar_lab.learn import models
from cesar_lab.learn.tasks import score
from cesar_lab.learn.training import Batches, Cohort, Sgd

SIZES = {
    "digits-mlp": 4_810,
    "lenet": 89_834,
    "celeba-cnn": 30_242,
    "movielens-mf": 206_680,
    "gpt2": 124_439_808,
    "t5-efficient-tiny": 15_570_688,
}


def facts(classes=10):
    empty = Samples((torch.empty(0),))
    return Dataset(
        name="none",
        task=Task.CLASSIFICATION,
        train=empty,
        test=empty,
        classes=classes,
        details={"users": 610, "items": 9724},
    )


@pytest.mark.parametrize("name, size", SIZES.items())
def test_parameter_counts(name, size):
    if name in ("gpt2", "t5-efficient-tiny"):
        pytest.importorskip("transformers")
    with torch.device("meta"):
        module = models.MODELS[name](facts(2 if name == "celeba-cnn" else 10), None)
    assert Layout.of(module).size == size


@pytest.mark.parametrize("name, shape", [("lenet", (2, 3, 32, 32)), ("celeba-cnn", (2, 3, 84, 84))])
def test_convolutional_models_take_their_images(name, shape):
    assert models.build(name, facts(), seed=1)(torch.zeros(shape)).shape == (2, 10)


def test_the_seed_decides_the_start():
    first, again, other = (flatten(models.build("lenet", facts(), seed=s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models.build("digits-mlp", facts(), seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_binding_trains_the_vector_itself():
    module = nn.Linear(3, 2)
    vector = torch.arange(8.0)
    bind(module, Layout.of(module), vector)
    assert torch.equal(module.weight, torch.arange(6.0).view(2, 3))
    with torch.no_grad():
        module.bias += 1
    assert vector[6:].tolist() == [7.0, 8.0]
    assert torch.equal(flatten(module), vector)


def test_tied_parameters_count_once():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    assert Layout.of(module).size == 16


def test_batches_depend_on_the_step_alone():
    rows = np.arange(100, 123)
    forward, backward = (Batches(rows, 5, SeedTree(1), 0) for _ in range(2))
    steps = range(12)
    first = [forward.at(step).tolist() for step in steps]
    assert [backward.at(step).tolist() for step in reversed(steps)][::-1] == first
    one_pass = [row for batch in first[:4] for row in batch]
    assert len(set(one_pass)) == 20
    assert set(one_pass) <= set(rows.tolist())


def test_fresh_batches_begin_anew_with_every_round():
    """Three steps of a round; of 23 samples four batches of 5 make a pass, and the fourth is never reached."""
    rows = np.arange(100, 123)
    forward, backward = (Batches(rows, 5, SeedTree(1), 0, restart=3) for _ in range(2))
    steps = range(300)
    drawn = [forward.at(step).tolist() for step in steps]
    assert [backward.at(step).tolist() for step in reversed(steps)][::-1] == drawn
    for begin in range(0, 300, 3):
        assert len({row for batch in drawn[begin : begin + 3] for row in batch}) == 15
    apart = [set(drawn[step - 1]).isdisjoint(drawn[step]) for step in range(3, 300, 3)]
    assert not all(apart), "a sample may come again at once in the next round; passes never let it"
    laps = Batches(rows, 5, SeedTree(1), 0, restart=9)
    assert len({row for step in range(4) for row in laps.at(step)}) == 20, "and a long round has laps"
    assert not np.array_equal(laps.at(0), laps.at(4))


def test_a_node_with_less_than_a_batch_uses_all_it_has():
    assert sorted(Batches(np.arange(3), 8, SeedTree(1), 0).at(7).tolist()) == [0, 1, 2]


def cohort(pool, learning_rate=0.1, device=None):
    data = datasets.load("digits")
    parts = partition.iid(len(data.train), 4, np.random.default_rng(0))
    module = models.build("digits-mlp", data, seed=1)
    sgd = Sgd(learning_rate=learning_rate, batch_size=8, steps=3)
    rows = np.tile(flatten(module).numpy(), (4, 1))
    made = Cohort(data, module, parts, sgd, seeds=SeedTree(1), pool=pool, device=device)
    return made, rows, data, parts, sgd


def test_a_cohort_trains_as_a_plain_loop_does():
    with ThreadPoolExecutor(2) as pool:
        trained, rows, data, parts, sgd = cohort(pool)
        for round_ in range(2):
            trained.train(rows, round_)
    for node in range(4):
        batches = Batches(parts[node], 8, SeedTree(1), node)
        own = models.build("digits-mlp", data, seed=1)
        optimiser = torch.optim.SGD(own.parameters(), lr=sgd.learning_rate)
        for step in range(6):
            images, labels = data.train.take(batches.at(step)).fields
            optimiser.zero_grad()
            nn.functional.cross_entropy(own(images), labels).backward()
            optimiser.step()
        np.testing.assert_allclose(rows[node], flatten(own).numpy(), atol=1e-6)


def test_images_train_the_same_whatever_the_threads():
    """And as in a plain loop, though their channels lie elsewhere in memory."""
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.standard_normal((60, 3, 32, 32), dtype=np.float32))
    train = Samples((images, torch.from_numpy(draw.integers(10, size=60))))
    data = replace(facts(), train=train)
    parts = partition.iid(60, 4, draw)
    module, sgd = models.build("lenet", data, seed=1), Sgd(learning_rate=0.05, batch_size=8, steps=3)
    found = []
    for threads in (1, 3):
        rows = np.tile(flatten(module).numpy(), (4, 1))
        with ThreadPoolExecutor(threads) as pool:
            Cohort(data, module, parts, sgd, seeds=SeedTree(1), pool=pool).train(rows, 0)
        found.append(rows)
    np.testing.assert_array_equal(*found)
    batches = Batches(parts[2], 8, SeedTree(1), 2)
    optimiser = torch.optim.SGD(module.parameters(), lr=sgd.learning_rate)
    for step in range(sgd.steps):
        some, labels = train.take(batches.at(step)).fields
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(some), labels).backward()
        optimiser.step()
    np.testing.assert_allclose(found[0][2], flatten(module).numpy(), atol=1e-5)


def test_a_device_of_its_own_changes_nothing():
    """Torch copies to "cpu:0" as it copies to a GPU, so rows go there and back; the results must be the same."""
    other = torch.device("cpu:0")
    row = torch.zeros(1)
    assert row.to(other).data_ptr() != row.data_ptr()
    found = []
    for device in (None, other):
        with ThreadPoolExecutor(2) as pool:
            trained, rows, *_ = cohort(pool, device=device)
            trained.train(rows, 0)
            found.append((rows, trained.evaluate(rows, 100)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("there, name", [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_used_where_there_is_one(monkeypatch, there, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    with ThreadPoolExecutor(1) as pool:
        assert cohort(pool)[0]._device.type == name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_trains_as_the_processor_does():
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        with ThreadPoolExecutor(2) as pool:
            trained, rows, *_ = cohort(pool, device=device)
            trained.train(rows, 0)
            found.append((rows, trained.evaluate(rows)["test_loss"]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-4)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-3)


def test_divergence_is_an_error_that_names_the_node():
    with ThreadPoolExecutor(1) as pool:
        trained, rows, *_ = cohort(pool, learning_rate=1e30)
        with pytest.raises(DataError, match="node 0 diverged"):
            trained.train(rows, 0)


def test_scores_do_not_depend_on_the_batch_size():
    data = datasets.load("digits")
    module = models.build("digits-mlp", data, seed=1)
    whole, parts = (score(data, module, data.test, batch_size=size) for size in (1000, 7))
    assert (whole.count, whole.correct) == (parts.count, parts.correct)
    assert whole.loss == pytest.approx(parts.loss, rel=1e-5)


def test_rmse_is_the_root_of_the_mean_square():
    module = models.MatrixFactorisation(2, 3)
    with torch.no_grad():
        module.users.weight.fill_(0.0)
    fields = (torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([3.0, 4.0]))
    data = Dataset(name="m", task=Task.RATING, train=Samples(fields), test=Samples(fields), details={})
    assert score(data, module, data.test).metrics(Task.RATING)["rmse"] == pytest.approx(12.5**0.5)


def common(first, second):
    """The length of the longest common subsequence, straight from its definition."""
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return 1 + common(first[:-1], second[:-1])
    return max(common(first[:-1], second), common(first, second[:-1]))


class Parrot(nn.Module):
    """Writes what it was given, behind the decoder's start."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.asked = 0

    def forward(self, input_ids, **_):
        return SimpleNamespace(loss=torch.zeros(()))

    def generate(self, input_ids, **options):
        assert not options["do_sample"]
        assert options["num_beams"] == 1
        first, self.asked = self.asked, self.asked + len(input_ids)
        start = torch.zeros(len(input_ids), 1, dtype=torch.int64)
        return torch.cat([start, self.answers[first : self.asked]], dim=1)


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(tmp_path, pieces):
    pytest.importorskip("rouge_score")
    words, draw = ["the", "cat", "sat", "on", "mat", "and"], np.random.default_rng(0)
    texts, written = ([" ".join(draw.choice(words, 6)) for _ in range(12)] for _ in range(2))
    for name, summaries in (("train", texts), ("test", texts)):
        records = [json.dumps({"document": "the cat", "summary": text}) for text in summaries]
        path = tmp_path / "xsum" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(records), encoding="utf-8")
    data = datasets.load("xsum", tmp_path, summary_length=4)  # The references are whole all the same.
    ids = xsum._encode(xsum._processor(pieces), written, 64)
    expected = []
    for reference, text in zip(texts, written, strict=True):
        length = common(reference.split(), text.split())
        expected.append(2 * (length / 6) * (length / 6) / (2 * length / 6) if length else 0.0)
    for count in (12, 5):
        got = score(data, Parrot(ids), data.test, batch_size=4, summaries=count).metrics(Task.SUMMARY)
        assert got["rouge_l"] == pytest.approx(np.mean(expected[:count]))
    assert 0 < np.mean(expected) < 1


def test_unknown_models_are_named():
    with pytest.raises(ConfigError, match="lenet"):
        models.build("resnet", facts(), seed=1)
