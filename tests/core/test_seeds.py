"""Reproducible streams: equal for equal paths, unrelated for any others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cesar.base.seeds import SeedTree

names = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.sampled_from(("1", "2", "a', 'b", "draw")))
paths = st.lists(names, max_size=4).map(tuple)
seeds = st.integers(0, 2**70)


@given(seeds, paths, st.integers(0, 100))
def test_a_path_always_gives_the_same(seed, path, count):
    assert SeedTree(seed).bytes(count, *path) == SeedTree(seed).bytes(count, *path)
    assert len(SeedTree(seed).bytes(count, *path)) == count


@given(seeds, paths, paths)
def test_paths_do_not_meet(seed, one, other):
    """Not even where their names could be run together or numbers be taken for text."""
    tree = SeedTree(seed)
    assert (tree.bytes(16, *one) == tree.bytes(16, *other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("ab",), ("a", "b")), (("1",), (1,)), ((), ("",)), (("a", 12), ("a", 1, 2)), (("a", "b"), ("a', 'b",))],
)
def test_paths_that_look_alike(one, other):
    assert SeedTree(7).bytes(16, *one) != SeedTree(7).bytes(16, *other)


@given(seeds, seeds, paths)
def test_seeds_do_not_meet(one, other, path):
    assert (SeedTree(one).bytes(16, *path) == SeedTree(other).bytes(16, *path)) == (one == other)


@given(seeds, paths)
def test_entropy_never_repeats_itself(seed, path):
    draw = SeedTree(seed).entropy(*path)
    drawn = [draw(16) for _ in range(50)]
    assert len(set(drawn)) == 50
    again = SeedTree(seed).entropy(*path)
    assert [again(16) for _ in range(50)] == drawn


def test_sources_of_one_path_do_not_share_a_position():
    tree = SeedTree(1)
    first, second = tree.entropy("a"), tree.entropy("a")
    assert first(16) == second(16)
    assert first(16) == second(16)


@given(seeds, paths)
def test_generators_start_the_same(seed, path):
    one, other = (SeedTree(seed).generator(*path) for _ in range(2))
    assert one is not other
    assert np.array_equal(one.integers(0, 2**60, 5), other.integers(0, 2**60, 5))


def test_generators_of_two_paths_differ():
    tree = SeedTree(3)
    one, other = (tree.generator("data", k).random(100) for k in range(2))
    assert not np.any(one == other)


def test_an_integer_of_numpy_is_an_integer():
    assert SeedTree(np.int64(7)).bytes(16, "a") == SeedTree(7).bytes(16, "a")
    assert SeedTree(7).bytes(16, np.int64(1)) == SeedTree(7).bytes(16, 1)
