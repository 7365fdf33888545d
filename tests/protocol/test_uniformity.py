"""A share alone looks uniform.

Real nodes average models of zeros, so that a word on the wire is nothing but masks and any structure in
them would show. Each statistic has a threshold that uniform words exceed with a probability of 1e-6. There
are some thousands of them, so with fresh seeds about one run in several hundred would fail; keys and seeds
come from a fixed tree, so what passes once always passes. The same statistics notice words that were not
masked, or masked badly: see the end of the file.
"""

import math
from functools import cache
from itertools import combinations, count
from statistics import NormalDist

import networkx as nx
import numpy as np
import pytest

from cesar.base.seeds import SeedTree
from cesar.crypto.keys import KeyPair
from cesar.graph.neighbourhood import neighbourhoods
from cesar.kernels import bits, packing, ring
from cesar.methods import Cesar, SecureAggregation
from cesar.methods.sparsify import RandomSubsampling
from cesar.node import Node
from cesar.protocol import Deadlines
from cesar.protocol.wire import Kind, Share, read_header
from cesar.sim.wires import Wires
from support.harness import FakeKeys

CHANCE = 1e-6
Z = NormalDist().inv_cdf(1 - CHANCE / 2)
SIZE = 20_000
GRAPH = nx.complete_graph(4)
SEEDS = SeedTree(31)
SESSION = SEEDS.bytes(16, "session")


# ── statistics ──────────────────────────────────────────────────────────────────────────────────────────


def chi_square_bound(freedom):
    """The value that chi-square exceeds with probability `CHANCE` (Wilson and Hilferty's approximation)."""
    tail = NormalDist().inv_cdf(1 - CHANCE)
    return freedom * (1 - 2 / (9 * freedom) + tail * math.sqrt(2 / (9 * freedom))) ** 3


def poisson_bound(mean):
    """The smallest k with P(X ≥ k) < `CHANCE`."""
    term, below = math.exp(-mean), 0.0
    for k in count():
        if 1 - below < CHANCE or term == 0.0:
            return k
        below, term = below + term, term * mean / (k + 1)
    raise AssertionError


def byte_excess(words, width):
    """How far the bytes of the packed words are from equally frequent, relative to the bound."""
    packed = np.empty(packing.packed_size(len(words), width), dtype=np.uint8)
    packing.pack(words, width, packed)
    observed, expected = np.bincount(packed, minlength=256), len(packed) / 256
    return ((observed - expected) ** 2 / expected).sum() / chi_square_bound(255)


def bit_excess(words, width):
    """The most unbalanced bit position."""
    ones = np.array([((words >> np.uint32(k)) & np.uint32(1)).sum() for k in range(width)], dtype=np.float64)
    return np.abs(ones - len(words) / 2).max() / (Z * math.sqrt(len(words)) / 2)


def correlation(left, right, width):
    """Of two rows of words, in standard errors; words are taken as numbers in the middle of which is zero."""
    half = (2.0**width - 1) / 2
    product = ((left - half) * (right - half)).sum() / ((2.0**width) ** 2 - 1) * 12
    return abs(product) / (Z * math.sqrt(len(left)))


def serial_excess(words, width):
    """The strongest correlation of words with those a few places on."""
    numbers = words.astype(np.float64)
    return max(correlation(numbers[:-lag], numbers[lag:], width) for lag in (1, 2, 3, 4, 64))


def flaws(words, width):
    """What uniform words would not show."""
    found = {
        "bytes": byte_excess(words, width),
        "bits": bit_excess(words, width),
        "serial": serial_excess(words, width),
    }
    return {name: excess for name, excess in found.items() if not excess < 1}


def links(left, right, width):
    """What two unrelated rows of words would not have in common."""
    size, mask = len(left), np.uint32((1 << width) - 1)
    equal = int((left == right).sum())
    distance = int(np.bitwise_count(left ^ right).sum())
    found = {
        "equal words": equal / poisson_bound(size / 2.0**width),
        "hamming": abs(distance - size * width / 2) / (Z * math.sqrt(size * width) / 2),
        "correlation": correlation(left.astype(np.float64), right.astype(np.float64), width),
    }
    # If one were the other plus something simple, the difference would be simple.
    for name, combined in (
        ("difference", left - right),
        ("sum", left + right),
        ("exclusive or", left ^ right),
    ):
        found |= {f"{name}: {flaw}": excess for flaw, excess in flaws(combined & mask, width).items()}
    return {name: excess for name, excess in found.items() if not excess < 1}


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────────────


@cache
def secret_of(i, j):
    pairs = [KeyPair.generate(SEEDS.entropy("keys", k)) for k in (i, j)]
    return pairs[0].agree(pairs[1].public, SESSION)


def captured(method, models, *, round_=0, attempt=0, graph=GRAPH):
    """(sender, receiver) → the words of that share, as they were on the wire."""
    hoods, nodes, words = neighbourhoods(graph), {}, {}
    for i in graph:
        keys = FakeKeys(SESSION, i, lambda _, i, j: secret_of(i, j))
        nodes[i] = Node(i, method, models.shape[1], session=SESSION, keys=keys)
        nodes[i].begin_round(
            round_,
            hoods[i],
            models[i],
            entropy=SEEDS.entropy("attempt", attempt, round_, i),
            deadlines=Deadlines(announce=1.0, relay=2.0, share=3.0),
        )

    def arrives(sender, recipient, frame):
        if frame.kind is Kind.SHARE:
            _, body = read_header(frame.payload)
            share = Share.decode(body, hoods[recipient].view, explicit=False)
            words[sender, recipient] = packing.unpack(share.values, method.ring_bits, frame.parameters).copy()
        return True

    wires = Wires(nodes, arrives=arrives)
    wires.run()
    assert not wires.rejected
    assert len(words) == 2 * graph.number_of_edges()
    return words


ZEROS = np.zeros((len(GRAPH), SIZE), dtype=np.float32)


@cache
def zero_round(width, round_=0, attempt=0):
    """Every parameter of models of zero, masked, so that word k of every share belongs to parameter k."""
    return captured(SecureAggregation(ring_bits=width), ZEROS, round_=round_, attempt=attempt)


widths = pytest.mark.parametrize("width", ring.RING_BITS)


@widths
def test_each_share_looks_uniform(width):
    for words in zero_round(width).values():
        assert len(words) == SIZE
        assert flaws(words, width) == {}


@widths
@pytest.mark.parametrize("value", [1.0, -1.0, 0.3])
def test_each_share_of_a_constant_model_looks_uniform(width, value):
    for words in captured(SecureAggregation(ring_bits=width), ZEROS + np.float32(value)).values():
        assert flaws(words, width) == {}


@widths
@pytest.mark.parametrize("s", [1, 2])
def test_each_sparse_share_looks_uniform(width, s):
    """Only some of the partners mask a parameter; the least that a sent one carries is s masks."""
    method = Cesar(sparsifier=RandomSubsampling(0.6), masking_requirement=s, ring_bits=width)
    for words in captured(method, ZEROS).values():
        assert 0.2 * SIZE < len(words) < 0.6 * SIZE
        assert flaws(words, width) == {}


@widths
def test_two_rounds_are_unrelated(width):
    first, second = zero_round(width), zero_round(width, round_=1)
    for pair in first:
        assert links(first[pair], second[pair], width) == {}


@widths
def test_two_receivers_are_unrelated(width):
    words = zero_round(width)
    for sender in GRAPH:
        for one, other in combinations(GRAPH[sender], 2):
            assert links(words[sender, one], words[sender, other], width) == {}


@widths
def test_two_attempts_are_unrelated(width):
    """A node that restarts from a checkpoint repeats the round with fresh seeds and the same long-term keys."""
    first, second = zero_round(width), zero_round(width, attempt=1)
    for pair in first:
        assert links(first[pair], second[pair], width) == {}


@widths
def test_two_senders_are_unrelated(width):
    """Each pair of a group of three shares a mask, and the third node's masks hide it."""
    words = zero_round(width)
    for receiver in GRAPH:
        for one, other in combinations(GRAPH[receiver], 2):
            assert links(words[one, receiver], words[other, receiver], width) == {}


@widths
def test_a_whole_group_is_not_uniform_at_all(width):
    """The sum of all shares to a receiver is the sum of the models: zero in every word."""
    words, mask = zero_round(width), np.uint32((1 << width) - 1)
    for receiver in GRAPH:
        total = sum(words[sender, receiver] for sender in GRAPH[receiver])
        assert not np.any(total & mask)


# ── the tests can fail ──────────────────────────────────────────────────────────────────────────────────


def unmasked(values, width):
    """What would travel if there were no masks."""
    edges = np.array([len(values)])
    grid = ring.binary_grid(width, edges, ring.exponents_of(values, edges), 3)
    out = np.empty(len(values), dtype=np.uint32)
    dither = np.uint64(12345 if grid.stochastic else 0)
    masks, everywhere = np.zeros(len(values), dtype=np.uint32), bits.ones(len(values))
    ring.seal(masks, values, everywhere, 0, grid.edges, grid.scales, dither, out)
    return out & np.uint32((1 << width) - 1)


@widths
def test_unmasked_words_are_noticed(width):
    models = {
        "zeros": ZEROS[0],
        "constant": ZEROS[0] + np.float32(0.3),
        "gaussian": SEEDS.generator("model").standard_normal(SIZE, dtype=np.float32),
        "uniform": SEEDS.generator("model").uniform(-1, 1, SIZE).astype(np.float32),
    }
    for name, model in models.items():
        assert flaws(unmasked(model, width), width), name


@widths
def test_a_mask_used_twice_is_noticed(width):
    """One model, or one that moved a little, under the same mask."""
    mask = zero_round(width)[0, 1]
    model = SEEDS.generator("model").standard_normal(SIZE, dtype=np.float32)
    low = np.uint32((1 << width) - 1)
    first = (mask + unmasked(model, width)) & low
    for later in (model, model * np.float32(1.001), model + np.float32(0.01)):
        second = (mask + unmasked(later, width)) & low
        assert flaws(second, width) == {}, "alone, it looks as good as any"
        assert links(first, second, width)
        assert links(first, -second & low, width)


@widths
def test_an_equal_seed_is_noticed(width):
    """What fresh seeds are for: the same attempt twice is the same words."""
    again = captured(SecureAggregation(ring_bits=width), ZEROS)
    for pair, words in zero_round(width).items():
        assert "equal words" in links(words, again[pair], width)


@widths
@pytest.mark.parametrize("flaw", ["a bit is stuck", "one value in fifty is zero", "one word in ten repeats"])
def test_weak_masks_are_noticed(width, flaw):
    words, chance = zero_round(width)[0, 1].copy(), SEEDS.generator("flaw")
    if flaw == "a bit is stuck":
        words |= np.uint32(1 << (width - 1))
    elif flaw == "one value in fifty is zero":
        words[chance.random(SIZE) < 0.02] = 0
    else:
        repeated = np.flatnonzero(chance.random(SIZE - 1) < 0.1)
        words[repeated + 1] = words[repeated]
    assert flaws(words, width)


def test_bounds():
    """Against the exact distributions: chi-square with 255 degrees of freedom, normal, and Poisson, for
    which P(X ≥ 6) = 7.8e-7 at a mean of 0.3.
    """
    assert chi_square_bound(255) == pytest.approx(377.08, abs=0.5)
    assert pytest.approx(4.8916, abs=1e-3) == Z
    assert [poisson_bound(mean) for mean in (1e-9, 1e-5, 0.3)] == [1, 2, 6]
