"""Partitions: nobody shares a sample, nobody is empty, and what cannot be is refused with advice."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cesar.base.errors import ConfigError
from cesar_lab.data import partition

SEEDS = st.integers(0, 2**32 - 1)
LABELS = st.lists(st.integers(0, 9), min_size=1, max_size=300).map(lambda row: np.array(row, dtype=np.int64))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check(parts, samples: int, nodes: int) -> None:
    """Every sample on exactly one node, and something on every node."""
    assert len(parts) == nodes
    assert all(len(rows) for rows in parts)
    assert all(rows.dtype == np.int64 for rows in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@given(st.integers(1, 500), st.integers(1, 60), SEEDS)
def test_iid_is_even(samples, nodes, seed):
    assume(samples >= nodes)
    parts = partition.iid(samples, nodes, rng(seed))
    check(parts, samples, nodes)
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= 1


@given(LABELS, st.integers(1, 60), st.integers(1, 4), SEEDS)
def test_shards_hold_neighbouring_labels(labels, nodes, per_node, seed):
    assume(len(labels) >= nodes * per_node)
    parts = partition.shards(labels, nodes, rng(seed), per_node=per_node)
    check(parts, len(labels), nodes)
    # In order of label, a node's samples are at most `per_node` unbroken runs.
    place = np.empty(len(labels), dtype=np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    for rows in parts:
        assert np.count_nonzero(np.diff(np.sort(place[rows])) != 1) < per_node


@given(LABELS, st.integers(1, 60), st.integers(1, 4), SEEDS)
def test_slices_are_even_and_cut_where_chance_has_it(labels, nodes, per_node, seed):
    assume(len(labels) >= nodes * per_node)
    parts = partition.slices(labels, nodes, rng(seed), per_node=per_node)
    length = len(labels) // (nodes * per_node)
    assert [len(rows) for rows in parts] == [length * per_node] * nodes
    dealt = np.concatenate(parts)
    assert len(set(dealt.tolist())) == len(dealt), "nobody shares a sample"


def test_slices_span_gaps_where_shards_do_not():
    """Each of 12 nodes cuts two slices of 25 from ten classes of 60: later ones lie across what earlier ones left."""
    labels = np.repeat(np.arange(10), 60)
    classes = {
        divide: np.mean(
            [len(set(labels[rows])) for seed in range(30) for rows in divide(labels, 12, rng(seed))]
        )
        for divide in (partition.shards, partition.slices)
    }
    assert classes[partition.slices] > classes[partition.shards] + 0.3


@given(LABELS, st.integers(1, 20), st.floats(0.05, 1000), SEEDS)
@settings(deadline=None)  # Many draws for few samples on many nodes take their time.
def test_dirichlet_leaves_nobody_empty(labels, nodes, alpha, seed):
    assume(len(labels) >= nodes)
    parts = None
    with contextlib.suppress(ConfigError):  # What the error says is tested below.
        parts = partition.dirichlet(labels, nodes, rng(seed), alpha=alpha)
    assert parts is not None or alpha < 10 or len(labels) < 4 * nodes
    if parts is not None:
        check(parts, len(labels), nodes)


@given(st.lists(st.integers(-5, 40), min_size=1, max_size=300), st.integers(1, 20), st.booleans(), SEEDS)
def test_users_stay_together(users, nodes, balanced, seed):
    users = np.array(users, dtype=np.int64)
    assume(len(set(users)) >= nodes)
    parts = partition.by_user(users, nodes, rng(seed), balanced=balanced)
    check(parts, len(users), nodes)
    homes = [set(users[rows]) for rows in parts]
    assert sum(map(len, homes)) == len(set(users))


@given(st.sampled_from(["iid", "shards", "dirichlet", "by_user"]), SEEDS)
def test_same_generator_same_partition(kind, seed):
    labels = rng(1).integers(0, 10, 400)
    runs = []
    for _ in range(2):
        match kind:
            case "iid":
                runs.append(partition.iid(400, 10, rng(seed)))
            case "dirichlet":
                runs.append(partition.dirichlet(labels, 10, rng(seed), alpha=0.5))
            case name:
                runs.append(getattr(partition, name)(labels, 10, rng(seed)))
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


def test_shards_as_in_the_paper():
    labels = rng().permutation(np.repeat(np.arange(10), 5000))
    parts = partition.shards(labels, 48, rng())
    check(parts, 50_000, 48)
    assert max(len(set(labels[rows])) for rows in parts) <= 4
    assert {len(rows) for rows in parts} <= {1040, 1041, 1042}


def test_alpha_decides_how_uneven():
    labels = np.repeat(np.arange(10), 1000)

    def classes(alpha):
        parts = partition.dirichlet(labels, 20, rng(), alpha=alpha)
        return np.mean([np.bincount(labels[rows], minlength=10).max() / len(rows) for rows in parts])

    assert classes(0.05) > 0.6 > 0.2 > classes(100.0)


def test_balanced_users_are_more_even_than_shuffled_ones():
    users = np.repeat(np.arange(610), rng().integers(20, 300, 610))

    def spread(balanced):
        sizes = [len(rows) for rows in partition.by_user(users, 48, rng(), balanced=balanced)]
        return max(sizes) - min(sizes)

    assert spread(balanced=True) < 50 < spread(balanced=False)


def test_shuffled_users_are_equally_many():
    users = rng().integers(0, 50, 2000)
    parts = partition.by_user(users, 8, rng(), balanced=False)
    assert {len(set(users[rows])) for rows in parts} == {6, 7}


@pytest.mark.parametrize(
    "call, advice",
    [
        (lambda: partition.iid(3, 4, rng()), "at most 3 nodes"),
        (lambda: partition.iid(3, 0, rng()), "at least one node"),
        (lambda: partition.shards(np.zeros(7, np.int64), 4, rng()), "at most 3 nodes"),
        (lambda: partition.shards(np.zeros(7, np.int64), 1, rng(), per_node=0), "at least one shard"),
        (lambda: partition.by_user(np.array([1, 1, 2, 2]), 3, rng()), "at most 2 nodes"),
        (lambda: partition.dirichlet(np.zeros(9, np.int64), 3, rng(), alpha=0), "above 0"),
        (lambda: partition.dirichlet(np.zeros(9, np.int64), 3, rng(), alpha=float("nan")), "above 0"),
        (lambda: partition.dirichlet(np.zeros(9, np.int64), 3, rng(), alpha=float("inf")), "at most"),
        (lambda: partition.dirichlet(np.zeros(9, np.int64), 10, rng(), alpha=1), "at most 9 nodes"),
        (lambda: partition.dirichlet(np.zeros(99, np.int64), 90, rng(), alpha=0.01), "larger alpha"),
        (lambda: partition.dirichlet(np.zeros(9, np.int64), 2, rng(), alpha=5e-324), "larger alpha"),
    ],
)
def test_impossible_partitions_say_what_to_change(call, advice):
    with pytest.raises(ConfigError, match=advice):
        call()
