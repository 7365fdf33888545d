"""Fixed point: what is announced, how values are rounded, that sums never wrap, and how words are packed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cesar.base.errors import DataError, PrivacyError
from cesar.kernels import bits, packing, ring

relaxed = settings(deadline=None)  # the first call of a kernel compiles it
LARGEST = float(np.finfo(np.float32).max)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = hnp.arrays(np.float32, st.integers(1, 100), elements=finite)


@st.composite
def spread(draw):
    """Values of one scale and many orders of magnitude below it, so that all kinds of remainders occur."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    exponents = draw(st.integers(-40, 40)) - chance.integers(0, 35, 100)
    return np.ldexp(chance.uniform(-1, 1, 100), exponents).astype(np.float32)


widths = st.sampled_from(ring.RING_BITS)


def as_vector(*values):
    return np.array(values, dtype=np.float32)


WHOLE = np.array([1 << 40])
"""One tensor, as long as need be."""


def exponent_of(vector):
    (exponent,) = ring.exponents_of(vector, np.array([len(vector)]))
    return exponent


def one_scale(width, scale):
    return ring.Grid(width, WHOLE, np.array([scale]))


def binary_grid(width, exponent, contributors):
    return ring.binary_grid(width, WHOLE, [exponent], contributors)


def signed(words, width):
    """The numbers between −2^(b−1) and 2^(b−1) that b-bit words stand for."""
    low = words.astype(np.int64) & ((1 << width) - 1)
    return np.where(low >= 1 << (width - 1), low - (1 << width), low)


def sealed(values, grid, dither=0, masks=None):
    """The words that a sender writes for a whole vector."""
    acc = np.zeros(len(values), dtype=np.uint32) if masks is None else masks
    out = np.empty(len(values), dtype=np.uint32)
    everywhere = bits.ones(len(values))
    count = ring.seal(acc, values, everywhere, 0, grid.edges, grid.scales, np.uint64(dither), out)
    assert count == len(values)
    return out


# ── the announced exponent ──────────────────────────────────────────────────────────────────────────────


@given(vectors)
def test_exponent_is_the_smallest_that_holds_the_vector(vector):
    exponent, largest = exponent_of(vector), float(np.abs(vector).max())
    assert ring.LOWEST_EXPONENT <= exponent <= 128
    assert largest <= math.ldexp(1.0, exponent)
    if exponent > ring.LOWEST_EXPONENT:
        assert largest > math.ldexp(1.0, exponent - 1)
    assert 0 <= exponent + ring.EXPONENT_BIAS <= 255, "it travels as one byte"


@pytest.mark.parametrize(
    ("values", "exponent"),
    [
        ((0.0, -0.0), ring.LOWEST_EXPONENT),
        ((), ring.LOWEST_EXPONENT),
        ((1e-45, -1e-40), ring.LOWEST_EXPONENT),
        ((2.0**-90,), -90),
        ((-(2.0**-89),), -89),
        ((1.0,), 0),
        ((-1.0,), 0),
        ((1.0000001,), 1),
        ((LARGEST,), 128),
        ((-LARGEST, 1.0), 128),
    ],
)
def test_exponent_of(values, exponent):
    assert exponent_of(as_vector(*values)) == exponent


@given(vectors, st.data(), st.sampled_from((np.nan, np.inf, -np.inf)))
def test_the_first_bad_value_is_named(vector, data, bad):
    places = data.draw(st.lists(st.integers(0, len(vector) - 1), min_size=1, unique=True))
    vector[places] = bad
    with pytest.raises(
        DataError, match=f"{len(places)} value.*first at position {min(places)};.*nothing was sent"
    ):
        exponent_of(vector)


# ── the grid ────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 1000))
def test_headroom_counts_contributors(contributors):
    assert 1 << (ring.headroom(contributors) - 1) >= contributors
    assert contributors == 1 or 1 << (ring.headroom(contributors) - 2) < contributors


def test_resolution_is_finer_than_six_decimals_below_a_hundred():
    """What design section 4 promises for 32 bits and a degree of up to eight."""
    assert 1 / binary_grid(32, exponent_of(as_vector(100.0)), 8).scales[0] < 1e-6


@given(st.integers(0, 9), st.integers(-90, 128), st.integers(1, 300))
def test_decimals_are_refused_where_a_sum_could_wrap(decimals, exponent, contributors):
    worst = contributors * 10.0**decimals * 2.0**exponent
    if worst < 2.0**31:
        ring.check_decimals(decimals, exponent, contributors)
    else:
        with pytest.raises(PrivacyError, match=r"do not fit a 32-bit sum.*use Cesar\(\) instead"):
            ring.check_decimals(decimals, exponent, contributors)


def test_six_decimals_hold_what_the_paper_needs():
    grid = ring.decimal_grid(6, 9)
    assert (grid.bits, grid.scales[0], grid.stochastic) == (32, 1e6, False)
    ring.check_decimals(6, 8, 8)
    with pytest.raises(PrivacyError):
        ring.check_decimals(6, 9, 8)


# ── rounding ────────────────────────────────────────────────────────────────────────────────────────────


@relaxed
@given(st.one_of(vectors, spread()), st.integers(1, 64))
def test_nearest_rounding_is_off_by_half_a_step_at_most(vector, contributors):
    grid = binary_grid(32, exponent_of(vector), contributors)
    exact = vector.astype(np.float64) * grid.scales[0]
    assert not grid.stochastic
    assert np.abs(signed(sealed(vector, grid), 32) - exact).max() <= 0.5


@relaxed
@given(
    st.one_of(vectors, spread()), st.integers(1, 64), st.sampled_from((16, 20, 24)), st.integers(1, 2**64 - 1)
)
def test_stochastic_rounding_is_off_by_less_than_a_step(vector, contributors, width, dither):
    grid = binary_grid(width, exponent_of(vector), contributors)
    exact = vector.astype(np.float64) * grid.scales[0]
    assert grid.stochastic
    assert np.abs(signed(sealed(vector, grid, dither), width) - exact).max() < 1


@relaxed
@given(st.lists(st.integers(-(2**9), 2**9), min_size=1, max_size=50), st.integers(1, 2**64 - 1))
def test_stochastic_rounding_leaves_whole_steps_alone(steps, dither):
    grid = one_scale(20, 2.0**6)
    vector = np.array(steps, dtype=np.float32) / 64
    assert signed(sealed(vector, grid, dither), 20).tolist() == steps


@pytest.mark.parametrize("remainder", [0.001, 0.25, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("step", [-3.0, 0.0, 5.0])
def test_stochastic_rounding_is_unbiased(step, remainder):
    """The mean of n draws, each up with probability r: 5.5 standard errors are p < 4e-8."""
    draws, dither = 200_000, 0x1234567
    grid = one_scale(16, 2.0**10)
    value = np.float32((step + remainder) / grid.scales[0])
    remainder = float(value) * grid.scales[0] - step  # as a float32 has it
    words = signed(sealed(np.full(draws, value), grid, dither), 16)
    assert set(words.tolist()) <= {step, step + 1}
    error = math.sqrt(remainder * (1 - remainder) / draws)
    assert abs(words.mean() - step - remainder) < 5.5 * error


def test_stochastic_rounding_draws_anew_for_each_position_and_seed():
    grid, halves = one_scale(16, 1.0), np.full(4096, 0.5, dtype=np.float32)
    first, second = sealed(halves, grid, 2**63 + 1), sealed(halves, grid, 2**63 + 12345)
    for words in (first, second, first ^ second, first[1:] ^ first[:-1]):
        assert abs(int(words.sum()) - len(words) / 2) < 5.5 * math.sqrt(len(words)) / 2


# ── sums ────────────────────────────────────────────────────────────────────────────────────────────────


def average(own, contributions, grid, dithers):
    """What a receiver makes of unmasked contributions."""
    total, everywhere = np.full(len(own), 77, dtype=np.uint32), bits.ones(len(own))
    for k, (values, dither) in enumerate(zip(contributions, dithers, strict=True)):
        ring.accumulate(total, everywhere, sealed(values, grid, dither), grid.bits, k == 0)
    kept = np.array([everywhere] * len(contributions))
    counts = np.ones(len(contributions), dtype=np.uint32)
    steps = 1.0 / grid.scales
    ring.average(own, total, kept, counts, everywhere[:0], grid.bits, grid.edges, steps, 0)
    return total.view(np.float32)


@pytest.mark.parametrize("width", ring.RING_BITS)
@pytest.mark.parametrize("exponent", [-90, -3, 0, 10, 127])
def test_the_largest_sums_never_wrap(width, exponent):
    """All senders at ±2^E, up to a degree of 64: the mean is that same value, exactly."""
    worst = np.ldexp(as_vector(1, -1), exponent)
    for degree in range(1, 65):
        grid = binary_grid(width, exponent, degree)
        dithers = [2 * k + 1 if grid.stochastic else 0 for k in range(degree)]
        assert np.array_equal(average(worst, [worst] * degree, grid, dithers), worst), degree


@relaxed
@given(st.data(), st.integers(1, 64), widths, st.integers(-30, 30))
def test_a_mean_is_right_to_the_resolution(data, degree, width, exponent):
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    models = np.ldexp(chance.uniform(-1, 1, (degree + 1, 20)), exponent).astype(np.float32)
    grid = binary_grid(width, exponent, degree)
    dithers = chance.integers(1, 2**63, degree) if grid.stochastic else [0] * degree
    exact = models.astype(np.float64).mean(axis=0)
    slack = 1.0 if grid.stochastic else 0.5
    allowed = degree / (degree + 1) * slack / grid.scales[0] + 2.0 ** (exponent - 23)
    assert np.abs(average(models[0], models[1:], grid, dithers) - exact).max() <= allowed


@relaxed
@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 2**32), st.booleans(), st.booleans())
def test_masks_go_to_common_positions_in_order(size, density, seed, negate, first):
    chance = np.random.default_rng(seed)
    own, theirs = chance.random((2, size)) < density
    common = np.flatnonzero(own & theirs)
    stream = chance.integers(0, 2**32, len(common), dtype=np.uint32)
    acc = chance.integers(0, 2**32, 64 * bits.words_for(size), dtype=np.uint32)
    expected = acc.astype(np.int64) * (not first)
    expected[common] += stream.astype(np.int64) * (-1 if negate else 1)
    ring.add_masks(acc, bits.from_bools(own), bits.from_bools(theirs), stream, negate, first)
    assert np.array_equal(acc, expected % 2**32)


@relaxed
@given(hnp.arrays(np.bool_, st.integers(1, 300)), st.integers(0, 2**32))
def test_a_mean_is_over_those_who_sent_what_is_not_spoiled(first, seed):
    chance = np.random.default_rng(seed)
    size = len(first)
    kept = np.array([first, *(chance.random((4, size)) < 0.5)])
    rows = np.array([bits.from_bools(flags) for flags in kept])
    total = np.full(size, 77, dtype=np.uint32)
    for k, (flags, words) in enumerate(zip(kept, rows, strict=True)):
        values = np.full(flags.sum(), 2**32 - 5, dtype=np.uint32)
        assert ring.accumulate(total, words, values, 32, k == 0) == flags.sum()
    counts = kept.sum(axis=0)
    assert np.array_equal(total, -5 * counts % 2**32)
    spoiled = chance.random(size) < chance.choice([0, 0.5])
    own = chance.normal(size=size).astype(np.float32)
    gone = bits.from_bools(spoiled) if spoiled.any() else rows[0, :0]
    ring.average(own, total, rows, np.ones(5, dtype=np.uint32), gone, 32, WHOLE, np.ones(1), 0)
    summed = (counts > 0) & ~spoiled
    out = total.view(np.float32)
    assert np.array_equal(out[~summed], own[~summed]), "what nobody contributed to stays bit for bit"
    expected = (own.astype(np.float64) - 5 * counts) / (counts + 1)
    assert np.array_equal(out[summed], expected[summed].astype(np.float32))


# ── packing ─────────────────────────────────────────────────────────────────────────────────────────────

words_of_any_size = hnp.arrays(np.uint32, st.integers(0, 200))


@relaxed
@given(words_of_any_size, widths)
def test_packing_is_one_long_number(words, width):
    out = np.empty(packing.packed_size(len(words), width), dtype=np.uint8)
    packing.pack(words, width, out)
    number = sum((int(word) % (1 << width)) << (width * k) for k, word in enumerate(words))
    assert out.tobytes() == number.to_bytes(-(-width * len(words) // 8), "little")


@relaxed
@given(words_of_any_size, widths, st.integers(0, 3))
def test_unpack_undoes_pack_wherever_the_bytes_lie(words, width, offset):
    size = packing.packed_size(len(words), width)
    out = np.empty(offset + size, dtype=np.uint8)
    packing.pack(words, width, out[offset:])
    back = packing.unpack(out[offset:], width, len(words))
    assert np.array_equal(back, words & np.uint32((1 << width) - 1))


# ── a scale for each tensor ─────────────────────────────────────────────────────────────────────────────


@relaxed
@given(st.lists(st.integers(0, 130), min_size=1, max_size=6), widths, st.integers(0, 2**32))
def test_each_tensor_has_the_resolution_of_its_own_size(sizes, width, seed):
    """Through all kernels: the error of a mean is a step of its own tensor's grid, however large the others are."""
    chance, edges = np.random.default_rng(seed), np.cumsum(sizes, dtype=np.int64)
    tensor = np.repeat(np.arange(len(sizes)), sizes)
    magnitudes = chance.integers(-30, 30, len(sizes))
    models = (np.ldexp(1.0, magnitudes)[tensor] * chance.uniform(-1, 1, (4, len(tensor)))).astype(np.float32)
    flags = chance.random(len(tensor)) < 0.7
    kept = bits.from_bools(flags)
    scale = ring.largest_exponents([ring.exponents_of(model, edges) for model in models], ())
    assert all(ring.fits(ring.exponents_of(model, edges), scale) for model in models)
    grid = ring.binary_grid(width, edges, scale, 3)
    total = np.empty(len(tensor), dtype=np.uint32)
    total[:] = 0
    for model in models[1:]:
        words = np.zeros(flags.sum(), dtype=np.uint32)
        dither = np.uint64(seed | 1 if width < 32 else 0)
        nothing = np.zeros(64 * len(kept), dtype=np.uint32)
        ring.seal(nothing, model, kept, 0, grid.edges, grid.scales, dither, words)
        ring.accumulate(total, kept, words, width, False)
    counts = np.array([3], dtype=np.uint32)
    for everybody in (0, 6):
        got, exact = total.copy(), models.astype(np.float64)
        ring.average(models[0], got, kept[None], counts, kept[:0], width, edges, 1.0 / grid.scales, everybody)
        expected = exact.mean(axis=0) if not everybody else (3 * exact[0] + exact[1:].sum(axis=0)) / 6
        expected = np.where(flags, expected, exact[0])
        slack = 3.0 / grid.scales[tensor] + np.abs(exact).max(axis=0, initial=0) * 2.0**-22
        assert (np.abs(got.view(np.float32) - expected) <= slack).all()


@relaxed
@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(0, 2**32))
def test_words_of_many_and_of_few_positions_are_sealed_alike(sizes, seed):
    """Where much is kept all 64 positions of a word are rounded at once; elsewhere, and at edges, one by one."""
    chance, edges = np.random.default_rng(seed), np.cumsum(sizes, dtype=np.int64)
    size = int(edges[-1])
    flags = chance.random(size) < np.repeat(chance.choice([0.0, 0.1, 0.3, 1.0], -(-size // 64)), 64)[:size]
    kept, masks = (
        bits.from_bools(flags),
        chance.integers(0, 2**32, 64 * bits.words_for(size), dtype=np.uint32),
    )
    model = chance.standard_normal(size, dtype=np.float32)
    grid = ring.binary_grid(32, edges, chance.integers(2, 9, len(sizes)).tolist(), 3)
    words = np.zeros(flags.sum(), dtype=np.uint32)
    assert ring.seal(masks, model, kept, 0, edges, grid.scales, np.uint64(0), words) == len(words)
    numbers = np.floor(model.astype(np.float64) * np.repeat(grid.scales, sizes) + 0.5).astype(np.int64)
    assert np.array_equal(words, (masks[:size] + numbers.astype(np.uint32))[flags])


# ── cells: rounding comes after the masks ───────────────────────────────────────────────────────────────


def sealed_cell(models, grid, chance):
    """(m, d) words of a cell's members, whose 64-bit masks add up to zero."""
    masks = chance.integers(0, 2**64, models.shape, dtype=np.uint64)
    masks[-1] = -masks[:-1].sum(axis=0, dtype=np.uint64)
    return np.array(
        [sealed_wide(model, grid, mask) for model, mask in zip(models, masks, strict=True)]
    ), masks


def sealed_wide(values, grid, masks):
    kept, out = bits.ones(len(values)), np.empty(len(values), dtype=np.uint32)
    parts = np.random.default_rng(len(values)).integers(0, 2**64, (3, len(values)), dtype=np.uint64)
    signs = np.array([1, 2**64 - 1, 1, 1], dtype=np.uint64)
    rows = np.vstack([parts, masks - parts[0] + parts[1] - parts[2]])
    count = ring.seal_sum(rows, signs, values, kept, 0, len(kept), grid.edges, grid.scales, grid.bits, out)
    assert count == len(values)
    return out


@relaxed
@given(st.integers(2, 6), widths, st.integers(0, 2**32), st.integers(-40, 40))
def test_a_cells_sum_is_off_by_less_than_half_a_step_per_member(members, width, seed, exponent):
    chance = np.random.default_rng(seed)
    models = np.ldexp(chance.uniform(-1, 1, (members, 100)), exponent).astype(np.float32)
    grid = ring.Grid(width, np.array([100]), binary_grid(width, exponent, members).scales)
    words, _ = sealed_cell(models, grid, chance)
    total = signed(words.sum(axis=0, dtype=np.uint32), width)
    exact = models.astype(np.float64).sum(axis=0) * grid.scales[0]
    assert np.abs(total - exact).max() <= members / 2


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("members", [2, 3, 5])
def test_rounding_after_masks_has_no_bias(members, width):
    """Of the sum alone: values of which every one would be rounded down, or up, by itself."""
    draws, chance = 200_000, np.random.default_rng(members)
    grid = ring.Grid(width, np.array([draws]), np.array([1.0]))
    for value in (0.125, 0.375, 0.75):
        words, _ = sealed_cell(np.full((members, draws), value, dtype=np.float32), grid, chance)
        total = signed(words.sum(axis=0, dtype=np.uint32), width)
        assert abs(total.mean() - members * value) < 5 * np.sqrt(members / 12 / draws) + 1e-9
        assert total.std() <= np.sqrt(members / 6)


@relaxed
@given(st.integers(2, 4), widths, st.integers(0, 2**32), st.integers(-20, 20))
def test_what_a_cell_sends_depends_on_its_sum_alone(members, width, seed, scale):
    """Other values with the same sum, at any scale: other masks, equally likely, give the very same words."""
    chance = np.random.default_rng(seed)
    steps = chance.integers(-(2**12), 2**12, (2, members, 50))
    steps[1, -1] = steps[0].sum(axis=0) - steps[1, :-1].sum(axis=0)
    one, other = (steps / 2**10).astype(np.float32)
    grid = ring.Grid(width, np.array([50]), np.array([2.0 ** min(scale, width - 10)]))
    words, masks = sealed_cell(one, grid, chance)
    moved = [
        sealed_wide(value, grid, mask + fine(was, grid) - fine(value, grid))
        for was, value, mask in zip(one, other, masks, strict=True)
    ]
    assert np.array_equal(words, moved)
    assert not (fine(one, grid) - fine(other, grid)).sum(axis=0, dtype=np.uint64).any(), (
        "these masks cancel, too"
    )


def fine(values, grid):
    """Values as 64-bit words; here they are whole."""
    exact = np.ldexp(values.astype(np.float64) * grid.scales[0], 64 - grid.bits)
    assert np.array_equal(exact, np.round(exact))
    return exact.astype(np.int64).astype(np.uint64)
