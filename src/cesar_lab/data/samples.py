"""Samples: tensors whose first axis counts the same examples; and Dataset, what a loader returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray


class Task(StrEnum):
    """What a model is asked to do; it decides loss and metrics.

    Fields of a sample, in order:
        CLASSIFICATION  input (float), label (int64)
        RATING          user (int64), item (int64), rating (float)
        CHOICE          token ids (int64, padded), label ids (int64, −100 where not scored), answer (int64);
                        test samples hold the prompt without its answer in the ids
        SUMMARY         document ids (int64), summary ids (int64); both padded
    """

    CLASSIFICATION = "classification"
    RATING = "rating"
    CHOICE = "choice"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Samples:
    """Examples as columns: one tensor per field, all of one length."""

    fields: tuple[torch.Tensor, ...]

    def __len__(self) -> int:
        return len(self.fields[0])

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """The examples with these numbers, in this order."""
        index = torch.from_numpy(rows)
        return Samples(tuple(field[index] for field in self.fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset in memory.

    Attributes:
        classes: number of labels, for classification and choice; 0 otherwise.
        labels: (train,) what label partitions sort by; None where there are no labels.
        users: (train,) who each training sample belongs to; None where nobody is named.
        rouge_l: ROUGE-L (F1) of generated ids against the summary of the test sample with this number; None where
            nothing is summarised.
        details: facts that a model needs, for example {"users": 610, "items": 9724}.
    """

    name: str
    task: Task
    train: Samples
    test: Samples
    classes: int = 0
    labels: NDArray[np.int64] | None = None
    users: NDArray[np.int64] | None = None
    rouge_l: Callable[[int, Sequence[int]], float] | None = None
    details: dict[str, int]
