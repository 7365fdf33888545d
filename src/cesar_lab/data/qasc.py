"""QASC: grade-school science questions with eight choices, asked of a language model.

A question becomes a prompt that ends in "Answer:", and the model must go on with the right letter. Only that
one token is scored, so a single pass gives the loss and, by comparing the eight letters, the accuracy.
Official test questions have no answers; the `dev` questions are the test split here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cesar.base.errors import DataError
from cesar_lab.data.datasets import at_least, json_lines, require
from cesar_lab.data.samples import Dataset, Samples, Task

LETTERS = "ABCDEFGH"
NOT_SCORED = -100
_SHORTEST = 8


def load(
    folder: Path,
    tokenizer_folder: Path,
    *,
    length: int = 96,
    train_limit: int | None = None,
    test_limit: int | None = None,
) -> Dataset:
    """Samples (token ids, label ids, answer), padded on the right to the longest prompt of the split.

    Label ids are `NOT_SCORED` except right after the prompt, where the letter of the answer stands. Training
    ids hold the letter there too; test ids hold padding. Details name the vocabulary, the padding token and,
    as `letter_0` to `letter_7`, the tokens of the letters.

    Args:
        folder: where `train.jsonl` and `dev.jsonl` lie.
        tokenizer_folder: where GPT-2's `vocab.json` and `merges.txt` lie.
        length: most tokens of a sample; longer prompts lose their beginning (at 96, five of the official ones).
        train_limit: take only the first training questions.
        test_limit: take only the first test questions.
    """
    at_least(_SHORTEST, "length", length)
    tokenizer = _tokenizer(tokenizer_folder)
    letters = [_single(tokenizer, f" {letter}") for letter in LETTERS]
    pad = int(tokenizer.eos_token_id)
    train_prompts, answers = _read(folder / "train.jsonl", train_limit)
    test_prompts, test_answers = _read(folder / "dev.jsonl", test_limit)
    encode = _Encoder(tokenizer, np.array(letters, dtype=np.int64), pad, length)
    return Dataset(
        name="qasc",
        task=Task.CHOICE,
        train=encode(train_prompts, answers, with_answers=True),
        test=encode(test_prompts, test_answers, with_answers=False),
        classes=len(LETTERS),
        labels=answers,
        details={"vocabulary": len(tokenizer), "pad": pad, "length": length}
        | {f"letter_{number}": token for number, token in enumerate(letters)},
    )


def prompt(stem: str, choices: list[str]) -> str:
    """What the model is asked.

    >>> print(prompt("What is wet?", ["rain", "sand"]))
    Question: What is wet?
    A. rain
    B. sand
    Answer:
    """
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return f"Question: {stem}\n{listed}\nAnswer:"


def _read(path: Path, limit: int | None) -> tuple[list[str], NDArray[np.int64]]:
    """Prompts and the numbers of their answers."""
    prompts, answers = [], []
    for where, record in json_lines(path, limit):
        try:
            question = record["question"]
            choices = {choice["label"]: choice["text"] for choice in question["choices"]}
            prompts.append(prompt(question["stem"], [choices[letter] for letter in LETTERS]))
            answers.append(list(LETTERS).index(record["answerKey"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: no QASC question with a stem, choices A to H and an answerKey ({error!r})"
            ) from error
    if not prompts:
        raise DataError(f"{path} has no questions; fetch it again with `cesar data get qasc`")
    return prompts, np.array(answers, dtype=np.int64)


class _Encoder:
    """Turns prompts and answers into tensors of one shape."""

    def __init__(self, tokenizer: Any, letters: NDArray[np.int64], pad: int, length: int) -> None:
        self._tokenizer, self._letters, self._pad, self._length = tokenizer, letters, pad, length

    def __call__(self, prompts: list[str], answers: NDArray[np.int64], *, with_answers: bool) -> Samples:
        rows = [row[1 - self._length :] for row in self._tokenizer(prompts)["input_ids"]]
        width = max(map(len, rows)) + 1
        ids = np.full((len(rows), width), self._pad, dtype=np.int64)
        labels = np.full_like(ids, NOT_SCORED)
        for number, (row, answer) in enumerate(zip(rows, self._letters[answers], strict=True)):
            ids[number, : len(row)] = row
            labels[number, len(row)] = answer
            if with_answers:
                ids[number, len(row)] = answer
        return Samples((torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(answers)))


def _tokenizer(folder: Path) -> Any:
    """GPT-2's tokenizer from local files; the network is never asked."""
    transformers = require("transformers", "nlp")
    try:
        return transformers.GPT2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # The tokenizers' library raises bare exceptions.
        raise DataError(
            f"{folder} holds no GPT-2 tokenizer ({error}); fetch it again with `cesar data get qasc`"
        ) from error


def _single(tokenizer: Any, text: str) -> int:
    tokens = tokenizer(text)["input_ids"]
    if len(tokens) != 1:
        raise DataError(f"{text!r} is not one token: this is not GPT-2's tokenizer; `cesar data get qasc`")
    return int(tokens[0])
