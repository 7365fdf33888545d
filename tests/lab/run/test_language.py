"""Language models learn through the code of `cesar run`: GPT-2 chooses answers, T5 writes summaries."""

import csv
import json

import pytest

from cesar.base.errors import ConfigError
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.show import results

MODELS = """
import transformers

def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=265, n_positions=128, n_embd=16, n_layer=1, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=264, eos_token_id=264,
        )
    )

def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=64, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )
"""
TABLES = {
    "rounds": 3,
    "topology": {"nodes": 4, "degree": 3},
    "evaluation": {"every": 1},
    "method": [{"name": "cesar", "sparsifier": "random", "share": 0.4}],
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Small models, as a user brings his own."""
    (tmp_path / "small_models.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def lines(path, records):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def questions(tmp_path, byte_tokenizer, small):
    """Questions whose answer is mostly B."""

    def question(number, answer):
        choices = [{"text": f"{letter.lower()}{number}", "label": letter} for letter in "ABCDEFGH"]
        return {"question": {"stem": f"{number}?", "choices": choices}, "answerKey": answer}

    lines(tmp_path / "qasc" / "train.jsonl", [question(n, "BBBC"[n % 4]) for n in range(32)])
    lines(tmp_path / "qasc" / "dev.jsonl", [question(n, "BBBBC"[n % 5]) for n in range(10)])
    return tmp_path


@pytest.fixture
def articles(tmp_path, pieces, small):
    """Articles whose summary is always the same."""
    documents = ["the cat sat on the mat", "and went to sleep", "the mat went on", "sat the cat and sat"]
    records = [{"document": text, "summary": "the cat sat"} for text in documents * 8]
    lines(tmp_path / "xsum" / "train.jsonl", records)
    lines(tmp_path / "xsum" / "test.jsonl", records[:6])
    return tmp_path


def rows(out):
    (path,) = out.glob("*/seed-1/metrics.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_gpt2_learns_to_choose(questions):
    experiment = config.parse(
        TABLES
        | {
            "data": {"dataset": "qasc"},
            "model": {"name": "small_models:gpt2"},
            "training": {"learning_rate": 0.2, "batch_size": 4, "steps_per_round": 8},
        }
    )
    run.execute(experiment, questions / "out", data_dir=questions, trust_code=True)
    steps = rows(questions / "out")
    assert steps[-1]["test_loss"] < steps[0]["test_loss"] < 5.58  # ln 265, before training
    assert steps[-1]["accuracy"] == 0.8  # B and nothing else
    (row,) = results.summarise(questions / "out")
    assert (row.metric, row.value) == ("accuracy", 0.8)


def summaries(**changes):
    tables = TABLES | {
        "data": {"dataset": "xsum"},
        "model": {"name": "small_models:t5"},
        "training": {"learning_rate": 0.1, "batch_size": 8, "steps_per_round": 20},
        "evaluation": {"every": 1, "summaries": 4},
    }
    return config.parse(tables | changes)


class Stopper:
    """Stops a run in the middle of it."""

    def started(self, *_):
        pass

    tested = finished = started

    def round_done(self, record, sent):
        if record.round_ == 2:
            raise KeyboardInterrupt


def test_t5_learns_to_summarise(articles):
    """… with the same metrics whatever the number of threads, and after an interruption."""
    experiment = summaries()
    run.execute(experiment, articles / "out", data_dir=articles, workers=1, trust_code=True)
    steps = rows(articles / "out")
    assert steps[-1]["test_loss"] < steps[0]["test_loss"]
    assert steps[-1]["rouge_l"] > 0.5
    (row,) = results.summarise(articles / "out")
    assert (row.metric, row.value) == ("rouge_l", steps[-1]["rouge_l"])

    with pytest.raises(KeyboardInterrupt):
        run.execute(
            experiment,
            articles / "again",
            data_dir=articles,
            workers=3,
            observers=[Stopper()],
            trust_code=True,
        )
    run.execute(experiment, articles / "again", data_dir=articles, workers=2, trust_code=True)
    assert rows(articles / "again") == steps
    assert json.loads((articles / "out" / "experiment.json").read_text())["evaluation"]["summaries"] == 4


def test_a_model_that_cannot_write_is_refused_before_training(articles):
    (articles / "mute.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(2, 2)\n")
    with pytest.raises(ConfigError, match="no generate"):
        run.execute(
            summaries(model={"name": "mute:make"}), articles / "out", data_dir=articles, trust_code=True
        )
    assert not (articles / "out").exists()


@pytest.mark.parametrize("model", ["gpt2", "t5-efficient-tiny"])
def test_missing_weights_are_named_before_training(articles, model):
    changes = {"model": {"name": model, "weights": str(articles / "nowhere")}}
    with pytest.raises(ConfigError, match=r"model\.weights: .*nowhere holds no weights"):
        run.execute(summaries(**changes), articles / "out", data_dir=articles, trust_code=True)
    assert not (articles / "out").exists()
