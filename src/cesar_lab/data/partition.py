"""Partitions: which training samples lie on which node.

Pure functions: labels, users or a number of samples go in, with a generator; one array of sample numbers per
node comes out. Every sample is on at most one node (but for `slices`: on exactly one), and no node is empty; where that
cannot be, the error says what to change.

Paper: §IV-A, "no two nodes share samples".
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError

Rows = NDArray[np.int64]
"""Numbers of samples."""

DRAWS = 1000
LARGEST_ALPHA = 1e6


def iid(samples: int, nodes: int, rng: np.random.Generator) -> list[Rows]:
    """Shuffle and split evenly: sizes differ by one at most. Paper: §IV-A, IID.

    >>> sorted(len(rows) for rows in iid(10, 4, np.random.default_rng(0)))
    [2, 2, 3, 3]
    """
    _check(samples, nodes)
    return np.array_split(rng.permutation(samples), nodes)


def shards(labels: Rows, nodes: int, rng: np.random.Generator, *, per_node: int = 2) -> list[Rows]:
    """Sort by label, cut into `per_node` chunks per node, deal them out. Paper: §IV-A, non-IID.

    With two chunks, each within two neighbouring classes at most, a node of CIFAR-10 sees at most four.

    >>> labels = np.repeat(np.arange(10), 30)
    >>> max(len(set(labels[rows])) for rows in shards(labels, 15, np.random.default_rng(0)))
    2
    """
    if per_node < 1:
        raise ConfigError(f"every node needs at least one shard, not {per_node}")
    _check(len(labels), nodes, per_node)
    chunks = np.array_split(np.argsort(labels, kind="stable"), nodes * per_node)
    dealt = rng.permutation(len(chunks)).reshape(nodes, per_node)
    return [np.concatenate([chunks[number] for number in hand]) for hand in dealt]


def slices(labels: Rows, nodes: int, rng: np.random.Generator, *, per_node: int = 2) -> list[Rows]:
    """Sort by label; each node in turn cuts `per_node` slices of equal length out of what is left, at random places.

    What is left is closed to a ring, so a slice may span a gap that others left, and then has more classes than a shard. Up
    to nodes × per_node − 1 samples stay with nobody. This is how `KShardDataPartitioner` of decentralizepy, which the
    paper's authors use, divides labels.

    >>> labels = np.repeat(np.arange(10), 30)
    >>> [len(rows) for rows in slices(labels, 7, np.random.default_rng(0))]
    [42, 42, 42, 42, 42, 42, 42]
    """
    if per_node < 1:
        raise ConfigError(f"every node needs at least one slice, not {per_node}")
    _check(len(labels), nodes, per_node)
    length, left = len(labels) // (nodes * per_node), np.argsort(labels, kind="stable")

    def cut() -> Rows:
        nonlocal left
        turned = np.roll(left, -rng.integers(len(left)))
        left = turned[length:]
        return turned[:length]

    return [np.concatenate([cut() for _ in range(per_node)]) for _ in range(nodes)]


def dirichlet(labels: Rows, nodes: int, rng: np.random.Generator, *, alpha: float) -> list[Rows]:
    """Spread every class over the nodes in proportions drawn from Dirichlet(α, …, α).

    A small α puts most of a class on few nodes; a large one is close to IID. Proportions that leave a node
    empty are drawn again, so the outcome is the distribution given that nobody is empty.

    >>> [len(rows) for rows in dirichlet(np.repeat([0, 1], 50), 2, np.random.default_rng(0), alpha=1e5)]
    [50, 50]
    """
    if not 0 < alpha <= LARGEST_ALPHA:
        raise ConfigError(f"alpha must be above 0 and at most {LARGEST_ALPHA:,.0f}, not {alpha}")
    _check(len(labels), nodes)
    classes, sizes = np.unique(labels, return_counts=True)
    cuts = _cuts(sizes, nodes, rng, alpha)
    pieces = [
        np.split(rng.permutation(np.flatnonzero(labels == label)), cut)
        for label, cut in zip(classes, cuts, strict=True)
    ]
    return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


def _cuts(sizes: Rows, nodes: int, rng: np.random.Generator, alpha: float) -> Rows:
    """(classes, nodes − 1): where to cut each class so that every node gets something of some class."""
    for _ in range(DRAWS):
        shares = rng.dirichlet(np.full(nodes, alpha), size=len(sizes))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]).astype(np.int64)
        cuts = np.minimum(cuts, sizes[:, None])  # The shares of a row may add up to a hair more than one.
        counts = np.diff(cuts, axis=1, prepend=0, append=sizes[:, None])
        if counts.sum(axis=0).all():
            return np.asarray(cuts)
    raise ConfigError(
        f"Dirichlet with alpha {alpha} left one of {nodes} nodes without samples in each of {DRAWS} draws: "
        "take a larger alpha, fewer nodes or more samples"
    )


def by_user(users: Rows, nodes: int, rng: np.random.Generator, *, balanced: bool = True) -> list[Rows]:
    """Keep every user's samples together on one node. Paper: §IV-A, MovieLens.

    Args:
        users: (samples,) who each sample belongs to.
        nodes: number of nodes.
        rng: of the order of the users.
        balanced: spread the users so that nodes have about equally many samples (the largest user first, to
            the node with the fewest); otherwise shuffle them and give each node equally many users.

    >>> [rows.tolist() for rows in by_user(np.array([7, 7, 7, 1, 2, 1]), 2, np.random.default_rng(0))]
    [[0, 1, 2], [3, 4, 5]]
    """
    _check(len(users), nodes)
    names, owner, counts = np.unique(users, return_inverse=True, return_counts=True)
    if len(names) < nodes:
        raise ConfigError(
            f"{len(names)} users cannot be spread over {nodes} nodes, as each needs one: "
            f"take at most {len(names)} nodes, or another partition"
        )
    order = rng.permutation(len(names))
    home = _balance(counts, order, nodes) if balanced else _deal(order, nodes)
    return _group(home[owner], nodes)


def _deal(order: Rows, nodes: int) -> Rows:
    """The node of each user: equally many users for each."""
    home = np.empty(len(order), dtype=np.int64)
    for node, group in enumerate(np.array_split(order, nodes)):
        home[group] = node
    return home


def _balance(counts: Rows, order: Rows, nodes: int) -> Rows:
    """The node of each user: the largest first, each to the node with the fewest samples so far."""
    home = np.empty(len(order), dtype=np.int64)
    loads = [(0, node) for node in range(nodes)]
    for user in order[np.argsort(-counts[order], kind="stable")]:
        load, node = loads[0]
        home[user] = node
        heapq.heapreplace(loads, (load + int(counts[user]), node))
    return home


def _group(nodes_of: Rows, nodes: int) -> list[Rows]:
    """Sample numbers by node."""
    order = np.argsort(nodes_of, kind="stable")
    return np.split(order, np.cumsum(np.bincount(nodes_of, minlength=nodes))[:-1])


def _check(samples: int, nodes: int, each: int = 1) -> None:
    if nodes < 1:
        raise ConfigError(f"there must be at least one node, not {nodes}")
    if samples < nodes * each:
        shards_ = "" if each == 1 else f" with {each} shards each"
        raise ConfigError(
            f"{samples} samples cannot be spread over {nodes} nodes{shards_}: "
            f"take at most {samples // each} nodes, or more samples"
        )
