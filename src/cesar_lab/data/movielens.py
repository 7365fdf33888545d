"""MovieLens ml-latest-small: 100,836 ratings by 610 users of 9,724 movies.

Paper: §IV-A, 70 : 30 split within each user. Users and rated movies are numbered from 0 without gaps, in the
order of their official numbers; the 18 movies that nobody rated have no number.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cesar.base.errors import DataError
from cesar.base.seeds import SeedTree
from cesar_lab.data.datasets import at_least
from cesar_lab.data.samples import Dataset, Samples, Task

SHA256 = "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646"
"""Of `ratings.csv` as it has been since September 2018."""

_HEADER = "userId,movieId,rating,timestamp"


def load(
    folder: Path,
    *,
    seed: int = 0,
    verify: bool = False,
    train_limit: int | None = None,
    test_limit: int | None = None,
) -> Dataset:
    """Samples (user, item, rating from 0.5 to 5.0) in the order of the file.

    Args:
        folder: where `ratings.csv` lies.
        seed: of the split.
        verify: refuse any other `ratings.csv` than that of September 2018. GroupLens may publish another
            under the same name; numbers of users and movies, and so the model's size, follow the file.
        train_limit: take only the first training ratings.
        test_limit: take only the first test ratings.
    """
    at_least(0, "seed", seed)
    path = folder / "ratings.csv"
    if verify:
        _verify(path)
    table = _read(path)
    users, user = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    items, item = np.unique(table[:, 1].astype(np.int64), return_inverse=True)
    rating = table[:, 2].astype(np.float32)
    trained = _trained(user, SeedTree(seed).generator("movielens", "split"))
    train, test = np.flatnonzero(trained)[:train_limit], np.flatnonzero(~trained)[:test_limit]
    columns = Samples((torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rating)))
    return Dataset(
        name="movielens",
        task=Task.RATING,
        train=columns.take(train),
        test=columns.take(test),
        users=user[train],
        details={"users": len(users), "items": len(items)},
    )


def _verify(path: Path) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"{path} is not the known file: SHA-256 {digest}, not {SHA256}; fetch it again with "
            "`cesar data get movielens`, or load it with verify = false"
        )


def _read(path: Path) -> NDArray[np.float64]:
    """User, movie and rating of every line."""
    with path.open(encoding="utf-8") as file:
        header = file.readline().strip()
        if header != _HEADER:
            raise DataError(f"{path} begins with {header!r}, not with {_HEADER!r}: it is not MovieLens' file")
        try:
            table = np.loadtxt(file, delimiter=",", usecols=(0, 1, 2), ndmin=2)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
    if not len(table) or not (table[:, 2] > 0).all() or not (table[:, 2] <= 5).all():
        raise DataError(f"{path} has no ratings, or ratings outside 0.5 to 5.0")
    return table


def _trained(user: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which ratings are for training: seven tenths of each user's, rounded, at random."""
    order = np.lexsort((rng.random(len(user)), user))
    counts = np.bincount(user)
    first = np.cumsum(counts) - counts
    rank = np.empty_like(user)
    rank[order] = np.arange(len(user)) - first[user[order]]
    return np.asarray(rank < (7 * counts[user] + 5) // 10)
