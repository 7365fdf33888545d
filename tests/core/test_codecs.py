"""Index codes: any set through every code, any bytes into the decoder, and the choice between codes."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cesar.base.errors import EncodingError
from cesar.indices import Code, IndexSet, codecs, decode, encode, gaps
from cesar.kernels import bits

relaxed = settings(deadline=None)  # the first call of a kernel compiles it
WRITTEN = (Code.BITMAP, Code.PATTERNS, Code.RICE, Code.ELIAS_GAMMA)
"""The codes that can write any set."""

sizes = st.one_of(st.integers(0, 200), st.integers(1, 5000), st.sampled_from((4095, 4096, 4097, 8192, 9000)))
densities = st.one_of(st.floats(0, 1), st.sampled_from((0.0, 0.001, 0.01, 0.3422, 0.5, 0.99, 1.0)))


def set_of(flags):
    return IndexSet.of_words(bits.from_bools(np.asarray(flags, dtype=np.bool_)), len(flags))


@st.composite
def scattered(draw):
    """Each position with the same chance."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    return set_of(chance.random(draw(sizes)) < draw(densities))


@st.composite
def layered(draw, step=1, most=3000):
    """A density per layer, as TopK selects from a real model. Real layers do not know of the code's blocks,
    so by default their sizes are multiples of one.
    """
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    layers = draw(st.lists(st.tuples(st.integers(1, most), densities), min_size=1, max_size=6))
    return set_of(np.concatenate([chance.random(step * size) < density for size, density in layers]))


@st.composite
def clustered(draw):
    """Runs of members and of gaps."""
    runs = draw(st.lists(st.integers(1, 1500), max_size=12))
    return set_of(np.repeat(np.arange(len(runs)) % 2 == draw(st.integers(0, 1)), runs))


any_set = st.one_of(
    scattered(),
    layered(),
    clustered(),
    sizes.map(IndexSet.full),
    sizes.map(lambda size: IndexSet.from_positions([], size)),
)


# ── round trips ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", WRITTEN)
@relaxed
@given(any_set)
def test_every_code_gives_every_set_back(code, indices):
    data = encode(indices, code)
    assert data[0] == code
    back = decode(data, indices.size)
    assert back == indices
    assert back.count == indices.count
    assert np.array_equal(back.positions(), indices.positions())


@pytest.mark.parametrize("size", [*range(1, 200), 4095, 4096, 4097])
def test_every_size_through_every_code(size):
    chance = np.random.default_rng(size)
    for density in (0.0, 0.05, 0.5, 1.0):
        indices = set_of(chance.random(size) < density)
        for code in WRITTEN:
            assert decode(encode(indices, code), size) == indices


@relaxed
@given(any_set)
def test_the_chosen_code_gives_the_set_back(indices):
    data = encode(indices)
    assert decode(data, indices.size) == indices
    assert len(data) <= codecs.longest(indices.size)


@pytest.mark.parametrize("code", WRITTEN)
@relaxed
@given(indices=any_set)
def test_no_encoding_is_longer_than_promised(code, indices):
    """The engine refuses longer frames, so an honest encoding must never be one of them."""
    if code is not Code.RICE:  # never chosen where it is long, and never asked for
        assert len(encode(indices, code)) <= codecs.longest(indices.size)


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_full_set_is_its_tag(size):
    assert encode(IndexSet.full(size)) == bytes([Code.FULL])
    assert decode(bytes([Code.FULL]), size) == IndexSet.full(size)


def test_only_a_full_set_is_written_as_full():
    with pytest.raises(EncodingError, match="only a full set"):
        encode(IndexSet.from_positions([0, 2], 3), Code.FULL)


def test_only_a_drawn_set_is_written_as_a_seed():
    with pytest.raises(EncodingError, match="drawn from a seed"):
        encode(IndexSet.from_positions([0, 2], 3), Code.SEED)


@relaxed
@given(st.binary(min_size=16, max_size=16), st.integers(0, 3000), st.floats(0, 1))
def test_a_drawn_set_is_written_as_its_seed(seed, size, alpha):
    indices = IndexSet.from_seed(seed, size, alpha)
    data = encode(indices)
    assert data == bytes([Code.SEED]) + seed
    assert decode(data, size, alpha) == indices
    with pytest.raises(EncodingError, match="not what was agreed on"):
        decode(data, size)


# ── arbitrary bytes ─────────────────────────────────────────────────────────────────────────────────────

tags = st.sampled_from([*Code, 5, 7, 255]).map(lambda tag: bytes([tag]))
small_counts = st.integers(0, 300).map(lambda count: count.to_bytes(4, "little"))
bodies = st.one_of(
    st.binary(max_size=400),
    st.tuples(small_counts, st.binary(max_size=300)).map(b"".join),
    st.tuples(small_counts, st.integers(0, 33).map(lambda k: bytes([k])), st.binary(max_size=300)).map(
        b"".join
    ),
    st.tuples(st.binary(max_size=2), st.integers(0, 100), st.binary(max_size=40)).map(
        lambda parts: parts[0] + bytes(parts[1]) + parts[2]
    ),
)


def decoded(data, size):
    """The set, or None where it was refused; anything but an EncodingError goes up."""
    try:
        indices = decode(data, size, 0.5)
    except EncodingError:
        return None
    assert indices.size == size
    assert bits.is_bitmap(indices.words, size)
    assert len(indices.words) == bits.words_for(size)
    assert indices.count == bits.to_bools(indices.words, size).sum() <= size
    return indices


@settings(deadline=None, max_examples=1000)
@given(tags, bodies, sizes)
@example(b"\x03", b"\xff\xff\xff\xff\x00", 5000)
@example(b"\x04", b"\xff\xff\xff\x7f" + bytes(400), 5000)
@example(b"\x03", b"\x01\x00\x00\x00\x1f" + bytes(399) + b"\x80", 5000)
def test_any_bytes_are_a_set_or_refused(tag, body, size):
    indices = decoded(tag + body, size)
    if indices is not None and tag[0] in WRITTEN:
        assert decode(encode(indices, Code(tag[0])), size) == indices


def bytes_that_count(code, whole, size):
    """All behind the tag but what a writer may choose freely: the density classes of patterns, and Rice's k."""
    free = {Code.PATTERNS: range(1, 1 + -(-size // 4096)), Code.RICE: (5,)}
    return [k for k in range(1, len(whole)) if k not in free.get(code, ())]


@pytest.mark.parametrize("code", WRITTEN)
@settings(deadline=None, max_examples=300)
@given(indices=any_set, data=st.data())
def test_a_spoiled_encoding_is_another_set_or_refused(code, indices, data):
    """Whichever bit is turned over: no two bodies with the same free choices stand for the same set."""
    spoiled = bytearray(encode(indices, code))
    places = bytes_that_count(code, spoiled, indices.size)
    assume(places)
    spoiled[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    assert decoded(bytes(spoiled), indices.size) != indices


@pytest.mark.parametrize("code", WRITTEN)
@relaxed
@given(indices=any_set, data=st.data())
def test_a_truncated_encoding_is_refused(code, indices, data):
    whole = encode(indices, code)
    assert decoded(whole[: data.draw(st.integers(0, len(whole) - 1))], indices.size) is None


@relaxed
@given(any_set, st.sampled_from(WRITTEN), st.binary(min_size=1, max_size=3))
def test_bytes_behind_the_end_are_refused(indices, code, rest):
    assert decoded(encode(indices, code) + rest, indices.size) is None


@pytest.mark.parametrize("data", [b"", b"\x05\x80", b"\x07", b"\xff1234"])
def test_unknown_codes_are_refused(data):
    with pytest.raises(EncodingError, match=r"at least one byte|no index code"):
        decode(data, 10)


@pytest.mark.parametrize("code", [Code.BITMAP, Code.PATTERNS])
def test_bits_past_the_end_are_refused(code):
    """Written over 64 positions, read over 61 (as many bytes): the last member does not exist."""
    data = encode(IndexSet.from_positions([0, 20, 63], 64), code)
    with pytest.raises(EncodingError, match=r"past the end|behind its end"):
        decode(data, 61)


@pytest.mark.parametrize("code", [Code.RICE, Code.ELIAS_GAMMA])
def test_positions_out_of_range_are_refused(code):
    data = encode(IndexSet.from_positions([0, 20, 63], 64), code)
    assert decode(data, 64).positions().tolist() == [0, 20, 63]
    with pytest.raises(EncodingError, match="out of range"):
        decode(data, 63)


def test_padding_must_be_zero():
    data = bytearray(encode(IndexSet.from_positions([2], 10), Code.ELIAS_GAMMA))
    data[-1] |= 0x80
    with pytest.raises(EncodingError, match="padding"):
        decode(bytes(data), 10)


@pytest.mark.parametrize("code", [Code.RICE, Code.ELIAS_GAMMA])
def test_a_claim_of_many_members_is_refused(code):
    for count in (2**32 - 1, 10**6, 41):
        with pytest.raises(EncodingError, match="do not fit"):
            decode(bytes([code]) + count.to_bytes(4, "little") + b"\x00" + b"\xff" * 50, 40)


SIZE = 100_000
hostile = {
    "bitmap": b"\x01" + b"\xff" * (SIZE // 8),
    "patterns": b"\x02" + b"\x1f" * 25 + b"\xff" * 20_000,
    "patterns of nothing": b"\x02" + b"\x01" * 25,
    "rice": b"\x03" + SIZE.to_bytes(4, "little") + b"\x00" + b"\xff" * (SIZE // 8),
    "rice with a long run": b"\x03" + (1).to_bytes(4, "little") + b"\x1f" + bytes(30_000) + b"\x01",
    "gamma": b"\x04" + SIZE.to_bytes(4, "little") + b"\xff" * (SIZE // 8),
    "claims": b"\x04\xff\xff\xff\xff" + bytes(1000),
}


@pytest.mark.parametrize("data", hostile.values(), ids=hostile)
def test_memory_is_bounded_by_what_the_reader_knows(data):
    """Sixteen bytes per position and per byte received, whatever the bytes say."""
    decoded(data, SIZE)  # compiles kernels and fills tables, once
    tracemalloc.start()
    try:
        decoded(data, SIZE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * (SIZE + len(data)) + 65536


# ── the choice ──────────────────────────────────────────────────────────────────────────────────────────


def assert_close_to_smallest(indices):
    """Within 2 % and 16 bytes of the smallest of all codes."""
    smallest = min(len(encode(indices, code)) for code in WRITTEN)
    assert len(encode(indices)) <= 1.02 * smallest + 16


@settings(deadline=None, max_examples=200)
@given(st.one_of(scattered(), layered(step=4096, most=2)))
def test_the_choice_is_close_to_the_smallest(indices):
    """For independent positions of one density per block."""
    assert_close_to_smallest(indices)


@pytest.mark.parametrize("run", [64, 256, 2048])
def test_the_choice_is_close_to_the_smallest_for_runs(run):
    """Members in runs within a block: Elias gamma writes a member of a run in one bit."""
    assert_close_to_smallest(set_of(np.arange(40_960) // run % 2 == 1))


def in_segments(chance):
    """Members in runs of any mean length and density, as a Markov chain makes them."""
    ends = np.cumsum(chance.random(chance.integers(100, 20_000)) < chance.random())
    return set_of((chance.random(ends[-1] + 1) < chance.random() ** 2)[ends])


def test_the_choice_is_mostly_close_to_the_smallest_for_clusters():
    """Codes are compared by estimates where sets cluster, so a few may be larger, and none by much."""
    chance, excess = np.random.default_rng(9), []
    while len(excess) < 300:
        indices = in_segments(chance)
        smallest = min(len(encode(indices, code)) for code in WRITTEN)
        excess.append((len(encode(indices)) - 16) / smallest)
    assert np.mean(np.array(excess) > 1.02) < 0.02
    assert max(excess) < 1.3


@pytest.mark.parametrize("size", [20_000, 89_834])
@pytest.mark.parametrize(
    "density", [0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3422, 0.5, 0.7, 0.9, 0.99, 0.9999]
)
def test_the_choice_is_close_to_the_smallest_for_models(size, density):
    assert_close_to_smallest(set_of(np.random.default_rng(size).random(size) < density))


@pytest.mark.parametrize("density", [0.05, 0.1, 0.3422, 0.5])
def test_the_choice_is_close_to_the_entropy(density):
    """No code of independent positions can do better than the entropy."""
    size = 89_834
    indices = set_of(np.random.default_rng(1).random(size) < density)
    entropy = -size * (density * np.log2(density) + (1 - density) * np.log2(1 - density)) / 8
    assert entropy * 0.98 <= len(encode(indices)) <= entropy * 1.03


def test_fast_codes_are_preferred():
    def chosen(density):
        return codecs.encode(set_of(np.random.default_rng(3).random(89_834) < density))[0]

    assert chosen(0.5) == Code.BITMAP
    assert chosen(0.3) == Code.PATTERNS
    assert chosen(0.001) == Code.RICE


@relaxed
@given(any_set)
def test_sizes_are_known_without_encoding(indices):
    parameter = gaps.rice_parameter(indices)
    assert 1 + gaps.size_of(indices, None) == len(encode(indices, Code.ELIAS_GAMMA))
    assert 1 + gaps.size_of(indices, parameter) == len(encode(indices, Code.RICE))


# ── index sets ──────────────────────────────────────────────────────────────────────────────────────────


@relaxed
@given(st.lists(st.integers(0, 299), unique=True))
def test_positions_come_back_in_order(positions):
    indices = IndexSet.from_positions(positions, 300)
    assert indices.positions().tolist() == sorted(positions)
    assert indices.count == len(positions)


@pytest.mark.parametrize("positions", [[-1], [10], [0, 10], [2**40]])
def test_positions_outside_are_refused(positions):
    with pytest.raises(EncodingError, match=r"outside 0\.\.9"):
        IndexSet.from_positions(positions, 10)


def test_repeated_positions_are_refused():
    with pytest.raises(EncodingError, match="named twice"):
        IndexSet.from_positions([3, 5, 3], 10)


@relaxed
@given(scattered(), st.integers(0, 2**32), densities)
def test_within_and_back(owner, seed, density):
    """What a relay writes and what its addressee makes of it: the members that both have."""
    chance = np.random.default_rng(seed)
    other = set_of(chance.random(owner.size) < density)
    relayed = other.within(owner)
    assert relayed.size == owner.count
    back = decode(encode(relayed), owner.count).spread_over(owner)
    assert np.array_equal(back.words, other.words & owner.words)
    assert back.count == relayed.count == bits.count(back.words)


def test_equality_and_repr():
    one = IndexSet.from_positions([1, 5], 9)
    assert one == IndexSet.from_positions([5, 1], 9)
    assert one != IndexSet.from_positions([1, 5], 10)
    assert one != IndexSet.from_positions([1, 6], 9)
    assert one != {1, 5}
    assert repr(one) == "IndexSet(2 of 9)"
    with pytest.raises(TypeError):
        hash(one)


def test_more_bytes_than_any_set_takes_are_refused_unread():
    with pytest.raises(EncodingError, match="no set of 40 positions takes 200 bytes"):
        decode(bytes([Code.RICE]) + bytes(199), 40)
