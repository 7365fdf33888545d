"""What each task optimises and how it is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cesar_lab.data.samples import Dataset, Samples, Task

Batch = tuple[torch.Tensor, ...]


def loss(task: Task, module: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss of a batch."""
    match task:
        case Task.CLASSIFICATION:
            inputs, labels = batch
            return F.cross_entropy(module(inputs), labels)
        case Task.RATING:
            users, items, ratings = batch
            return F.mse_loss(module(users, items), ratings)
        case Task.CHOICE:
            ids, labels, _ = batch
            value: torch.Tensor = module(input_ids=ids, labels=labels).loss
            return value
        case Task.SUMMARY:
            documents, summaries = batch
            labels = summaries.masked_fill(summaries == 0, -100)
            attention = documents.ne(0).long()
            value = module(input_ids=documents, attention_mask=attention, labels=labels).loss
            return torch.as_tensor(value)
        case _:
            assert_never(task)


def sample_losses(
    data: Dataset, module: nn.Module, samples: Samples, *, batch_size: int = 50
) -> torch.Tensor:
    """The loss of each sample by itself, without training; language models take one sample at a time."""
    size = batch_size if data.task in (Task.CLASSIFICATION, Task.RATING) else 1
    parts = []
    with torch.inference_mode():
        for start in range(0, len(samples), size):
            batch = tuple(field[start : start + size] for field in samples.fields)
            if data.task is Task.CLASSIFICATION:
                parts.append(F.cross_entropy(module(batch[0]), batch[1], reduction="none"))
            elif data.task is Task.RATING:
                parts.append(F.mse_loss(module(batch[0], batch[1]), batch[2], reduction="none"))
            else:
                parts.append(loss(data.task, module, batch).reshape(1))
    return torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over a test set, to be divided by `count`."""

    count: int
    loss: float
    correct: float
    rouge_l: float = 0.0  # a mean already, over the samples that were summarised

    def metrics(self, task: Task) -> dict[str, float]:
        """The figures that people read."""
        mean = self.loss / self.count
        if task is Task.RATING:
            return {"test_loss": mean, "rmse": mean**0.5}
        if task is Task.SUMMARY:
            return {"test_loss": mean, "rouge_l": self.rouge_l}
        return {"test_loss": mean, "accuracy": self.correct / self.count}


def score(
    data: Dataset, module: nn.Module, samples: Samples, *, batch_size: int = 50, summaries: int = 50
) -> Score:
    """Run the model over the first test samples without training; small batches stay in the cache.

    Args:
        summaries: how many of the samples are summarised for ROUGE-L, which takes a pass per word.
    """
    total_loss, correct = 0.0, 0.0
    with torch.inference_mode():
        for start in range(0, len(samples), batch_size):
            batch = tuple(field[start : start + batch_size] for field in samples.fields)
            count = len(batch[0])
            if data.task is Task.CLASSIFICATION:
                scores = module(batch[0])
                total_loss += float(F.cross_entropy(scores, batch[1], reduction="sum"))
                correct += float((scores.argmax(dim=1) == batch[1]).sum())
                continue
            total_loss += float(loss(data.task, module, batch)) * count
            if data.task is Task.CHOICE:
                correct += _right_choices(data, module, batch)
        rouge_l = 0.0
        if data.task is Task.SUMMARY:
            rouge_l = _rouge_l(
                data, module, Samples(tuple(f[:summaries] for f in samples.fields)), batch_size
            )
    return Score(len(samples), total_loss, correct, rouge_l)


def _rouge_l(data: Dataset, module: nn.Module, samples: Samples, batch_size: int) -> float:
    """Mean ROUGE-L of summaries written greedily, each as long as the longest reference at most."""
    assert data.rouge_l is not None
    documents, references = samples.fields
    scores: list[float] = []
    for start in range(0, len(samples), batch_size):
        ids = documents[start : start + batch_size]
        written = module.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=ids.ne(0).long(),
            do_sample=False,
            num_beams=1,
            max_new_tokens=references.shape[1],
        )
        # The first token of each is the decoder's start, not the model's.
        scores += [data.rouge_l(start + k, row[1:].tolist()) for k, row in enumerate(written)]
    return sum(scores) / len(scores)


def _right_choices(data: Dataset, module: nn.Module, batch: Batch) -> float:
    """How often the likeliest of the choice letters is the right one, at the last position of the prompt."""
    ids, labels, answers = batch
    scored = labels.ne(-100)
    first = scored.float().argmax(dim=1)  # the answer is predicted from the position before it
    logits = module(input_ids=ids).logits
    rows = torch.arange(len(ids), device=ids.device)
    letters = torch.tensor([data.details[f"letter_{k}"] for k in range(data.classes)], device=ids.device)
    chosen = logits[rows, first - 1][:, letters].argmax(dim=1)
    return float((chosen == answers).sum())
