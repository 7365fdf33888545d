"""Every kernel on bitmaps against the same thing said with numpy booleans or plain integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.kernels import bits

relaxed = settings(deadline=None)  # the first call of a kernel compiles it


@st.composite
def flags(draw, size=None):
    """Booleans of any density: scattered, in runs, none or all."""
    size = draw(st.integers(0, 700)) if size is None else size
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    run = draw(st.sampled_from((1, 1, 50)))
    density = draw(st.sampled_from((0.0, 0.02, 0.3, 0.5, 0.9, 1.0)))
    return np.repeat(chance.random(size // run + 1) < density, run)[:size]


@st.composite
def several_flags(draw, count):
    size = draw(st.integers(0, 700))
    return [draw(flags(size)) for _ in range(draw(count))]


def bitmap(flags):
    return bits.from_bools(np.asarray(flags, dtype=np.bool_))


@relaxed
@given(flags())
def test_bitmaps_are_booleans_and_bytes(chosen):
    words = bitmap(chosen)
    assert words.dtype == np.uint64
    assert len(words) == bits.words_for(len(chosen)) == -(-len(chosen) // 64)
    assert bits.is_bitmap(words, len(chosen))
    assert np.array_equal(bits.to_bools(words, len(chosen)), chosen)
    data = bits.to_bytes(words, len(chosen))
    assert data.tobytes() == np.packbits(chosen, bitorder="little").tobytes()
    assert np.array_equal(bits.from_bytes(data, len(chosen)), words)


@given(st.integers(0, 700))
def test_ones_has_every_position_and_no_other(size):
    words = bits.ones(size)
    assert bits.is_bitmap(words, size)
    assert bits.to_bools(words, size).sum() == size


@pytest.mark.parametrize("size", [1, 63, 65, 700])
def test_a_bit_past_the_end_is_noticed(size):
    words = bits.ones(size)
    words[-1] |= np.uint64(1) << np.uint64(size % 64)
    assert not bits.is_bitmap(words, size)


@relaxed
@given(flags())
def test_count_and_positions(chosen):
    words, members = bitmap(chosen), np.flatnonzero(chosen)
    assert bits.count(words) == len(members)
    out = np.empty(len(members), dtype=np.int32)
    bits.positions(words, out)
    assert np.array_equal(out, members)


@relaxed
@given(flags(), st.integers(1, 5))
def test_count_by_block(chosen, block):
    words = bitmap(chosen)
    out = np.empty(-(-len(words) // block), dtype=np.int64)
    bits.count_blocks(words, block, out)
    assert np.array_equal(out, np.bincount(np.flatnonzero(chosen) // (64 * block), minlength=len(out)))


@relaxed
@given(several_flags(st.integers(1, 7)), st.integers(1, 5))
def test_at_least_counts(sets, threshold):
    size = len(sets[0])
    enough = bits.at_least(map(bitmap, sets), threshold, bits.words_for(size))
    assert bits.is_bitmap(enough, size)
    assert np.array_equal(bits.to_bools(enough, size), np.sum(sets, axis=0) >= threshold)


def test_at_least_of_no_sets():
    assert bits.at_least([], 1, 3).tolist() == [0, 0, 0]
    assert bits.at_least([], 0, 1).tolist() == [2**64 - 1]


@relaxed
@given(several_flags(st.just(2)))
def test_compress_is_boolean_indexing(pair):
    source, keep = pair
    out = np.zeros(bits.words_for(int(keep.sum())), dtype=np.uint64)
    bits.compress(bitmap(source), bitmap(keep), out)
    assert np.array_equal(bits.to_bools(out, int(keep.sum())), source[keep])


@relaxed
@given(several_flags(st.just(2)))
def test_expand_undoes_compress(pair):
    source, keep = pair
    dense = np.zeros(bits.words_for(int(keep.sum())), dtype=np.uint64)
    bits.compress(bitmap(source), bitmap(keep), dense)
    out = np.full(bits.words_for(len(keep)), 77, dtype=np.uint64)  # whatever was there is overwritten
    bits.expand(dense, bitmap(keep), out)
    assert np.array_equal(bits.to_bools(out, len(keep)), source & keep)


@relaxed
@given(flags(), st.data())
def test_compress_undoes_expand(keep, data):
    count = int(keep.sum())
    dense = bitmap(data.draw(flags(count)))
    spread = np.empty(bits.words_for(len(keep)), dtype=np.uint64)
    bits.expand(dense, bitmap(keep), spread)
    out = np.zeros_like(dense)
    bits.compress(spread, bitmap(keep), out)
    assert np.array_equal(out, dense)


# ── bernoulli ───────────────────────────────────────────────────────────────────────────────────────────

thresholds = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from((0, 1, 2**31, 2**24, 2**32 - 1)))


def plane_word(planes, w, k):
    return int(planes[512 * (w // 64) + 64 * k + w % 64])


def scalar_bernoulli(planes, ties, threshold, words):
    """Bit by bit, each position's number against the threshold's highest bits; the tie words used."""
    used, chosen = 0, []
    for w in range(words):
        numbers = [sum((plane_word(planes, w, k) >> t & 1) << (7 - k) for k in range(8)) for t in range(64)]
        known = 8
        while known < 32 and threshold >> (32 - known) in numbers:
            numbers = [number << 1 | int(ties[used]) >> t & 1 for t, number in enumerate(numbers)]
            used, known = used + 1, known + 1
        chosen += [number < threshold >> (32 - known) for number in numbers]
    return chosen, used


def drawn_planes(seed, words, threshold, tied):
    """Uniform planes, in which a fraction of the words is made to tie with the threshold everywhere."""
    chance = np.random.default_rng(seed)
    planes = chance.integers(0, 2**64, 512 * -(-words // 64), dtype=np.uint64)
    for w in np.flatnonzero(chance.random(words) < tied):
        for k in range(8):
            bit = threshold >> (31 - k) & 1
            planes[512 * (w // 64) + 64 * k + w % 64] = bits.FULL if bit else bits.ZERO
    return planes, chance.integers(0, 2**64, 24 * words, dtype=np.uint64)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 70), thresholds, st.sampled_from((0.0, 0.1, 1.0)))
def test_bernoulli_compares_numbers(seed, words, threshold, tied):
    planes, ties = drawn_planes(seed, words, threshold, tied)
    expected, needed = scalar_bernoulli(planes, ties, threshold, words)
    out = np.empty(words, dtype=np.uint64)
    assert bits.bernoulli(planes, ties, threshold, out) == needed
    assert bits.to_bools(out, 64 * words).tolist() == expected


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 20), thresholds)
def test_bernoulli_decides_at_the_last_bit(seed, words, threshold):
    """In every word the first position agrees with the threshold in all bits but the last."""
    planes, ties = drawn_planes(seed, words, threshold, 1.0)
    for w in range(words):
        for k in range(8, 31):
            forced = np.uint64(threshold >> (31 - k) & 1)
            ties[24 * w + k - 8] = ties[24 * w + k - 8] & ~bits.ONE | forced
    expected, needed = scalar_bernoulli(planes, ties, threshold, words)
    out = np.empty(words, dtype=np.uint64)
    assert bits.bernoulli(planes, ties, threshold, out) == needed == 24 * words
    assert bits.to_bools(out, 64 * words).tolist() == expected


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 20), thresholds)
def test_bernoulli_says_when_ties_run_out(seed, words, threshold):
    planes, ties = drawn_planes(seed, words, threshold, 1.0)
    _, needed = scalar_bernoulli(planes, ties, threshold, words)
    out = np.empty(words, dtype=np.uint64)
    assert needed > 0
    assert bits.bernoulli(planes, ties[: needed - 1], threshold, out) == -1
    assert bits.bernoulli(planes, ties[:needed], threshold, out) == needed


# ── largest ─────────────────────────────────────────────────────────────────────────────────────────────


@relaxed
@given(
    st.integers(0, 2**32),
    st.integers(1, 500),
    st.sampled_from((1, 2, 5, 2**9, 2**20, 2**31 - 1)),
    st.floats(0, 1),
)
def test_largest_is_a_stable_sort(seed, size, most, part):
    keys = np.random.default_rng(seed).integers(0, most, size, endpoint=True).astype(np.int32)
    wanted = round(part * size)
    words = np.empty(bits.words_for(size), dtype=np.uint64)
    bits.largest(keys, wanted, words)
    best = np.argsort(-keys.astype(np.int64), kind="stable")[:wanted]
    assert np.array_equal(np.flatnonzero(bits.to_bools(words, size)), np.sort(best))
    assert bits.is_bitmap(words, size)


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("wanted", [0, 1, 64, 65, 130])
def test_of_equal_keys_the_first_win(value, wanted):
    keys = np.full(130, value, dtype=np.int32)
    words = np.empty(3, dtype=np.uint64)
    bits.largest(keys, wanted, words)
    assert np.flatnonzero(bits.to_bools(words, 130)).tolist() == list(range(wanted))
