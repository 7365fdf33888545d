"""XSum: BBC articles and their first sentence as the summary, in T5's tokens.

Two layouts are read: one JSON object per line (`document`, `summary`), as the set is usually packaged, and
the authors' own, one file per article plus a list of which article belongs to which split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cesar.base.errors import DataError
from cesar_lab.data.datasets import SPLIT_FILE, at_least, json_lines, require
from cesar_lab.data.samples import Dataset, Samples, Task

PAD, EOS = 0, 1
_BUTTONS = frozenset(
    (
        "Share this with",
        "Email",
        "Facebook",
        "Messenger",
        "Twitter",
        "Pinterest",
        "WhatsApp",
        "Linkedin",
        "LinkedIn",
        "Copy this link",
        "These are external links and will open in a new window",
    )
)
"""Captions that the web page put among the text; the packaged form has none of them."""


def load(
    folder: Path,
    tokenizer_folder: Path,
    *,
    document_length: int = 512,
    summary_length: int = 64,
    prefix: str = "summarize: ",
    train_limit: int | None = None,
    test_limit: int | None = None,
) -> Dataset:
    """Samples (document ids, summary ids); each ends with the end token and is padded on the right with 0.

    Args:
        folder: where the articles lie, in either layout.
        tokenizer_folder: where T5's `spiece.model` lies.
        document_length: most tokens of a document; the rest is cut off.
        summary_length: most tokens of a summary.
        prefix: what T5 expects before a document that it should summarise.
        train_limit: take only the first training articles.
        test_limit: take only the first test articles (the paper: 5,000).
    """
    at_least(2, "document_length", document_length)
    at_least(2, "summary_length", summary_length)
    processor = _processor(tokenizer_folder)

    def samples(articles: list[tuple[str, str]]) -> Samples:
        return Samples(
            (
                _encode(processor, [prefix + document for document, _ in articles], document_length),
                _encode(processor, [summary for _, summary in articles], summary_length),
            )
        )

    train, test = _articles(folder, "train", train_limit), _articles(folder, "test", test_limit)

    return Dataset(
        name="xsum",
        task=Task.SUMMARY,
        train=samples(train),
        test=samples(test),
        rouge_l=_rouge_l([summary for _, summary in test], _decoder(processor)),
        details={"vocabulary": processor.get_piece_size(), "pad": PAD, "eos": EOS},
    )


def decoder(tokenizer_folder: Path) -> Callable[[Sequence[int]], str]:
    """How to read ids again: a function from ids, up to the end token, to text."""
    return _decoder(_processor(tokenizer_folder))


def _decoder(processor: Any) -> Callable[[Sequence[int]], str]:
    def decode(ids: Sequence[int]) -> str:
        kept = [int(token) for token in ids]
        end = kept.index(EOS) if EOS in kept else len(kept)
        return str(processor.decode([token for token in kept[:end] if PAD < token < len(processor)]))

    return decode


def _rouge_l(
    references: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> Callable[[int, Sequence[int]], float]:
    """ROUGE-L against the whole references, however few of their tokens a model is trained on; no stemming."""
    scorer = require("rouge_score.rouge_scorer", "nlp").RougeScorer(["rougeL"])

    def rouge_l(number: int, ids: Sequence[int]) -> float:
        return float(scorer.score(references[number], decode(ids))["rougeL"].fmeasure)

    return rouge_l


def _processor(folder: Path) -> Any:
    """T5's tokenizer from a local file."""
    sentencepiece = require("sentencepiece", "nlp")
    path = folder / "spiece.model"
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{path} is not a SentencePiece model; fetch it again with `cesar data get xsum`"
        ) from error
    if (processor.pad_id(), processor.eos_id()) != (PAD, EOS):
        raise DataError(f"{path} is not T5's SentencePiece model; fetch it again with `cesar data get xsum`")
    return processor


def _encode(processor: Any, texts: Sequence[str], length: int) -> torch.Tensor:
    rows = [row[: length - 1] for row in processor.encode(list(texts))]
    ids = np.full((len(rows), max(map(len, rows)) + 1), PAD, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        ids[number, len(row)] = EOS
    return torch.from_numpy(ids)


def _articles(folder: Path, split: str, limit: int | None) -> list[tuple[str, str]]:
    """Documents and summaries of a split."""
    packaged = folder / f"{split}.jsonl"
    source = _packaged(packaged, limit) if packaged.exists() else _original(folder, split, limit)
    articles = list(source)
    if not articles:
        raise DataError(f"{folder} has no {split} articles; `cesar data get xsum` says how to get them")
    return articles


def _packaged(path: Path, limit: int | None) -> Iterator[tuple[str, str]]:
    for where, record in json_lines(path, limit):
        document, summary = record.get("document"), record.get("summary")
        if not isinstance(document, str) or not isinstance(summary, str):
            raise DataError(f"{where}: no article with a document and a summary; is this XSum's file?")
        yield document, summary


def _original(folder: Path, split: str, limit: int | None) -> Iterator[tuple[str, str]]:
    try:
        numbers = json.loads((folder / SPLIT_FILE).read_bytes())[split]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / SPLIT_FILE} does not list the {split} articles: {error!r}") from error
    for number in islice(numbers, limit):
        yield _article(folder / "bbc-summary-data" / f"{int(number)}.summary")


def _article(path: Path) -> tuple[str, str]:
    """Document and summary of one of the authors' files, whose sections begin with lines like [SN]TITLE[SN]."""
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read the article {path}: {error.strerror}") from error
    for line in map(str.strip, lines):
        if line.startswith("[SN]") and line.endswith("[SN]"):
            section = sections.setdefault(line, [])
        elif line and line not in _BUTTONS:
            section.append(line)
    try:
        return "\n".join(sections["[SN]RESTBODY[SN]"]), "\n".join(sections["[SN]FIRST-SENTENCE[SN]"])
    except KeyError as error:
        raise DataError(f"{path} has no section {error}: it is not an article of XSum") from error
