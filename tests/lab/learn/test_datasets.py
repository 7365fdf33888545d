"""Loaders: small made-up files everywhere, and the real ones where they are.

Real data is looked for in $CESAR_DATA, else in `../shared/data` beside the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from cesar.base.errors import ConfigError, DataError
from cesar_lab.data import cifar10, datasets, movielens, qasc, xsum
from cesar_lab.data.samples import Task

REAL = Path(os.environ.get(datasets.ENVIRONMENT) or Path(__file__).parents[4] / "shared" / "data")


@pytest.fixture(autouse=True)
def only_here(monkeypatch, tmp_path):
    """Nothing is found but what a test names."""
    monkeypatch.delenv(datasets.ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real():
    """Load a real dataset, or skip."""

    def load(name, **options):
        missing = [part.name for part in datasets.describe(name).parts if part.search([REAL]) is None]
        if missing:
            pytest.skip(
                f"no {' and '.join(missing)} in {REAL}; set ${datasets.ENVIRONMENT} to test with real data"
            )
        return datasets.load(name, REAL, **options)

    return load


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- the catalogue -----------------------------------------------------------------------------------------


def test_names_and_tasks():
    assert datasets.names() == ("digits", "cifar10", "celeba", "movielens", "qasc", "xsum")
    assert {entry.task for entry in datasets.CATALOGUE.values()} == set(Task)


@pytest.mark.parametrize("name", [name for name in datasets.names() if name != "digits"])
def test_a_missing_set_names_folders_and_command(name, tmp_path, monkeypatch):
    monkeypatch.setenv(datasets.ENVIRONMENT, str(tmp_path / "env"))
    with pytest.raises(DataError) as missing:
        datasets.load(name)
    assert f"`cesar data get {name}`" in str(missing.value)
    assert str(tmp_path / "env") in str(missing.value)
    assert str(tmp_path / "cache" / "cesar") in str(missing.value)
    with pytest.raises(DataError, match=rf"cesar data get {name} --data-dir '.*a folder'"):
        datasets.load(name, tmp_path / "a folder")


def test_bad_requests_say_what_to_change():
    with pytest.raises(ConfigError, match=r"unknown dataset 'cifar' \(did you mean 'cifar10'\?\)"):
        datasets.load("cifar")
    with pytest.raises(ConfigError, match=r"no option 'train_limits' \(did you mean 'train_limit'\?\)"):
        datasets.load("digits", train_limits=3)
    for limit in (0, -1, 2.5, "3", True):
        with pytest.raises(ConfigError, match="test_limit must be a whole number of at least 1"):
            datasets.load("digits", test_limit=limit)


def test_a_missing_package_names_the_extra():
    with pytest.raises(ConfigError, match=r"package no_such_package.*pip install '\.\[nlp\]'"):
        datasets.require("no_such_package", "nlp")


def test_search_order(tmp_path, monkeypatch):
    places = {place: tmp_path / place for place in ("given", "env", "cache/cesar")}
    for place, rating in zip(places, ("1.0", "2.0", "3.0"), strict=True):
        write(
            tmp_path / place / "ml-latest-small" / "ratings.csv",
            movielens._HEADER,
            f"1,1,{rating},0",
            "1,2,5.0,0",
        )
    assert datasets.find("movielens") == (places["cache/cesar"] / "ml-latest-small",)
    monkeypatch.setenv(datasets.ENVIRONMENT, str(places["env"]))
    assert datasets.find("movielens") == (places["env"] / "ml-latest-small",)
    assert datasets.find("movielens", places["given"]) == (places["given"] / "ml-latest-small",)
    assert datasets.find("movielens", tmp_path / "nowhere") == (places["env"] / "ml-latest-small",)
    assert datasets.find("movielens", places["given"] / "ml-latest-small")[0].samefile(
        places["given"] / "ml-latest-small"
    )


def test_official_layouts_are_found(tmp_path):
    for path in (
        "QASC_Dataset/train.jsonl",
        "QASC_Dataset/dev.jsonl",
        "gpt2/vocab.json",
        "gpt2/merges.txt",
        "xsum/bbc-summary-data/1.summary",
        "xsum/XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json",
        "t5/spiece.model",
        "celeba/data/train/a.json",
        "celeba/data/test/a.json",
        "celeba/data/raw/img_align_celeba/1.jpg",
        "cifar-10-batches-py/data_batch_1",
        "cifar-10-batches-py/test_batch",
    ):
        write(tmp_path / path)
    for name in ("qasc", "xsum", "celeba", "cifar10"):
        assert datasets.find(name, tmp_path)


# --- digits ------------------------------------------------------------------------------------------------


def test_digits():
    digits = datasets.load("digits")
    images, labels = digits.train.fields
    assert (images.shape, images.dtype) == ((1438, 1, 8, 8), torch.float32)
    assert (labels.dtype, len(digits.test)) == (torch.int64, 359)
    assert (digits.task, digits.classes) == (Task.CLASSIFICATION, 10)
    assert images.min() == 0
    assert images.max() == 1
    assert np.array_equal(digits.labels, labels)
    test = np.bincount(digits.test.fields[1])
    assert np.array_equal(test, np.round(0.2 * (test + np.bincount(labels))))
    # Together they are the whole set: the sum of all pixels of scikit-learn's copy is 561,718.
    assert float(16 * (images.double().sum() + digits.test.fields[0].double().sum())) == 561_718


def test_digits_options():
    digits = datasets.load("digits", flat=True, train_limit=5, test_limit=3)
    assert [len(digits.train), len(digits.test), len(digits.labels)] == [5, 3, 5]
    whole = datasets.load("digits")
    assert torch.equal(digits.train.fields[0], whole.train.fields[0][:5].reshape(5, 64))
    assert digits.train.fields[0].is_contiguous()


# --- CIFAR-10 ----------------------------------------------------------------------------------------------


def batch(labels=(3, 9), *, code=b"u1", module=b"numpy.core.multiarray", rows=None) -> bytes:
    """A pickle as Python 2 and numpy wrote the official batches."""
    rows = len(labels) if rows is None else rows
    raw = bytes(range(256)) * 12 * rows
    return b"".join(
        [
            b"\x80\x02}(U\x06labels](",
            *(b"K" + bytes([label]) for label in labels),
            b"eU\x04data",
            b"c" + module + b"\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR",
            b"(K\x01K" + bytes([rows]) + b"M\x00\x0c\x86cnumpy\ndtype\n(U\x02" + code + b"K\x00K\x01tR",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + len(raw).to_bytes(4, "little") + raw + b"tbu.",
        ]
    )


def test_a_batch_is_read():
    images, labels = cifar10.unpickle(batch())
    assert labels.tolist() == [3, 9]
    assert images.shape == (2, 3, 32, 32)
    assert images[0, 0, 0, :3].tolist() == [0, 1, 2]


class Malice:
    def __init__(self, call, *args):
        self._reduced = (call, args)

    def __reduce__(self):
        return self._reduced


@pytest.mark.parametrize(
    "call", [os.system, subprocess.Popen, eval, exec, __import__, getattr, open, np.load, np.frombuffer]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickles_are_refused(call, protocol, tmp_path):
    mark = tmp_path / "mark"
    content = pickle.dumps({b"labels": [], b"data": Malice(call, f"touch {mark}")}, protocol)
    with pytest.raises(DataError, match="refused a pickle that asks for"):
        cifar10.unpickle(content)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        batch(code=b"O8"),
        batch(code=b"i8"),
        batch(module=b"numpy.core.fromnumeric"),
        batch(labels=(3, 10)),
        batch(labels=(3,), rows=2),
        batch()[:-1],
        batch()[:60],
        b"",
        b"\x80\x02}.",
        b"\x80\x02]K\x01a.",
        b"\x80\x02cnumpy\nndarray\n)R}b.",
        b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.",
        b"\x80\x02cnumpy\ndtype\nU\x03barb.",
        b"\x80\x02U\x01aQ.",
    ],
)
def test_damaged_batches_are_refused(content):
    with pytest.raises(DataError):
        cifar10.unpickle(content)


def test_cifar10_loads_only_what_has_the_checksum(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        content = batch(labels=(number, 9))
        (folder / name).write_bytes(content)
        monkeypatch.setitem(cifar10.MD5, name, hashlib.md5(content).hexdigest())
    monkeypatch.setattr(cifar10, "BATCH", 2)
    data = datasets.load("cifar10", tmp_path)
    assert data.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert data.test.fields[1].tolist() == [5, 9]
    expected = (np.arange(3)[:, None] / 255 - np.array(cifar10.MEAN)) / np.array(cifar10.STD)
    assert np.allclose(data.train.fields[0][0, 0, 0, :3], expected[:, 0], atol=1e-6)
    (folder / "data_batch_3").unlink()
    assert len(datasets.load("cifar10", tmp_path, train_limit=3).train) == 3
    with pytest.raises(DataError, match=r"cannot read .*data_batch_3.*cesar data get cifar10"):
        datasets.load("cifar10", tmp_path)
    (folder / "data_batch_1").write_bytes(batch(labels=(1, 1)))
    with pytest.raises(DataError, match=r"data_batch_1 is not the published file.*cesar data get cifar10"):
        datasets.load("cifar10", tmp_path, train_limit=1)


def test_real_cifar10(real):
    data = real("cifar10")
    images, labels = data.train.fields
    assert (images.shape, images.dtype) == ((50_000, 3, 32, 32), torch.float32)
    assert (labels.dtype, data.classes) == (torch.int64, 10)
    assert np.bincount(data.labels).tolist() == [5000] * 10
    assert np.bincount(data.test.fields[1]).tolist() == [1000] * 10
    assert labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test.fields[1][:4].tolist() == [3, 8, 8, 0]
    assert torch.allclose(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-3)
    assert torch.allclose(images.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    red = images[0, 0, 0, 0] * cifar10.STD[0] + cifar10.MEAN[0]
    assert round(255 * float(red)) == 59


# --- CelebA ------------------------------------------------------------------------------------------------


def leaf(folder: Path, users: dict[str, dict[str, list]]) -> None:
    content = {
        "users": list(users),
        "num_samples": [len(data["y"]) for data in users.values()],
        "user_data": users,
    }
    write(folder / "all_data_0.json", json.dumps(content))


@pytest.fixture
def faces(tmp_path):
    """Three celebrities, whose images are red, green or blue."""
    pillow = pytest.importorskip("PIL.Image")
    data = tmp_path / "celeba" / "data"
    images = data / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for number, colour in enumerate([(255, 0, 0), (0, 255, 0), (0, 0, 255)]):
        pillow.new("RGB", (178, 218), colour).save(images / f"{number}.jpg")
    leaf(
        data / "train", {"77": {"x": ["0.jpg", "1.jpg"], "y": [1.0, 0.0]}, "5": {"x": ["2.jpg"], "y": [1.0]}}
    )
    leaf(data / "test", {"5": {"x": ["1.jpg"], "y": [0.0]}})
    return tmp_path


def test_celeba(faces):
    data = datasets.load("celeba", faces)
    images, labels = data.train.fields
    assert (images.shape, images.dtype, labels.tolist()) == ((3, 3, 84, 84), torch.float32, [1, 0, 1])
    assert (data.users.tolist(), data.details, data.classes) == ([0, 0, 1], {"users": 2}, 2)
    assert torch.allclose(images.mean((2, 3)), 2 * torch.eye(3) - 1, atol=0.05)
    assert images.is_contiguous()
    assert datasets.load("celeba", faces, size=8, train_limit=1).train.fields[0].shape == (1, 3, 8, 8)
    assert datasets.sizes("celeba", datasets.find("celeba", faces)) == (3, 1)


@pytest.mark.parametrize(
    "users, message",
    [
        ({"1": {"x": ["../0.jpg"], "y": [1.0]}}, "not the name of an image"),
        ({"1": {"x": ["0.jpg"], "y": []}}, "not a LEAF file"),
        ({"1": {"x": ["none.jpg"], "y": [1.0]}}, r"cannot read the image .*none\.jpg"),
    ],
)
def test_bad_celeba(faces, users, message):
    leaf(faces / "celeba" / "data" / "train", users)
    with pytest.raises(DataError, match=message):
        datasets.load("celeba", faces)


def test_celeba_without_split(faces):
    (faces / "celeba" / "data" / "train" / "all_data_0.json").unlink()
    with pytest.raises(DataError, match=r"LEAF's preprocess\.sh"):
        datasets.load("celeba", faces)


def test_real_celeba(real):
    data = real("celeba", train_limit=480, test_limit=120)
    images, labels = data.train.fields
    assert (images.shape, images.dtype) == ((480, 3, 84, 84), torch.float32)
    assert -1 <= images.min() < -0.9 < 0.9 < images.max() <= 1
    assert set(labels.tolist()) == {0, 1}
    assert len(data.users) == 480
    # The working copy; a full download has other celebrities first.
    if datasets.sizes("celeba", datasets.find("celeba", REAL)) == (480, 120):
        assert int(labels.sum()) == 214
        assert int(data.test.fields[1].sum()) == 57
        assert data.details == {"users": 120}
        assert np.bincount(data.users).tolist() == [4] * 120


# --- MovieLens ---------------------------------------------------------------------------------------------


def test_movielens(tmp_path):
    lines = [f"{user},{movie},{0.5 * (1 + movie % 10)},0" for user in (3, 8) for movie in range(100, 120)]
    write(tmp_path / "ratings.csv", movielens._HEADER, *lines)
    data = datasets.load("movielens", tmp_path)
    assert data.details == {"users": 2, "items": 20}
    assert (len(data.train), len(data.test)) == (28, 12)
    assert np.bincount(data.users).tolist() == [14, 14]
    pairs = {
        (int(user), int(item))
        for part in (data.train, data.test)
        for user, item, _ in zip(*part.fields, strict=True)
    }
    assert len(pairs) == 40
    assert [field.dtype for field in data.train.fields] == [torch.int64, torch.int64, torch.float32]
    again, other = (datasets.load("movielens", tmp_path, seed=seed).train.fields[1] for seed in (0, 1))
    assert torch.equal(again, data.train.fields[1])
    assert not torch.equal(other, again)
    with pytest.raises(DataError, match="not the known file"):
        datasets.load("movielens", tmp_path, verify=True)


@pytest.mark.parametrize(
    "lines",
    [
        ("a,b",),
        (movielens._HEADER, "1,2,x,0"),
        (movielens._HEADER, "1,2,7.0,0"),
        (movielens._HEADER, "1,2,nan,0"),
    ],
)
def test_bad_movielens(tmp_path, lines):
    write(tmp_path / "ratings.csv", *lines)
    with pytest.raises(DataError, match=r"ratings\.csv"):
        datasets.load("movielens", tmp_path)


def test_real_movielens(real):
    data = real("movielens", verify=True)
    assert data.details == {"users": 610, "items": 9724}
    assert len(data.train) + len(data.test) == 100_836
    assert (len(data.train), len(data.test)) == datasets.describe("movielens").sizes
    user, item, rating = (torch.cat(both) for both in zip(data.train.fields, data.test.fields, strict=True))
    assert sorted(set(rating.tolist())) == [0.5 * step for step in range(1, 11)]
    assert int(item.max()) == 9723
    assert sorted(rating[(user == 0) & (item == 0)].tolist()) == [4.0]
    share = np.bincount(data.users) / np.bincount(user)
    assert np.all(np.abs(share - 0.7) < 0.025)
    assert np.array_equal(data.users, data.train.fields[0])


# --- QASC --------------------------------------------------------------------------------------------------


def question(answer="B", **changes) -> str:
    choices = [{"text": f"it is {letter.lower()}", "label": letter} for letter in qasc.LETTERS]
    return json.dumps({"question": {"stem": "What?", "choices": choices}, "answerKey": answer} | changes)


def test_qasc(tmp_path, byte_tokenizer):
    write(tmp_path / "QASC_Dataset" / "train.jsonl", question("B"), "", question("H"))
    write(tmp_path / "QASC_Dataset" / "dev.jsonl", question("C"))
    data = datasets.load("qasc", tmp_path, length=1000)
    ids, labels, answers = data.train.fields
    assert (data.task, data.classes, data.labels.tolist()) == (Task.CHOICE, 8, [1, 7])
    assert {field.dtype for field in data.train.fields + data.test.fields} == {torch.int64}
    letters = [data.details[f"letter_{number}"] for number in range(8)]
    assert [byte_tokenizer[token] for token in letters] == [f"Ġ{letter}" for letter in qasc.LETTERS]
    assert data.details["pad"] == len(byte_tokenizer) - 1
    assert answers.tolist() == [1, 7]
    assert ids[:, -1].tolist() == labels[:, -1].tolist() == [letters[1], letters[7]]
    assert (labels[:, :-1] == qasc.NOT_SCORED).all()
    test_ids, test_labels, _ = data.test.fields
    assert (int(test_ids[0, -1]), int(test_labels[0, -1])) == (data.details["pad"], letters[2])
    text = "".join(byte_tokenizer[token] for token in test_ids[0, :-1]).replace("Ġ", " ").replace("Ċ", "\n")
    assert text == qasc.prompt("What?", [f"it is {letter}" for letter in "abcdefgh"])


def test_long_qasc_prompts_lose_their_beginning(tmp_path, byte_tokenizer):
    for name in ("train", "dev"):
        write(tmp_path / "qasc" / f"{name}.jsonl", question("A"))
    ids, labels, _ = datasets.load("qasc", tmp_path, length=20).train.fields
    assert ids.shape == labels.shape == (1, 20)
    assert [byte_tokenizer[token] for token in ids[0, -3:]] == ["r", ":", "ĠA"]
    with pytest.raises(ConfigError, match="length must be"):
        datasets.load("qasc", tmp_path, length=3)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        question("I"),
        question(""),
        question("AB"),
        question(None),
        question(question={"stem": "?", "choices": []}),
        "{}",
    ],
)
def test_bad_qasc(tmp_path, byte_tokenizer, line):
    write(tmp_path / "qasc" / "train.jsonl", question(), line)
    write(tmp_path / "qasc" / "dev.jsonl", question())
    with pytest.raises(DataError, match=r"train\.jsonl, line 2"):
        datasets.load("qasc", tmp_path)
    assert len(datasets.load("qasc", tmp_path, train_limit=1).train) == 1


def test_another_tokenizer(tmp_path, byte_tokenizer):
    for name in ("train", "dev"):
        write(tmp_path / "qasc" / f"{name}.jsonl", question())
    write(tmp_path / "gpt2" / "merges.txt", "#version: 0.2")
    with pytest.raises(DataError, match="not one token"):
        datasets.load("qasc", tmp_path)
    write(tmp_path / "gpt2" / "merges.txt", "#version: 0.2", "no such")
    with pytest.raises(DataError, match="no GPT-2 tokenizer"):
        datasets.load("qasc", tmp_path)


def test_an_empty_qasc(tmp_path, byte_tokenizer):
    for name in ("train", "dev"):
        write(tmp_path / "qasc" / f"{name}.jsonl")
    with pytest.raises(DataError, match="no questions"):
        datasets.load("qasc", tmp_path)


def test_real_qasc(real):
    pytest.importorskip("transformers")
    data = real("qasc", train_limit=200, test_limit=100)
    assert datasets.sizes("qasc", datasets.find("qasc", REAL)) == (8134, 926)
    assert (data.details["vocabulary"], data.details["pad"]) == (50_257, 50_256)
    assert [data.details[f"letter_{number}"] for number in range(8)] == [
        317,
        347,
        327,
        360,
        412,
        376,
        402,
        367,
    ]
    ids, labels, answers = data.train.fields
    assert ids.shape == labels.shape
    assert 40 < ids.shape[1] <= 96
    assert answers[:2].tolist() == [5, 4]
    # "Question", ":", " What", " type", " of", " water" and so on, then "Answer", ":", " F".
    assert ids[0, :6].tolist() == [24361, 25, 1867, 2099, 286, 1660]
    place = int((labels[0] != qasc.NOT_SCORED).nonzero())
    assert ids[0, place - 2 : place + 1].tolist() == [33706, 25, 376]
    assert set(ids[0, place + 1 :].tolist()) <= {50_256}
    scored = (data.test.fields[1] != qasc.NOT_SCORED).sum(1)
    assert (scored == 1).all()
    assert (data.test.fields[0][data.test.fields[1] != qasc.NOT_SCORED] == 50_256).all()


# --- XSum --------------------------------------------------------------------------------------------------


def article(document="the cat sat", summary="the cat") -> str:
    return json.dumps({"document": document, "summary": summary, "id": "1"})


def test_xsum(tmp_path, pieces):
    write(tmp_path / "xsum" / "train.jsonl", article(), article(document="the cat sat on the mat " * 9))
    write(tmp_path / "xsum" / "test.jsonl", article(summary="a mat"))
    data = datasets.load("xsum", tmp_path, document_length=30)
    documents, summaries = data.train.fields
    assert (data.task, data.classes, data.labels, data.users) == (Task.SUMMARY, 0, None, None)
    assert (documents.dtype, documents.shape) == (torch.int64, (2, 30))
    assert documents[1, -1] == xsum.EOS
    assert documents[0, -1] == xsum.PAD
    decode = xsum.decoder(pieces)
    assert decode(documents[0].tolist()) == "summarize: the cat sat"
    assert decode(summaries[0].tolist()) == "the cat"
    assert decode([xsum.EOS, 5]) == decode([xsum.PAD, 10**6]) == ""
    with pytest.raises(ConfigError, match="summary_length must be"):
        datasets.load("xsum", tmp_path, summary_length=1)


def test_the_authors_layout_of_xsum(tmp_path, pieces):
    folder = tmp_path / "xsum"
    write(folder / datasets.SPLIT_FILE, json.dumps({"train": ["7", "8"], "validation": [], "test": ["9"]}))
    for number in (7, 8, 9):
        write(
            folder / "bbc-summary-data" / f"{number}.summary",
            *(
                "[SN]URL[SN]",
                "http://somewhere",
                "",
                "[SN]TITLE[SN]",
                "a title",
                "",
                "[SN]FIRST-SENTENCE[SN]",
            ),
            *("the cat", "", "[SN]RESTBODY[SN]", "Share this with", "Email", "the mat", "sat.", f"{number}"),
        )
    assert xsum._articles(folder, "train", None) == [
        ("the mat\nsat.\n7", "the cat"),
        ("the mat\nsat.\n8", "the cat"),
    ]
    assert len(datasets.load("xsum", tmp_path, train_limit=1).train) == 1
    write(folder / "bbc-summary-data" / "9.summary", "[SN]URL[SN]", "nothing")
    with pytest.raises(DataError, match="not an article of XSum"):
        datasets.load("xsum", tmp_path)
    (folder / "bbc-summary-data" / "8.summary").unlink()
    with pytest.raises(DataError, match=r"cannot read the article .*8\.summary"):
        datasets.load("xsum", tmp_path)
    write(folder / datasets.SPLIT_FILE, json.dumps({"train": []}))
    with pytest.raises(DataError, match="no train articles"):
        datasets.load("xsum", tmp_path)
    write(folder / datasets.SPLIT_FILE, "{}")
    with pytest.raises(DataError, match="does not list the train articles"):
        datasets.load("xsum", tmp_path)


def test_bad_xsum(tmp_path, pieces):
    for name in ("train", "test"):
        write(tmp_path / "xsum" / f"{name}.jsonl", question())
    with pytest.raises(DataError, match="is this XSum's file"):
        datasets.load("xsum", tmp_path)
    write(pieces / "spiece.model", "nothing")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        datasets.load("xsum", tmp_path)


def test_real_xsum(real):
    pytest.importorskip("sentencepiece")
    data = real("xsum", train_limit=50, test_limit=30, document_length=128, summary_length=32)
    assert data.details == {"vocabulary": 32_000, "pad": 0, "eos": 1}
    documents, summaries = data.train.fields
    assert (documents.shape, summaries.shape) == ((50, 128), (50, 32))
    assert ((documents == xsum.EOS).sum(1) == 1).all()
    assert ((summaries == xsum.EOS).sum(1) == 1).all()
    assert int(documents.max()) < 32_000
    folder, tokenizer = datasets.find("xsum", REAL)
    decode = xsum.decoder(tokenizer)
    assert decode(documents[0].tolist()).startswith("summarize: ")
    document, summary = xsum._articles(folder, "train", 1)[0]
    assert decode(summaries[0].tolist()) == summary
    assert decode(documents[0].tolist())[11:61] == document[:50]
    # T5's ids of the prefix: "▁summarize", ":".
    assert documents[:, :2].unique(dim=0).tolist() == [[21603, 10]]
