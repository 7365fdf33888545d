"""What each sparsifier selects, and what of it goes to others."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cesar import bits
from cesar.crypto.keys import RoundId
from cesar.errors import ConfigError, EncodingError
from cesar.indices import Code, IndexSet, decode, encode
from cesar.seeds import SeedTree
from cesar.sparsify import (
    CoordinatedSubsampling,
    FullSharing,
    RandomSubsampling,
    TopK,
    read_set,
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


def attempt(round_=0, session=b"s" * 16):
    return RoundId(session=session, round_=round_)


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparsifier", [TopK, RandomSubsampling, CoordinatedSubsampling])
@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0000001, 2.0, math.nan, math.inf, -math.inf])
def test_alpha_is_a_fraction(sparsifier, alpha):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        sparsifier(alpha)


@pytest.mark.parametrize("sparsifier", [TopK, RandomSubsampling, CoordinatedSubsampling])
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


# ── coordinated ─────────────────────────────────────────────────────────────────────────────────────────


def test_coordinated_sets_are_everybodys():
    one, other = (CoordinatedSubsampling(0.4).select_for(3, attempt(9), 500) for _ in range(2))
    assert one == other
    assert one.seed == other.seed


def test_coordinated_sets_differ_by_receiver_round_and_session():
    sampling = CoordinatedSubsampling(0.4)
    settings_ = [(r, attempt(t, s)) for r in range(3) for t in range(3) for s in (b"a" * 16, b"b" * 16)]
    seeds = {sampling.select_for(receiver, which, 500).seed for receiver, which in settings_}
    assert len(seeds) == len(settings_)


# ── groups that take turns ──────────────────────────────────────────────────────────────────────────────


def turns(alpha, groups, *, receiver=3, round_=9, size=5000, session=b"s" * 16):
    """(groups, size): which group is active where."""
    drawn = RandomSubsampling(alpha).in_turns(receiver, attempt(round_, session), size, groups)
    words = [drawn(number).words for number in range(groups)]
    assert all(bits.is_bitmap(one, size) for one in words)
    return np.array([bits.to_bools(one, size) for one in words])


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.3, 0.5, 2 / 3, 0.9, 1.0])
def test_at_every_position_the_share_of_active_groups_is_alpha(alpha, groups):
    """As near as whole groups allow; over all positions within 5.5 standard errors, which is p < 4e-8."""
    size = 64_000
    active = turns(alpha, groups, size=size).sum(axis=0)
    wanted = alpha * groups
    whole, rate = int(wanted), wanted - int(wanted)
    assert set(np.unique(active)) <= {whole, whole + 1}
    assert abs(active.sum() - wanted * size) <= 5.5 * math.sqrt(size * rate * (1 - rate)) + 1e-6


@pytest.mark.parametrize("alpha", [0.3, 0.7])
def test_every_group_has_its_share_of_every_word(alpha):
    """Over as many rounds as there are groups, every group has had every place in the row of every word."""
    groups, size = 3, 6400
    whole = int(alpha * groups)
    counts = sum(turns(alpha, groups, size=size, round_=round_).astype(int) for round_ in range(20, 23))
    assert counts.min() >= whole
    assert counts.max() <= whole + 1
    sent = counts.mean(axis=1) / groups
    assert np.abs(sent - alpha).max() < 5.5 * math.sqrt(0.25 / size)


def test_everybody_computes_the_same_turns():
    assert np.array_equal(turns(0.3, 2), turns(0.3, 2))


def test_turns_differ_by_receiver_round_and_session():
    found = [turns(0.3, 2), turns(0.3, 2, receiver=4), turns(0.3, 2, session=b"t" * 16)]
    found += [turns(0.3, 2, round_=11), turns(0.3, 2, round_=10)]
    assert len({one.tobytes() for one in found}) == len(found)


def test_a_share_of_whole_groups_draws_nothing():
    found = turns(0.5, 4, size=640, round_=2)
    for w in range(10):
        active = {number for number in range(4) if found[number, 64 * w]}
        assert active == {(2 + w) % 4, (3 + w) % 4}
        assert (found[:, 64 * w : 64 * w + 64] == found[:, 64 * w : 64 * w + 1]).all()


# ── what goes to others ─────────────────────────────────────────────────────────────────────────────────

SET = IndexSet.from_positions([1, 4, 40], 50)
DRAWN = IndexSet.from_seed(b"0123456789abcdef", 50, 0.4)


@pytest.mark.parametrize("code", [None, Code.BITMAP, Code.ELIAS_GAMMA, Code.ENTROPY])
def test_a_set_is_written_with_the_code_asked_for(code):
    data = write_set(SET, code)
    assert data == encode(SET, code)
    assert read_set(TopK(0.06), data, 50) == SET
    assert read_set(TopK(0.5), data, 1000, within=50) == SET, "a relayed set is written over fewer positions"


@pytest.mark.parametrize("code", [None, Code.ELIAS_GAMMA])
def test_seeds_and_full_sets_need_no_code(code):
    assert write_set(DRAWN, code) == bytes([Code.SEED]) + DRAWN.seed
    assert write_set(IndexSet.full(50), code) == bytes([Code.FULL])
    assert write_set(None, code) == b""


def test_each_sparsifier_reads_what_it_would_send():
    seed = write_set(DRAWN, None)
    assert read_set(RandomSubsampling(0.4), seed, 50) == DRAWN
    assert read_set(RandomSubsampling(0.4), seed, 50, within=20) == DRAWN, "a seed is over all positions"
    assert read_set(CoordinatedSubsampling(0.4), b"", 50) is None
    assert read_set(FullSharing(), bytes([Code.FULL]), 50) == IndexSet.full(50)


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
        (CoordinatedSubsampling(0.4), write_set(DRAWN, None)),
        (CoordinatedSubsampling(0.4), b"\x00"),
    ],
)
def test_nothing_else_is_taken(sparsifier, data):
    with pytest.raises(EncodingError):
        read_set(sparsifier, data, 50)


class EveryOther:
    """A sparsifier that somebody else has written."""

    name, alpha = "every other", 0.5

    def select(self, vector, reference, entropy):
        return IndexSet.from_positions(np.arange(0, len(vector), 2), len(vector))


def test_other_sparsifiers_are_read():
    chosen = EveryOther().select(np.zeros(50), None, no_entropy)
    assert read_set(EveryOther(), write_set(chosen, None), 50) == chosen


def test_a_set_read_over_another_size_is_refused_or_another():
    with pytest.raises(EncodingError):
        decode(write_set(SET, Code.BITMAP), 60)
