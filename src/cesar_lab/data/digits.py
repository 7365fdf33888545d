"""Handwritten digits that come with scikit-learn: 1,797 images of 8x8 pixels, no download.

The split is fixed here, so that every run and every machine tests on the same 359 images.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from cesar.base.seeds import SeedTree
from cesar_lab.data.datasets import require
from cesar_lab.data.samples import Dataset, Samples, Task

_BRIGHTEST = 16
_TEST_SHARE = 0.2


def load(*, flat: bool = False, train_limit: int | None = None, test_limit: int | None = None) -> Dataset:
    """1,438 training and 359 test images with pixels from 0 to 1.

    Args:
        flat: rows of 64 pixels instead of images of shape (1, 8, 8).
        train_limit: take only the first training images.
        test_limit: take only the first test images.
    """
    pixels, labels = require("sklearn.datasets", "lab").load_digits(return_X_y=True)
    images = (pixels / _BRIGHTEST).astype(np.float32)
    if not flat:
        images = images.reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    train, test = _split(labels)
    train, test = train[:train_limit], test[:test_limit]
    return Dataset(
        name="digits",
        task=Task.CLASSIFICATION,
        train=Samples((torch.from_numpy(images[train]), torch.from_numpy(labels[train]))),
        test=Samples((torch.from_numpy(images[test]), torch.from_numpy(labels[test]))),
        classes=10,
        labels=labels[train],
        details={},
    )


def _split(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training and testing: a fifth of every class is for testing."""
    rng = SeedTree(0).generator("digits", "split")
    tested = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(labels == label))
        tested[rows[: round(_TEST_SHARE * len(rows))]] = True
    return np.flatnonzero(~tested), np.flatnonzero(tested)
