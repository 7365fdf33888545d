"""What each sparsifier selects, and what of it goes to others."""

import gc
import math
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cesar
from cesar.base.errors import ConfigError, EncodingError
from cesar.base.seeds import SeedTree
from cesar.crypto.keys import RoundId
from cesar.indices import Code, IndexSet, codecs, decode, encode
from cesar.methods.sparsify import (
    FullSharing,
    RandomSubsampling,
    TopK,
    read_counted,
    write_set,
)

relaxed = settings(deadline=None)  # the first call of a kernel compiles it
alphas = st.floats(0, 1, exclude_min=True)
values = st.floats(-100, 100, width=32)
vectors = hnp.arrays(np.float32, st.integers(1, 300), elements=values)


def entropy(name="any"):
    return SeedTree(11).entropy(name)


def no_entropy(count):
    raise AssertionError("this sparsifier draws nothing")


def round_id(round_=0, session=b"s" * 16):
    return RoundId(session=session, round_=round_)


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparsifier", [TopK, RandomSubsampling])
@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0000001, 2.0, math.nan, math.inf, -math.inf])
def test_alpha_is_a_fraction(sparsifier, alpha):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        sparsifier(alpha)


@pytest.mark.parametrize("sparsifier", [TopK, RandomSubsampling])
@given(alphas)
def test_every_fraction_is_accepted(sparsifier, alpha):
    assert sparsifier(alpha).alpha == alpha


# ── TopK ────────────────────────────────────────────────────────────────────────────────────────────────


def best(change, wanted):
    """By numpy: the largest magnitudes, of equal ones the first."""
    return np.sort(np.argsort(-np.abs(change).astype(np.float64), kind="stable")[:wanted])


@relaxed
@given(vectors, alphas)
def test_topk_takes_the_largest(vector, alpha):
    chosen = TopK(alpha).select(vector, None, no_entropy)
    wanted = max(1, round(alpha * len(vector)))
    assert chosen.count == wanted
    assert chosen.seed is None
    assert np.array_equal(chosen.positions(), best(vector, wanted))


@relaxed
@given(vectors, alphas, st.data())
def test_topk_ranks_what_training_changed(vector, alpha, data):
    reference = data.draw(hnp.arrays(np.float32, len(vector), elements=values))
    chosen = TopK(alpha).select(vector, reference, no_entropy)
    assert np.array_equal(chosen.positions(), best(vector - reference, chosen.count))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -7.5])
def test_topk_of_equal_values_takes_the_first(value):
    vector = np.full(100, value, dtype=np.float32)
    assert TopK(0.3).select(vector, None, no_entropy).positions().tolist() == list(range(30))


def test_topk_knows_no_sign_of_zero():
    vector = np.array([-0.0, 0.0, -0.0, 1e-45], dtype=np.float32)
    assert TopK(0.5).select(vector, None, no_entropy).positions().tolist() == [0, 3]


def test_topk_takes_one_at_least():
    assert TopK(1e-9).select(np.arange(5, dtype=np.float32), None, no_entropy).positions().tolist() == [4]


def test_topk_of_everything():
    vector = np.arange(130, dtype=np.float32)
    assert TopK(1.0).select(vector, None, no_entropy) == IndexSet.full(130)


def test_topk_leaves_the_vector_alone():
    vector = np.array([-3, 1, 2], dtype=np.float32)
    reference = np.array([0, 5, 0], dtype=np.float32)
    TopK(0.5).select(vector, reference, no_entropy)
    assert vector.tolist() == [-3, 1, 2]
    assert reference.tolist() == [0, 5, 0]


# ── random and full ─────────────────────────────────────────────────────────────────────────────────────


@relaxed
@given(st.integers(1, 3000), alphas)
def test_random_subsampling_is_its_seed(size, alpha):
    vector = np.zeros(size, dtype=np.float32)
    chosen = RandomSubsampling(alpha).select(vector, None, entropy())
    assert chosen.seed == entropy()(16)
    assert chosen == IndexSet.from_seed(chosen.seed, size, alpha)


def test_random_subsampling_draws_anew():
    draw, vector = entropy(), np.zeros(1000, dtype=np.float32)
    first, second = (RandomSubsampling(0.5).select(vector, None, draw) for _ in range(2))
    assert first.seed != second.seed
    assert first != second


def test_full_sharing_shares_everything():
    assert FullSharing().select(np.zeros(77, dtype=np.float32), None, no_entropy) == IndexSet.full(77)
    assert FullSharing.alpha == 1.0


# ── what goes to others ─────────────────────────────────────────────────────────────────────────────────

SET = IndexSet.from_positions([1, 4, 40], 50)
DRAWN = IndexSet.from_seed(b"0123456789abcdef", 50, 0.4)


@pytest.mark.parametrize("code", [None, Code.BITMAP, Code.ELIAS_GAMMA, Code.PATTERNS])
def test_a_set_is_written_with_the_code_asked_for(code):
    data = write_set(SET, code)
    assert data == encode(SET, code)
    assert TopK(0.06).read(data, 50) == SET
    assert TopK(0.5).read(data, 1000, within=50) == SET, "a relayed set is written over fewer positions"


@pytest.mark.parametrize("code", [None, Code.ELIAS_GAMMA])
def test_seeds_and_full_sets_need_no_code(code):
    assert write_set(DRAWN, code) == bytes([Code.SEED]) + DRAWN.seed
    assert write_set(IndexSet.full(50), code) == bytes([Code.FULL])


def test_each_sparsifier_reads_what_it_would_send():
    seed = write_set(DRAWN, None)
    assert RandomSubsampling(0.4).read(seed, 50) == DRAWN
    assert RandomSubsampling(0.4).read(seed, 50, within=20) == DRAWN, "a seed is over all positions"
    assert FullSharing().read(bytes([Code.FULL]), 50) == IndexSet.full(50)


@pytest.mark.parametrize(
    ("sparsifier", "data"),
    [
        (TopK(0.4), write_set(DRAWN, None)),
        (TopK(0.4), b""),
        (TopK(0.4), write_set(SET, None)),
        (TopK(0.4), write_set(IndexSet.full(50), None)),
        (FullSharing(), write_set(SET, None)),
        (FullSharing(), write_set(DRAWN, None)),
        (RandomSubsampling(0.4), b""),
        (RandomSubsampling(0.4), write_set(SET, None)),
        (RandomSubsampling(0.4), write_set(DRAWN, None) + b"1"),
        (RandomSubsampling(0.4), write_set(DRAWN, None)[:-1]),
    ],
)
def test_nothing_else_is_taken(sparsifier, data):
    with pytest.raises(EncodingError):
        sparsifier.read(data, 50)


class EveryOther:
    """A sparsifier that somebody else has written."""

    name, ranks, drawn, memory, alpha = "every-other", False, False, False, 0.5

    def select(self, vector, reference, entropy):
        return IndexSet.from_positions(np.arange(0, len(vector), 2), len(vector))

    def write(self, indices, code):
        return write_set(indices, code)

    def read(self, data, size, *, within=None):
        return read_counted(data, size, (size + 1) // 2, within=within)


def test_a_round_with_a_sparsifier_that_somebody_else_wrote():
    models = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    method = cesar.Cesar(sparsifier=EveryOther())
    result = cesar.aggregate(models, nx.complete_graph(6), method, seed=1)
    np.testing.assert_allclose(
        result.vectors[:, ::2], np.broadcast_to(models[:, ::2].mean(0), (6, 20)), atol=1e-5
    )
    assert (result.vectors[:, 1::2] == models[:, 1::2]).all()
    assert result.shared == 0.5


def test_other_sparsifiers_are_read():
    chosen = EveryOther().select(np.zeros(50), None, no_entropy)
    assert EveryOther().read(EveryOther().write(chosen, None), 50) == chosen


def test_a_set_read_over_another_size_is_refused_or_another():
    with pytest.raises(EncodingError):
        decode(write_set(SET, Code.BITMAP), 60)


def memory_kept(job):
    """Bytes that are still there when something is over."""
    gc.collect()
    tracemalloc.start()
    try:
        job()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


BIG = 1 << 23


@pytest.mark.parametrize("count", [1, 3])
def test_sets_that_were_refused_are_not_kept(count):
    """A few bytes stand for a bitmap of the model's size: a neighbour could fill the memory with them."""
    wrong = [
        encode(IndexSet.from_positions(np.arange(k, k + count), BIG), code)
        for k in range(20)
        for code in (Code.RICE, Code.ELIAS_GAMMA, Code.PATTERNS)
    ]

    def read(sets):
        for data in sets:
            with pytest.raises(EncodingError, match=f"a set of {count} positions"):
                TopK(0.4).read(data, BIG)

    read(wrong[:3])  # the tables of the codes are made
    assert memory_kept(lambda: read(wrong[3:])) < BIG // 8


@pytest.mark.parametrize("code", [Code.BITMAP, Code.PATTERNS])
def test_nor_are_small_ones(code):
    """These codes do not say how many positions they have, so that they are read before they can be refused."""
    kept = codecs._read_and_keep.cache_info().currsize
    for k in range(20):
        with pytest.raises(EncodingError, match="a set of 1 positions"):
            TopK(0.4).read(encode(IndexSet.from_positions([k], 4096), code), 4096)
    assert codecs._read_and_keep.cache_info().currsize == kept


def test_sets_of_large_models_are_not_kept():
    """They are right, and there can be as many as rounds."""
    few = TopK(8 / BIG)
    right = [write_set(IndexSet.from_positions(np.arange(k, k + 8), BIG), Code.RICE) for k in range(20)]

    def read():
        for data in right:
            assert few.read(data, BIG).count == 8

    assert memory_kept(read) < BIG // 8


def test_whoever_announces_how_many_is_not_read():
    """A gap code says its count first; nothing is allocated for a wrong one."""
    data = encode(IndexSet.from_positions([1, 2], BIG), Code.RICE)
    tracemalloc.start()
    try:
        with pytest.raises(EncodingError):
            TopK(0.4).read(data, BIG)
        assert tracemalloc.get_traced_memory()[1] < BIG // 80
    finally:
        tracemalloc.stop()
